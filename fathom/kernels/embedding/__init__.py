"""Rows of a matrix by their numbers, as an embedding looks them up.

embedding(row_ids, matrix, factor=1.0, dtype=torch.float32)
    row_ids  [n] int64, each below the matrix's number of rows
    matrix   [rows, columns], dense, a PackedWeight or a FloatWeight
    dtype    what decoded rows are rounded to, the factor included; a dense matrix's rows keep its own
    ->       [n, columns], the rows times the factor

The native kernels serve float32. On a GPU a PackedWeight's rows are Triton's, a dense matrix's torch's.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation, implementation_on
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight

Table = torch.Tensor | PackedWeight | FloatWeight


def embedding(
    row_ids: torch.Tensor, matrix: Table, factor: float = 1.0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if isinstance(matrix, torch.Tensor):
        chosen = implementation(__name__, matrix)
    else:
        chosen = implementation_on(__name__, matrix.tensors[0].device)
    return chosen.embedding(row_ids, matrix, factor, dtype)
