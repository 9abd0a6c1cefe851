"""PackedWeight: a matrix of small integers, stored in the order in which the CPU kernels read it.

A weight [rows, columns] is cut into groups of 16 or 32 columns; within a group of a row

    weight = scale * code + minimum                code: 0 to 2^bits - 1
    weight = scale * (code - 2^(bits - 1))         where there are no minimums: the signed formats

Sixteen rows make a panel and lie beside each other, one in each lane of a vector register, so that a kernel
walks along the columns of sixteen rows at once and never adds up the lanes of a register. Four columns of the panel
are a quad; the codes of a panel are lines of 64 bytes, uint8 [panels, lines, 16 rows, 4 bytes]:

    8 bits   a line for each quad: byte j of a row holds column j
    4 bits   a line for two quads: the first in the low halves of the bytes, the second in the high halves
    5 bits   the low 4 bits of 8 quads as above, in 4 lines; then a line of high bits, quad q's in bit q
    6 bits   the low 4 bits of 4 quads as above, in 2 lines; then a line of high bits, quad q's in bits 2q and 2q + 1

so that whatever the width, a code comes out of its line by a shift and a mask. Scales, and likewise minimums, are kept
as they are in files:

    values  float16 [panels, groups, 16 rows]
    values  int8 [panels, groups, 16 rows], times steps  float16 [panels, columns / 256, 16 rows]

The last panel is filled up with rows of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

PANEL = 16
"""Rows that lie beside each other."""

COLUMN_STEP = 32
"""What a number of columns must be a multiple of."""

STEP_COLUMNS = 256
"""Columns that share a step of scales."""

FORMATS = {
    # bits, group, whether there are minimums, whether scales have steps
    (4, 32, False, False): "Q4_0",
    (4, 32, True, False): "Q4_1",  # and int4
    (5, 32, False, False): "Q5_0",
    (5, 32, True, False): "Q5_1",
    (8, 32, False, False): "Q8_0",  # and IQ4_NL and int8
    (4, 16, True, True): "Q2_K",
    (4, 16, False, True): "Q3_K",
    (4, 32, True, True): "Q4_K",
    (5, 32, True, True): "Q5_K",
    (6, 16, False, True): "Q6_K",
}
"""The formats that kernels are compiled for (csrc/cpu/packed_format.h), and what is stored in each."""


class Factors(NamedTuple):
    """The scales of groups, or their minimums.

    values: float16, or int8 multiples of a step.
    steps: float16, one for each 256 columns; None beside float16 values.
    """

    values: torch.Tensor
    steps: torch.Tensor | None = None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Factors:
        """The same with each tensor changed."""
        return Factors(change(self.values), None if self.steps is None else change(self.steps))

    def widened(self) -> torch.Tensor:
        """Factors of rows [..., groups] as float32, which holds them exactly."""
        if self.steps is None:
            return self.values.float()
        share = self.values.shape[-1] // self.steps.shape[-1]
        return self.values.float() * self.steps.float().repeat_interleave(share, -1)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A packed matrix [rows, columns]; see the module's docstring for the layout."""

    quants: torch.Tensor
    scales: Factors
    minimums: Factors | None
    rows: int
    columns: int
    bits: int
    group: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that is stored: the codes, then scales and minimums, each [panels, ...]."""
        found = (self.quants, *self.scales, *(self.minimums or ()))
        return tuple(tensor for tensor in found if tensor is not None)

    def with_tensors(self, tensors: list[torch.Tensor], rows: int) -> PackedWeight:
        """A matrix of this format that stores these `tensors`."""
        quants, *rest = tensors
        half = len(rest) if self.minimums is None else len(rest) // 2
        minimums = None if self.minimums is None else Factors(*rest[half:])
        return replace(self, quants=quants, scales=Factors(*rest[:half]), minimums=minimums, rows=rows)

    @property
    def nbytes(self) -> int:
        """Memory that the matrix takes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def format(self) -> tuple[int, int, bool, bool]:
        """Its key in FORMATS: what two matrices must have in common for their panels to follow each other in one."""
        return self.bits, self.group, self.minimums is not None, self.scales.steps is not None

    def integers(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The integers of rows [...] as float32 [..., groups, group]: weight = scale * integer (+ minimum)."""
        codes = _unpack_codes(self.quants[row_ids // PANEL, :, row_ids % PANEL], self.bits).float()
        if self.minimums is None:
            codes -= signed_zero(self.bits)
        return codes.unflatten(-1, (-1, self.group))

    def unpack_rows(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows as float32 [..., columns], for row numbers [...] of an integer dtype: an embedding's lookup."""
        rows = self.integers(row_ids) * factors_of_rows(self.scales, row_ids).unsqueeze(-1)
        if self.minimums is not None:
            rows += factors_of_rows(self.minimums, row_ids).unsqueeze(-1)
        return rows.flatten(-2)

    def dense(self) -> torch.Tensor:
        """The whole matrix as float32 [rows, columns]."""
        return self.unpack_rows(torch.arange(self.rows, device=self.quants.device))


def signed_zero(bits: int) -> int:
    """The code that stands for 0 where there are no minimums."""
    return 1 << (bits - 1)


def factors_of_rows(factors: Factors, row_ids: torch.Tensor) -> torch.Tensor:
    """float32 [..., groups] of the rows [...] of a packed matrix."""
    panels, lanes = row_ids // PANEL, row_ids % PANEL
    return factors.map(lambda part: part[panels, :, lanes]).widened()


def pack(codes: torch.Tensor, scales: Factors, minimums: Factors | None, bits: int) -> PackedWeight:
    """Packs a matrix that is already quantised, losing nothing.

    Args:
        codes: uint8 [rows, columns], columns a multiple of 32; below 2^bits.
        scales: values [rows, columns / group], steps [rows, columns / 256].
        minimums: the same, or None for codes that mean code - 2^(bits - 1).
        bits: 4, 5, 6 or 8.

    Raises:
        ValueError: a shape or format that the layout does not hold.
    """
    rows, columns = codes.shape
    if columns % COLUMN_STEP:
        raise ValueError(f"columns={columns}: must be a multiple of {COLUMN_STEP}")
    group = columns // scales.values.shape[1]
    form = (bits, group, minimums is not None, scales.steps is not None)
    if form not in FORMATS or columns % group:
        raise ValueError(f"(bits, group, minimums, steps)={form}: must be one of {', '.join(map(str, FORMATS))}")
    return PackedWeight(
        quants=_lanes_last(_pack_codes(_into_panels(codes), bits)),
        scales=_pack_factors(scales),
        minimums=None if minimums is None else _pack_factors(minimums),
        rows=rows,
        columns=columns,
        bits=bits,
        group=group,
    )


def _pack_factors(factors: Factors) -> Factors:
    return factors.map(lambda part: _lanes_last(_into_panels(part)))


def _into_panels(matrix: torch.Tensor) -> torch.Tensor:
    """[rows, n] -> [panels, PANEL, n], filled up with zeros."""
    missing = -matrix.shape[0] % PANEL
    return torch.nn.functional.pad(matrix, (0, 0, 0, missing)).unflatten(0, (-1, PANEL))


def _lanes_last(panels: torch.Tensor) -> torch.Tensor:
    return panels.transpose(1, 2).contiguous()


def _quads_of_plane(bits: int) -> int:
    """How many quads' high bits fill a line."""
    return 8 // (bits - 4)


def _pack_codes(panels: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., columns] -> lines [..., lines, 4]."""
    quads = panels.unflatten(-1, (-1, 4))
    if bits == 8:
        return quads
    lines = quads.unflatten(-2, (-1, 2)).bitwise_and(15)
    lines = lines[..., 0, :] | lines[..., 1, :] << 4
    if bits == 4:
        return lines
    count = _quads_of_plane(bits)
    high = quads.unflatten(-2, (-1, count)) >> 4
    plane = high[..., 0, :]
    for quad in range(1, count):
        plane = plane | high[..., quad, :] << quad * (bits - 4)
    return torch.cat([lines.unflatten(-2, (-1, count // 2)), plane.unsqueeze(-2)], dim=-2).flatten(-3, -2)


def _unpack_codes(lines: torch.Tensor, bits: int) -> torch.Tensor:
    """Lines [..., lines, 4] -> codes [..., columns]."""
    if bits == 8:
        return lines.flatten(-2)
    if bits == 4:
        return _unpack_halves(lines).flatten(-2)
    count, width = _quads_of_plane(bits), bits - 4
    units = lines.unflatten(-2, (-1, count // 2 + 1))
    plane = units[..., -1:, :]
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=lines.device)
    high = (plane >> shifts[:, None]) & ((1 << width) - 1)
    return (_unpack_halves(units[..., :-1, :]) | high << 4).flatten(-3)


def _unpack_halves(lines: torch.Tensor) -> torch.Tensor:
    """Lines of 4 bits [..., lines, 4] -> quads [..., 2 * lines, 4]."""
    return torch.stack([lines & 15, lines >> 4], dim=-2).flatten(-3, -2)
