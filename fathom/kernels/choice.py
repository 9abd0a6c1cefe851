"""Which of a kernel's implementations serves a tensor: cpu (native code), triton (GPUs) or ref (plain torch)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch

from fathom.kernels import gpu, native


def implementation(package: str, tensor: torch.Tensor) -> ModuleType:
    """The module of a kernel's package that computes with tensors of this device and dtype.

    Loaded when it is first needed: Triton is not to be imported where there is no GPU.
    """
    if native.serves(tensor):
        return _module(package, "cpu")
    return _module(package, "triton" if gpu.serves(tensor) else "ref")


def implementation_on(package: str, device: torch.device) -> ModuleType:
    """The one that computes with float32 tensors of this device."""
    if native.serves_device(device):
        return _module(package, "cpu")
    return _module(package, "triton" if gpu.serves_device(device) else "ref")


@cache
def _module(package: str, name: str) -> ModuleType:
    return import_module(f"{package}.{name}")
