"""Random weights, for running a model's shape without its checkpoint (``load_format="dummy"``)."""

from __future__ import annotations

import torch
from torch import nn

STANDARD_DEVIATION = 0.02  # what such models start training with: activations stay in range


def fill_with_random(module: nn.Module, seed: int = 0) -> None:
    """Overwrite every parameter of `module` in place; the same seed gives the same values on any device.

    Matrices become small normal numbers, weights of one dimension (those of norms) 1, biases 0.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                values = torch.empty(parameter.shape)
                parameter.copy_(values.normal_(0.0, STANDARD_DEVIATION, generator=generator))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
