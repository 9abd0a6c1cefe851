"""Products with packed weights: x @ weight.T + bias.

quant_matmul(x, weight, bias=None, out=None) -> out
    x       [..., columns] float32
    weight  PackedWeight [rows, columns]
    bias    [rows] float32, or None
    out     [..., rows] float32, or None for a new one; its rows may lie apart (a slice of a wider tensor's columns)

Activations are rounded, each token's groups of columns apart, to integers of -127..127 times a step:

    step = largest / 127, integer = round(x * (127 / largest)), half to even
    largest: of the group's magnitudes, and at least 2^-118

Within a group the sum of products is one of integers, so it is exact:

    out = sum over groups, first to last, of step * (scale * dot(weight integers, activation integers)
                                                     + minimum * sum(activation integers))

decoded_matmul(x, weight, bias=None, out=None) is the same product free of that rounding: x as it is, with the weights
decoded to float32. It is there to tell the two errors of a quantised model apart, and slower.

On a GPU (Triton) both are the product without rounding: x, and so out, may be float32, float16 or bfloat16, the decoded
weights are rounded to x's dtype, and products are added up in float32.

A row of the result has the same bits whatever other rows of x there are.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation
from fathom.quant.packed import PackedWeight

__all__ = ["decoded_matmul", "quant_matmul"]


def quant_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return implementation(__name__, x).quant_matmul(x, weight, bias, out)


def decoded_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return implementation(__name__, x).decoded_matmul(x, weight, bias, out)
