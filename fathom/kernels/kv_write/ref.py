"""The cache seen as one long list of slots, written by index."""

from __future__ import annotations

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """See the package's docstring for shapes and rules."""
    for new, cache in ((key, key_cache), (value, value_cache)):
        slots = cache.view(-1, *cache.shape[2:])
        slots.index_copy_(0, slot_mapping, new.to(cache.dtype))
