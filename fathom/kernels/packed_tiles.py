"""Tiles of packed weights, decoded in a Triton program's registers; the layout is that of `quant/packed.py`.

What a kernel is launched with: the tensors of `pointers(weight)`, in the parameters (quants, scales, scale_steps,
minimums, minimum_steps), and the constants of `format_constants(weight)`, by name. A format has no use for some of the
pointers; those are to something else of the weight's and are not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.quant.packed import PANEL, STEP_COLUMNS, Factors, PackedWeight


def pointers(weight: PackedWeight) -> tuple[torch.Tensor, ...]:
    """quants, scales, their steps, minimums, their steps."""
    return weight.quants, *_both(weight.scales), *_both(weight.minimums or weight.scales)


def _both(factors: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    return factors.values, factors.values if factors.steps is None else factors.steps


def format_constants(weight: PackedWeight) -> dict[str, int | bool]:
    """What a kernel is compiled for."""
    return {
        "BITS": weight.bits,
        "GROUP": weight.group,
        "STEP": 0 if weight.scales.steps is None else STEP_COLUMNS,
        "MINIMUMS": weight.minimums is not None,
        "PANEL": PANEL,
    }


@triton.jit
def decode_tile(
    quants,
    scales,
    scale_steps,
    minimums,
    minimum_steps,
    row,
    column,
    is_weight,
    columns,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    MINIMUMS: tl.constexpr,
    PANEL: tl.constexpr,
):
    """float32 weights at rows and columns (shapes that broadcast); junk where they are none.

    columns: of the whole matrix.
    """
    panel, lane = row // PANEL, row % PANEL
    weights = _codes(quants, panel, lane, column, is_weight, columns, BITS, PANEL)
    if not MINIMUMS:
        weights -= 2 ** (BITS - 1)
    weights *= _factors(scales, scale_steps, panel, lane, column, is_weight, columns, GROUP, STEP, PANEL)
    if MINIMUMS:
        weights += _factors(minimums, minimum_steps, panel, lane, column, is_weight, columns, GROUP, STEP, PANEL)
    return weights


@triton.jit
def _codes(quants, panel, lane, column, is_weight, columns, BITS: tl.constexpr, PANEL: tl.constexpr):
    """The codes at some rows and columns, float32."""
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
