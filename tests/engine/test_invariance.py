"""No setting that should not change results changes them: the same tokens however the work is cut up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fathom import LLM, AsyncLLM, EngineConfig, RequestOutputKind, SamplingParams

MODELS = ("llama-gqa", "gemma3", "qwen2-window")
PROMPTS = [[3 + (11 * i * (k + 1) + k) % 500 for i in range(5 + 9 * k)] for k in range(7)]
PROMPTS += [[*PROMPTS[6][:40], 9, 9, k] for k in range(3)]  # a common prefix
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=30, n=4, seed=11, ignore_eos=True)


def make_llm(folder: Path, **options: Any) -> LLM:
    defaults = {"multiprocess": False, "num_threads": 1, "max_num_seqs": 16, "max_model_len": 128}
    return LLM(str(folder), **(defaults | options))


def tokens(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[list[int]]]:
    """For each prompt its greedy answer and its four seeded ones."""
    greedy = llm.generate(prompts, GREEDY, use_tqdm=False)
    seeded = llm.generate(prompts, SEEDED, use_tqdm=False)
    return [
        [g.outputs[0].token_ids, *(answer.token_ids for answer in s.outputs)]
        for g, s in zip(greedy, seeded, strict=True)
    ]


@pytest.fixture(scope="module", params=MODELS)
def case(request, tiny: Callable[[str], Path]) -> tuple[Path, list[list[list[int]]]]:
    """A model, and its answers one prompt at a time with the plainest settings."""
    folder = tiny(request.param)
    with make_llm(folder, enable_prefix_caching=False, max_num_batched_tokens=2048) as llm:
        alone = [tokens(llm, [prompt])[0] for prompt in PROMPTS]
    assert len({tuple(answer) for answers in alone for answer in answers}) > len(PROMPTS)  # answers do differ
    return folder, alone


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": 2048},
        {"block_size": 8},
        {"block_size": 32},
        {"enable_prefix_caching": False},
        {"enable_chunked_prefill": False},
        {"long_prefill_token_threshold": 5},
        {"max_num_batched_tokens": 16, "max_long_partial_prefills": 3},
        {"itl_target_ms": 0.001},
        {"scheduling_policy": "priority"},
        {"max_num_seqs": 1},
        {"max_num_seqs": 64},
    ],
    ids=str,
)
def test_limits_of_a_step(case, options: dict[str, Any]) -> None:
    folder, alone = case
    with make_llm(folder, **options) as llm:
        assert tokens(llm) == alone


def test_a_warm_prefix_cache(case) -> None:
    folder, alone = case
    with make_llm(folder) as llm:
        assert tokens(llm) == alone
        again = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert all(output.num_cached_tokens > 0 for output in again if len(output.prompt_token_ids) > 16)
        assert [output.outputs[0].token_ids for output in again] == [answers[0] for answers in alone]
        assert llm.reset_prefix_cache()
        cold = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
        assert cold[0].num_cached_tokens == 0
        assert cold[0].outputs[0].token_ids == alone[0][0]


def test_preemption(case) -> None:
    folder, alone = case
    with make_llm(folder) as llm:
        specs = llm.collective_rpc("get_kv_cache_specs")[0]
    bytes_per_token = sum(spec.bytes_per_token for spec in specs)
    with make_llm(folder, kv_cache_memory_bytes=170 * bytes_per_token, max_num_batched_tokens=32) as llm:
        assert tokens(llm) == alone
        assert llm.get_stats()["num_preemptions"] > 0


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_of(case, size: int) -> None:
    folder, alone = case
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(size)]
    with make_llm(folder, max_num_seqs=64) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [
        alone[index % len(PROMPTS)][0] for index in range(size)
    ]


def test_in_a_process_of_its_own(case) -> None:
    folder, alone = case
    with make_llm(folder, multiprocess=True) as llm:
        assert tokens(llm) == alone


def test_through_asyncio(case) -> None:
    folder, alone = case

    async def answer(engine: AsyncLLM, index: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(5)]
        for offset, params in ((0, GREEDY), (1, SEEDED)):
            delta = SamplingParams(
                temperature=params.temperature,
                top_p=params.top_p,
                max_tokens=params.max_tokens,
                n=params.n,
                seed=params.seed,
                ignore_eos=True,
                output_kind=RequestOutputKind.DELTA,
            )
            async for output in engine.generate(PROMPTS[index], delta, f"{index}-{offset}"):
                for completion in output.outputs:
                    found[offset + completion.index] += completion.token_ids
        return found

    async def run() -> list[list[list[int]]]:
        config = EngineConfig.from_options(model=str(folder), num_threads=1, max_num_seqs=16, max_model_len=128)
        engine = await AsyncLLM.start(config)
        try:
            return await asyncio.gather(*(answer(engine, index) for index in range(len(PROMPTS))))
        finally:
            engine.shutdown()

    assert asyncio.run(run()) == alone
