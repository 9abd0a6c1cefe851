"""What one call of paged attention costs, for each format of the KV cache, on the shapes of a small model.

Each call has a cache of its own, as each layer of a model has, and all of them together do not fit into the
processor's caches. Formats take turns, so that all see the same machine. Two limits are measured first: how fast
memory is read, and how many operations a large float32 product does. A case's last columns say how much of them it
reaches: bytes of keys and values read, each once; and multiplications and additions.

    python benchmarks/attention.py --threads 2
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, get_args

import torch

from fathom.config import EngineConfig
from fathom.kernels.attention import cpu
from fathom.kernels.kv_cache import KVCache
from fathom.kernels.native import cpu as native
from fathom.kernels.rotate_and_store.ref import store
from fathom.kv_cache_spec import KVDtype, LayerKVSpec
from fathom.worker.device import CPUDevice

BLOCK_SIZE = 16
FORMATS = tuple(name for name in get_args(KVDtype) if not name.startswith("fp8"))  # those that native kernels read
COLD_BYTES = 128 * 2**20  # more than the processor's caches hold
# (name, (seq_len, query_len) of each request)
CASES: list[tuple[str, list[tuple[int, int]]]] = [
    ("1 decode, context 128", [(128, 1)]),
    ("1 decode, context 1,024", [(1024, 1)]),
    ("1 decode, context 8,192", [(8192, 1)]),
    ("64 decodes, context 128..256", [(128 + 2 * i, 1) for i in range(64)]),
    ("prefill 1,024", [(1024, 1024)]),
    ("prefill 2,048 after 6,144", [(8192, 2048)]),
    ("prefill 256 beside 32 decodes at 512", [(256, 256), *[(512, 1)] * 32]),
]


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    dim: int


class Layers:
    """The caches of as many layers as are cold, and one batch of requests that have shuffled blocks in them."""

    def __init__(self, requests: list[tuple[int, int]], shape: Shape, dtype: KVDtype, device: CPUDevice):
        counts = [-(-seq_len // BLOCK_SIZE) for seq_len, _ in requests]
        spec = LayerKVSpec(shape.kv_heads, shape.dim, dtype)
        self.bytes_read = sum(seq_len for seq_len, _ in requests) * spec.bytes_per_token
        num_layers = 1 + (COLD_BYTES // self.bytes_read if self.bytes_read > 2**18 else 0)
        page_bytes = spec.page_bytes(BLOCK_SIZE)
        blocks_of_layers = device.empty_blocks(sum(counts), num_layers * page_bytes)  # as an engine's: side by side
        pages = blocks_of_layers.view(sum(counts), num_layers, page_bytes)
        self.caches = [KVCache.of_pages(pages[:, layer], spec, BLOCK_SIZE) for layer in range(num_layers)]
        for cache in self.caches:
            kv = torch.randn(2, sum(counts) * BLOCK_SIZE, shape.kv_heads, shape.dim)
            store(kv[0], kv[1], torch.arange(kv.shape[1]), cache)
        self.next_cache = itertools.cycle(self.caches)
        self.query = torch.randn(sum(query_len for _, query_len in requests), shape.heads, shape.dim)
        blocks = torch.randperm(sum(counts)).int().split(counts)
        self.block_table = torch.nn.utils.rnn.pad_sequence(list(blocks), batch_first=True)
        self.query_start_loc = torch.tensor([0, *(query_len for _, query_len in requests)]).cumsum(0).int()
        self.seq_lens = torch.tensor([seq_len for seq_len, _ in requests], dtype=torch.int32)

    def attend(self) -> None:
        cache = next(self.next_cache)
        cpu.paged_attention(self.query, cache, self.block_table, self.query_start_loc, self.seq_lens, scale=0.125)


def microseconds(call: Callable[[], object], least_seconds: float = 0.02) -> float:
    """The mean over as many calls as fill the time."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < least_seconds:
        call()
        count += 1
    return elapsed / count * 1e6


def measure_limits(repeats: int) -> tuple[float, float]:
    """(GB/s read, GFLOP/s), the best of some tries."""
    numbers, matrix = torch.ones(2**26), torch.ones(2048, 2048)
    reading = min(microseconds(numbers.sum) for _ in range(repeats))
    product = min(microseconds(lambda: matrix @ matrix) for _ in range(repeats))
    return numbers.nbytes / reading / 1e3, 2 * 2048**3 / product / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", type=int, nargs=3, default=[9, 3, 64], metavar=("HEADS", "KV_HEADS", "DIM"))
    parser.add_argument("--level", choices=native.levels(), default=native.level())
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--cases", nargs="+", type=int, choices=range(len(CASES)), default=range(len(CASES)))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    device = CPUDevice(EngineConfig.from_options(num_threads=options.threads))
    native.use_level(options.level)
    shape = Shape(*options.shape)
    bandwidth, peak = measure_limits(options.repeats)
    print(f"{native.level()}, {options.threads} threads, {shape}, reads {bandwidth:.0f} GB/s, {peak:.0f} GFLOP/s")
    print(
        f"{'':38} {'format':>9} {'us':>9} {'min':>9} {'GB/s':>6} {'GFLOP/s':>8} {'% of reading':>13} {'% of peak':>10}"
    )
    for name, requests in (CASES[index] for index in options.cases):
        layers = [Layers(requests, shape, dtype, device) for dtype in options.formats]
        rounds = [[microseconds(each.attend) for each in layers] for _ in range(options.repeats)]
        scores = sum(n * (seq_len - (n - 1) / 2) for seq_len, n in requests) * shape.heads
        for dtype, each, times in zip(options.formats, layers, zip(*rounds, strict=True), strict=True):
            time_us = statistics.median(times)
            read, done = each.bytes_read / time_us / 1e3, scores * shape.dim * 4 / time_us / 1e3
            print(
                f"{name:38} {dtype:>9} {time_us:9.1f} {min(times):9.1f} {read:6.1f} {done:8.1f} "
                f"{100 * read / bandwidth:12.0f}% {100 * done / peak:9.0f}%"
            )


if __name__ == "__main__":
    main()
