"""Products with matrices of 16- and 32-bit floats: x @ weight.T + bias, in float32.

float_matmul(x, weight, bias=None, out=None) -> out
    x       [..., columns] float32
    weight  FloatWeight [rows, columns]; numbers of 16 bits are widened, which is exact
    bias    [rows] float32, or None
    out     [..., rows] float32, or None for a new one; its rows may lie apart (a slice of a wider tensor's columns)

bfloat16_matmul(x, weight, bias=None, out=None) -> out
    the same with a weight of bfloat16, and x rounded to bfloat16; sums are float32

A GPU has no FloatWeights: layers/packed.py makes them plain matrices there, whose products are torch's.

The native kernels add up a result's products from the first column to the last, one by one or in pairs, so a row of
the result has the same bits whatever other rows of x there are. Pairs are one instruction where the processor has it
(the level avx512bf16), twice as fast as float32; the order of sums is then another than elsewhere.
"""

from __future__ import annotations

import torch

from fathom.kernels import native
from fathom.kernels.float_matmul import cpu, ref
from fathom.quant.float_weight import FloatWeight

__all__ = ["bfloat16_matmul", "float_matmul"]


def float_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    chosen = cpu if native.serves(x) else ref
    return chosen.float_matmul(x, weight, bias, out)


def bfloat16_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    chosen = cpu if native.serves(x) else ref
    return chosen.bfloat16_matmul(x, weight, bias, out)
