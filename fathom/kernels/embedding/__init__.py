"""Rows of a matrix by their numbers, as an embedding looks them up.

embedding(row_ids, matrix, factor=1.0)
    row_ids  [n] int64, each below the matrix's number of rows
    matrix   [rows, columns], dense, a PackedWeight or a FloatWeight
    ->       [n, columns], the rows times the factor; of a dense matrix's dtype, else float32
"""

from __future__ import annotations

import torch

from fathom.kernels.embedding import cpu, ref
from fathom.kernels.native import serves, serves_device
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight

Table = torch.Tensor | PackedWeight | FloatWeight


def embedding(row_ids: torch.Tensor, matrix: Table, factor: float = 1.0) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if isinstance(matrix, torch.Tensor):
        served = serves(matrix)
    else:
        served = serves_device((matrix.quants if isinstance(matrix, PackedWeight) else matrix.values).device)
    return (cpu if served else ref).embedding(row_ids, matrix, factor)
