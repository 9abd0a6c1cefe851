"""ForwardBatch: everything a model needs to know about the step's batch, as one frozen argument.

The requests' tokens lie one after another in one flat dimension:

    input_ids        [a0 a1 a2 a3 | b0 | c0]        4 tokens of a prefill, two decodes
    query_start_loc  [0, 4, 5, 6]
    seq_lens         [4, 37, 12]                    keys each request attends to, its new tokens included
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fathom.kernels.attention import AttentionKernel, paged_attention
from fathom.kernels.kv_cache import KVCache

if TYPE_CHECKING:
    from fathom.layers.attention import PagedAttention


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Where one KV group's keys and values lie.

    block_table: [num_reqs, max_blocks] int32, a request's blocks in order (0, the null block, where a sliding
    window has let go of one). slot_mapping: [num_tokens] int64, block * block_size + offset of each new token.
    """

    block_table: torch.Tensor
    slot_mapping: torch.Tensor


def attend_at_once(layer: PagedAttention, query: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """What attention is but while pieces of a step are captured (worker/graphs.py)."""
    return layer.attend(query, batch)


Attend = Callable[["PagedAttention", torch.Tensor, "ForwardBatch"], torch.Tensor]
"""(layer, queries [num_tokens, num_heads, head_dim], batch) -> what they attended to, of the same shape."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's batch.

    query_start_loc: [num_reqs + 1] int32. seq_lens: [num_reqs] int32.
    kv_caches: per layer.
    tables: per layer, its group's BlockTables.
    attend: how a layer attends once its keys and values are stored: where all else of a step is cut from attention.
    paged_attention: the kernel that reads them.

    There may be more tokens than requests account for: padding, whose keys and values go to the null block.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    kv_caches: list[KVCache]
    tables: list[BlockTables]
    attend: Attend = attend_at_once
    paged_attention: AttentionKernel = paged_attention


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model is called with. input_ids, positions: [num_tokens] int64."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    batch: ForwardBatch
