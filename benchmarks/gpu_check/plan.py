"""The plan: which parts there are, how long each may take, and what is compared with what.

Limits are of a GPU that was never seen before: they include Triton's compiler. Parts come in the order of their
importance, since the last ones are left out when the time is up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

BUDGET_S = 420.0

MODES: dict[str, dict[str, Any]] = {
    "1.7B": {},
    "1.7B eager": {"enforce_eager": True},
    "1.7B decode graphs only": {"cudagraph_mode": "FULL_DECODE_ONLY"},
    "1.7B sync": {"async_scheduling": False},
}
"""Engines of one shape, in what they differ from the first."""


DECODE = (1, 64, 256)
MIXED = 128
PRODUCTS = {"rows": 14_336, "columns": 4096, "copies": 4, "tokens": [1, 64, 2048]}
SMALL_DECODE = (1, 4)
SMALL_MIXED = 6
SMALL_PRODUCTS = {"rows": 16, "columns": 256, "copies": 2, "tokens": [1]}


@dataclass(frozen=True)
class Part:
    """One process.

    module: of benchmarks.gpu_check, whose `run` gets the arguments. limit_s: after which it is killed.
    beside: whether it may run beside its neighbours that may, too, since it measures no time.
    ceilings: whether it is told the ceilings.
    """

    name: str
    module: str
    limit_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    beside: bool = False
    ceilings: bool = False


@dataclass(frozen=True)
class Comparison:
    """One part's figure over another's, of the same kind."""

    what: str
    row: str
    part: str
    over: str


def parts(device: str, small: bool, seed: int | None = None) -> list[Part]:
    """All parts for a device; `small` for a dry run on a CPU."""
    seed = random.randrange(2**31) if seed is None else seed
    return _small(device, seed) if small else _full(device, seed)


def comparisons(small: bool) -> list[Comparison]:
    counts, requests = (SMALL_DECODE, SMALL_MIXED) if small else (DECODE, MIXED)
    first = next(iter(MODES))
    decode = [(f"decode, {count} sequences", f"decode of {count}") for count in counts[:2]]
    mixed = (f"mixed steps, {requests} requests", "mixed steps")
    return [
        *(Comparison(f"graphs over eager, {what}", row, first, "1.7B eager") for row, what in (*decode, mixed)),
        Comparison("piecewise graphs over eager, mixed steps", mixed[0], first, "1.7B decode graphs only"),
        *(Comparison(f"async over sync, {what}", row, first, "1.7B sync") for row, what in (*decode, mixed)),
    ]


def _kernels(
    limit_s: float,
    attention: dict[str, Any],
    layers: dict[str, Any],
    packed: dict[str, Any],
    sampling: dict[str, Any],
    dtypes: list[str],
) -> list[Part]:
    def make(name: str, module: str, **arguments: Any) -> Part:
        return Part(name, module, limit_s, arguments, beside=True)

    return [
        *(make(f"attention, {dtype}", "attention", dtype=dtype, **attention) for dtype in dtypes),
        *(make(f"layers, {dtype}", "layers", dtype=dtype, **layers) for dtype in dtypes),
        make("packed weights", "packed", dtypes=dtypes, **packed),
        make("sampling", "sampling", **sampling),
    ]


def _full(device: str, seed: int) -> list[Part]:
    common = {"device": device, "seed": seed}
    dims = [64, 80, 96, 128, 256]
    options = {
        "device": device,
        "dtype": "bfloat16",
        "max_model_len": 9216,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    }
    engine = {"model": "1.7B", "options": options, "seed": seed}
    in_time = {"beside_text": True, "ready_within_s": 10.0}
    goals = {"decode 1": 80.0, "prefill": 60.0}
    whole = {"phases": True, "decode": DECODE, "prefill": 8192, "goals": goals}
    return [
        Part("ceilings", "ceilings", 30, {**common, "dtype": "bfloat16", "copy_bytes": 1 << 30, "matrix": 8192}),
        *_kernels(
            100,
            {**common, "dims": dims, "long": 3001},
            {**common, "dims": dims, "rows": 257, "sizes": [64, 2560, 4097, 14_336]},
            {**common, "rows": 151, "tokens": [1, 35]},
            {**common, "vocab_sizes": [151_936, 32_003, 1000], "rows": 64},
            ["bfloat16", "float16"],
        ),
        Part("first start", "engine", 75, {**engine, "phases": True, "decode": (1,), "decode_tokens": 8}),
        Part("1.7B", "engine", 80, {**engine, **whole, **in_time, "mixed": MIXED}, ceilings=True),
        Part(
            "tokens", "tokens", 60, {**common, "model": "small", "lengths": [1, 5, 33, 64, 150, 400], "num_tokens": 48}
        ),
        Part("8B", "engine", 90, {**engine, **whole, "model": "8B"}, ceilings=True),
        *(
            Part(name, "engine", 60, {**engine, "options": options | more, "decode": DECODE[:2], "mixed": MIXED})
            for name, more in list(MODES.items())[1:]
        ),
        Part("packed speed", "packed_speed", 45, {**common, "dtype": "bfloat16", **PRODUCTS}),
    ]


def _small(device: str, seed: int) -> list[Part]:
    common = {"device": device, "seed": seed}
    options = {
        "device": device,
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "num_threads": 1,
        "kv_cache_memory_bytes": 1 << 22,
    }
    engine = {
        "model": "tiny",
        "options": options,
        "decode": SMALL_DECODE,
        "decode_tokens": 12,
        "decode_context": 16,
        "mixed": SMALL_MIXED,
        "mixed_prompt": 9,
        "seed": seed,
    }
    whole = {**engine, "prefill": 64}
    in_process = {**options, "multiprocess": False}  # which spares the dry run an import of torch
    return [
        Part("ceilings", "ceilings", 60, {**common, "dtype": "float32", "copy_bytes": 1 << 20, "matrix": 128}),
        *_kernels(
            120,
            {**common, "dims": [64], "long": 20},
            {**common, "dims": [64], "rows": 3, "sizes": [96]},
            {**common, "rows": 17, "tokens": [2]},
            {**common, "vocab_sizes": [130], "rows": 3},
            ["float16"],
        ),
        Part("packed speed", "packed_speed", 60, {**common, "dtype": "float32", **SMALL_PRODUCTS}, beside=True),
        Part("first start", "engine", 60, {**engine, "decode": (1,), "mixed": 0, "options": in_process}, beside=True),
        Part("1.7B", "engine", 60, {**whole, "phases": True, "beside_text": True}, beside=True, ceilings=True),
        Part("tokens", "tokens", 60, {**common, "model": "tiny", "lengths": [1, 60, 9], "num_tokens": 5}, beside=True),
        Part("8B", "engine", 60, {**whole, "mixed": 0, "options": in_process}, beside=True, ceilings=True),
        *(
            Part(name, "engine", 60, {**engine, "options": in_process | more}, beside=True)
            for name, more in list(MODES.items())[1:]
            if "cudagraph_mode" not in more  # a GPU's alone
        ),
    ]
