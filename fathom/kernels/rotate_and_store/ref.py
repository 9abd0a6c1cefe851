"""Norm, rotation and cache writes in plain torch, one after the other."""

from __future__ import annotations

import torch

from fathom.kernels.kv_cache import KVCache
from fathom.kernels.norm.ref import rms_norm


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
    heads = qkv.unflatten(1, (-1, head_dim))
    query, key, value = heads.split([heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    if query_norm is not None:
        query = rms_norm(query, query_norm, eps)
    if key_norm is not None:
        key = rms_norm(key, key_norm, eps)
    cos, sin = cos[positions], sin[positions]
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    if cache.scales is not None:
        query, key = hadamard(query).to(query.dtype), hadamard(key)
    store(key, value, slot_mapping, cache)
    return query


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [num_tokens, num_heads, head_dim], each pair (a, b) turned by its token's angle [num_tokens, head_dim / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """x [..., head_dim] by the package's orthonormal matrix, in float32."""
    x = x.float().unflatten(-1, (2, -1))
    half = x.shape[-1]
    block = half & -half
    x = _sums_and_differences(x, -2).unflatten(-1, (-1, block))
    distance = block // 2
    while distance:
        x = _sums_and_differences(x.unflatten(-1, (-1, 2, distance)), -2).flatten(-3)
        distance //= 2
    return x.flatten(-3) * (2 * block) ** -0.5


def _sums_and_differences(x: torch.Tensor, dim: int) -> torch.Tensor:
    a, b = x.unbind(dim)
    return torch.stack((a + b, a - b), dim)


def store(key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor, cache: KVCache) -> None:
    """Write key and value [num_tokens, num_kv_heads, head_dim] to their slots."""
    block = slot_mapping // cache.block_size
    offset = slot_mapping % cache.block_size
    for side, (new, pages) in enumerate(((key, cache.keys.transpose(2, 3)), (value, cache.values))):
        if cache.scales is None:
            if pages.itemsize < 4:
                largest = torch.finfo(pages.dtype).max
                new = new.float().clamp(-largest, largest)
            pages[block, :, offset] = new.to(pages.dtype)
        else:
            pages[block, :, offset], cache.scales[block, side, :, offset] = to_int8(new)


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., head_dim] as whole numbers of the same shape and their scales [...].

    Heads with a number that is not finite are 0 with a scale of NaN.
    """
    x = x.float()
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    quotient = (x / scale).round().nan_to_num(0.0)
    is_finite = scale.isfinite()
    quotient, scale = quotient.where(is_finite, 0.0), scale.where(is_finite, torch.nan)
    return quotient.to(torch.int8), scale.squeeze(-1)
