"""What one call of paged attention costs, the native kernel beside plain torch, on the shapes of a small model.

Native and torch take turns, so that both see the same machine. Attention reads every key and value once: the last
column is the native kernel's rate.

    python benchmarks/attention.py --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from fathom.kernels.attention import cpu, ref
from fathom.kernels.native import cpu as native

BLOCK_SIZE = 16
# (name, (seq_len, query_len) of each request)
CASES: list[tuple[str, list[tuple[int, int]]]] = [
    ("1 decode, context 128", [(128, 1)]),
    ("1 decode, context 1,024", [(1024, 1)]),
    ("1 decode, context 8,192", [(8192, 1)]),
    ("64 decodes, context 128..256", [(128 + 2 * i, 1) for i in range(64)]),
    ("prefill 512", [(512, 512)]),
    ("prefill 64 after 4,096", [(4160, 64)]),
    ("prefill 256 beside 32 decodes at 512", [(256, 256), *[(512, 1)] * 32]),
]


def make_arguments(requests: list[tuple[int, int]], heads: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, ...]:
    """paged_attention's tensors, the requests' blocks shuffled."""
    counts = [-(-seq_len // BLOCK_SIZE) for seq_len, _ in requests]
    blocks = torch.randperm(sum(counts)).int().split(counts)
    return (
        torch.randn(sum(query_len for _, query_len in requests), heads, dim),
        torch.randn(sum(counts), BLOCK_SIZE, kv_heads, dim),
        torch.randn(sum(counts), BLOCK_SIZE, kv_heads, dim),
        torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True),
        torch.tensor([0, *(query_len for _, query_len in requests)]).cumsum(0).int(),
        torch.tensor([seq_len for seq_len, _ in requests], dtype=torch.int32),
    )


def microseconds(call: Callable[[], object], least_seconds: float = 0.02) -> float:
    """The mean over as many calls as fill the time."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < least_seconds:
        call()
        count += 1
    return elapsed / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", type=int, nargs=3, default=[9, 3, 64], metavar=("HEADS", "KV_HEADS", "DIM"))
    parser.add_argument("--level", choices=native.levels(), default=native.level())
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    native.set_num_threads(options.threads)
    native.use_level(options.level)
    heads, kv_heads, dim = options.shape
    print(f"{native.level()}, {options.threads} threads, {heads} heads, {kv_heads} KV heads, dimension {dim}")
    print(f"{'':40} {'native us':>10} {'torch us':>10} {'GB/s':>6} {'GFLOP/s':>8}")
    for name, requests in CASES:
        arguments = make_arguments(requests, heads, kv_heads, dim)
        pairs = [
            [microseconds(partial(kernel.paged_attention, *arguments, scale=0.125)) for kernel in (cpu, ref)]
            for _ in range(options.repeats)
        ]
        fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
        num_bytes = sum(seq_len for seq_len, _ in requests) * kv_heads * dim * 8
        scores = sum(n * (seq_len - (n - 1) / 2) for seq_len, n in requests) * heads
        print(f"{name:40} {fast:10.1f} {slow:10.1f} {num_bytes / fast / 1e3:6.1f} {scores * dim * 4 / fast / 1e3:8.1f}")


if __name__ == "__main__":
    main()
