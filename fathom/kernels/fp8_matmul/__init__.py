"""Products with weights in 8-bit floats: x @ weight.T * scales + bias.

    fp8_matmul(
        x        [..., columns] float32, float16 or bfloat16
        weight   [rows, columns] float8_e4m3fn, contiguous
        scales   [rows] float32, what a row's numbers are multiplied by
        bias     [rows] in x's dtype, or None
    ) -> [..., rows], in x's dtype

x is not rounded: the weights are widened to its dtype, which holds them exactly, and products are added up in float32.
On a GPU a row of the result has the same bits whatever other rows of x there are; torch's products, by which ref
multiplies, may differ in the last one.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation


def fp8_matmul(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return implementation(__name__, x).fp8_matmul(x, weight, scales, bias)
