"""Rounding of weights to integers with scales, for models that are quantised when they are loaded.

quantise_weights(matrix, bits) -> Codes
    matrix  [rows, columns] float32, columns a multiple of 32; magnitudes within float16's range
    bits    8: weight = scale * (code - 128), the scale of a group of 32 columns being its largest magnitude / 127
            4: weight = scale * code + minimum. Codes and factors of a group are fitted to each other in turns: the
               codes are rounded to the factors, then the factors are those of least squares for the codes. This starts
               from the group's range and from that range cut at both ends, with two turns each; the result with the
               least squared error is kept.

Scales and minimums are float16, and codes are rounded to the float16 numbers.
"""

from __future__ import annotations

import torch

from fathom.kernels import native
from fathom.kernels.quantise_weights import cpu, ref
from fathom.quant.ggml_codes import Codes

__all__ = ["quantise_weights"]


def quantise_weights(matrix: torch.Tensor, bits: int) -> Codes:
    """See the package's docstring for shapes and rules."""
    chosen = cpu if native.serves(matrix) else ref
    return chosen.quantise_weights(matrix, bits)
