"""Inputs that are new in every check, outputs that are NaN until they are written, and how far two results differ."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Most that a result of this dtype may be off, as a share of the float32 result's size.

A bfloat16 has 8 bits: one rounding is off by 2e-3 on average, and a result is rounded several times.
"""


def widens_e4m3(device: str) -> bool:
    """Whether the device has instructions for float8_e4m3; GPUs have from compute capability 8.9 on."""
    return device != "cuda" or torch.cuda.get_device_capability() >= (8, 9)


class Inputs:
    """Random tensors on a device, all from one seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.device = torch.device(device)
        self.choice = random.Random(seed)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self._generator, device=self.device, dtype=dtype)

    def order(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self._generator, device=self.device)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory is full of NaN, so that what a kernel does not write shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|, in float64; NaN if there is one in the result."""
    found, expected = found.double(), expected.double()
    return ((found - expected).norm() / expected.norm()).item()


class Worst:
    """The largest of some errors; one that is not a number stays."""

    def __init__(self) -> None:
        self.error = 0.0
        self.cases = 0

    def add(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        self.cases += 1
        new = error(found, expected)
        if self.error == self.error and not new <= self.error:
            self.error = new
