"""FloatWeight: a matrix of floats of 16 or 32 bits, stored in the order in which the CPU kernels read it.

As in a PackedWeight sixteen rows make a panel, and lie beside each other:

    values  float16, bfloat16 or float32 [panels, columns, 16 rows]

The last panel is filled up with rows of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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
        return self.values[row_ids // PANEL, :, row_ids % PANEL].float()

    def dense(self) -> torch.Tensor:
        """The whole matrix as float32 [rows, columns]."""
        return self.values.transpose(1, 2).flatten(0, 1)[: self.rows].float()


def empty_float_weight(rows: int, columns: int, dtype: torch.dtype) -> FloatWeight:
    """An uninitialised matrix, to be filled by `put_rows`.

    Raises:
        ValueError: not one of DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: must be one of {', '.join(map(str, DTYPES))}")
    return FloatWeight(empty((-(-rows // PANEL), columns, PANEL), dtype), rows, columns)


def put_rows(weight: FloatWeight, first: int, matrix: torch.Tensor) -> None:
    """Write rows [n, columns] of a matrix of any float dtype from row number ``first`` on, the start of a panel.

    The last of them fill up their panel with zeros.
    """
    panels = weight.values[first // PANEL : (first + len(matrix) + PANEL - 1) // PANEL]
    whole = len(matrix) // PANEL
    panels[:whole] = matrix[: whole * PANEL].unflatten(0, (-1, PANEL)).transpose(1, 2)
    if whole < len(panels):
        rest = matrix[whole * PANEL :]
        panels[whole].zero_()
        panels[whole, :, : len(rest)] = rest.T
