"""The Triton kernels: where they serve, and how wide a tile must be.

They are compiled for a GPU on first use. Where TRITON_INTERPRET=1 is set before Triton is imported, they run on the
CPU, slowly, which is how they are tested without a GPU.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch

installed = find_spec("triton") is not None
"""Whether Triton is here; it comes with torch's CUDA builds."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernels take this tensor: floats on a CUDA device."""
    return serves_device(tensor.device) and tensor.is_floating_point()


def serves_device(device: torch.device) -> bool:
    """Whether there are Triton kernels for what lies on this device."""
    return installed and device.type == "cuda"


def power_of_two(number: int) -> int:
    """The least power of two that is not less than `number`, the only sizes that a Triton tile can have."""
    return 1 << max(number - 1, 0).bit_length()


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on the device; to a GPU through pinned memory, so that the host does not wait for the copy."""
    host = torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
