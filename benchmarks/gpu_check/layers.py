"""The kernels between the products, in Triton beside plain torch in float32: norms, activations, rotation with the
cache write."""

from __future__ import annotations

from typing import get_args

import torch

from benchmarks.gpu_check.comparing import TOLERANCE, Inputs, Worst, poisoned, widens_e4m3
from benchmarks.gpu_check.rows import Report, attempt
from fathom.kernels.activation import ref as activation_ref
from fathom.kernels.activation import triton as activation
from fathom.kernels.kv_cache import KVCache
from fathom.kernels.norm import ref as norm_ref
from fathom.kernels.norm import triton as norm
from fathom.kernels.rotate_and_store import ref as rotate_ref
from fathom.kernels.rotate_and_store import triton as rotate
from fathom.kv_cache_spec import KVDtype, LayerKVSpec

BLOCK_SIZE = 16
EPS = 1e-6


def run(report: Report, *, device: str, dtype: str, dims: list[int], rows: int, sizes: list[int], seed: int) -> None:
    inputs, number = Inputs(seed, device), getattr(torch, dtype)
    with attempt(report, "norms"):
        report("norms", norms(inputs, number, rows, sizes).error, "error", most=TOLERANCE[number], must=True)
    with attempt(report, "gated activations"):
        worst = activations(inputs, number, rows, sizes)
        report("gated activations", worst.error, "error", most=TOLERANCE[number], must=True)
    for kv_dtype in get_args(KVDtype):
        is_plain = kv_dtype in ("float32", "float16", "bfloat16")
        if is_plain and kv_dtype != dtype:
            continue
        if kv_dtype == "fp8_e4m3" and not widens_e4m3(device):
            continue
        if device == "cpu" and kv_dtype.startswith("fp8"):  # to which Triton's interpreter does not round as GPUs do
            continue
        what = f"rotation and write, cache in {kv_dtype}"
        with attempt(report, what):
            worst = Worst()
            for dim in dims if is_plain else dims[:1]:
                for with_norms in (False, True):
                    rotation(worst, inputs, number, dim, kv_dtype, rows, with_norms)
            # In eight bits a difference in the last bit before it is rounded may become one in the last that is kept.
            most = TOLERANCE[number] if is_plain else max(TOLERANCE[number], 0.05)
            report(what, worst.error, "error", most=most, must=True)


def norms(inputs: Inputs, dtype: torch.dtype, rows: int, sizes: list[int]) -> Worst:
    worst = Worst()
    for size in sizes:
        x, residual = (inputs.normal(rows, size + 5, dtype=dtype)[:, 2:-3] for _ in range(2))  # parts of wider rows
        weight = inputs.normal(size)
        with poisoned():
            normed = norm.rms_norm(x, weight, EPS)
            added, total = norm.add_rms_norm(x, residual, weight, EPS)
        worst.add(normed, norm_ref.rms_norm(x.float(), weight, EPS))
        expected, expected_total = norm_ref.add_rms_norm(x.float(), residual.float(), weight, EPS)
        worst.add(added, expected)
        worst.add(total, expected_total)
    return worst


def activations(inputs: Inputs, dtype: torch.dtype, rows: int, sizes: list[int]) -> Worst:
    worst = Worst()
    for size in sizes:
        gate_up = 3 * inputs.normal(rows, 2 * size, dtype=dtype)
        for name in ("silu_and_mul", "gelu_tanh_and_mul"):
            with poisoned():
                found = getattr(activation, name)(gate_up)
            worst.add(found, getattr(activation_ref, name)(gate_up.float()))
    return worst


def rotation(
    worst: Worst, inputs: Inputs, dtype: torch.dtype, dim: int, kv_dtype: KVDtype, rows: int, norms: bool
) -> None:
    heads, kv_heads, num_blocks = 6, 2, rows // BLOCK_SIZE + 3
    qkv = inputs.normal(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = inputs.normal(2 * rows, dim // 2)
    positions, slots = inputs.order(2 * rows)[:rows], inputs.order((num_blocks - 1) * BLOCK_SIZE)[:rows] + BLOCK_SIZE
    weights = (inputs.normal(dim), inputs.normal(dim), EPS) if norms else ()
    spec = LayerKVSpec(kv_heads, dim, kv_dtype)
    stored, queries = [], []
    for module, values in ((rotate, qkv), (rotate_ref, qkv.float())):
        pages = torch.full((num_blocks, spec.page_bytes(BLOCK_SIZE)), 255, dtype=torch.uint8, device=inputs.device)
        cache = KVCache.of_pages(pages, spec, BLOCK_SIZE, keys_by_token=True)
        with poisoned():
            queries.append(
                module.rotate_and_store(values, positions, angles.cos(), angles.sin(), slots, cache, *weights)
            )
        stored.append(kept(cache, slots))
    worst.add(*queries)
    worst.add(*stored)


def kept(cache: KVCache, slots: torch.Tensor) -> torch.Tensor:
    """Keys and values in these slots, float32."""
    block, offset = slots // cache.block_size, slots % cache.block_size
    sides = torch.stack([cache.keys.transpose(2, 3)[block, :, offset].float(), cache.values[block, :, offset].float()])
    return sides if cache.scales is None else sides * cache.scales[block, :, :, offset].transpose(0, 1)[..., None]
