"""Penalties for GPUs, in Triton: one launch over all rows' tokens, behind one copy of what the kernel is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from fathom.kernels.gpu import to_device

TILE = 512


def apply_penalties(
    logits: torch.Tensor,
    rows: np.ndarray,
    penalties: np.ndarray,
    token_ids: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
) -> None:
    """See the package's docstring for shapes and rules; a row's logits lie beside each other."""
    assert logits.stride(1) == 1
    sizes = [len(row_tokens) for row_tokens in token_ids]
    num_pairs, num_rows = sum(sizes), len(rows)
    if num_pairs == 0:
        return
    host = np.empty(3 * num_pairs + 4 * num_rows, np.int32)
    pairs, of_rows = host[: 3 * num_pairs].reshape(3, -1), host[3 * num_pairs :].reshape(4, -1)
    pairs[0], pairs[1] = np.repeat(np.arange(num_rows), sizes), np.concatenate(token_ids)
    pairs[2].view(np.float32)[:] = np.concatenate(counts)
    of_rows[0] = rows
    of_rows[1:].view(np.float32)[:] = penalties.T
    told = to_device(host, logits.device)
    _apply[(triton.cdiv(num_pairs, TILE),)](
        logits, logits.stride(0), told, told.view(torch.float32), num_pairs, num_rows, TILE=TILE
    )


@triton.jit(do_not_specialize=["num_pairs", "num_rows"])
def _apply(logits, stride, integers, floats, num_pairs, num_rows, TILE: tl.constexpr):
    """Both pointers are to the same words: of the pairs owner, token and count, of the rows number and penalties."""
    pair = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = pair < num_pairs
    owner = tl.load(integers + pair, mask=inside, other=0)
    token = tl.load(integers + num_pairs + pair, mask=inside, other=0)
    count = tl.load(floats + 2 * num_pairs + pair, mask=inside, other=0.0)
    of_row = 3 * num_pairs + owner
    repetition = tl.load(floats + of_row + num_rows)
    cell = logits + tl.load(integers + of_row).to(tl.int64) * stride + token
    value = tl.load(cell, mask=inside, other=0.0)
    value = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
    value -= tl.load(floats + of_row + 2 * num_rows) * count
    value -= tl.where(count > 0, tl.load(floats + of_row + 3 * num_rows), 0.0)
    tl.store(cell, value, mask=inside)
