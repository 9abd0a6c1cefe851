"""A small KV cache and a sliding window: what fits, what is said about what does not, and that nothing of it shows in
the answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from fathom.errors import ConfigError, ContextLengthError
from tests.engine.oracle import check_greedy, reference_logprobs
from tests.entrypoints.conftest import make_llm
from tests.models.tiny import load_oracle

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
CUT = re.compile(r"max_model_len is cut from (\d+) to (\d+): .*kv_cache_memory_bytes=(\d+).*set max_model_len=(\d+)")


def bytes_per_token(llm: LLM) -> int:
    return sum(spec.bytes_per_token for spec in llm.collective_rpc("get_kv_cache_specs")[0])


@pytest.fixture(scope="module")
def block_bytes(llm: LLM) -> int:
    """Bytes of a block of 16 tokens of the tiny Llama, all layers."""
    return 16 * bytes_per_token(llm)


# ---------------------------------------------------------------- what fits (C38)


def test_a_context_that_does_not_fit_is_cut_out_loud(
    tiny: Callable[[str], Path], block_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"max_model_len": 250, "kv_cache_memory_bytes": 9 * block_bytes + 7}
    with caplog.at_level(logging.WARNING, "fathom"), make_llm(tiny("llama-gqa"), **options) as llm:
        assert llm.llm_engine.config.model.max_model_len == 128  # one block of nine is the null block
        (warning,) = [record for record in caplog.records if "max_model_len" in record.message]
        assert warning.levelno == logging.WARNING
        assert "the KV cache of 0.00 GiB (9 blocks of 16 tokens) holds no longer one" in warning.message
        wanted, fitted, enough, suggested = map(int, CUT.search(warning.message).groups())
        assert (wanted, fitted, suggested) == (250, 128, 128)
        assert all(way in warning.message for way in ("give the cache more memory", "free memory", "set max_model_len"))
        with pytest.raises(ContextLengthError, match="the context holds 128"):
            llm.generate([[5] * 128], GREEDY, use_tqdm=False)
        (output,) = llm.generate([[5] * 100], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 28
    caplog.clear()
    for again in ({"kv_cache_memory_bytes": enough, "max_model_len": 250}, options | {"max_model_len": 128}):
        with caplog.at_level(logging.WARNING, "fathom"), make_llm(tiny("llama-gqa"), **again) as llm:
            assert llm.llm_engine.config.model.max_model_len == again["max_model_len"]
    assert "cut" not in caplog.text
    with caplog.at_level(logging.WARNING, "fathom"):
        make_llm(tiny("llama-gqa"), max_model_len=250, kv_cache_memory_bytes=enough - 1).shutdown()
    assert "cut" in caplog.text


@pytest.mark.parametrize("name", ["gemma3", "qwen2-window"])
@pytest.mark.parametrize("budget", [16, 2048])
def test_the_memory_that_the_warning_names_is_enough(
    tiny: Callable[[str], Path], caplog: pytest.LogCaptureFixture, name: str, budget: int
) -> None:
    options = {"max_model_len": 250, "max_num_batched_tokens": budget, "block_size": 8, "max_num_seqs": 4}
    with caplog.at_level(logging.WARNING, "fathom"):
        make_llm(tiny(name), kv_cache_memory_bytes=60_000, **options).shutdown()
        enough = int(CUT.search(caplog.text)[3])
        caplog.clear()
        with make_llm(tiny(name), kv_cache_memory_bytes=enough, **options) as llm:
            assert llm.llm_engine.config.model.max_model_len == 250
            (output,) = llm.generate([[5] * 249], GREEDY, use_tqdm=False)
            assert output.outputs[0].finish_reason == "length"
        assert not caplog.text


def test_a_cache_for_nothing_is_refused_with_what_it_takes(tiny: Callable[[str], Path], block_bytes: int) -> None:
    with pytest.raises(ConfigError) as caught:
        make_llm(tiny("llama-gqa"), kv_cache_memory_bytes=2 * block_bytes - 1)
    assert caught.value.parameter == "kv_cache_memory_bytes"
    assert f"It takes {2 * block_bytes:,} bytes at the least." in str(caught.value)
    with make_llm(tiny("llama-gqa"), kv_cache_memory_bytes=2 * block_bytes) as llm:
        assert llm.llm_engine.config.model.max_model_len == 16


# ---------------------------------------------------------------- the prefix cache's edges (C67)


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3"])
def test_prompts_around_a_block_s_end_twice(tiny: Callable[[str], Path], name: str) -> None:
    oracle = load_oracle(tiny(name))
    with make_llm(tiny(name), block_size=8) as llm:
        for length in (1, 7, 8, 9, 15, 16, 17):
            prompt = [30 + 5 * index + length for index in range(length)]
            for cached in (0, (length - 1) // 8 * 8):
                (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
                assert output.num_cached_tokens == cached
                check_greedy(oracle, prompt, output.outputs[0].token_ids)


# ---------------------------------------------------------------- the window's edge (C71)


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 4}, {"block_size": 4}], ids=str)
def test_lengths_around_a_sliding_window(tiny: Callable[[str], Path], options: dict[str, int]) -> None:
    oracle = load_oracle(tiny("gemma3"))  # window 8
    lengths = (6, 7, 8, 9, 10, 15, 16, 17, 25, 60)
    prompts = [[40 + 3 * index % 300 for index in range(length)] for length in lengths]
    with make_llm(tiny("gemma3"), **({"max_num_seqs": 4} | options)) as llm:
        for _ in range(2):  # the second time with hits, which all end around the window's edge
            for prompt, output in zip(prompts, llm.generate(prompts, GREEDY, use_tqdm=False), strict=True):
                check_greedy(oracle, prompt, output.outputs[0].token_ids)
        assert output.num_cached_tokens > 0


# ---------------------------------------------------------------- preemption (C68)


def test_nothing_of_a_preemption_shows(tiny: Callable[[str], Path], block_bytes: int, llm: LLM) -> None:
    oracle = load_oracle(tiny("llama-gqa"))
    tokenizer = llm.get_tokenizer()
    shared = [60 + index for index in range(20)]
    prompts = [[*shared[: 20 - k], *range(100 + 10 * k, 104 + 10 * k)] for k in range(8)]
    force = tokenizer.encode("and " * 12 + "stop here")

    def params(kind: int) -> SamplingParams:
        options: list[dict[str, Any]] = [
            {"temperature": 0.0, "logprobs": 2},
            {"temperature": 1.0, "seed": 9, "prompt_logprobs": 1, "logprobs": 0},
            {"temperature": 0.0, "stop": ["stop"], "extra_args": {"force": force}},
            {"temperature": 0.0, "presence_penalty": 1.5, "repetition_penalty": 1.2, "min_tokens": 40},
        ]
        return SamplingParams(max_tokens=40, ignore_eos=True, **options[kind])

    each = [params(index % 4) for index in range(8)]
    alone = [llm.generate([prompt], given, use_tqdm=False)[0] for prompt, given in zip(prompts, each, strict=True)]
    assert alone[2].outputs[0].stop_reason == "stop"
    processors = list(llm.llm_engine.config.model.logits_processors)
    options = {"kv_cache_memory_bytes": 12 * block_bytes, "logits_processors": processors, "max_num_seqs": 8}
    with make_llm(tiny("llama-gqa"), **options) as small:
        crowd = small.generate(prompts, each, use_tqdm=False)
        num_preemptions = small.get_stats()["num_preemptions"]
        assert num_preemptions > 3
        assert sum(output.metrics.num_preemptions for output in crowd) == num_preemptions
    for one, many in zip(alone, crowd, strict=True):
        expected, found = one.outputs[0], many.outputs[0]
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
        assert (found.finish_reason, found.stop_reason) == (expected.finish_reason, expected.stop_reason)
        if found.logprobs is not None:
            check_chosen(oracle, many.prompt_token_ids, found.token_ids, found.logprobs)
        if many.prompt_logprobs is not None:
            check_chosen(oracle, many.prompt_token_ids[:1], many.prompt_token_ids[1:], many.prompt_logprobs[1:])


def test_a_prompt_that_is_preempted_half_way_is_scored_once(tiny: Callable[[str], Path], block_bytes: int) -> None:
    short = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    scored = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    prompts = [[5, 6], [7, 8], [9, 10], [60 + index for index in range(60)]]
    limits = {"max_num_batched_tokens": 4, "max_num_seqs": 4}  # one token of the prompt a step, beside three decodes
    with make_llm(tiny("llama-gqa"), kv_cache_memory_bytes=12 * block_bytes, **limits) as small:
        outputs = small.generate(prompts, [short, short, short, scored], use_tqdm=False)
    assert outputs[3].metrics.num_preemptions > 0
    oracle = load_oracle(tiny("llama-gqa"))
    check_chosen(oracle, prompts[3][:1], prompts[3][1:], outputs[3].prompt_logprobs[1:])
    check_greedy(oracle, prompts[3], outputs[3].outputs[0].token_ids)


def check_chosen(oracle: Any, prompt: list[int], chosen: list[int], positions: Any) -> None:
    """Each position has its chosen token's score, to 1e-4."""
    scores = reference_logprobs(oracle, prompt, chosen)
    assert len(positions) == len(chosen)
    for reference, token, entries in zip(scores, chosen, positions, strict=True):
        assert entries[token].logprob == pytest.approx(reference[token].item(), abs=1e-4)
