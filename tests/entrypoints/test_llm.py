"""LLM.generate: what a prompt may be, the order of what comes back, and what a wrong call leaves behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathom import LLM, CompletionOutput, RequestOutput, SamplingParams
from fathom.errors import ContextLengthError, EngineDeadError, ValidationError
from tests.entrypoints.conftest import MAX_MODEL_LEN, make_llm

TEXT = "Tiny models with random weights"
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def is_idle(llm: LLM) -> bool:
    stats = llm.get_stats()
    engine = llm.llm_engine
    return stats["num_running"] == stats["num_waiting"] == 0 and not engine.has_unfinished_requests()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm: LLM) -> Any:
    yield
    assert is_idle(llm)
    assert llm.llm_engine.engine_core.call("check_invariants")


# ---------------------------------------------------------------- prompts


def test_forms_of_one_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXT)
    assert len(ids) > 3
    forms: list[Any] = [
        TEXT,
        [TEXT],
        ids,
        [ids],
        tuple(ids),
        range(ids[0], ids[0] + 1),
        {"prompt": TEXT},
        {"prompt_token_ids": ids},
        {"prompt_token_ids": ids, "prompt": "another text"},
        {"prompt": TEXT, "cache_salt": "tenant"},
        {"prompt": TEXT, "multi_modal_data": None},
        np.array(ids),
        np.array([ids], np.int32),
        [np.int64(token_id) for token_id in ids],
        {"prompt_token_ids": np.array(ids)},
        torch.tensor(ids),
        array("i", ids),
    ]
    expected = generate(llm, TEXT)[0].outputs[0].token_ids
    for form in forms:
        outputs = generate(llm, form)
        assert len(outputs) == 1, form
        if not isinstance(form, range):
            assert outputs[0].prompt_token_ids == ids, form
            assert outputs[0].outputs[0].token_ids == expected, form
        assert all(type(token_id) is int for token_id in outputs[0].prompt_token_ids)


def test_the_prompt_s_text_comes_back_if_it_came_as_text(llm: LLM) -> None:
    outputs = generate(llm, [TEXT, [5, 6], {"prompt": TEXT}, {"prompt_token_ids": [5, 6], "prompt": "said so"}])
    assert [output.prompt for output in outputs] == [TEXT, None, TEXT, "said so"]


def test_a_mixed_batch_comes_back_in_order_and_as_if_alone(llm: LLM) -> None:
    prompts: list[Any] = [[9, 8, 7], "with", {"prompt_token_ids": [3] * 40}, {"prompt": "one", "cache_salt": "x"}, [4]]
    alone = [generate(llm, [prompt])[0].outputs[0].token_ids for prompt in prompts]
    together = generate(llm, prompts)
    assert [output.outputs[0].token_ids for output in together] == alone
    assert together[0].prompt_token_ids == [9, 8, 7]
    assert together[2].prompt_token_ids == [3] * 40


def test_short_answers_do_not_overtake(llm: LLM) -> None:
    lengths = [30, 1, 20, 2, 25, 3]
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = generate(llm, [[10 + index] for index in range(6)], params)
    assert [output.prompt_token_ids for output in outputs] == [[10 + index] for index in range(6)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_a_salt_keeps_prefixes_apart_and_changes_no_answer(llm: LLM) -> None:
    prompt = [7 + index % 90 for index in range(60)]
    salted = [{"prompt_token_ids": prompt, "cache_salt": salt} for salt in ("a", "b")]
    first = generate(llm, [prompt])[0]
    others = [generate(llm, item)[0] for item in salted]
    again = [generate(llm, item)[0] for item in (prompt, *salted)]
    assert [output.num_cached_tokens for output in others] == [0, 0]
    assert [output.num_cached_tokens for output in again] == [48, 48, 48]
    assert len({tuple(output.outputs[0].token_ids) for output in (first, *others, *again)}) == 1


def test_prompts_may_come_from_a_generator(llm: LLM) -> None:
    outputs = generate(llm, ([5, index] for index in range(3)))
    assert [output.prompt_token_ids for output in outputs] == [[5, 0], [5, 1], [5, 2]]


def test_no_prompts(llm: LLM) -> None:
    assert generate(llm, []) == []
    assert generate(llm, [], []) == []


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "the prompt is empty"),
        ([[]], "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        (None, "prompts must be a text, token ids, a dictionary or a list of these, got NoneType"),
        (5, "prompts must be a text, token ids, a dictionary or a list of these, got int"),
        (b"bytes", "prompts must be a text, token ids, a dictionary or a list of these, got bytes"),
        ([b"bytes"], "a prompt must be a text, a list of token ids or a dictionary, got bytes"),
        ([5, "text"], "a prompt must be a text, a list of token ids or a dictionary, got int"),
        (["text", None], "a prompt must be a text, a list of token ids or a dictionary, got NoneType"),
        ([["text"]], "prompt token ids must be integers, got 'text'"),
        ([[1.0, 2.0]], "prompt token ids must be integers, got 1.0"),
        ([True, False], "prompt token ids must be integers, got True"),
        ([[3, True]], "prompt token ids must be integers, got True"),
        (np.array([1.5]), "a prompt must be a text, a list of token ids or a dictionary, got float"),
        (np.array([[True]]), "prompt token ids must be integers, got True"),
        ([[torch.tensor(1.5)]], "prompt token ids must be integers, got tensor(1.5000)"),
        ([3, 512], "prompt token id 512 is not in the vocabulary of 512"),
        ([-1], "prompt token id -1 is not in the vocabulary of 512"),
        ([[2**40]], "prompt token id 1099511627776 is not in the vocabulary of 512"),
        ("a\ud800", "prompt holds a lone surrogate U+D800 at character 1"),
        ({}, "a prompt dictionary needs 'prompt' (a text) or 'prompt_token_ids'"),
        ({"prompt": 5}, "a prompt dictionary needs 'prompt' (a text) or 'prompt_token_ids'"),
        ({"prompt": [5]}, "a prompt dictionary needs 'prompt' (a text) or 'prompt_token_ids'"),
        ({"prompt_token_ids": [5], "prompt": 5}, "a prompt dictionary needs 'prompt' (a text)"),
        ({"prompt_token_ids": "text"}, "a prompt must be a text, a list of token ids or a dictionary, got str"),
        ({"prompt": TEXT, "multi_modal_data": {"image": 1}}, "prompts with 'multi_modal_data' are not supported"),
        ({"prompt_embeds": torch.zeros(2, 2)}, "prompts with 'prompt_embeds' are not supported"),
        ({"promt": TEXT}, "prompts with 'promt' are not supported"),
        ({"prompt": TEXT, "cache_salt": ""}, "cache_salt must be a non-empty string"),
        ({"prompt": TEXT, "cache_salt": 5}, "cache_salt must be a non-empty string"),
        ({"prompt": TEXT, "cache_salt": "\udc00"}, "cache_salt holds a lone surrogate U+DC00 at character 0"),
    ],
    ids=repr,
)
def test_prompts_that_are_refused(llm: LLM, prompt: Any, words: str) -> None:
    steps = llm.get_stats()["num_steps"]
    with pytest.raises(ValidationError) as caught:
        generate(llm, prompt)
    assert words in str(caught.value)
    assert llm.get_stats()["num_steps"] == steps


@pytest.mark.parametrize("bad", ["", [-1], None, {"prompt": 5}], ids=repr)
def test_of_several_prompts_the_wrong_one_is_named(llm: LLM, bad: Any) -> None:
    with pytest.raises(ValidationError, match=r"^prompts\[2\]: ") as caught:
        generate(llm, [TEXT, TEXT, bad, TEXT])
    with pytest.raises(ValidationError) as alone:
        generate(llm, [bad])
    assert str(caught.value) == f"prompts[2]: {alone.value}"
    assert (caught.value.parameter, caught.value.hint) == (alone.value.parameter, alone.value.hint)


def test_one_bad_prompt_and_nothing_is_queued(llm: LLM) -> None:
    steps = llm.get_stats()["num_steps"]
    with pytest.raises(ValidationError, match="513 is not in the vocabulary"):
        generate(llm, [[5]] * 300 + [[513]])
    with pytest.raises(ValidationError, match="sampling_params must be SamplingParams, got dict"):
        generate(llm, [[5], [6]], [GREEDY, {"temperature": 0}])
    assert is_idle(llm)
    assert llm.get_stats()["num_steps"] == steps
    assert len(generate(llm, [[5]])[0].outputs[0].token_ids) == 6


# ---------------------------------------------------------------- the context's length (C37)


@pytest.mark.parametrize("as_text", [False, True], ids=["ids", "text"])
@pytest.mark.parametrize("length", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 5000])
def test_a_prompt_that_leaves_no_room_for_an_answer(llm: LLM, length: int, as_text: bool) -> None:
    prompt = "!" * length if as_text else [5] * length
    num_tokens = len(llm.get_tokenizer().encode(prompt)) if as_text else length
    if num_tokens < MAX_MODEL_LEN:
        pytest.skip("the tokenizer has a token for many of them")
    with pytest.raises(ContextLengthError) as caught:
        generate(llm, [prompt])
    assert f"the prompt has {num_tokens} tokens" in str(caught.value)
    assert "the context holds 128" in str(caught.value)
    assert "Shorten it to 127 tokens" in str(caught.value)


@pytest.mark.parametrize("max_tokens", [1, 16, 10**9, None])
def test_the_last_token_that_fits(llm: LLM, max_tokens: int | None) -> None:
    (output,) = generate(llm, [[5] * 127], SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("max_tokens", [None, 10**9, 2**63 - 1])
def test_without_a_limit_the_answer_fills_the_context(llm: LLM, max_tokens: int | None) -> None:
    (output,) = generate(llm, [[5] * 100], SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 28
    assert output.outputs[0].finish_reason == "length"


def test_a_number_that_no_message_can_carry_is_refused(llm: LLM) -> None:
    with pytest.raises(ValidationError, match="sampling_params"):
        generate(llm, [[5]], SamplingParams(max_tokens=2**70))
    with pytest.raises(ValidationError, match="sampling_params"):
        generate(llm, [[5]], SamplingParams(extra_args={"x": object()}))


# ---------------------------------------------------------------- parameters and priorities


def test_one_for_all_or_one_for_each(llm: LLM) -> None:
    prompts = [[5], [6]]
    long, short = (SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (5, 2))

    def lengths(params: Any) -> list[int]:
        return [len(output.outputs[0].token_ids) for output in generate(llm, prompts, params)]

    assert lengths(long) == [5, 5]
    assert lengths([long, short]) == [5, 2]
    assert lengths((short, long)) == [2, 5]
    assert generate(llm, prompts, [long, None])[1].outputs[0].token_ids != []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_parameters_as_prompts(llm: LLM, count: int) -> None:
    with pytest.raises(ValidationError, match=f"sampling_params has {count} entries for 2 prompts"):
        generate(llm, [[5], [6]], [GREEDY] * count)
    with pytest.raises(ValidationError, match=f"priority has {count} entries for 2 prompts"):
        generate(llm, [[5], [6]], priority=[1] * count)


@pytest.mark.parametrize("priority", ["high", 1.5, [None, 1], [True, 1]], ids=str)
def test_a_priority_is_an_integer(llm: LLM, priority: Any) -> None:
    with pytest.raises(ValidationError, match="priority"):
        generate(llm, [[5], [6]], priority=priority)


def test_the_callers_parameters_are_left_as_they_were(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, bad_words=["the"])
    before = params.clone()
    generate(llm, [[5], [6]], params)
    assert params == before


def test_parameters_changed_after_they_were_made_are_checked_again(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    params.max_tokens = -5
    with pytest.raises(ValidationError, match="max_tokens must be at least 1, got -5"):
        generate(llm, [[5]], params)


def test_ids_that_would_meet_in_the_engine_are_refused(llm: LLM) -> None:
    engine = llm.llm_engine
    several = SamplingParams(n=2, max_tokens=2, ignore_eos=True)
    for ids, params in (
        (["a", "a"], [GREEDY, GREEDY]),
        (["a", "0_a"], [several, GREEDY]),  # what n answers are called inside
        (["1_a", "a"], [GREEDY, several]),
    ):
        with pytest.raises(ValidationError, match=r"request id '.*a' is in use"):
            engine.add_requests(ids, [[5], [6]], params)
        assert not engine.has_unfinished_requests()
    engine.add_request("a", [5], several)
    for taken in ("a", "0_a"):
        with pytest.raises(ValidationError, match="is in use"):
            engine.add_request(taken, [5], GREEDY)
    assert [output.outputs[0].finish_reason for output in engine.abort_request(["a", "unknown"])] == ["abort"] * 2


def test_calls_from_several_threads_take_turns(llm: LLM) -> None:
    prompts = [[[20 + 7 * caller + index] * 5 for index in range(3)] for caller in range(4)]
    expected = [[output.outputs[0].token_ids for output in generate(llm, batch)] for batch in prompts]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda batch: generate(llm, batch), prompts)
    assert [[output.outputs[0].token_ids for output in result] for result in results] == expected


def test_priority_orders_the_waiting(tiny: Callable[[str], Path]) -> None:
    with make_llm(tiny("llama-gqa"), max_num_seqs=1, scheduling_policy="priority") as llm:
        outputs = generate(llm, [[5], [6], [7], [8]], priority=[3, -1, 2, -1])
    started = [output.metrics.scheduled_time for output in outputs]
    assert sorted(range(4), key=started.__getitem__) == [1, 3, 2, 0]


# ---------------------------------------------------------------- what comes back


def test_the_parts_of_an_output(llm: LLM) -> None:
    (output,) = generate(llm, [[5, 6, 7]], SamplingParams(temperature=1.0, n=3, seed=1, max_tokens=4, ignore_eos=True))
    assert isinstance(output, RequestOutput)
    assert output.finished
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    for answer in output.outputs:
        assert isinstance(answer, CompletionOutput)
        assert answer.finished()
        assert (answer.finish_reason, answer.stop_reason, answer.error) == ("length", None, None)
        assert answer.logprobs is None
        assert answer.cumulative_logprob is None
        assert answer.text == llm.get_tokenizer().decode(answer.token_ids)
    metrics = output.metrics
    assert metrics.arrival_time <= metrics.scheduled_time <= metrics.first_token_time <= metrics.last_token_time
    assert metrics.num_generation_tokens == 4


def test_several_answers_to_a_cold_prompt_found_nothing_cached(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=2)
    prompt = [90 + index for index in range(40)]
    assert [generate(llm, [prompt], params)[0].num_cached_tokens for _ in range(2)] == [0, 32]


def test_the_progress_bar_is_shown_only_when_asked(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    generate(llm, [[5], [6]])
    assert capfd.readouterr() == ("", "")
    llm.generate([[5], [6]], GREEDY)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Generating: 100%" in err
    assert "2/2" in err
    assert "tok/s" in err


# ---------------------------------------------------------------- life and death


def test_after_shutdown_everything_says_so(tiny: Callable[[str], Path]) -> None:
    with make_llm(tiny("llama-gqa")) as llm:
        assert generate(llm, [[5]])
    llm.shutdown()
    for use in (
        lambda: generate(llm, [[5]]),
        llm.reset_prefix_cache,
        llm.get_stats,
        lambda: llm.collective_rpc("get_kv_cache_specs"),
    ):
        with pytest.raises(EngineDeadError):
            use()


def test_control_operations(llm: LLM, tmp_path: Path) -> None:
    assert llm.reset_prefix_cache() is True
    assert llm.stop_profile() == []
    llm.start_profile(str(tmp_path))
    generate(llm, [[5]])
    (trace,) = llm.stop_profile()
    assert "execute_context_1(1)_generation_0(0)" in Path(trace).read_text()
    with pytest.raises(ValidationError, match="the worker has no method 'fly'"):
        llm.collective_rpc("fly")
    with pytest.raises(ValidationError, match="the worker has no method '_make_sampler'"):
        llm.collective_rpc("_make_sampler")


def test_a_script_that_just_ends_leaves_quietly(tiny: Callable[[str], Path]) -> None:
    script = f"""
        from fathom import LLM, SamplingParams
        llm = LLM({str(tiny("llama-gqa"))!r}, max_model_len=128, num_threads=1)
        print(len(llm.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr
    assert "Traceback" not in run.stderr
