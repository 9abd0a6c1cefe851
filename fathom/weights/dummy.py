"""Random weights, for running a model's shape without its checkpoint (``load_format="dummy"``)."""

from __future__ import annotations

import torch
from torch import nn

STANDARD_DEVIATION = 0.02  # what such models start training with: activations stay in range


def fill_with_random(module: nn.Module, seed: int = 0) -> None:
    """Overwrite every parameter of `module` in place, where it lies; the same seed gives the same values again.

    Matrices become small normal numbers, weights of one dimension (those of norms) 1, biases 0.
    """
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.is_meta:  # a shape without numbers
                continue
            if parameter.dim() > 1:
                generator = generators.get(parameter.device)
                if generator is None:
                    generator = generators[parameter.device] = torch.Generator(parameter.device).manual_seed(seed)
                # torch draws no 8-bit floats.
                drawn = parameter if parameter.itemsize > 1 else torch.empty(parameter.shape, device=parameter.device)
                parameter.copy_(drawn.normal_(0.0, STANDARD_DEVIATION, generator=generator))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
