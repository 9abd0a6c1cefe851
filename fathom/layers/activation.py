"""The gated activations by the name that ModelConfig gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from fathom.kernels.activation import gelu_tanh_and_mul, silu_and_mul


def gated_activation(name: Literal["silu", "gelu_tanh"]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function [num_tokens, 2 * size] -> [num_tokens, size] for the activation called ``name``."""
    return {"silu": silu_and_mul, "gelu_tanh": gelu_tanh_and_mul}[name]
