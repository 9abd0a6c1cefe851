"""Products with matrices of bfloat16: widened to float32, in pairs of bfloat16, and torch's own beside them.

GFLOP/s, where a multiplication and an addition are two operations, of one thread's processor time. Shapes are of
layers of SmolLM2-135M, Qwen2.5-0.5B and SmolLM2-1.7B. Each matrix is there as often as it takes to fill more than the
caches, and the copies take turns, as do the three. Ours round the activations within the product; torch's are rounded
before.

    python benchmarks/float_matmul.py --tokens 1 8 64 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fathom.kernels.float_matmul import bfloat16_matmul, float_matmul
from fathom.kernels.native import cpu
from fathom.quant.float_weight import FloatWeight, empty_float_weight, put_rows
from fathom.quant.huge_pages import HugePages

SHAPES = [(3072, 576), (576, 1536), (9728, 896), (896, 4864), (16384, 2048), (2048, 8192)]
SET_BYTES = 100e6

Product = Callable[[], object]


def make_weights(matrix: torch.Tensor) -> list[FloatWeight]:
    """Copies of a bfloat16 matrix in panels."""
    memory = HugePages()
    weights = []
    for _ in range(max(1, int(SET_BYTES / matrix.nbytes))):
        weight = empty_float_weight(*matrix.shape, matrix.dtype)
        put_rows(weight, 0, matrix)
        weights.append(weight.with_tensors([memory.take(tensor) for tensor in weight.tensors], weight.rows))
    return weights


def seconds_per_call(ways: list[list[Product]], min_seconds: float) -> list[float]:
    """Of each way's fastest round through its calls; the ways take turns."""
    best, end = [float("inf")] * len(ways), time.perf_counter() + min_seconds
    while best[0] == float("inf") or time.perf_counter() < end:
        for index, calls in enumerate(ways):
            start = time.thread_time()
            for call in calls:
                call()
            best[index] = min(best[index], (time.thread_time() - start) / len(calls))
    return best


def measure(rows: int, columns: int, tokens: int, min_seconds: float) -> list[float]:
    """GFLOP/s of the three."""
    matrix, x = torch.randn(rows, columns).bfloat16(), torch.randn(tokens, columns)
    weights, out, rounded = make_weights(matrix), torch.empty(tokens, rows), x.bfloat16()
    some = weights if tokens < 64 else weights[:2]
    ways: list[list[Product]] = [
        [lambda weight=weight: float_matmul(x, weight, out=out) for weight in some],
        [lambda weight=weight: bfloat16_matmul(x, weight, out=out) for weight in some],
        [lambda dense=dense: F.linear(rounded, dense) for dense in [matrix.clone() for _ in some]],
    ]
    return [2e-9 * tokens * rows * columns / seconds for seconds in seconds_per_call(ways, min_seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--seconds", type=float, default=0.3, help="at least, for each line")
    options = parser.parse_args()
    cpu.set_num_threads(1)
    torch.set_num_threads(1)
    print(f"level {cpu.level()}, GFLOP/s: in float32, in bfloat16 (ratio), torch's bfloat16")
    with torch.inference_mode():
        for rows, columns in SHAPES:
            for tokens in options.tokens:
                wide, pairs, peer = measure(rows, columns, tokens, options.seconds)
                ratio = f"({pairs / wide:.2f})"
                print(f"{rows:6} x {columns:<5} {tokens:4} tokens {wide:7.0f} {pairs:7.0f} {ratio} {peer:7.0f}")


if __name__ == "__main__":
    main()
