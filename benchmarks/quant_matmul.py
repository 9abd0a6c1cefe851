"""How near products with packed weights come to the machine's two limits.

For one token the limit is reading the weights: GB/s, beside what one pass over a large tensor reaches. For many it is
arithmetic: GOPS, where a multiplication and an addition are two operations. Shapes are SmolLM2-135M's. Each weight is
there as often as it takes to fill more than the caches, as a model's layers do, and the copies take turns.

    python benchmarks/quant_matmul.py --threads 2 --tokens 1 8 64 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fathom.kernels.native import cpu
from fathom.kernels.quant_matmul import quant_matmul
from fathom.quant.packed import PackedWeight, pack

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
FORMATS = {"4 bits": (4, True), "8 bits": (8, False), "8 bits, minimums": (8, True)}
GROUP = 32
SET_BYTES = 100e6


def make_weights(rows: int, columns: int, bits: int, with_minimums: bool) -> list[PackedWeight]:
    codes = torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8)
    scales = torch.rand(rows, columns // GROUP)
    weights = [pack(codes, scales, scales if with_minimums else None, bits)]
    while len(weights) * num_bytes(weights[0]) < SET_BYTES:
        weights.append(pack(codes, scales, scales if with_minimums else None, bits))
    return weights


def num_bytes(weight: PackedWeight) -> int:
    tensors = (weight.quants, weight.scales, weight.minimums)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def seconds_per_call(calls: list[Callable[[], object]], min_seconds: float) -> float:
    """Of the fastest round through all the calls."""
    best, end = float("inf"), time.perf_counter() + min_seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        for call in calls:
            call()
        best = min(best, time.perf_counter() - start)
    return best / len(calls)


def read_bandwidth(num_threads: int) -> float:
    """GB/s of summing a tensor that no cache holds."""
    torch.set_num_threads(num_threads)
    data = torch.ones(1 << 26)
    seconds = seconds_per_call([data.sum], 0.5)
    torch.set_num_threads(1)
    return data.nbytes / seconds / 1e9


def measure_shape(rows: int, columns: int, options: argparse.Namespace) -> None:
    for name, (bits, with_minimums) in FORMATS.items():
        weights = make_weights(rows, columns, bits, with_minimums)
        for tokens in options.tokens:
            x, out = torch.randn(tokens, columns), torch.empty(tokens, rows)
            some = weights if tokens < 64 else weights[:8]
            calls = [lambda weight=weight, x=x, out=out: quant_matmul(x, weight, out=out) for weight in some]
            row = f"{rows:6} x {columns:<5} {name:17} {tokens:4} tokens"
            for level in options.levels:
                cpu.use_level(level)
                seconds = seconds_per_call(calls, options.seconds)
                gigabytes, operations = num_bytes(weights[0]) / seconds / 1e9, 2 * tokens * rows * columns / seconds
                row += f" {gigabytes:8.1f} {operations / 1e9:7.0f}"
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--levels", nargs="+", default=cpu.levels())
    parser.add_argument("--seconds", type=float, default=0.1, help="at least, for each figure")
    options = parser.parse_args()
    print(f"reading: {read_bandwidth(options.threads):.1f} GB/s with {options.threads} threads")
    cpu.set_num_threads(options.threads)
    print(f"{'GB/s and GOPS at level':44}" + "".join(f" {level:>16}" for level in options.levels))
    for rows, columns in SHAPES:
        measure_shape(rows, columns, options)


if __name__ == "__main__":
    main()
