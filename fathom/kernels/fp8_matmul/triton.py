"""Products with weights in 8-bit floats for GPUs, in Triton: weights are widened in registers, tile by tile.

A program has TOKENS rows of x and ROWS rows of the weight, and walks along their columns. Its tile is the same for any
number of tokens, so a token's bits do not depend on the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TOKENS, ROWS, COLUMNS = 32, 64, 64


def fp8_matmul(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    rows, columns = weight.shape
    tokens = x.reshape(-1, columns)
    out = x.new_empty(*x.shape[:-1], rows)
    if len(tokens) == 0:
        return out
    _multiply[(triton.cdiv(len(tokens), TOKENS), triton.cdiv(rows, ROWS))](
        tokens,
        tokens.stride(0),
        tokens.stride(1),
        weight,
        scales,
        scales if bias is None else bias,
        out,
        len(tokens),
        rows,
        columns,
        BIAS=bias is not None,
        TOKENS=TOKENS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply(
    x,
    x_stride,
    x_column_stride,
    weight,
    scales,
    bias,
    out,
    num_tokens,
    rows,
    columns,
    BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_token, is_row = token < num_tokens, row < rows
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_column = column < columns
        activations = tl.load(
            x + token[:, None] * x_stride + column[None, :] * x_column_stride,
            mask=is_token[:, None] & is_column[None, :],
            other=0.0,
        )
        weights = tl.load(
            weight + row[None, :] * columns + column[:, None], mask=is_row[None, :] & is_column[:, None], other=0.0
        )
        total += tl.dot(activations, weights.to(dtype), input_precision="ieee")
    total *= tl.load(scales + row, mask=is_row, other=0.0)[None, :]
    if BIAS:
        total += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)[None, :]
    tl.store(out + token[:, None] * rows + row[None, :], total.to(dtype), mask=is_token[:, None] & is_row[None, :])
