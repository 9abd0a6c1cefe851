"""FP8: a LinearMethod that keeps matrices as 8-bit floats with a scale for each row, half the bytes of 16 bits.

The scale is a row's largest number / 448, the largest that float8_e4m3 has. Embedding and head stay as they are: each
of their rows matters to few tokens, so an error there does not average out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fathom.kernels.fp8_matmul import fp8_matmul
from fathom.layers.linear import Dense

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.linear import Linear

NUMBERS = torch.float8_e4m3fn
LARGEST = torch.finfo(NUMBERS).max


class FP8(Dense):
    """``weight`` in 8-bit floats, and ``scales`` beside it. Activations are the model's dtype."""

    def create_weights(self, layer: Linear, build: BuildContext) -> None:
        layer.weight = build.empty(layer.out_features, layer.in_features, dtype=NUMBERS)
        layer.scales = build.empty(layer.out_features, dtype=torch.float32)

    def store(self, layer: Linear, rows: slice, matrix: torch.Tensor) -> None:
        """Take the matrix of these rows of the layer, rounded; called once for each projection."""
        matrix = matrix.float()
        scales = (matrix.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        layer.weight[rows].copy_((matrix / scales[:, None]).clamp(-LARGEST, LARGEST).to(NUMBERS))
        layer.scales[rows].copy_(scales)

    def multiply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return fp8_matmul(x, layer.weight, layer.scales, layer.bias)
