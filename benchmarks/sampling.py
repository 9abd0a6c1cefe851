"""What sampling costs for a step's logits: the native kernels beside plain torch, and beside one read of the logits.

The logits are Zipf's law (a token's probability falls with its rank to the power of --exponent), shuffled, so that
heads are as long as a language model's. Native and torch take turns. The last column is the native time as a multiple
of the time that it takes to read the logits once, which is what torch's sum takes.

    python benchmarks/sampling.py --rows 1 64 --vocab 49152
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from fathom.kernels.native import cpu as native
from fathom.kernels.penalties import cpu as penalties_cpu
from fathom.kernels.penalties import ref as penalties_ref
from fathom.kernels.sampling import DrawSettings
from fathom.kernels.sampling import cpu as sampling_cpu
from fathom.kernels.sampling import ref as sampling_ref
from fathom.kernels.token_logprobs import cpu as logprobs_cpu
from fathom.kernels.token_logprobs import ref as logprobs_ref

DRAWS: list[tuple[str, dict[str, float]]] = [
    ("draw, temperature 0.8", {}),
    ("draw, top_k 50", {"top_k": 50}),
    ("draw, top_p 0.95", {"top_p": 0.95}),
    ("draw, top_k 50, top_p 0.95", {"top_k": 50, "top_p": 0.95}),
    ("draw, min_p 0.05", {"log_min_p": float(np.log(0.05))}),
]
NUM_SEEN = 500  # distinct tokens that a row's penalties are about

Call = Callable[[], object]


def make_logits(rows: int, vocab_size: int, exponent: float) -> torch.Tensor:
    law = -exponent * torch.arange(1, vocab_size + 1).float().log()
    return torch.stack([law[torch.randperm(vocab_size)] for _ in range(rows)])


def draw_calls(logits: torch.Tensor) -> Iterator[tuple[str, Call, Call]]:
    num_rows, vocab_size = logits.shape
    rows, uniforms = np.arange(num_rows), np.random.default_rng(0).random(num_rows)
    yield "best token", *(partial(kernel.best_tokens, logits, rows) for kernel in (sampling_cpu, sampling_ref))
    neutral = DrawSettings.neutral(num_rows, vocab_size)._replace(temperature=np.full(num_rows, 0.8, np.float32))
    for name, changes in DRAWS:
        changed = {key: np.full_like(getattr(neutral, key), value) for key, value in changes.items()}
        arguments = (logits, rows, neutral._replace(**changed), uniforms)
        yield name, *(partial(kernel.draw_tokens, *arguments) for kernel in (sampling_cpu, sampling_ref))


def logprobs_calls(logits: torch.Tensor) -> Iterator[tuple[str, Call, Call]]:
    rows, targets = np.arange(len(logits)), logits.argmax(dim=-1)
    for k in (0, 20, 200, 1000):
        arguments = (logits, rows, targets, k, True)
        yield f"logprobs {k}", *(partial(kernel.token_logprobs, *arguments) for kernel in (logprobs_cpu, logprobs_ref))
    choice = sampling_cpu.Choice(rows, rows < 0, DrawSettings.neutral(*logits.shape), logits.shape[1])
    for k in (20, 200):
        yield (
            f"best token, logprobs {k}",
            partial(choice.choose_and_score, logits, [], rows, k, True),
            partial(_choose_then_score, logits, rows, k),
        )


def _choose_then_score(logits: torch.Tensor, rows: np.ndarray, k: int) -> None:
    logprobs_ref.token_logprobs(logits, rows, sampling_ref.best_tokens(logits, rows), k, True)


def penalties_calls(logits: torch.Tensor) -> Iterator[tuple[str, Call, Call]]:
    num_rows, vocab_size = logits.shape
    harmless = np.tile(np.array([1.0, 0.0, 0.0], np.float32), (num_rows, 1))  # so that repeats change nothing
    seen = [np.random.default_rng(row).choice(vocab_size, NUM_SEEN, replace=False) for row in range(num_rows)]
    arguments = (logits, np.arange(num_rows), harmless, seen, [np.ones(NUM_SEEN, np.float32)] * num_rows)
    kernels = (penalties_cpu, penalties_ref)
    yield f"penalties on {NUM_SEEN} tokens a row", *(partial(kernel.apply_penalties, *arguments) for kernel in kernels)


def make_calls(logits: torch.Tensor) -> Iterator[tuple[str, Call, Call]]:
    """(name, native, torch)."""
    yield from draw_calls(logits)
    yield from logprobs_calls(logits)
    yield from penalties_calls(logits)


def milliseconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--vocab", type=int, nargs="+", default=[49_152, 151_936, 262_144])
    parser.add_argument("--exponent", type=float, default=1.5)
    parser.add_argument("--level", choices=native.levels(), default=native.level())
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    native.set_num_threads(options.threads)
    native.use_level(options.level)
    print(f"{native.level()}, {options.threads} threads; medians of {options.repeats}")
    for vocab_size in options.vocab:
        for num_rows in options.rows:
            logits = make_logits(num_rows, vocab_size, options.exponent)
            read = statistics.median(milliseconds(logits.sum) for _ in range(5 * options.repeats))
            gigabytes = logits.numel() * 4 / read / 1e6
            print(f"\n{num_rows} rows x {vocab_size}: one read {read:.3f} ms ({gigabytes:.1f} GB/s)")
            print(f"{'':36} {'native ms':>10} {'torch ms':>10} {'reads':>6}")
            for name, fast, slow in make_calls(logits):
                pairs = [(milliseconds(fast), milliseconds(slow)) for _ in range(options.repeats)]
                native_ms, torch_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
                print(f"{name:36} {native_ms:10.3f} {torch_ms:10.3f} {native_ms / read:6.1f}")


if __name__ == "__main__":
    main()
