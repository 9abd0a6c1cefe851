"""LLM.beam_search: its beams are transformers' where nothing ends early, and its rules where something does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fathom import LLM, BeamSearchParams, SamplingParams
from fathom.errors import ConfigError, ValidationError
from tests.entrypoints.conftest import MAX_MODEL_LEN, make_llm
from tests.models.tiny import load_oracle

PROMPTS = [[5, 6, 7], [300, 20, 41, 9, 17, 80]]
STEPS = 4


@pytest.fixture(scope="module")
def oracle(tiny: Callable[[str], Path]) -> Any:
    return load_oracle(tiny("llama-gqa"))


@pytest.mark.parametrize("width", [1, 3, 5])
def test_beams_are_those_of_transformers(llm: LLM, oracle: Any, width: int) -> None:
    outputs = llm.beam_search(
        [{"prompt_token_ids": ids} for ids in PROMPTS],
        BeamSearchParams(beam_width=width, max_tokens=12, ignore_eos=True),
    )
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert [beam.tokens for beam in output.sequences] == expected.tolist()
        for beam in output.sequences:
            score = sum(p[t].logprob for p, t in zip(beam.logprobs, beam.tokens[len(prompt) :], strict=True))
            assert beam.cum_logprob == pytest.approx(score, abs=1e-6)
            assert (beam.finish_reason, beam.stop_reason) == ("length", None)
            assert beam.text == llm.get_tokenizer().decode(beam.tokens)


def test_one_beam_is_the_greedy_answer(llm: LLM) -> None:
    (output,) = llm.beam_search("Tiny models", BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True))
    (greedy,) = llm.generate(
        "Tiny models", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False
    )
    assert output.sequences[0].tokens == greedy.prompt_token_ids + greedy.outputs[0].token_ids


@torch.no_grad()
def plain_search(oracle: Any, prompt: list[int], eos: int, width: int, penalty: float) -> list[tuple[list[int], str]]:
    """The rules in their plainest form, over transformers' scores: tokens and finish reason of each beam."""
    beams, ended = [(prompt, 0.0)], []
    for _ in range(STEPS):
        grown = []
        for tokens, score in beams:
            best = oracle(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1).topk(2 * width)
            for more, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if token == eos:
                    ended.append((tokens, score + more, "stop"))
                else:
                    grown.append(([*tokens, token], score + more))
        beams = sorted(grown, key=lambda beam: beam[1] / len(beam[0]) ** penalty, reverse=True)[:width]
    found = ended + [(tokens, score, "length") for tokens, score in beams]
    found.sort(key=lambda beam: beam[1] / len(beam[0]) ** penalty, reverse=True)
    return [(tokens, reason) for tokens, _, reason in found[:width]]


