"""Products with packed weights for GPUs, in Triton: weights are decoded in registers, tile by tile, to x's dtype.

A program has TOKENS rows of x and ROWS rows of the weight, and walks along their columns. Its tile is the same for any
number of tokens, and a column's place in the sum likewise, so a token's bits do not depend on the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.kernels.packed_tiles import decode_tile, format_constants, pointers
from fathom.quant.packed import PackedWeight

TOKENS, ROWS, COLUMNS = 32, 64, 32


def decoded_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    tokens = x.reshape(-1, weight.columns)
    if out is None:
        out = x.new_empty(*x.shape[:-1], weight.rows)
    if len(tokens) == 0:
        return out
    _multiply[(triton.cdiv(len(tokens), TOKENS), triton.cdiv(weight.rows, ROWS))](
        tokens,
        tokens.stride(0),
        tokens.stride(1),
        *pointers(weight),
        bias if bias is not None else tokens,
        out,
        out.stride(-2) if out.dim() > 1 else weight.rows,
        len(tokens),
        weight.rows,
        weight.columns,
        **format_constants(weight),
        BIAS=bias is not None,
        TOKENS=TOKENS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
    return out


quant_matmul = decoded_matmul
"""The same: on a GPU activations are not rounded."""


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply(
    x,
    x_stride,
    x_column_stride,
    quants,
    scales,
    scale_steps,
    minimums,
    minimum_steps,
    bias,
    out,
    out_stride,
    num_tokens,
    rows,
    columns,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    PANEL: tl.constexpr,
    STEP: tl.constexpr,
    MINIMUMS: tl.constexpr,
    BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_weight = (row < rows)[None, :] & (column < columns)[:, None]
        weights = decode_tile(
            quants,
            scales,
            scale_steps,
            minimums,
            minimum_steps,
            row[None, :],
            column[:, None],
            is_weight,
            columns,
            BITS,
            GROUP,
            STEP,
            MINIMUMS,
            PANEL,
        )
        places = x + token[:, None] * x_stride + column[None, :] * x_column_stride
        activations = tl.load(places, mask=(token < num_tokens)[:, None] & (column < columns)[None, :], other=0.0)
        total += tl.dot(activations, weights.to(dtype), input_precision="ieee")
    if BIAS:
        total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    is_inside = (token < num_tokens)[:, None] & (row < rows)[None, :]
    tl.store(out + token[:, None] * out_stride + row[None, :], total.to(dtype), mask=is_inside)
