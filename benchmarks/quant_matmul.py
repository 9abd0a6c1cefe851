"""How near products with packed weights come to the machine's two limits.

For one token the limit is reading the weights: GB/s, beside what one pass over a large tensor reaches. For many it is
arithmetic: GOPS, where a multiplication and an addition are two operations. Shapes are SmolLM2-135M's. Each weight is
there as often as it takes to fill more than the caches, as a model's layers do, and the copies take turns.

    python benchmarks/quant_matmul.py --threads 2 --tokens 1 8 64 512 --formats Q4_K Q6_K
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fathom.kernels.native import cpu
from fathom.kernels.quant_matmul import quant_matmul
from fathom.quant.huge_pages import HugePages
from fathom.quant.packed import FORMATS, STEP_COLUMNS, Factors, PackedWeight, pack

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
SET_BYTES = 100e6

Format = tuple[int, int, bool, bool]
"""bits, group, whether there are minimums, whether scales have steps: a key of FORMATS."""


def make_weights(rows: int, columns: int, form: Format) -> list[PackedWeight]:
    bits, group, with_minimums, with_steps = form
    codes = torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8)
    steps = torch.rand(rows, columns // STEP_COLUMNS).half()
    values = torch.randint(1, 64, (rows, columns // group), dtype=torch.int8)
    factors = Factors(values, steps) if with_steps else Factors((values / 64).half())
    weights = [pack(codes, factors, factors if with_minimums else None, bits)]
    while len(weights) * weights[0].nbytes < SET_BYTES:
        weights.append(pack(codes, factors, factors if with_minimums else None, bits))
    memory = HugePages()
    return [weight.with_tensors([memory.take(tensor) for tensor in weight.tensors], rows) for weight in weights]


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


def measure_shape(rows: int, least_columns: int, options: argparse.Namespace) -> None:
    for form in options.formats:
        columns = -(-least_columns // STEP_COLUMNS) * STEP_COLUMNS if form[3] else least_columns
        weights = make_weights(rows, columns, form)
        for tokens in options.tokens:
            x, out = torch.randn(tokens, columns), torch.empty(tokens, rows)
            some = weights if tokens < 64 else weights[:8]
            calls = [lambda weight=weight, x=x, out=out: quant_matmul(x, weight, out=out) for weight in some]
            row = f"{rows:6} x {columns:<5} {FORMATS[form]:20} {tokens:4} tokens"
            for level in options.levels:
                cpu.use_level(level)
                seconds = seconds_per_call(calls, options.seconds)
                gigabytes, operations = weights[0].nbytes / seconds / 1e9, 2 * tokens * rows * columns / seconds
                row += f" {gigabytes:8.1f} {operations / 1e9:7.0f}"
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--formats", nargs="+", choices=FORMATS.values(), default=list(FORMATS.values()))
    parser.add_argument("--levels", nargs="+", default=cpu.levels())
    parser.add_argument("--seconds", type=float, default=0.1, help="at least, for each figure")
    options = parser.parse_args()
    options.formats = [form for form, name in FORMATS.items() if name in options.formats]
    print(f"reading: {read_bandwidth(options.threads):.1f} GB/s with {options.threads} threads")
    cpu.set_num_threads(options.threads)
    print(f"{'GB/s and GOPS at level':47}" + "".join(f" {level:>16}" for level in options.levels))
    for rows, columns in SHAPES:
        measure_shape(rows, columns, options)


if __name__ == "__main__":
    main()
