"""What long prompts do to others: the longest gap in streams while prompts are computed, over a chunk's step alone.

A round computes one prompt alone and takes the longest of its steps. Then streams decode, the same number of prompts
arrives at once, and the longest time between two tokens of any stream, as its reader sees it, is set against that
step: the target is at most 1.5 times. A short prompt that arrives right after a long one is timed as well, over the
same prompt alone.

    python benchmarks/fairness.py --model smollm2-135m
    python benchmarks/fairness.py --streams 16 --prompts 1 4 --rounds 9
    python benchmarks/fairness.py --max-num-batched-tokens 2048
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from table import print_header, print_row

from fathom import AsyncLLM, EngineConfig, RequestOutputKind, SamplingParams
from fathom.entrypoints.cli.serve import ITL_TARGET_MS
from fathom.frontend.stats import EngineObserver
from fathom.wire.messages import EngineCoreOutputs

STREAM_PROMPT = 32
SHORT_PROMPT = 16
SETTLED_TOKENS = 8


class Steps(EngineObserver):
    """Keeps how long steps with prompts took, in milliseconds."""

    def __init__(self) -> None:
        self.with_prompts: list[float] = []

    def step(self, outputs: EngineCoreOutputs) -> None:
        step = outputs.step
        if step is not None and step.context_tokens:
            self.with_prompts.append(1000 * (step.schedule_s + step.model_s + step.update_s))


class Fairness:
    """An engine and what is asked of it. No two prompts share a block, so nothing comes from the prefix cache."""

    def __init__(self, engine: AsyncLLM, steps: Steps, num_streams: int, prompt_tokens: int) -> None:
        self.engine = engine
        self.steps = steps
        self.num_streams = num_streams
        self.prompt_tokens = prompt_tokens
        self._names = itertools.count()
        self._chance = np.random.default_rng(0)
        self._arrivals: list[list[float]] = []

    async def alone(self) -> float:
        """Milliseconds of the longest step of one prompt, with nothing else in the engine."""
        self.steps.with_prompts.clear()
        await self.first_token(self.prompt_tokens)
        return max(self.steps.with_prompts)

    async def first_token(self, num_tokens: int) -> float:
        """Milliseconds until a new prompt has its first token."""
        prompt = self._chance.integers(100, 1000, num_tokens).tolist()
        start = time.perf_counter()
        params = SamplingParams(max_tokens=1, output_kind=RequestOutputKind.DELTA)
        async for _ in self.engine.generate(prompt, params, str(next(self._names))):
            pass
        return 1000 * (time.perf_counter() - start)

    async def gap(self, num_prompts: int) -> float:
        """The longest milliseconds between two tokens of a stream, from the prompts' arrival until all are computed."""
        async with self.streams():
            begin = time.perf_counter()
            await asyncio.gather(*(self.first_token(self.prompt_tokens) for _ in range(num_prompts)))
            end = time.perf_counter()
        gaps = [
            after - before
            for times in self._arrivals
            for before, after in itertools.pairwise(times)
            if after > begin and before < end
        ]
        return 1000 * max(gaps)

    async def short_behind_long(self) -> float:
        """Milliseconds until a short prompt that comes right after a long one has its first token."""
        long = asyncio.create_task(self.first_token(self.prompt_tokens))
        await asyncio.sleep(0.005)
        first = await self.first_token(SHORT_PROMPT)
        await long
        return first

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[None]:
        """Streams that have begun and go on until the block ends."""
        self._arrivals = [[] for _ in range(self.num_streams)]
        tasks = [asyncio.create_task(self._stream(times)) for times in self._arrivals]
        while not all(len(times) >= SETTLED_TOKENS for times in self._arrivals):
            await asyncio.sleep(0.01)
        try:
            yield
            enough = [len(times) + 2 for times in self._arrivals]
            while not all(len(times) >= count for times, count in zip(self._arrivals, enough, strict=True)):
                await asyncio.sleep(0.01)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, times: list[float]) -> None:
        prompt = self._chance.integers(100, 1000, STREAM_PROMPT).tolist()
        params = SamplingParams(max_tokens=None, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        async for _ in self.engine.generate(prompt, params, str(next(self._names))):
            times.append(time.perf_counter())  # noqa: PERF401 - others read them meanwhile


async def measure(options: argparse.Namespace) -> None:
    tokens = options.max_num_batched_tokens
    config = EngineConfig.from_options(
        model=options.model,
        itl_target_ms=0 if tokens else options.itl_target_ms,
        max_num_batched_tokens=tokens,
        show_progress=False,
    )
    steps = Steps()
    engine = await AsyncLLM.start(config, steps)
    try:
        fairness = Fairness(engine, steps, options.streams, options.prompt_tokens)
        await fairness.gap(1)  # touches the memory that later rounds use
        alone: list[float] = []
        gaps: dict[int, list[float]] = {count: [] for count in options.prompts}
        short: list[float] = []
        short_behind: list[float] = []
        for _ in range(options.rounds):
            alone.append(await fairness.alone())
            for count, found in gaps.items():
                found.append(await fairness.gap(count))
            short.append(await fairness.first_token(SHORT_PROMPT))
            short_behind.append(await fairness.short_behind_long())
    finally:
        engine.shutdown()
    print(
        f"{options.streams} streams, prompts of {options.prompt_tokens} tokens, "
        f"max_num_batched_tokens={engine.config.scheduler.max_num_batched_tokens}"
    )
    print_header("ms")
    print_row("a prompt alone: its longest step", alone)
    for count, found in gaps.items():
        print_row(f"longest gap of a stream, {count} prompts arriving", found)
    print_row(f"first token of {SHORT_PROMPT} tokens, alone", short)
    print_row("    behind a long prompt", short_behind)
    print_header("times the longest step alone")
    for count, found in gaps.items():
        print_row(f"longest gap, {count} prompts", [gap / step for gap, step in zip(found, alone, strict=True)])
    print_row("first token behind a long prompt", [late / step for late, step in zip(short_behind, alone, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 3], help="that arrive at once")
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--itl-target-ms", type=float, default=ITL_TARGET_MS)
    parser.add_argument("--max-num-batched-tokens", type=int, help="instead of a target")
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
