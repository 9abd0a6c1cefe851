"""The Triton kernels: where they serve, and how wide a tile must be.

They are compiled for a GPU on first use. Where TRITON_INTERPRET=1 is set before Triton is imported, they run on the
CPU, slowly, which is how they are tested without a GPU.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

installed = find_spec("triton") is not None
"""Whether Triton is here; it comes with torch's CUDA builds."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernels take this tensor: floats on a CUDA device."""
    return installed and tensor.is_cuda and tensor.is_floating_point()


def power_of_two(number: int) -> int:
    """The least power of two that is not less than `number`, the only sizes that a Triton tile can have."""
    return 1 << max(number - 1, 0).bit_length()
