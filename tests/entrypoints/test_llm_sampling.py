"""Sampling parameters as a user sees them: what is chosen, what cannot be, and what a seed promises."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fathom import LLM, SamplingParams
from fathom.errors import ConfigError, ValidationError
from tests.entrypoints.conftest import make_llm
from tests.models.tiny import load_oracle

EOS = 1
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]


@pytest.fixture(scope="module")
def oracle(tiny: Callable[[str], Path]) -> transformers.PreTrainedModel:
    return load_oracle(tiny("llama-gqa"))


@pytest.fixture(scope="module")
def scoring_llm(tiny: Callable[[str], Path]) -> Iterator[LLM]:
    """An engine whose logprobs are the logits that a token was chosen from."""
    with make_llm(tiny("llama-gqa"), logprobs_mode="processed_logits", max_logprobs=-1) as made:
        yield made


@torch.no_grad()
def next_logits(oracle: Any, ids: list[int]) -> np.ndarray:
    """[vocab] float32: the reference's logits after these tokens."""
    return oracle(torch.tensor([ids]), use_cache=False).logits[0, -1].float().numpy()


def tokens(llm: LLM, prompts: Any, params: Any) -> list[list[list[int]]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


# ---------------------------------------------------------------- single tokens


def test_logit_bias(answer: Callable[..., Any]) -> None:
    plain = answer([PROMPT], max_tokens=3, ignore_eos=True).token_ids
    assert answer([PROMPT], max_tokens=3, ignore_eos=True, logit_bias={plain[0]: -100}).token_ids[0] != plain[0]
    assert answer([PROMPT], max_tokens=3, logit_bias={"77": 100}).token_ids == [77, 77, 77]
    assert answer([PROMPT], max_tokens=3, temperature=1.5, logit_bias={77: 100.0}).token_ids == [77, 77, 77]


def test_allowed_token_ids(oracle: Any, answer: Callable[..., Any]) -> None:
    allowed = [40, 41, 42, 43, 44]
    found = answer([PROMPT], max_tokens=20, allowed_token_ids=allowed).token_ids
    sequence = list(PROMPT)
    for token in found:
        logits = next_logits(oracle, sequence)
        assert token == max(allowed, key=lambda candidate: logits[candidate])
        sequence.append(token)
    assert set(answer([PROMPT], max_tokens=60, temperature=2.0, allowed_token_ids=allowed).token_ids) == set(allowed)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_tokens_outside_the_vocabulary_are_refused(llm: LLM, name: str) -> None:
    for token in (512, 999_999_999):
        value: Any = {token: 1.0} if name == "logit_bias" else [3, token]
        with pytest.raises(ValidationError, match=f"{name} holds {token}, which is not in the vocabulary of 512"):
            llm.generate([[5]], SamplingParams(min_tokens=1, **{name: value}), use_tqdm=False)
    assert llm.get_stats()["num_waiting"] == 0


@pytest.mark.parametrize(
    ("fields", "parameter", "words"),
    [
        (
            {"allowed_token_ids": [EOS, 40], "stop_token_ids": [40], "min_tokens": 2},
            "allowed_token_ids",
            f"of allowed_token_ids=[{EOS}, 40], min_tokens=2 excludes [{EOS}, 40], which end the answer.",
        ),
        (
            {"allowed_token_ids": ["z", EOS], "bad_words": ["z"], "min_tokens": 1},
            "allowed_token_ids",
            "bad_words exclude [{z}] and min_tokens=1 excludes",
        ),
        ({"allowed_token_ids": ["z"], "bad_words": ["z"]}, "allowed_token_ids", "bad_words exclude [{z}]."),
        (
            {"stop_token_ids": list(range(512)), "min_tokens": 1},
            "min_tokens",
            "of every token, min_tokens=1 excludes [0, 1, 2, 3, 4, ... 512 ids]",
        ),
    ],
    ids=["all stop", "stop or bad", "bad", "every token stops"],
)
def test_fields_that_exclude_every_token_are_refused_by_name(
    llm: LLM, fields: dict[str, Any], parameter: str, words: str
) -> None:
    (z,) = llm.get_tokenizer().encode("z")
    allowed = fields.get("allowed_token_ids")
    if allowed:
        fields = fields | {"allowed_token_ids": [z if token == "z" else token for token in allowed]}
    with pytest.raises(ValidationError) as caught:
        llm.generate([PROMPT], SamplingParams(**fields), use_tqdm=False)
    assert caught.value.parameter == parameter
    assert words.replace("{z}", str(z)) in str(caught.value)


def test_what_leaves_a_token_is_no_contradiction(answer: Callable[..., Any]) -> None:
    assert answer([PROMPT], max_tokens=3, allowed_token_ids=[EOS]).token_ids == [EOS]
    ignored = answer([PROMPT], max_tokens=3, allowed_token_ids=[EOS], min_tokens=2, ignore_eos=True)
    assert ignored.token_ids == [EOS] * 3
    stops = answer([PROMPT], max_tokens=3, allowed_token_ids=[EOS, 40], bad_words=["z"], min_tokens=2)
    assert stops.token_ids[:2] == [40, 40]


def test_nothing_left_to_sample_fails_that_request_alone(llm: LLM) -> None:
    """A bad word of two tokens, of which only the second is in the way, shows in the middle of the answer."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    (z,) = llm.get_tokenizer().encode("z")
    assert llm.get_tokenizer().encode("zz") == [z, z]
    params = [SamplingParams(allowed_token_ids=[z], bad_words=["zz"]), greedy]
    hopeless, other = (output.outputs[0] for output in llm.generate([PROMPT] * 2, params, use_tqdm=False))
    assert (hopeless.finish_reason, hopeless.token_ids) == ("error", [z])
    assert "no token is left to sample: allowed_token_ids, bad_words, min_tokens" in hopeless.error
    assert [other.token_ids] == tokens(llm, [PROMPT], greedy)[0]


# ---------------------------------------------------------------- min_tokens (C13) and bad_words (C25)


def test_min_tokens_masks_every_way_to_stop(oracle: Any, answer: Callable[..., Any]) -> None:
    ends = [40, 41, EOS]
    bias = dict.fromkeys(ends, 100.0)
    found = answer([PROMPT], max_tokens=12, min_tokens=5, stop_token_ids=ends[:2], logit_bias=bias, logprobs=0)
    assert len(found.token_ids) == 6
    assert found.token_ids[5] in ends
    sequence = list(PROMPT)
    for token in found.token_ids[:5]:
        logits = next_logits(oracle, sequence)
        logits[ends] = -np.inf
        assert token == int(logits.argmax())
        sequence.append(token)
    ignored = answer([PROMPT], max_tokens=12, min_tokens=5, ignore_eos=True, logit_bias={EOS: 100.0})
    assert ignored.token_ids == [EOS] * 12
    insisting = answer([PROMPT], force=[9, EOS, 40, EOS], max_tokens=12, min_tokens=4, stop_token_ids=[40])
    assert insisting.token_ids == [9, EOS, 40, EOS]  # even if a custom processor has its way


def test_bad_words_are_blocked_with_and_without_a_space(llm: LLM, answer: Callable[..., Any]) -> None:
    tokenizer = llm.get_tokenizer()
    bare, spaced = tokenizer.encode("with"), tokenizer.encode(" with")
    assert len(bare) > 1 or len(spaced) > 1 or bare != spaced
    for word in ("with", " with"):
        for form in (bare, spaced):
            bias = {form[-1]: 100.0}
            free = answer([[9, *form[:-1]]], force=form[:-1], max_tokens=len(form), logit_bias=bias)
            assert free.token_ids == form
            found = answer([[9, *form[:-1]]], force=form[:-1], max_tokens=len(form), logit_bias=bias, bad_words=[word])
            assert found.token_ids[:-1] == form[:-1]
            assert found.token_ids[-1] != form[-1]


def test_only_the_end_of_a_longer_bad_word_is_blocked(llm: LLM, answer: Callable[..., Any]) -> None:
    word = llm.get_tokenizer().encode("zqx")
    assert len(word) == 3
    options = {"bad_words": ["zqx"], "ignore_eos": True}
    assert answer([[9]], max_tokens=3, logit_bias={word[0]: 100}, **options).token_ids == [word[0]] * 3
    free = answer([[9]], force=[word[1], word[0]], max_tokens=3, logit_bias={word[2]: 100}, **options)
    assert free.token_ids[2] == word[2]  # other tokens came before it
    blocked = answer([[9]], force=word[:2], max_tokens=4, logit_bias={word[2]: 100}, **options)
    assert blocked.token_ids[2] != word[2]
    assert blocked.token_ids[3] == word[2]
    # The prompt does not count: a word may not begin there.
    assert answer([word[:2]], max_tokens=1, logit_bias={word[2]: 100}, **options).token_ids == [word[2]]


def test_odd_bad_words(llm: LLM, answer: Callable[..., Any]) -> None:
    for word in ("\u0001", "\n\n", "日本語", " "):
        token = llm.get_tokenizer().encode(word)[-1]
        found = answer([[9]], max_tokens=20, temperature=2.0, seed=1, bad_words=[word], logit_bias={token: 5})
        assert (word != " " and word not in found.text) or token not in found.token_ids
    words = [chr(0x4E00 + index) * 3 for index in range(300)]
    assert len(answer([[9]], max_tokens=4, bad_words=words, ignore_eos=True).token_ids) == 4


# ---------------------------------------------------------------- penalties (C16, C17)


@pytest.mark.parametrize(
    ("presence", "frequency", "repetition"),
    [(2.0, 0.0, 1.0), (0.0, 2.0, 1.0), (1.5, 0.7, 1.0), (-2.0, 0.0, 1.0), (0.0, 0.0, 1.3), (0.5, -0.5, 1.2)],
)
def test_penalties_against_a_replay(
    scoring_llm: LLM, oracle: Any, presence: float, frequency: float, repetition: float
) -> None:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=16,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logprobs=-1,
        ignore_eos=True,
    )
    (output,) = scoring_llm.generate([PROMPT], params, use_tqdm=False)
    sequence: list[int] = []
    for token, entries in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
        logits = next_logits(oracle, PROMPT + sequence)
        counts = np.bincount(sequence, minlength=512) if sequence else np.zeros(512, int)
        seen = np.union1d(PROMPT, sequence).astype(int)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
        logits = logits - frequency * counts - presence * (counts > 0)
        np.testing.assert_allclose([entries[i].logprob for i in range(512)], logits, atol=1e-4, rtol=1e-4)
        assert token == int(logits.argmax())
        sequence.append(token)


def test_the_first_token_of_an_answer_knows_no_presence_and_no_frequency(answer: Callable[..., Any]) -> None:
    prompt = [[9] * 12]
    plain = answer(prompt, max_tokens=1, logprobs=5)
    for name in ("presence_penalty", "frequency_penalty"):
        assert answer(prompt, max_tokens=1, logprobs=5, **{name: 2.0}).token_ids == plain.token_ids


def test_repetition_penalty_is_that_of_transformers(oracle: Any, answer: Callable[..., Any]) -> None:
    options = {"max_tokens": 32, "min_tokens": 32}
    prompt = PROMPT + answer([PROMPT], **options).token_ids  # tokens that the model likes are in the prompt
    expected = oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=32,
        min_new_tokens=32,
        do_sample=False,
        repetition_penalty=1.3,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    assert answer([prompt], repetition_penalty=1.3, **options).token_ids == expected
    assert answer([prompt], **options).token_ids != expected


# ---------------------------------------------------------------- extreme floats (C23)


def test_numbers_at_the_edge(llm: LLM, answer: Callable[..., Any]) -> None:
    greedy = answer([PROMPT], max_tokens=6, ignore_eos=True).token_ids
    for options in ({"temperature": 1e-9}, {"temperature": 0.01}, {"temperature": 1.0, "top_k": 1},
                    {"temperature": 1.0, "top_p": 1e-9}, {"temperature": 1.0, "min_p": 1.0}):  # fmt: skip
        assert answer([PROMPT], max_tokens=6, ignore_eos=True, **options).token_ids == greedy
    free = {"temperature": 1.0, "seed": 4, "max_tokens": 6, "ignore_eos": True}
    off = answer([PROMPT], **free).token_ids
    for options in ({"top_k": 10**12}, {"top_k": -1}, {"top_k": 512}, {"top_p": 1.0}, {"min_p": 0.0}):
        assert answer([PROMPT], **free, **options).token_ids == off
    strong = answer([PROMPT], max_tokens=6, repetition_penalty=1e30, ignore_eos=True)
    assert len(strong.token_ids) == 6


# ---------------------------------------------------------------- seeds (C20, C22)

FREE = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(llm: LLM) -> None:
    seeded = SamplingParams(seed=3, **FREE)
    alone = tokens(llm, [PROMPT], seeded)[0]
    assert tokens(llm, [PROMPT], seeded)[0] == alone
    others = [SamplingParams(seed=seed, **FREE) for seed in (1, 2, None, 4, None, None, 5)]
    prompts = [[20 + index] * (3 + index) for index in range(7)]
    crowd = tokens(llm, [*prompts, PROMPT, *prompts], [*others, seeded, *others])
    assert crowd[7] == alone


def test_answers_to_one_prompt_differ_and_are_repeatable(llm: LLM) -> None:
    four = SamplingParams(seed=3, n=4, **FREE)
    (answers,) = tokens(llm, [PROMPT], four)
    assert len({tuple(answer) for answer in answers}) == 4
    assert tokens(llm, [PROMPT], four) == [answers]
    assert tokens(llm, [PROMPT], SamplingParams(seed=3, **FREE)) == [answers[:1]]


def test_unseeded_requests_differ_from_each_other(llm: LLM) -> None:
    answers = tokens(llm, [PROMPT] * 5, SamplingParams(**FREE)) + tokens(llm, [PROMPT] * 5, SamplingParams(**FREE))
    assert len({tuple(answer[0]) for answer in answers}) == 10


def test_the_engine_s_seed_makes_a_run_repeatable(tiny: Callable[[str], Path]) -> None:
    runs = []
    for seed in (0, 0, 1, None, None):
        with make_llm(tiny("llama-gqa"), seed=seed) as llm:
            params = SamplingParams(**FREE)
            runs.append(tokens(llm, [PROMPT] * 2, params) + tokens(llm, [[9]], params))
    assert runs[0] == runs[1]
    assert len({json.dumps(run) for run in runs}) == 4


# ---------------------------------------------------------------- generation_config.json (C19)


@pytest.fixture
def with_generation_config(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def folder(content: dict[str, Any]) -> Path:
        shutil.copytree(tiny("llama-gqa"), tmp_path / "model", dirs_exist_ok=True)
        (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS, **content}))
        return tmp_path / "model"

    return folder


def test_the_model_s_own_defaults_count_for_requests_that_bring_none(
    with_generation_config: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {"top_k": 1, "repetition_penalty": 1.1, "temperature": 1.0, "max_new_tokens": 7, "do_sample": False}
    folder = with_generation_config(defaults)
    with caplog.at_level(logging.INFO, "fathom"), make_llm(folder) as llm:
        taken = llm.get_default_sampling_params()
        assert (taken.top_k, taken.repetition_penalty, taken.max_tokens) == (1, 1.1, 7)
        assert "generation_config.json: top_k=1, repetition_penalty=1.1, max_tokens=7" in caplog.text
        (own,) = tokens(llm, [PROMPT], None)
        assert 1 <= len(own[0]) <= 7
        assert tokens(llm, [PROMPT], SamplingParams(temperature=0.0, repetition_penalty=1.1, max_tokens=7)) == [own]
        # What a caller passes is taken as it is, also where it equals "off".
        free = [SamplingParams(top_k=k, repetition_penalty=1.0, seed=5, temperature=2.0, max_tokens=7) for k in (0, 1)]
        loose, tight = tokens(llm, [PROMPT] * 2, free)
        assert loose != tight
        taken.top_k = 99
        assert llm.get_default_sampling_params().top_k == 1


def test_the_model_s_defaults_can_be_left_out(
    with_generation_config: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_generation_config({"top_k": 1, "max_new_tokens": None})
    with caplog.at_level(logging.INFO, "fathom"), make_llm(folder, generation_config="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
        assert "generation_config.json" not in caplog.text
    with make_llm(folder) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(top_k=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"top_p": 7}, "has a top_p that cannot be a default: top_p must be in (0, 1], got 7.0."),
        ({"max_new_tokens": 0}, "has a max_new_tokens that cannot be a default: max_tokens must be at least 1, got 0."),
    ],
)
def test_defaults_that_cannot_be_name_the_file_and_the_field(
    with_generation_config: Callable[..., Path], content: dict[str, Any], words: str
) -> None:
    folder = with_generation_config(content)
    with pytest.raises(ConfigError) as caught:
        make_llm(folder)
    assert f"{folder}/generation_config.json {words}" in str(caught.value)
    assert "generation_config='none'" in str(caught.value)
    assert caught.value.parameter == "generation_config"
    with make_llm(folder, generation_config="none"):
        pass


def test_defaults_that_cannot_be_are_told_before_the_weights_are_read(
    with_generation_config: Callable[..., Path],
) -> None:
    folder = with_generation_config({"top_p": 7})
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(ConfigError, match="top_p"):
        make_llm(folder)


def test_end_of_sequence_ids_of_the_file_end_answers(with_generation_config: Callable[..., Path]) -> None:
    folder = with_generation_config({"eos_token_id": [EOS, 77]})
    with make_llm(folder) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=5, logit_bias={77: 100})
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
        assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([77], "stop")
