"""Faults: damaged weights, processors that raise, a step that fails. One request's fault is its own, and the engine
goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fathom import LLM, RequestOutput, SamplingParams
from fathom.errors import ValidationError
from fathom.layers import attention
from fathom.worker.sample.sampler import Sampler
from tests.engine.oracle import check_greedy
from tests.entrypoints.conftest import make_llm
from tests.models.tiny import load_oracle

POISON = 77  # the token whose embedding is not a number
CLEAN = [[20 + index + 3 * k for index in range(20)] for k in range(3)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def generate(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.llm_engine.engine_core.call("check_invariants")
    assert llm.get_stats()["num_running"] == llm.get_stats()["num_waiting"] == 0
    return outputs


def asking(**extra: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, extra_args=extra)


@pytest.fixture(scope="module")
def oracle(tiny: Callable[[str], Path]) -> Any:
    return load_oracle(tiny("llama-gqa"))


@pytest.fixture(params=[float("nan"), float("inf")], ids=str, scope="module")
def poisoned(request: Any, tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with one row of its embedding damaged."""
    folder = tmp_path_factory.mktemp("poisoned") / "model"
    shutil.copytree(tiny("llama-gqa"), folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert not torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    weights["model.embed_tokens.weight"][POISON, 5] = request.param
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# ---------------------------------------------------------------- logits that are not finite (C73)


@pytest.mark.parametrize("budget", [8, 2048])
@pytest.mark.parametrize("place", [0, 10, 19])
def test_a_poisoned_prompt_fails_alone(poisoned: Path, oracle: Any, budget: int, place: int) -> None:
    bad = [*CLEAN[0][:place], POISON, *CLEAN[0][place:]]
    with make_llm(poisoned, max_num_batched_tokens=budget, block_size=8, max_num_seqs=4) as llm:
        for _ in range(2):  # the second time nothing of the first may come from the prefix cache
            first, failed, last = generate(llm, [CLEAN[0], bad, CLEAN[1]])
            assert failed.outputs[0].finish_reason == "error"
            assert "logits are not finite" in failed.outputs[0].error
            assert failed.outputs[0].token_ids == []
            for output in (first, last):
                assert output.outputs[0].finish_reason == "length"
                check_greedy(oracle, output.prompt_token_ids, output.outputs[0].token_ids)


def test_a_poisoned_token_that_is_sampled_ends_the_answer_there(poisoned: Path, oracle: Any) -> None:
    with make_llm(poisoned) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={POISON: 100.0}, logprobs=1)
        failed, other = generate(llm, CLEAN[:2], [params, GREEDY])
        assert (failed.outputs[0].token_ids, failed.outputs[0].finish_reason) == ([POISON], "error")
        assert len(failed.outputs[0].logprobs) == 1
        check_greedy(oracle, CLEAN[1], other.outputs[0].token_ids)


def test_blocks_that_held_nan_serve_the_next_request(poisoned: Path, oracle: Any) -> None:
    with make_llm(poisoned, kv_cache_memory_bytes=6 * 16 * 3 * 256, max_model_len=64) as llm:
        for _ in range(3):
            (failed,) = generate(llm, [[POISON] * 50])
            assert failed.outputs[0].finish_reason == "error"
            (output,) = generate(llm, [CLEAN[2]])
            check_greedy(oracle, CLEAN[2], output.outputs[0].token_ids)


# ---------------------------------------------------------------- logits processors (C95)


@pytest.mark.parametrize(
    ("extra", "words", "num_tokens"),
    [
        ({"fail_at": 0}, "logits processor Fail failed: ZeroDivisionError: at token 0", 0),
        ({"fail_at": 3}, "logits processor Fail failed: ZeroDivisionError: at token 3", 3),
        ({"fail_at": "new"}, "logits processor Fail failed: RuntimeError: no processor for you", 0),
        ({"fail_at": "validate"}, "logits processor Fail refuses the request: ValueError: I refuse", 0),
        ({"force": [512]}, "logits processor Force failed: IndexError", 0),
    ],
    ids=str,
)
def test_a_request_whose_processor_fails_fails_alone(
    llm: LLM, oracle: Any, extra: dict[str, Any], words: str, num_tokens: int
) -> None:
    first, failed, last = generate(llm, [CLEAN[0], CLEAN[2], CLEAN[1]], [GREEDY, asking(**extra), GREEDY])
    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].error.startswith(words)
    assert len(failed.outputs[0].token_ids) == num_tokens
    for output in (first, last):
        check_greedy(oracle, output.prompt_token_ids, output.outputs[0].token_ids)
    check_greedy(oracle, CLEAN[2], generate(llm, [CLEAN[2]])[0].outputs[0].token_ids)


