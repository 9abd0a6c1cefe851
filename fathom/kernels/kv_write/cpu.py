"""Cache writes by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import cpu


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See the package's docstring for shapes and rules."""
    num_tokens, num_kv_heads, head_dim = key.shape
    key, value = _with_whole_tokens(key), _with_whole_tokens(value)
    slot_mapping = slot_mapping.contiguous()
    cpu.write_kv(
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        slot_mapping.data_ptr(),
        num_tokens,
        num_kv_heads * head_dim,
        key.stride(0),
        value.stride(0),
    )


def _with_whole_tokens(x: torch.Tensor) -> torch.Tensor:
    """x with each token's heads contiguous, whatever lies between the tokens."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
