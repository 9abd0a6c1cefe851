"""PackedWeight: a matrix of small integers, stored in the order in which the CPU kernels read it.

A weight [rows, columns] is cut into groups of 16 or 32 columns; within a group of a row

    weight = scale * code + minimum        code: 0..15 (4 bits) or 0..255 (8 bits)
    weight = scale * (code - 128)          8 bits without minimums: the signed formats

Sixteen rows make a panel and lie beside each other, one in each lane of a vector register, so that a kernel
walks along the columns of sixteen rows at once and never adds up the lanes of a register:

    8 bits   quants  uint8 [panels, columns / 4, 16 rows, 4 columns]
    4 bits   quants  uint8 [panels, columns / 8, 16 rows, 4 bytes]; of the eight columns, byte j holds column j
             in its low half and column j + 4 in its high half
    both     scales, minimums  float32 [panels, columns / group, 16 rows]

The last panel is filled up with rows of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

PANEL = 16
"""Rows that lie beside each other."""

SIGNED_ZERO = 128
"""The code that stands for 0 where there are no minimums."""

_GROUPS = (16, 32)
COLUMN_STEP = 32
"""What a number of columns must be a multiple of."""


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A packed matrix [rows, columns]; see the module's docstring for the layout."""

    quants: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    rows: int
    columns: int
    bits: int
    group: int

    @property
    def nbytes(self) -> int:
        """Memory that the matrix takes."""
        return sum(tensor.nbytes for tensor in (self.quants, self.scales, self.minimums) if tensor is not None)

    def integers(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The integers of rows [...] as float32 [..., groups, group]: weight = scale * integer (+ minimum)."""
        codes = _unpack_codes(self.quants[row_ids // PANEL, :, row_ids % PANEL], self.bits).float()
        if self.minimums is None:
            codes -= SIGNED_ZERO
        return codes.unflatten(-1, (-1, self.group))

    def unpack_rows(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows as float32 [..., columns], for row numbers [...] of an integer dtype: an embedding's lookup."""
        panels, lanes = row_ids // PANEL, row_ids % PANEL
        rows = self.integers(row_ids) * self.scales[panels, :, lanes].unsqueeze(-1)
        if self.minimums is not None:
            rows += self.minimums[panels, :, lanes].unsqueeze(-1)
        return rows.flatten(-2)

    def dense(self) -> torch.Tensor:
        """The whole matrix as float32 [rows, columns]."""
        return self.unpack_rows(torch.arange(self.rows, device=self.quants.device))


def pack(codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor | None, bits: int) -> PackedWeight:
    """Packs a matrix that is already quantised, losing nothing.

    Args:
        codes: uint8 [rows, columns], columns a multiple of 32; below 16 if bits is 4.
        scales: [rows, columns / group], group 16 or 32.
        minimums: the same shape as scales, or None for codes that mean code - 128 (8 bits only).
        bits: 4 or 8.

    Raises:
        ValueError: a shape or number that the layout cannot hold.
    """
    rows, columns = codes.shape
    _check(columns, scales, minimums, bits)
    return PackedWeight(
        quants=_pack_codes(_into_panels(codes), bits),
        scales=_lanes_last(_into_panels(scales.float())),
        minimums=None if minimums is None else _lanes_last(_into_panels(minimums.float())),
        rows=rows,
        columns=columns,
        bits=bits,
        group=columns // scales.shape[1],
    )


def _check(columns: int, scales: torch.Tensor, minimums: torch.Tensor | None, bits: int) -> None:
    if bits not in (4, 8):
        raise ValueError(f"bits={bits}: only 4 and 8 can be packed")
    if bits == 4 and minimums is None:
        raise ValueError("minimums=None: 4-bit codes are unsigned; pass minimums (-8 * scale for a symmetric format)")
    if columns % COLUMN_STEP:
        raise ValueError(f"columns={columns}: must be a multiple of {COLUMN_STEP}")
    if scales.shape[1] not in (columns // group for group in _GROUPS):
        raise ValueError(f"{scales.shape[1]} scales a row of {columns}: groups have {_GROUPS} columns")


def _into_panels(matrix: torch.Tensor) -> torch.Tensor:
    """[rows, n] -> [panels, PANEL, n], filled up with zeros."""
    missing = -matrix.shape[0] % PANEL
    return torch.nn.functional.pad(matrix, (0, 0, 0, missing)).unflatten(0, (-1, PANEL))


def _lanes_last(panels: torch.Tensor) -> torch.Tensor:
    return panels.transpose(1, 2).contiguous()


def _pack_codes(panels: torch.Tensor, bits: int) -> torch.Tensor:
    """[panels, PANEL, columns] -> the quants of the layout."""
    if bits == 4:
        eights = panels.unflatten(-1, (-1, 2, 4))
        quads = eights[..., 0, :] | eights[..., 1, :] << 4
    else:
        quads = panels.unflatten(-1, (-1, 4))
    return _lanes_last(quads)


def _unpack_codes(quads: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes [..., columns] of rows whose bytes are [..., steps, 4]."""
    if bits == 4:
        quads = torch.stack([quads & 15, quads >> 4], dim=-2).flatten(-3, -2)
    return quads.flatten(-2)
