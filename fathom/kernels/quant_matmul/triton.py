"""Products with packed weights for GPUs, in Triton: weights are decoded in registers, tile by tile, to x's dtype.

A program has TOKENS rows of x and ROWS rows of the weight, and walks along their columns. Its tile is the same for any
number of tokens, and a column's place in the sum likewise, so a token's bits do not depend on the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.quant.packed import PANEL, STEP_COLUMNS, Factors, PackedWeight

TOKENS, ROWS, COLUMNS = 32, 64, 32


def decoded_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    tokens = x.reshape(-1, weight.columns)
    if out is None:
        out = x.new_empty(*x.shape[:-1], weight.rows)
    scales, minimums = weight.scales, weight.minimums or weight.scales
    if len(tokens) == 0:
        return out
    _multiply[(triton.cdiv(len(tokens), TOKENS), triton.cdiv(weight.rows, ROWS))](
        tokens,
        tokens.stride(0),
        tokens.stride(1),
        weight.quants,
        *_pointers(scales),
        *_pointers(minimums),
        bias if bias is not None else tokens,
        out,
        out.stride(-2) if out.dim() > 1 else weight.rows,
        len(tokens),
        weight.rows,
        weight.columns,
        BITS=weight.bits,
        GROUP=weight.group,
        PANEL=PANEL,
        STEP=0 if scales.steps is None else STEP_COLUMNS,
        MINIMUMS=weight.minimums is not None,
        BIAS=bias is not None,
        TOKENS=TOKENS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
    return out


quant_matmul = decoded_matmul
"""The same: on a GPU activations are not rounded."""


def _pointers(factors: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    return factors.values, factors.values if factors.steps is None else factors.steps


@triton.jit
def _codes(quants, panel, lane, column, is_weight, columns, BITS: tl.constexpr, PANEL: tl.constexpr):
    """The codes at some rows and columns, float32; the layout is that of `packed.py`."""
    quad = column // 4
    row_bytes = quants + lane * 4 + column % 4
    LINE: tl.constexpr = 4 * PANEL
    if BITS == 8:
        line = panel * (columns // 4) + quad
        return tl.load(row_bytes + line * LINE, mask=is_weight, other=0).to(tl.float32)
    # A unit is as many quads as have their high bits in one line, behind the lines of their low ones.
    HIGH: tl.constexpr = BITS - 4
    QUADS: tl.constexpr = 2 if HIGH == 0 else 8 // HIGH
    LINES: tl.constexpr = QUADS // 2 + (HIGH > 0)
    unit = (panel * (columns // (4 * QUADS)) + quad // QUADS) * LINES
    line = unit + quad % QUADS // 2
    codes = tl.load(row_bytes + line * LINE, mask=is_weight, other=0).to(tl.int32) >> (quad % 2 * 4) & 15
    if HIGH > 0:
        plane = tl.load(row_bytes + (unit + LINES - 1) * LINE, mask=is_weight, other=0).to(tl.int32)
        codes |= (plane >> (quad % QUADS * HIGH) & (2**HIGH - 1)) << 4
    return codes.to(tl.float32)


@triton.jit
def _factors(
    values, steps, panel, lane, column, is_weight, columns, GROUP: tl.constexpr, STEP: tl.constexpr, PANEL: tl.constexpr
):
    place = (panel * (columns // GROUP) + column // GROUP) * PANEL + lane
    factors = tl.load(values + place, mask=is_weight, other=0).to(tl.float32)
    if STEP > 0:
        place = (panel * (columns // STEP) + column // STEP) * PANEL + lane
        factors *= tl.load(steps + place, mask=is_weight, other=0).to(tl.float32)
    return factors


@triton.jit
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
    panel, lane = (row // PANEL)[None, :], (row % PANEL)[None, :]
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_weight = (row < rows)[None, :] & (column < columns)[:, None]
        weights = _codes(quants, panel, lane, column[:, None], is_weight, columns, BITS, PANEL)
        if not MINIMUMS:
            weights -= 2 ** (BITS - 1)
        weights *= _factors(scales, scale_steps, panel, lane, column[:, None], is_weight, columns, GROUP, STEP, PANEL)
        if MINIMUMS:
            weights += _factors(
                minimums, minimum_steps, panel, lane, column[:, None], is_weight, columns, GROUP, STEP, PANEL
            )
        places = x + token[:, None] * x_stride + column[None, :] * x_column_stride
        activations = tl.load(places, mask=(token < num_tokens)[:, None] & (column < columns)[None, :], other=0.0)
        total += tl.dot(activations, weights.to(dtype), input_precision="ieee")
    if BIAS:
        total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    is_inside = (token < num_tokens)[:, None] & (row < rows)[None, :]
    tl.store(out + token[:, None] * out_stride + row[None, :], total.to(dtype), mask=is_inside)
