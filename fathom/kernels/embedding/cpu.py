"""Rows of a matrix by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import TYPE_NUMBERS, cpu, packed_arguments
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight


def embedding(
    row_ids: torch.Tensor,
    matrix: torch.Tensor | PackedWeight | FloatWeight,
    factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    row_ids = row_ids.contiguous()
    if isinstance(matrix, PackedWeight):
        output = torch.empty(len(row_ids), matrix.columns)
        cpu.unpack_rows(
            output.data_ptr(),
            row_ids.data_ptr(),
            len(row_ids),
            factor,
            *packed_arguments(matrix),
        )
        return output.to(dtype)
    if isinstance(matrix, FloatWeight):
        output = torch.empty(len(row_ids), matrix.columns)
        cpu.float_rows(
            output.data_ptr(),
            row_ids.data_ptr(),
            matrix.values.data_ptr(),
            len(row_ids),
            matrix.columns,
            TYPE_NUMBERS[matrix.values.dtype],
            factor,
        )
        return output.to(dtype)
    output = matrix.new_empty(len(row_ids), matrix.shape[1])
    cpu.gather_rows(output.data_ptr(), matrix.data_ptr(), row_ids.data_ptr(), *output.shape, factor)
    return output
