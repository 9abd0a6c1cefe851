"""What scheduler and KV manager cost at the scale of a large GPU, with no model: does the cost of a token stay flat?

The real Scheduler, with its real KV manager, is driven by a workload of requests that share prefixes, and by an
executor that computes nothing: it answers each step with a token for every request whose last token was computed,
and says how long a device would have taken (a fixed part, a part for each prompt token, a part for each sequence).
That time passes on the workload's own clock only; what is measured is the processor's time in Python. The waiting
queue is kept filled, as behind a server that is always asked for more than it can do.

The same run is made at three sizes, sixteen times apart, and the largest is told in tenths: time per scheduled token
and the process's memory must not grow with the requests that have passed, nor with the sizes. Where more is found in
the cache fewer tokens of prompts are left, which cost least; the time per sampled token does not depend on that.

    python benchmarks/scale.py
    python benchmarks/scale.py --requests 20000 --running 1024 --blocks 50000
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import psutil
from tqdm import tqdm

from fathom.allocator import HeapTrimmer, calm_garbage_collector
from fathom.config import EngineConfig
from fathom.core.kv_cache.groups import group_layers
from fathom.core.scheduler.scheduler import Scheduler
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.sampling_params import SamplingParams
from fathom.step import ModelRunnerOutput, SchedulerOutput
from fathom.wire.messages import AddRequests, EngineCoreRequest

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
VOCAB = 100_000
TENTHS = 10


@dataclass(frozen=True)
class Size:
    """How much of everything: requests in all, sequences in a step, blocks of the pool."""

    requests: int
    running: int
    blocks: int

    def scaled(self, divisor: int) -> Size:
        return Size(self.requests // divisor, self.running // divisor, self.blocks // divisor)

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {self.running:,} running, {self.blocks:,} blocks"


@dataclass(frozen=True)
class Latency:
    """A device's time for a step, in seconds; about a 8B model on one large GPU, to give the run a plausible clock."""

    step: float = 6e-3
    prompt_token: float = 2.5e-5
    sequence: float = 4e-6

    def of(self, work: SchedulerOutput) -> float:
        generating = work.num_generation_requests
        return self.step + self.prompt_token * work.num_context_tokens + self.sequence * generating


class Workload:
    """Requests by seed: a prefix from a set, a few of which are asked for most, and a tail of the request's own."""

    NUM_PREFIXES = 256
    PREFIX_TOKENS = (64, 1024)
    TAIL_TOKENS = (16, 400)
    OUTPUT_TOKENS = (16, 400)

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._prefixes = [self._tokens(self.PREFIX_TOKENS) for _ in range(self.NUM_PREFIXES)]
        # A token that would end an answer is looked for, and never comes: the lengths are drawn beforehand.
        self._params = [SamplingParams(max_tokens=n, eos_token_ids=[VOCAB]) for n in range(1, self.OUTPUT_TOKENS[1])]

    def take(self, first: int, count: int) -> AddRequests:
        """Requests number `first` and the `count` - 1 after it."""
        popularity = np.minimum(self._chance.zipf(1.3, count), self.NUM_PREFIXES) - 1
        prompts = [np.concatenate([self._prefixes[which], self._tokens(self.TAIL_TOKENS)]) for which in popularity]
        lengths = self._chance.integers(*self.OUTPUT_TOKENS, count)
        requests = [EngineCoreRequest(str(first + i), i, i, seed=i) for i in range(count)]
        return AddRequests(prompts, [self._params[n - 1] for n in lengths], requests)

    def _tokens(self, bounds: tuple[int, int]) -> np.ndarray:
        return self._chance.integers(0, VOCAB, self._chance.integers(*bounds), dtype=np.int32)


class Device:
    """Answers steps without computing them."""

    def __init__(self, latency: Latency) -> None:
        self.clock = 0.0
        self._latency = latency
        self._chance = np.random.default_rng(0)
        self._missing: dict[str, int] = {}  # prompt tokens that are still to be computed

    def execute(self, work: SchedulerOutput) -> ModelRunnerOutput:
        self.clock += self._latency.of(work)
        missing = self._missing
        for request_id in work.finished_request_ids:
            missing.pop(request_id, None)
        for request in work.new_requests:
            missing[request.request_id] = len(request.token_ids) - request.num_computed_tokens
        complete = []
        for request_id, count in work.num_scheduled_tokens.items():
            left = missing[request_id] - count
            if left <= 0:
                complete.append(request_id)
                left = 1
            missing[request_id] = left
        tokens = self._chance.integers(0, VOCAB, len(complete)).tolist()
        return ModelRunnerOutput(sampled_token_ids=dict(zip(complete, tokens, strict=True)))


