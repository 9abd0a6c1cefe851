"""Rows of a matrix by their numbers, as an embedding looks them up.

embedding(row_ids, matrix, factor=1.0)
    row_ids  [n] int64, each below the matrix's number of rows
    matrix   [rows, columns], dense or a PackedWeight
    ->       [n, columns], the rows times the factor; float32 from a PackedWeight, else of the matrix's dtype
"""

from __future__ import annotations

import torch

from fathom.kernels.embedding import cpu, ref
from fathom.kernels.native import serves
from fathom.quant.packed import PackedWeight


def embedding(row_ids: torch.Tensor, matrix: torch.Tensor | PackedWeight, factor: float = 1.0) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    numbers = matrix.scales if isinstance(matrix, PackedWeight) else matrix
    return (cpu if serves(numbers) else ref).embedding(row_ids, matrix, factor)
