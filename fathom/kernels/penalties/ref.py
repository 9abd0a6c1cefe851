"""Penalties in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def apply_penalties(
    logits: torch.Tensor,
    rows: np.ndarray,
    penalties: np.ndarray,
    token_ids: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
) -> None:
    """See the package's docstring for shapes and rules."""
    sizes = [len(row_tokens) for row_tokens in token_ids]
    if not any(sizes):
        return

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(logits.device)

    cells = on_device(np.repeat(rows, sizes)), on_device(np.concatenate(token_ids))
    repetition, frequency, presence = on_device(np.repeat(penalties, sizes, axis=0)).unbind(1)
    count = on_device(np.concatenate(counts))
    values = logits[cells]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * count
    values -= presence * (count > 0)
    logits.index_put_(cells, values)
