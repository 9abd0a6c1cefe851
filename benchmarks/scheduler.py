"""What the scheduler costs a step: schedule and update_from_output, with no model.

All running requests decode, so every step is the same work; nobody waiting can be admitted. The target is 3 ms a
step for 1,024 running requests, and no more however many wait.

    python benchmarks/scheduler.py --running 1024 --waiting 0 10000 100000
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np
from table import print_header, print_row

from fathom.config import EngineConfig
from fathom.core.kv_cache.groups import group_layers
from fathom.core.scheduler.scheduler import Scheduler
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.sampling_params import SamplingParams
from fathom.step import ModelRunnerOutput
from fathom.wire.messages import AddRequests, EngineCoreRequest

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096


def make_scheduler(max_num_seqs: int, num_steps: int, windows: list[int | None]) -> Scheduler:
    """A scheduler with more blocks than the running requests can fill."""
    groups = group_layers([LayerKVSpec(8, 64, "float16", window) for window in windows])
    tokens = max_num_seqs * (2 * BLOCK_SIZE + num_steps + 200)
    kv_cache = KVCacheConfig(tokens // BLOCK_SIZE * len(groups), BLOCK_SIZE, len(groups[0].layers), groups, 0)
    config = EngineConfig.from_options(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=8192, max_long_partial_prefills=1, block_size=BLOCK_SIZE
    )
    return Scheduler(config, kv_cache, MAX_MODEL_LEN)


def make_requests(first: int, count: int, prompt_len: int) -> AddRequests:
    chance = np.random.default_rng(first)
    prompts = [chance.integers(0, 1000, prompt_len, dtype=np.int32) for _ in range(count)]
    params = SamplingParams(max_tokens=MAX_MODEL_LEN, ignore_eos=True, temperature=0)
    return AddRequests(prompts, [params], [EngineCoreRequest(str(first + i), i, 0, seed=i) for i in range(count)])


def run_step(scheduler: Scheduler) -> tuple[float, float, int]:
    """Milliseconds of schedule and of update_from_output, and the number of requests in the step."""
    start = time.perf_counter()
    step = scheduler.schedule()
    scheduled = time.perf_counter()
    result = ModelRunnerOutput(sampled_token_ids=dict.fromkeys(step.num_scheduled_tokens, 7))
    ready = time.perf_counter()
    scheduler.update_from_output(step, result)
    end = time.perf_counter()
    return (scheduled - start) * 1000, (end - ready) * 1000, len(step.num_scheduled_tokens)


def measure(running: int, waiting: int, num_steps: int, windows: list[int | None]) -> list[tuple[float, float]]:
    scheduler = make_scheduler(running, num_steps, windows)
    scheduler.add_requests(make_requests(0, running, prompt_len=100))
    while len(scheduler.running) < running:
        run_step(scheduler)
    scheduler.add_requests(make_requests(running, waiting, prompt_len=100))
    gc.freeze()  # as the engine's process does
    samples = []
    for _ in range(num_steps):
        schedule_ms, update_ms, count = run_step(scheduler)
        if count != running or len(scheduler.waiting) != waiting:
            raise SystemExit("the pool is too small for this many steps")
        samples.append((schedule_ms, update_ms))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=1024)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--window", type=int, help="also a group of layers with this sliding window")
    options = parser.parse_args()
    windows = [None] if options.window is None else [None, options.window]
    print_header("ms per step")
    for waiting in options.waiting:
        samples = measure(options.running, waiting, options.steps, windows)
        name = f"{options.running:,} running, {waiting:,} waiting"
        print_row(name, [schedule + update for schedule, update in samples])
        print_row("    schedule", [schedule for schedule, _ in samples])
        print_row("    update_from_output", [update for _, update in samples])


if __name__ == "__main__":
    main()
