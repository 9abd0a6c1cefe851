"""What scripts for vLLM do beyond generate and chat: engine arguments, queues, metrics, tokenizers; and refusals."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from fathom import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from fathom.errors import ConfigError, EngineDeadError, ValidationError
from fathom.metrics import Counter, Gauge, Histogram
from tests.entrypoints.conftest import make_llm

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "Hi"}]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }};{% endfor %}"


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def generate(llm: LLM, prompts: Any, **options: Any) -> list[list[int]]:
    return tokens(llm.generate(prompts, GREEDY, use_tqdm=False, **options))


# ---------------------------------------------------------------- engine arguments


def test_engine_arguments_are_a_dataclass_of_all_options(tiny: Callable[[str], Path], llm: LLM) -> None:
    args = EngineArgs(
        model=str(tiny("llama-gqa")), max_model_len="128", multiprocess=False, num_threads=1, swap_space=4
    )
    assert (args.max_model_len, args.dtype, args.seed) == (128, "auto", None)
    for made in (LLM(**asdict(args)), LLM.from_engine_args(args)):
        with made:
            assert generate(made, [[5, 6]]) == generate(llm, [[5, 6]])


def test_engine_arguments_are_checked_at_once() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        EngineArgs(max_modellen=5)
    with pytest.raises(ConfigError, match="enable_lora=True is not supported"):
        EngineArgs(enable_lora=True)


def test_engine_arguments_from_a_script_s_flags(tiny: Callable[[str], Path]) -> None:
    parser = argparse.ArgumentParser()
    assert EngineArgs.add_cli_args(parser) is parser
    parser.add_argument("--mine", type=int)
    parser.set_defaults(model="some/model")
    flags = parser.parse_args(["--max-model-len", "1k", "--mine", "3", "--no-multiprocess", "--trust-remote-code"])
    assert vars(flags) == {
        "model": "some/model",
        "max_model_len": 1000,
        "mine": 3,
        "multiprocess": False,
        "trust_remote_code": True,
    }
    args = EngineArgs.from_cli_args(flags)
    assert (args.model, args.max_model_len, args.multiprocess) == ("some/model", 1000, False)
    assert args.create_engine_config().model.max_model_len == 1000


def test_an_engine_that_is_stepped(tiny: Callable[[str], Path], llm: LLM) -> None:
    args = EngineArgs(model=str(tiny("llama-gqa")), max_model_len=128, multiprocess=False, num_threads=1)
    with LLMEngine.from_engine_args(args) as engine:
        assert engine.get_tokenizer() is engine.tokenizer
        engine.add_request("a", TokensPrompt(prompt_token_ids=[5, 6]), GREEDY)
        engine.add_request("b", [5], SamplingParams(n=2, max_tokens=100, ignore_eos=True))
        assert engine.get_num_unfinished_requests() == 2
        (aborted,) = engine.abort_request("b")[-1:]
        assert aborted.finished
        outputs: list[RequestOutput] = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        assert tokens(outputs[-1:]) == generate(llm, [[5, 6]])


def test_an_async_engine_is_made_within_its_loop(tiny: Callable[[str], Path], llm: LLM) -> None:
    args = AsyncEngineArgs(model=str(tiny("llama-gqa")), max_model_len=128, num_threads=1, show_progress=False)
    with pytest.raises(ConfigError, match="none is running here"):
        AsyncLLMEngine.from_engine_args(args)

    async def run() -> list[list[int]]:
        with pytest.raises(ConfigError, match="process of its own"):
            AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=args.model, multiprocess=False))
        engine = AsyncLLMEngine.from_engine_args(args)
        try:
            assert await engine.get_tokenizer() is engine.tokenizer
            assert engine.is_running
            with pytest.raises(ValidationError, match="lora_request=5 is not supported"):
                await anext(engine.generate([5], GREEDY, "x", lora_request=5))
            stream = engine.generate(request_id="r", prompt={"prompt_token_ids": [5, 6]}, sampling_params=GREEDY)
            outputs = [output async for output in stream]
            await engine.abort(["r", "nobody"])
        finally:
            engine.shutdown()
        assert not engine.is_running
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        return tokens(outputs[-1:])

    assert asyncio.run(run()) == generate(llm, [[5, 6]])


# ---------------------------------------------------------------- LLM's other methods


def test_typed_prompts_are_dictionaries(llm: LLM) -> None:
    text = "Tiny models"
    ids = llm.get_tokenizer().encode(text)
    assert generate(llm, TextPrompt(prompt=text)) == generate(llm, TokensPrompt(prompt_token_ids=ids))
    with pytest.raises(
        ValidationError, match=r"'multi_modal_data' are not supported\. .* may hold 'cache_salt'"
    ) as caught:
        generate(llm, {"prompt": text, "multi_modal_data": {"image": 1}})
    assert (caught.value.parameter, caught.value.value) == ("multi_modal_data", {"image": 1})


def test_what_is_enqueued_is_answered_later_in_its_order(llm: LLM) -> None:
    prompts = [[5], [6, 7], [8]]
    expected = generate(llm, prompts)
    first = llm.enqueue(prompts[:2], GREEDY)
    second = llm.enqueue([prompts[2]], SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
    assert generate(llm, [[9]]) == generate(llm, [[9]])  # the enqueued ones' answers come with these, and are kept
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == first + second
    assert tokens(outputs) == expected
    assert llm.wait_for_completion(use_tqdm=False) == []
    with pytest.raises(ValidationError, match="the prompt is empty"):
        llm.enqueue([[5], []], GREEDY)
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_bar_of_the_caller_s_own(llm: LLM) -> None:
    bars: list[Any] = []

    def make(**options: Any) -> Any:
        bars.append(partial(tqdm, disable=False, file=open("/dev/null", "w"))(**options))  # noqa: SIM115
        return bars[-1]

    llm.generate([[5], [6]], GREEDY, use_tqdm=make)
    assert (bars[0].n, bars[0].total) == (2, 2)
    bars[0].fp.close()


@pytest.mark.parametrize("name", ["lora_request", "tokenization_kwargs", "mm_processor_kwargs"])
def test_arguments_that_cannot_be_honoured(llm: LLM, name: str) -> None:
    assert generate(llm, [[5]], **{name: None}) == generate(llm, [[5]])
    for call in (partial(llm.generate, [5]), partial(llm.chat, MESSAGES, chat_template=TEMPLATE)):
        with pytest.raises(ValidationError, match=f"{name}=.* is not supported") as caught:
            call(**{name: {"a": 1}})
        assert caught.value.parameter == name


@pytest.mark.parametrize("name", ["embed", "encode", "score", "classify", "sleep", "wake_up", "apply_model"])
def test_methods_that_are_not_there_say_what_to_do(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match=rf"LLM\.{name} is not supported: "):
        getattr(llm, name)
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'nothing'"):
        llm.nothing  # noqa: B018


def test_calls_of_the_workers(llm: LLM) -> None:
    assert llm.get_world_size() == 1
    assert llm.collective_rpc("is_profiling", None, (), {}) == [False]
    for options in ({"timeout": 3.0}, {"kwargs": {"a": 1}}):
        with pytest.raises(ValidationError, match="is not supported"):
            llm.collective_rpc("is_profiling", **options)
    with pytest.raises(ValidationError, match="a function cannot be sent to the workers"):
        llm.collective_rpc(lambda worker: 1)
    assert repr(llm).endswith(": LlamaForCausalLM, 3 layers)")


def test_a_priority_is_refused_where_nothing_looks_at_it(llm: LLM) -> None:
    with pytest.raises(ValidationError, match=r"priority=3 would change nothing.*scheduling_policy='priority'"):
        generate(llm, [[5], [6]], priority=[0, 3])
    assert len(generate(llm, [[5], [6]], priority=0)) == 2


def test_metrics_as_values(tiny: Callable[[str], Path], llm: LLM) -> None:
    with pytest.raises(ConfigError, match="Make it with disable_log_stats=False"):
        llm.get_metrics()
    with make_llm(tiny("llama-gqa"), disable_log_stats=False) as counting:
        generate(counting, [[5, 6, 7], [8, 9]])
        metrics = counting.get_metrics()
        three = SamplingParams(n=3, max_tokens=4, seed=0, ignore_eos=True)
        counting.generate({"prompt_token_ids": [8, 9]}, three, use_tqdm=False)
        of_three = {metric.name: metric for metric in counting.get_metrics()}
    values = {metric.name: metric.value for metric in metrics if isinstance(metric, (Counter, Gauge))}
    assert (values["fathom:prompt_tokens"], values["fathom:generation_tokens"]) == (5, 12)
    assert (values["fathom:num_requests_running"], values["fathom:num_requests_waiting"]) == (0, 0)
    ended = {m.labels["finished_reason"]: m.value for m in metrics if m.name == "fathom:request_success"}
    assert ended == {"stop": 0, "length": 2, "abort": 0, "error": 0}
    sizes = {metric.name: metric for metric in metrics if isinstance(metric, Histogram)}
    prompts = sizes["fathom:request_prompt_tokens"]
    assert (prompts.count, prompts.sum, prompts.buckets["2.0"], prompts.buckets["+Inf"]) == (2, 5.0, 1, 2)
    assert {name.partition(":")[0] for name in (metric.name for metric in metrics)} == {"fathom"}
    assert (of_three["fathom:prompt_tokens"].value, of_three["fathom:generation_tokens"].value) == (5 + 2, 12 + 3 * 4)
    params_n, max_tokens = of_three["fathom:request_params_n"], of_three["fathom:request_params_max_tokens"]
    assert (params_n.count, params_n.sum, max_tokens.count) == (3, 1 + 1 + 3, 3)  # a request once
    assert of_three["fathom:request_generation_tokens"].count == 2 + 3  # each answer


# ---------------------------------------------------------------- the tokenizer


def test_a_tokenizer_has_the_methods_that_scripts_use(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Tiny models")
    assert tokenizer("Tiny models").input_ids == tokenizer("Tiny models")["input_ids"] == ids
    assert tokenizer("Tiny models")["attention_mask"] == [1] * len(ids)
    assert tokenizer.batch_decode([ids, ids[:1]]) == [tokenizer.decode(ids), tokenizer.decode(ids[:1])]
    spelled = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.convert_tokens_to_ids(spelled) == ids
    assert tokenizer.convert_tokens_to_ids(spelled[0]) == ids[0]
    assert tokenizer.get_vocab()[spelled[0]] == ids[0]
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.get_vocab())
    assert tokenizer.all_special_tokens == [tokenizer.id_to_token(i) for i in sorted(tokenizer.all_special_ids)]
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, chat_template=TEMPLATE)
    assert text == "user: Hi;"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template=TEMPLATE) == tokenizer.encode(text, False)
    with pytest.raises(AttributeError, match=r"no 'pad'; .*transformers.AutoTokenizer"):
        tokenizer.pad(5)
