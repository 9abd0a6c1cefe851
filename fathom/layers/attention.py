"""PagedAttention: one layer's cache behind one call. New keys and values are stored, then attended to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.kernels.rotate_and_store import rotate_and_store

if TYPE_CHECKING:
    from fathom.layers.norm import RMSNorm
    from fathom.layers.rotary import Rotation
    from fathom.worker.forward_batch import ForwardBatch


class PagedAttention(nn.Module):
    """Attention of layer ``layer_index``, over the cache and block tables that the batch holds for it."""

    def __init__(self, layer_index: int, scale: float, window: int | None, softcap: float | None):
        super().__init__()
        self.layer_index = layer_index
        self.scale = scale
        self.window = window
        self.softcap = softcap

    def forward(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        batch: ForwardBatch,
        query_norm: RMSNorm | None,
        key_norm: RMSNorm | None,
    ) -> torch.Tensor:
        """qkv [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] -> [num_tokens, num_heads * head_dim].

        The norms, if any, are of each query and key head, before they are rotated.
        """
        cache, tables = batch.kv_caches[self.layer_index], batch.tables[self.layer_index]
        query = rotate_and_store(
            qkv,
            rotation.positions,
            rotation.cos,
            rotation.sin,
            tables.slot_mapping,
            cache,
            None if query_norm is None else query_norm.weight,
            None if key_norm is None else key_norm.weight,
            0.0 if query_norm is None else query_norm.eps,
        )
        return batch.attend(self, query, batch).flatten(1)

    def attend(self, query: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """query [num_tokens, num_heads, head_dim] -> what each of them attended to, of the same shape."""
        return batch.paged_attention(
            query,
            batch.kv_caches[self.layer_index],
            batch.tables[self.layer_index].block_table,
            batch.query_start_loc,
            batch.seq_lens,
            self.scale,
            self.window,
            self.softcap,
        )
