"""Rows of a matrix in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight


def embedding(
    row_ids: torch.Tensor,
    matrix: torch.Tensor | PackedWeight | FloatWeight,
    factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if isinstance(matrix, torch.Tensor):
        rows, dtype = F.embedding(row_ids, matrix), matrix.dtype
    else:
        rows = matrix.unpack_rows(row_ids)
    return (rows if factor == 1.0 else rows * factor).to(dtype)
