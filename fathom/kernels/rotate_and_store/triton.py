"""Norm, rotation and cache writes for GPUs, in Triton: a program for each head of each token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.kernels.gpu import power_of_two
from fathom.kernels.kv_cache import KVCache


def rotate_and_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: KVCache,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    num_kv_heads, head_dim = cache.keys.shape[1:3]
    num_tokens, num_rows = len(qkv), qkv.shape[1] // head_dim
    num_heads = num_rows - 2 * num_kv_heads
    queries = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    scales = cos if cache.scales is None else cache.scales
    _rotate_and_store[(num_tokens, num_rows)](
        qkv,
        qkv.stride(0),
        positions,
        cos,
        sin,
        slot_mapping,
        queries,
        cache.keys,
        cache.values,
        cache.keys.stride(0),
        scales,
        scales.stride(0),
        cos if query_norm is None else query_norm,
        cos if key_norm is None else key_norm,
        eps,
        _largest(cache),
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        TILE=power_of_two(head_dim // 2),
        STEPS=_steps(head_dim // 2),
        PAGE=cache.block_size,
        KEY_DIM=cache.keys.stride(2),
        KEY_TOKEN=cache.keys.stride(3),
        SCALED=cache.scales is not None,
        NORMS_QUERY=query_norm is not None,
        NORMS_KEY=key_norm is not None,
        num_warps=1,  # half a head is little more than its threads
    )
    return queries


def _steps(half: int) -> int:
    """Of the Hadamard transform within half a head: the power of two in its size."""
    return (half & -half).bit_length() - 1


def _largest(cache: KVCache) -> float:
    """What larger numbers become in 16 and 8 bits; the number that an int8 head's largest becomes."""
    if cache.scales is not None:
        return 127.0
    return torch.finfo(cache.keys.dtype).max if cache.keys.itemsize < 4 else float("inf")


@triton.jit
def _normed(first, second, weight, eps, half, inside, HALF: tl.constexpr, dtype: tl.constexpr):
    """Both halves of a head over its root mean square, rounded as the norm's own kernel rounds."""
    mean_square = (tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF)
    inverse = 1.0 / tl.sqrt(mean_square + eps)
    first = first * inverse * tl.load(weight + half, mask=inside, other=0.0)
    second = second * inverse * tl.load(weight + HALF + half, mask=inside, other=0.0)
    return first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)


@triton.jit
def _to_int8(first, second, scale):
    """Whole numbers, to the nearest, ties to even; zeros under a scale that is not a number."""
    is_finite = scale == scale
    # Adding and taking away 1.5 * 2^23 leaves no bits for a fraction.
    first = tl.where(is_finite, (first / scale + 12582912.0) - 12582912.0, 0.0)
    second = tl.where(is_finite, (second / scale + 12582912.0) - 12582912.0, 0.0)
    return first, second


@triton.jit
def _hadamard(x, STEPS: tl.constexpr, TILE: tl.constexpr):
    """Each block of 2^STEPS numbers of x [TILE] made sums of them all, with signs."""
    for step in tl.static_range(STEPS):  # of numbers that lie 2^(STEPS - 1 - step) apart
        pairs = tl.reshape(x, (TILE >> (STEPS - step), 2, 1 << (STEPS - 1 - step)))
        a, b = tl.split(tl.trans(pairs, (0, 2, 1)))
        x = tl.reshape(tl.trans(tl.join(a + b, a - b), (0, 2, 1)), (TILE,))
    return x


@triton.jit
def _rotate_and_store(
    qkv,
    qkv_stride,
    positions,
    cos,
    sin,
    slot_mapping,
    queries,
    keys,
    values,
    page_stride,
    scales,
    scale_stride,
    query_norm,
    key_norm,
    eps,
    largest,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    PAGE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_TOKEN: tl.constexpr,
    SCALED: tl.constexpr,
    NORMS_QUERY: tl.constexpr,
    NORMS_KEY: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, TILE)
    inside = half < HALF
    row = qkv + token * qkv_stride + head * (2 * HALF)
    dtype: tl.constexpr = qkv.dtype.element_ty
    first = tl.load(row + half, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(row + HALF + half, mask=inside, other=0.0).to(tl.float32)
    is_value = head >= HEADS + KV_HEADS
    if not is_value:
        if NORMS_QUERY and head < HEADS:
            first, second = _normed(first, second, query_norm, eps, half, inside, HALF, dtype)
        if NORMS_KEY and head >= HEADS:
            first, second = _normed(first, second, key_norm, eps, half, inside, HALF, dtype)
        position = tl.load(positions + token)
        c = tl.load(cos + position * HALF + half, mask=inside, other=0.0)
        s = tl.load(sin + position * HALF + half, mask=inside, other=0.0)
        turned = first * c - second * s
        second = (second * c + first * s).to(dtype).to(tl.float32)
        first = turned.to(dtype).to(tl.float32)
        if SCALED:
            factor = 1.0 / tl.sqrt(2.0 * (1 << STEPS))
            total, difference = first + second, first - second
            first = _hadamard(total, STEPS, TILE) * factor
            second = _hadamard(difference, STEPS, TILE) * factor
    if head < HEADS:
        place = queries + (token * HEADS + head) * (2 * HALF) + half
        tl.store(place, first.to(dtype), mask=inside)
        tl.store(place + HALF, second.to(dtype), mask=inside)
        return
    slot = tl.load(slot_mapping + token)
    block, offset = slot // PAGE, slot % PAGE
    kv_head = (head - HEADS) % KV_HEADS
    if SCALED:
        magnitudes = tl.maximum(tl.abs(first), tl.abs(second))
        is_bad = (first != first) | (second != second) | (magnitudes == float("inf"))
        scale = tl.maximum(tl.max(tl.where(is_bad, 0.0, magnitudes), 0) / largest, 1.1754943508222875e-38)
        scale = tl.where(tl.sum(is_bad.to(tl.int32), 0) > 0, float("nan"), scale)
        first, second = _to_int8(first, second, scale)
        side = is_value.to(tl.int32)
        tl.store(scales + block * scale_stride + (side * KV_HEADS + kv_head) * PAGE + offset, scale)
    else:  # a number that is none stays none
        first = tl.where(first != first, first, tl.minimum(tl.maximum(first, -largest), largest))
        second = tl.where(second != second, second, tl.minimum(tl.maximum(second, -largest), largest))
    number: tl.constexpr = keys.dtype.element_ty
    page = block * page_stride + kv_head * (2 * HALF * PAGE)
    if is_value:
        place = values + page + offset * (2 * HALF) + half
        tl.store(place, first.to(number), mask=inside)
        tl.store(place + HALF, second.to(number), mask=inside)
    else:
        place = keys + page + half * KEY_DIM + offset * KEY_TOKEN
        tl.store(place, first.to(number), mask=inside)
        tl.store(place + HALF * KEY_DIM, second.to(number), mask=inside)
