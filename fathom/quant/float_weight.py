"""FloatWeight: a matrix of floats of 16 or 32 bits, stored in the order in which the CPU kernels read it.

As in a PackedWeight sixteen rows make a panel, and lie beside each other:

    values  float32 or float16 [panels, columns, 16 rows]
            bfloat16 [panels, columns / 2, 16 rows, 2 columns]

Columns of bfloat16 go in pairs because processors that multiply bfloat16 multiply pairs. The last panel is filled up
with rows of zeros, and the last pair of an odd number of columns with a column of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fathom.quant.huge_pages import empty
from fathom.quant.packed import PANEL

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that a FloatWeight can have."""


@dataclass(frozen=True, eq=False)
class FloatWeight:
    """A matrix [rows, columns] in panels; see the module's docstring for the layout."""

    values: torch.Tensor
    rows: int
    columns: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that is stored, each [panels, ...]."""
        return (self.values,)

    def with_tensors(self, tensors: list[torch.Tensor], rows: int) -> FloatWeight:
        """A matrix of this format that stores these `tensors`."""
        (values,) = tensors
        return FloatWeight(values, rows, self.columns)

    @property
    def format(self) -> torch.dtype:
        """What two matrices must have in common for their panels to follow each other in one."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Memory that the matrix takes."""
        return self.values.nbytes

    def unpack_rows(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows as float32 [..., columns], for row numbers [...] of an integer dtype: an embedding's lookup."""
        return self._columns(self.values[row_ids // PANEL, :, row_ids % PANEL]).float()

    def dense(self) -> torch.Tensor:
        """The whole matrix as float32 [rows, columns]."""
        return self._columns(self.values.transpose(1, 2).flatten(0, 1)[: self.rows]).float()

    def _columns(self, numbers: torch.Tensor) -> torch.Tensor:
        """Of rows as they are stored, [..., columns]."""
        return numbers.flatten(-2)[..., : self.columns] if self.values.dim() == 4 else numbers


def empty_float_weight(rows: int, columns: int, dtype: torch.dtype) -> FloatWeight:
    """An uninitialised matrix, to be filled by `put_rows`.

    Raises:
        ValueError: not one of DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: must be one of {', '.join(map(str, DTYPES))}")
    panels = -(-rows // PANEL)
    shape = (panels, -(-columns // 2), PANEL, 2) if dtype is torch.bfloat16 else (panels, columns, PANEL)
    return FloatWeight(empty(shape, dtype), rows, columns)


def put_rows(weight: FloatWeight, first: int, matrix: torch.Tensor) -> None:
    """Write rows [n, columns] of a matrix of any float dtype from row number ``first`` on, the start of a panel.

    The last of them fill up their panel with zeros.
    """
    values = weight.values
    if values.dtype is torch.bfloat16:  # a pair is moved as one number
        matrix = F.pad(matrix.bfloat16(), (0, weight.columns % 2)).contiguous().view(torch.int32)
        values = values.view(torch.int32).squeeze(-1)
    panels = values[first // PANEL : (first + len(matrix) + PANEL - 1) // PANEL]
    whole = len(matrix) // PANEL
    panels[:whole] = matrix[: whole * PANEL].unflatten(0, (-1, PANEL)).transpose(1, 2)
    if whole < len(panels):
        rest = matrix[whole * PANEL :]
        panels[whole].zero_()
        panels[whole, :, : len(rest)] = rest.T
