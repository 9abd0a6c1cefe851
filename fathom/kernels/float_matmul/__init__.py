"""Products with matrices of 16- and 32-bit floats: x @ weight.T + bias, in float32.

float_matmul(x, weight, bias=None, out=None) -> out
    x       [..., columns] float32
    weight  FloatWeight [rows, columns]; numbers of 16 bits are widened, which is exact
    bias    [rows] float32, or None
    out     [..., rows] float32, or None for a new one; its rows may lie apart (a slice of a wider tensor's columns)

A GPU has no FloatWeights: layers/packed.py makes them plain matrices there, whose products are torch's.

The native kernels add up a result's products from the first column to the last, one by one, so a row of the result
has the same bits whatever other rows of x there are.
"""

from __future__ import annotations

import torch

from fathom.kernels import native
from fathom.kernels.float_matmul import cpu, ref
from fathom.quant.float_weight import FloatWeight

__all__ = ["float_matmul"]


def float_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    chosen = cpu if native.serves(x) else ref
    return chosen.float_matmul(x, weight, bias, out)
