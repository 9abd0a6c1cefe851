"""Rows of a matrix in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fathom.quant.packed import PackedWeight


def embedding(row_ids: torch.Tensor, matrix: torch.Tensor | PackedWeight, factor: float = 1.0) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    rows = matrix.unpack_rows(row_ids) if isinstance(matrix, PackedWeight) else F.embedding(row_ids, matrix)
    return rows if factor == 1.0 else rows * factor
