"""What a step costs beyond the model's kernels: schedule, inputs, sampling's bookkeeping, update, encode, send.

EngineCore runs in this process, every row decodes, and the outputs go to a socket that nobody waits for. The time in
the model's forward and compute_logits is measured and taken off each step's. Without --model the model is a tiny one
with random weights; with async scheduling the rest can only be hidden behind kernels that take longer than it does.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --model smollm2-135m --logprobs 5
    python benchmarks/step_overhead.py --profile 64
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from table import print_header, print_row

from fathom.config import EngineConfig
from fathom.core.engine_core import EngineCore
from fathom.frontend.boot import prepare
from fathom.sampling_params import SamplingParams
from fathom.wire.codec import Encoder
from fathom.wire.messages import AddRequests, EngineCoreRequest
from fathom.wire.sockets import send

PROMPT_TOKENS = 32
WARM_UP_STEPS = 10
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}


class TimedForward:
    """Stands in for a runner's forward pass and adds up the seconds that it takes."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._forward(*args)
        finally:
            self.seconds += time.perf_counter() - start


@contextmanager
def engine(model: str | None, threads: int | None, *, async_scheduling: bool) -> Iterator[EngineCore]:
    """An EngineCore of a model, or of the tiny one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(TINY))
        config = EngineConfig.from_options(
            model=model or folder,
            load_format="auto" if model else "dummy",
            max_model_len=2048,
            async_scheduling=async_scheduling,
            num_threads=threads,
            show_progress=False,
        )
        core = EngineCore(prepare(config).setup)
        try:
            yield core
        finally:
            core.close()


def add_requests(core: EngineCore, count: int, params: SamplingParams) -> None:
    prompts = [(np.arange(PROMPT_TOKENS, dtype=np.int32) * (7 + i)) % 500 for i in range(count)]
    core.add_requests(AddRequests(prompts, [params], [EngineCoreRequest(str(i), i, 0, seed=i) for i in range(count)]))


def measure(core: EngineCore, rows: int, steps: int, params: SamplingParams) -> tuple[list[float], list[float]]:
    """Milliseconds of the model, and beyond it, of each of `steps` steps of `rows` decoding rows."""
    runner = core.executor._worker._runner  # type: ignore[attr-defined]
    timed = runner._forward = TimedForward(runner._forward)
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("inproc://outputs")
    push.connect("inproc://outputs")
    encoder = Encoder()
    add_requests(core, rows, params)
    model_ms, beyond_ms = [], []
    for index in range(WARM_UP_STEPS + steps):
        start, model_start = time.perf_counter(), timed.seconds
        outputs = core.step()
        send(push, encoder.encode(outputs))
        wall, model = time.perf_counter() - start, timed.seconds - model_start
        pull.recv_multipart()
        if index >= WARM_UP_STEPS:
            model_ms.append(model * 1000)
            beyond_ms.append((wall - model) * 1000)
    core.scheduler.finish_requests([str(index) for index in range(rows)])
    while core.has_work():
        core.step()
    del runner._forward  # the class's own again
    context.destroy(linger=0)
    return model_ms, beyond_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: a tiny one with random weights")
    parser.add_argument("--threads", type=int, help="of the model; default: the cores that this process may use")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--logprobs", type=int)
    parser.add_argument("--profile", type=int, metavar="ROWS", help="instead, cProfile of synchronous steps")
    options = parser.parse_args()
    params = SamplingParams(
        temperature=options.temperature, max_tokens=1500, ignore_eos=True, logprobs=options.logprobs, seed=0
    )
    if options.profile:
        with engine(options.model, options.threads, async_scheduling=False) as core, cProfile.Profile() as profile:
            measure(core, options.profile, options.steps, params)
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
        return
    print_header("ms per step")
    for async_scheduling in (False, True):
        with engine(options.model, options.threads, async_scheduling=async_scheduling) as core:
            for rows in options.rows:
                model_ms, beyond_ms = measure(core, rows, options.steps, params)
                print_row(f"{'async' if async_scheduling else 'sync'}, {rows} rows: the model", model_ms)
                print_row("    beyond it", beyond_ms)


if __name__ == "__main__":
    main()