@pytest.mark.parametrize("fuse", ["apply", "update"])
def test_a_processor_that_fails_for_the_batch_ends_the_batch_and_not_the_engine(
    llm: LLM, oracle: Any, fuse: str
) -> None:
    outputs = generate(llm, CLEAN, [GREEDY, asking(explode=fuse), GREEDY])
    for output in outputs:
        assert output.outputs[0].finish_reason == "error"
        assert "logits processor Explode failed" in output.outputs[0].error
    for output in generate(llm, CLEAN):
        check_greedy(oracle, output.prompt_token_ids, output.outputs[0].token_ids)


def test_one_of_several_answers_may_fail(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, extra_args={"fail_at": 2}, ignore_eos=True)
    (output,) = generate(llm, [CLEAN[0]], params)
    assert output.finished
    assert [answer.finish_reason for answer in output.outputs] == ["error"] * 3
    assert [len(answer.token_ids) for answer in output.outputs] == [2] * 3


# ---------------------------------------------------------------- a step that raises


@pytest.fixture(scope="module")
def eager(tiny: Callable[[str], Path]) -> Iterator[LLM]:
    """An engine whose every step runs call by call, so that any call of it can be made to fail."""
    with make_llm(tiny("llama-gqa"), enforce_eager=True) as made:
        yield made


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """{"attention": n, "sampler": n}: how many more calls go well before one raises; -1: all."""
    left = {"attention": -1, "sampler": -1}

    def burn(name: str) -> None:
        if left[name] == 0:
            left[name] = -1
            raise RuntimeError(f"the {name} is broken")
        left[name] -= left[name] > 0

    def patch(owner: Any, attribute: str, name: str) -> None:
        original = getattr(owner, attribute)

        def faulty(*args: Any, **kwargs: Any) -> Any:
            burn(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, faulty)

    patch(attention, "rotate_and_store", "attention")
    patch(Sampler, "forward", "sampler")
    return left


@pytest.mark.parametrize(
    ("part", "calls"), [("attention", 0), ("attention", 1), ("attention", 7), ("sampler", 0), ("sampler", 3)]
)
def test_a_step_that_raises_ends_its_requests_and_the_next_ones_are_right(
    eager: LLM, oracle: Any, fuse: dict[str, int], part: str, calls: int
) -> None:
    eager.reset_prefix_cache()
    fuse[part] = calls
    for output in generate(eager, CLEAN):
        assert output.outputs[0].finish_reason == "error"
        assert output.outputs[0].error == f"the model step failed: RuntimeError: the {part} is broken"
    for output in generate(eager, CLEAN):
        assert output.num_cached_tokens == 0
        check_greedy(oracle, output.prompt_token_ids, output.outputs[0].token_ids)


def test_those_who_wait_are_not_touched_by_a_failing_step(
    tiny: Callable[[str], Path], oracle: Any, fuse: dict[str, int]
) -> None:
    with make_llm(tiny("llama-gqa"), max_num_seqs=2, enforce_eager=True) as llm:
        fuse["attention"] = 4  # in the second step
        outputs = generate(llm, [*CLEAN, CLEAN[0]])
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "error", "length", "length"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 1, 8, 8]
    for output in outputs[2:]:
        check_greedy(oracle, output.prompt_token_ids, output.outputs[0].token_ids)


# ---------------------------------------------------------------- a tokenizer that knows more than the model


def test_a_text_with_a_token_that_the_model_lacks(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("llama-gqa"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = tokenizer["added_tokens"]
    added += [{**added[0], "id": index, "content": f"<new {index}>"} for index in range(404, 513)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with make_llm(folder) as llm:
        assert llm.get_tokenizer().encode("a<new 512>")[-1] == 512
        with pytest.raises(ValidationError, match="prompt token id 512 is not in the vocabulary of 512"):
            generate(llm, ["fine", "a<new 512>"])
        bad_word = SamplingParams(temperature=0.0, max_tokens=2, bad_words=["<new 512>"], ignore_eos=True)
        assert len(generate(llm, ["fine"], bad_word)[0].outputs[0].token_ids) == 2