@pytest.fixture(scope="module")
def ending(tiny: Callable[[str], Path], oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model whose end-of-sequence is the third token of the greedy answer to the first prompt."""
    folder = tmp_path_factory.mktemp("ending") / "model"
    shutil.copytree(tiny("llama-gqa"), folder)
    greedy = oracle.generate(
        torch.tensor([PROMPTS[0]]), max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": greedy[0, -1].item()}))
    with make_llm(folder) as llm:
        yield llm


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("penalty", [-20.0, 0.0, 1.0, 20.0])
def test_beams_that_end_follow_the_plain_rules(ending: LLM, oracle: Any, width: int, penalty: float) -> None:
    eos = ending.llm_engine.model_config.eos_token_ids[0]
    params = BeamSearchParams(beam_width=width, max_tokens=STEPS, length_penalty=penalty)
    (output,) = ending.beam_search([PROMPTS[0]], params)
    expected = plain_search(oracle, PROMPTS[0], eos, width, penalty)
    assert [(beam.tokens, beam.finish_reason) for beam in output.sequences] == expected
    assert {beam.stop_reason for beam in output.sequences if beam.finish_reason == "stop"} <= {eos}


@pytest.mark.parametrize("penalty", [-20.0, -8.0, -4.0, -2.0, -1.0, 0.5, 1.0, 2.0, 4.0])
def test_the_end_of_sequence_can_be_left_in(ending: LLM, penalty: float) -> None:
    """Which changes what is shown, and neither what is found nor its order."""
    params = {"beam_width": 4, "max_tokens": STEPS, "length_penalty": penalty}
    (without,) = ending.beam_search([PROMPTS[0]], BeamSearchParams(**params))
    (within,) = ending.beam_search([PROMPTS[0]], BeamSearchParams(**params, include_stop_str_in_output=True))
    if penalty == -20.0:
        assert without.sequences[0].finish_reason == "stop"
    for shorter, longer in zip(without.sequences, within.sequences, strict=True):
        ended = [] if shorter.stop_reason is None else [shorter.stop_reason]
        assert longer.tokens == shorter.tokens + ended
        assert longer.cum_logprob == shorter.cum_logprob


def test_of_equal_beams_the_one_of_the_better_beam_and_then_of_the_lower_token_comes_first(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every token has a twin of equal weights, 256 further on."""
    folder = shutil.copytree(tiny("llama-gqa"), tmp_path / "twins")
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name][256:] = tensors[name][:256]
    save_file(tensors, folder / "model.safetensors")
    with make_llm(folder) as llm:
        (output,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=4, max_tokens=2, ignore_eos=True))
    found = [tuple(beam.tokens[-2:]) for beam in output.sequences]
    assert len({beam.cum_logprob for beam in output.sequences}) == 1
    first, second = found[0]
    assert max(first, second) < 256
    assert found == [(first, second), (first, second + 256), (first + 256, second), (first + 256, second + 256)]


def test_a_search_with_a_salt_shares_nothing_with_others(tiny: Callable[[str], Path]) -> None:
    prompt, params = list(range(5, 69)), BeamSearchParams(beam_width=1, max_tokens=1, ignore_eos=True)
    with make_llm(tiny("llama-gqa")) as llm:
        hits = []
        for salt in (None, "a", "b", "a", None):
            llm.beam_search([{"prompt_token_ids": prompt, "cache_salt": salt}], params)
            hits.append(llm.get_stats()["prefix_cache_hits"])
    first = hits[3]
    assert first > 0
    assert hits == [0, 0, 0, first, 2 * first]


def test_a_search_ends_with_the_context(llm: LLM) -> None:
    prompt = [5] * (MAX_MODEL_LEN - 2)
    (output,) = llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=9, ignore_eos=True))
    assert [len(beam.tokens) for beam in output.sequences] == [MAX_MODEL_LEN] * 2


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"beam_width": 0, "max_tokens": 1}, "beam_width"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens"),
        ({"beam_width": 2, "max_tokens": 1, "temperature": 0.5}, "temperature"),
    ],
)
def test_wrong_parameters(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        BeamSearchParams(**fields)
    assert caught.value.parameter == name


def test_what_an_engine_must_allow(tiny: Callable[[str], Path]) -> None:
    eleven = BeamSearchParams(beam_width=11, max_tokens=2)
    with make_llm(tiny("llama-gqa")) as llm:
        with pytest.raises(ValidationError, match="Make the LLM with max_logprobs=22"):
            llm.beam_search([[5]], eleven)
        with pytest.raises(ValidationError, match="params must be BeamSearchParams, got SamplingParams"):
            llm.beam_search([[5]], SamplingParams())
        with pytest.raises(ValidationError, match="the prompt is empty"):
            llm.beam_search([[5], []], BeamSearchParams(beam_width=1, max_tokens=1))
    with (
        make_llm(tiny("llama-gqa"), logprobs_mode="processed_logits") as llm,
        pytest.raises(ConfigError, match="beam search needs logprobs_mode=raw_logprobs"),
    ):
        llm.beam_search([[5]], BeamSearchParams(beam_width=1, max_tokens=1))