@dataclass(frozen=True)
class Moment:
    """Totals of a run so far; what passed between two moments is their difference."""

    ended: int = 0
    steps: int = 0
    sequences: int = 0
    tokens: int = 0
    sampled: int = 0
    scheduler_s: float = 0.0
    device_s: float = 0.0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0
    memory: int = 0
    objects: int = 0


class Run:
    """All of a size's requests, served one step after another."""

    def __init__(self, size: Size, seed: int) -> None:
        self._size = size
        self._scheduler = make_scheduler(size)
        self._workload = Workload(seed)
        self._device = Device(Latency())
        self._arrived = 0
        self._total = Moment()
        # As the engine's process does.
        calm_garbage_collector()
        self._heap = HeapTrimmer()

    def until(self, ended: int) -> Moment:
        """Go on until so many requests have ended."""
        while self._total.ended < ended:
            self._heap.tick()
            self._fill_queue()
            self._step()
        if ended == self._size.requests:
            self._scheduler.check_invariants()
            assert not self._scheduler.requests, "a request is lost"
        cache = self._scheduler.kv_cache
        return replace(
            self._total,
            device_s=self._device.clock,
            queries=cache.prefix_cache_queries,
            hits=cache.prefix_cache_hits,
            preemptions=self._scheduler.num_preemptions,
            memory=psutil.Process().memory_info().rss,
            objects=sys.getallocatedblocks(),
        )

    def _fill_queue(self) -> None:
        wanted = self._size.running // 4
        count = min(wanted, self._size.requests - self._arrived)
        if count and len(self._scheduler.waiting) < wanted:
            self._scheduler.add_requests(self._workload.take(self._arrived, count))
            self._arrived += count

    def _step(self) -> None:
        start = time.thread_time()
        work = self._scheduler.schedule()
        scheduled = time.thread_time()
        result = self._device.execute(work)
        executed = time.thread_time()
        outputs = self._scheduler.update_from_output(work, result)
        end = time.thread_time()
        total = self._total
        self._total = replace(
            total,
            ended=total.ended + sum(output.finish_reason is not None for output in outputs.outputs),
            steps=total.steps + 1,
            sequences=total.sequences + len(work.num_scheduled_tokens),
            tokens=total.tokens + work.total_num_scheduled_tokens,
            sampled=total.sampled + len(result.sampled_token_ids),
            scheduler_s=total.scheduler_s + (end - executed) + (scheduled - start),
        )


def make_scheduler(size: Size) -> Scheduler:
    groups = group_layers([LayerKVSpec(8, 64, "float16", None)])
    kv_cache = KVCacheConfig(size.blocks, BLOCK_SIZE, len(groups[0].layers), groups, 0)
    config = EngineConfig.from_options(
        max_long_partial_prefills=1,
        max_num_seqs=size.running,
        max_num_batched_tokens=max(2048, 4 * size.running),
        block_size=BLOCK_SIZE,
    )
    return Scheduler(config, kv_cache, MAX_MODEL_LEN)


def print_part(name: str, begin: Moment, end: Moment) -> None:
    steps, tokens = end.steps - begin.steps, end.tokens - begin.tokens
    seconds = end.scheduler_s - begin.scheduler_s
    hit_rate = (end.hits - begin.hits) / max(1, end.queries - begin.queries)
    print(
        f"{name:>9} {steps:8,} {(end.sequences - begin.sequences) / steps:9,.0f} {tokens:12,}"
        f" {seconds / tokens * 1e6:9.2f} {seconds / (end.sampled - begin.sampled) * 1e6:10.2f}"
        f" {seconds / steps * 1e3:8.2f}"
        f" {seconds / (end.device_s - begin.device_s):8.0%} {hit_rate:6.0%}"
        f" {end.preemptions - begin.preemptions:10,} {end.memory / 1e6:7,.0f} {end.objects / 1e3:9,.0f}"
    )


def measure(size: Size, seed: int, *, tenths: bool) -> None:
    """Run a size and print it, in tenths of its requests if asked to."""
    print(f"\n{size}")
    print(
        "ended      steps sequences       tokens  us/token us/sampled  ms/step  /device   hits preemptions     MB"
        " k objects".rjust(118)
    )
    run = Run(size, seed)
    first = last = Moment()
    for tenth in tqdm(range(1, TENTHS + 1), leave=False, disable=None):
        moment = run.until(size.requests * tenth // TENTHS)
        if tenths:
            print_part(f"{tenth * 10} %", last, moment)
        last = moment
    print_part("all", first, last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=4096)
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    largest = Size(options.requests, options.running, options.blocks)
    for divisor in (16, 4):
        measure(largest.scaled(divisor), options.seed, tenths=False)
    measure(largest, options.seed, tenths=True)


if __name__ == "__main__":
    main()
