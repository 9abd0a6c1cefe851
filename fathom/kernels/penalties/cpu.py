"""Penalties by the native kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fathom.kernels.native import cpu


def apply_penalties(
    logits: torch.Tensor,
    rows: np.ndarray,
    penalties: np.ndarray,
    token_ids: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
) -> None:
    """See the package's docstring for shapes and rules; the logits are contiguous."""
    assert logits.is_contiguous()
    seen = np.array(
        [
            (row, row_tokens.ctypes.data, row_counts.ctypes.data, len(row_tokens))
            for row, row_tokens, row_counts in zip(rows.tolist(), token_ids, counts, strict=True)
        ],
        np.int64,
    )
    cpu.apply_penalties(logits.data_ptr(), seen.ctypes.data, penalties.ctypes.data, len(rows), logits.shape[1])
