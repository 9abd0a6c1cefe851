"""LogitCells: a few (row, token) cells of a batch's logits, for parameters that touch single tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from fathom.kernels.gpu import to_device


@dataclass(frozen=True, slots=True)
class LogitCells:
    """Index tensors of the cells, on the logits' device.

    rows, token_ids: [n] int64; no cell occurs twice, so that writes do not depend on their order.
    """

    rows: torch.Tensor
    token_ids: torch.Tensor

    @classmethod
    def of(cls, ids_by_row: Iterable[tuple[int, Iterable[int]]], device: torch.device) -> LogitCells | None:
        """The cells of (row, token ids) pairs, at most one pair per row; None if there are none."""
        cells = [(row, token_id) for row, ids in ids_by_row for token_id in dict.fromkeys(ids)]
        if not cells:
            return None
        rows, token_ids = to_device(np.array(cells, np.int64), device).unbind(1)
        return cls(rows, token_ids)

    def gather(self, logits: torch.Tensor) -> torch.Tensor:
        """The cells' logits: [n]."""
        return logits[self.rows, self.token_ids]

    def put(self, logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write [n] values to the cells, in place; returns the logits."""
        return logits.index_put_((self.rows, self.token_ids), values)

    def mask(self, logits: torch.Tensor) -> torch.Tensor:
        """Make the cells' tokens impossible, in place; returns the logits."""
        return self.put(logits, logits.new_full((), -torch.inf))
