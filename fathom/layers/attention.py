"""PagedAttention: one layer's cache behind one call. New keys and values are stored, then attended to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.kernels.attention import paged_attention
from fathom.kernels.kv_write import write_kv

if TYPE_CHECKING:
    from fathom.worker.forward_batch import ForwardBatch


class PagedAttention(nn.Module):
    """Attention of layer ``layer_index``, over the cache and block tables that the batch holds for it."""

    def __init__(self, layer_index: int, scale: float, window: int | None, softcap: float | None):
        super().__init__()
        self.layer_index = layer_index
        self.scale = scale
        self.window = window
        self.softcap = softcap

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """query [num_tokens, num_heads, head_dim], key and value [num_tokens, num_kv_heads, head_dim]
        -> [num_tokens, num_heads, head_dim]."""
        key_cache, value_cache = batch.kv_caches[self.layer_index]
        tables = batch.tables[self.layer_index]
        write_kv(key, value, key_cache, value_cache, tables.slot_mapping)
        return paged_attention(
            query,
            key_cache,
            value_cache,
            tables.block_table,
            batch.query_start_loc,
            batch.seq_lens,
            self.scale,
            self.window,
            self.softcap,
        )
