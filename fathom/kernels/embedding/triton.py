"""Rows of a matrix for GPUs: packed ones are decoded by a Triton kernel, a program for a row's tile of columns.

A dense matrix's rows are torch's own gather, which has nothing to gain from a kernel of ours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.kernels.embedding import ref
from fathom.kernels.gpu import power_of_two
from fathom.kernels.packed_tiles import decode_tile, format_constants, pointers
from fathom.quant.float_weight import FloatWeight
from fathom.quant.packed import PackedWeight

TILE = 1024
"""Most columns of a program."""


def embedding(
    row_ids: torch.Tensor,
    matrix: torch.Tensor | PackedWeight | FloatWeight,
    factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    if not isinstance(matrix, PackedWeight):
        return ref.embedding(row_ids, matrix, factor, dtype)
    output = torch.empty(len(row_ids), matrix.columns, dtype=dtype, device=row_ids.device)
    if len(row_ids) == 0:
        return output
    tile = min(TILE, power_of_two(matrix.columns))
    _decode_rows[(len(row_ids), triton.cdiv(matrix.columns, tile))](
        row_ids.contiguous(),
        *pointers(matrix),
        output,
        factor,
        matrix.columns,
        **format_constants(matrix),
        TILE=tile,
    )
    return output


@triton.jit
def _decode_rows(
    row_ids,
    quants,
    scales,
    scale_steps,
    minimums,
    minimum_steps,
    output,
    factor,
    columns,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    MINIMUMS: tl.constexpr,
    PANEL: tl.constexpr,
    TILE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < columns
    row = tl.load(row_ids + place) + tl.zeros_like(column)
    weights = decode_tile(
        quants,
        scales,
        scale_steps,
        minimums,
        minimum_steps,
        row,
        column,
        inside,
        columns,
        BITS,
        GROUP,
        STEP,
        MINIMUMS,
        PANEL,
    )
    tl.store(output + place * columns + column, (weights * factor).to(output.dtype.element_ty), mask=inside)
