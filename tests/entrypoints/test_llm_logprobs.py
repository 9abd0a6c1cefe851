"""Logprobs as a user sees them, against transformers: how many, which, in which mode, and of the prompt."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fathom import LLM, Logprob, SamplingParams
from fathom.errors import ValidationError
from tests.engine.oracle import reference_logprobs
from tests.entrypoints.conftest import make_llm
from tests.models.tiny import VOCAB_SIZE, load_oracle

PROMPT = [5 + 7 * index % 400 for index in range(21)]


@pytest.fixture(scope="module")
def oracle(tiny: Callable[[str], Path]) -> transformers.PreTrainedModel:
    return load_oracle(tiny("llama-gqa"))


@torch.no_grad()
def reference_logits(oracle: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *answer]])
    return oracle(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def check_position(entries: dict[int, Logprob], chosen: int, reference: torch.Tensor, k: int) -> None:
    """The chosen token first, then the k best in order, each with its score and rank; to 1e-4, as are the ranks."""
    assert next(iter(entries)) == chosen
    for token, entry in entries.items():
        assert entry.logprob == pytest.approx(reference[token].item(), abs=1e-4)
        above, level = ((reference > reference[token] + slack).sum().item() for slack in (2e-4, -2e-4))
        assert above < entry.rank <= level
    ranked = sorted(entries.values(), key=lambda entry: entry.rank)
    assert [entry.rank for entry in ranked[:k]] == list(range(1, k + 1))
    assert len(ranked) == max(1, k if entries[chosen].rank <= k else k + 1)
    assert sorted(entries.values(), key=lambda entry: -entry.logprob) == ranked


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("k", [0, 1, 5, VOCAB_SIZE, -1, 10**6])
def test_the_chosen_token_and_the_k_best(oracle: Any, answer: Callable[..., Any], k: int) -> None:
    found = answer([PROMPT], temperature=1.0, seed=2, max_tokens=5, logprobs=k, ignore_eos=True)
    reference = reference_logprobs(oracle, PROMPT, found.token_ids)
    assert len(found.logprobs) == 5
    for position, chosen, entries in zip(reference, found.token_ids, found.logprobs, strict=True):
        check_position(entries, chosen, position, VOCAB_SIZE if k == -1 or k > VOCAB_SIZE else k)
    chosen_scores = [entries[token].logprob for token, entries in zip(found.token_ids, found.logprobs, strict=True)]
    assert found.cumulative_logprob == pytest.approx(sum(chosen_scores), abs=1e-5)


def test_no_logprobs_unless_asked_for(answer: Callable[..., Any]) -> None:
    found = answer([PROMPT], max_tokens=2)
    assert (found.logprobs, found.cumulative_logprob) == (None, None)


def test_an_engine_s_limit(tiny: Callable[[str], Path]) -> None:
    with make_llm(tiny("llama-gqa")) as llm:
        assert len(llm.generate([PROMPT], SamplingParams(max_tokens=1, logprobs=20), use_tqdm=False)) == 1
        for name in ("logprobs", "prompt_logprobs"):
            for wanted in (21, -1, 10**6):
                with pytest.raises(
                    ValidationError, match=f"{name}={wanted} is more than this engine allows, 20"
                ) as error:
                    llm.generate([PROMPT], SamplingParams(**{name: wanted}), use_tqdm=False)
                assert "max_logprobs" in str(error.value)


def test_requests_of_one_batch_may_want_different_numbers(llm: LLM, answer: Callable[..., Any]) -> None:
    wants = [None, 0, 3, None, 40]
    params = [SamplingParams(temperature=0.0, max_tokens=3, logprobs=k, ignore_eos=True) for k in wants]
    outputs = llm.generate([[9, index] for index in range(5)], params, use_tqdm=False)
    for index, (k, output) in enumerate(zip(wants, outputs, strict=True)):
        found = output.outputs[0].logprobs
        assert (found is None) if k is None else [len(entries) for entries in found] == [max(1, k)] * 3
        alone = answer([[9, index]], max_tokens=3, logprobs=k, ignore_eos=True).logprobs
        for entries, expected in zip(found or (), alone or (), strict=True):
            assert list(entries) == list(expected)
            assert [entry.logprob for entry in entries.values()] == pytest.approx(
                [entry.logprob for entry in expected.values()], abs=1e-5
            )


def test_the_texts_of_tokens(llm: LLM, answer: Callable[..., Any]) -> None:
    tokenizer = llm.get_tokenizer()
    found = answer([PROMPT], max_tokens=3, logprobs=-1, ignore_eos=True)
    for entries in found.logprobs:
        assert all(entry.decoded_token == tokenizer.decode([token], False) for token, entry in entries.items())
    assert found.logprobs[0][0].decoded_token == "<s>"


def test_they_behave_like_a_list(answer: Callable[..., Any]) -> None:
    found = answer([PROMPT], max_tokens=4, logprobs=2, ignore_eos=True).logprobs
    assert len(found) == 4
    assert found[-1] == list(found)[3] == found[3]
    assert found[1:3] == [found[1], found[2]]
    assert found == list(found)
    assert repr(found) == repr(list(found))
    with pytest.raises(IndexError):
        _ = found[4]


def test_outputs_can_be_copied_and_pickled_without_the_tokenizer(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("Tiny models", params, use_tqdm=False)
    packed = pickle.dumps(output)
    assert len(packed) < 3000
    assert pickle.loads(packed) == output == copy.deepcopy(output)
    assert dataclasses.asdict(output)["outputs"][0]["logprobs"][0] == output.outputs[0].logprobs[0]


# ---------------------------------------------------------------- the four modes (C29)


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"])
def test_modes(tiny: Callable[[str], Path], oracle: Any, mode: str) -> None:
    with make_llm(tiny("llama-gqa"), logprobs_mode=mode, max_logprobs=-1) as llm:
        for options in (
            {"temperature": 0.0},
            {"temperature": 0.1, "seed": 1},
            {"temperature": 2.0, "seed": 1},
            {"temperature": 1.0, "seed": 1, "top_k": 4},
            {"temperature": 0.7, "seed": 1, "logit_bias": {50: 8.0, 51: -100.0}},
        ):
            params = SamplingParams(max_tokens=4, logprobs=-1, ignore_eos=True, **options)
            (output,) = llm.generate([PROMPT], params, use_tqdm=False)
            found = output.outputs[0]
            logits = reference_logits(oracle, PROMPT, found.token_ids)
            if mode.startswith("processed"):
                for token, bias in options.get("logit_bias", {}).items():
                    logits[:, token] += bias
                logits /= options["temperature"] or 1.0
                if "top_k" in options:
                    logits[logits < logits.topk(4).values[:, -1:]] = -torch.inf
            expected = (logits if mode.endswith("logits") else logits.log_softmax(-1)).numpy()
            scores = np.array([[entries[t].logprob for t in range(VOCAB_SIZE)] for entries in found.logprobs])
            np.testing.assert_allclose(scores, expected, atol=2e-4, rtol=1e-4)


def test_raw_logprobs_do_not_depend_on_how_a_token_is_chosen(answer: Callable[..., Any]) -> None:
    found = [
        answer([PROMPT], max_tokens=1, logprobs=3, logit_bias={60: 100}, **options).logprobs[0][60].logprob
        for options in ({"temperature": 0.0}, {"temperature": 0.1}, {"temperature": 2.0, "top_p": 0.1})
    ]
    assert found[0] == found[1] == found[2]


# ---------------------------------------------------------------- the prompt's


@pytest.mark.parametrize("budget", [4, 16, 2048])
@pytest.mark.parametrize("k", [0, 2, -1])
def test_prompt_logprobs(tiny: Callable[[str], Path], oracle: Any, budget: int, k: int) -> None:
    with make_llm(tiny("llama-gqa"), max_num_batched_tokens=budget, max_logprobs=-1) as llm:
        plain = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        asking = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=k, ignore_eos=True)
        for _ in range(2):  # the second time the prompt is in the prefix cache, and nothing may come from there
            outputs = llm.generate([PROMPT, [9] * 30, PROMPT], [asking, plain, plain], use_tqdm=False)
            assert [output.prompt_logprobs is None for output in outputs] == [False, True, True]
            assert outputs[0].num_cached_tokens == 0
            positions = outputs[0].prompt_logprobs
            assert len(positions) == len(PROMPT)
            assert positions[0] is None
            reference = reference_logprobs(oracle, PROMPT[:1], PROMPT[1:])
            for scores, token, entries in zip(reference, PROMPT[1:], positions[1:], strict=True):
                check_position(entries, token, scores, VOCAB_SIZE if k < 0 else k)
            assert outputs[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids
        assert llm.generate([PROMPT], plain, use_tqdm=False)[0].num_cached_tokens == 16


def test_a_prompt_of_one_token_has_none(llm: LLM) -> None:
    (output,) = llm.generate([[5]], SamplingParams(max_tokens=1, prompt_logprobs=2), use_tqdm=False)
    assert list(output.prompt_logprobs) == [None]


def test_each_of_several_answers_comes_with_the_prompt_s(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=2, prompt_logprobs=1, logprobs=1, ignore_eos=True)
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    (single,) = llm.generate([PROMPT], SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False)
    assert output.prompt_logprobs == single.prompt_logprobs
    assert [len(answer.logprobs) for answer in output.outputs] == [2, 2, 2]


def test_a_prompt_that_is_given_up_half_way_leaves_nothing(tiny: Callable[[str], Path]) -> None:
    asking = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    with make_llm(tiny("llama-gqa"), max_num_batched_tokens=8) as llm:
        llm.llm_engine.add_request("gone", PROMPT, asking)
        llm.llm_engine.step()
        llm.llm_engine.abort_request(["gone"])
        (output,) = llm.generate([PROMPT], asking, use_tqdm=False)
        assert output.outputs[0].finish_reason == "length"
        assert len(output.prompt_logprobs) == len(PROMPT)
