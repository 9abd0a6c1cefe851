"""The compiled kernels, if they are here: fathom._cpu, built from csrc/cpu.

Without them (a source checkout that was not built) everything runs on the ref kernels, with one warning.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)


def _load() -> Any:
    try:
        from fathom import _cpu
    except ImportError as error:
        logger.warning("the native CPU kernels are not built (%s); plain torch does their work, slower", error)
        return None
    return _cpu


cpu = _load()
"""The extension module, or None."""


def serves(tensor: torch.Tensor) -> bool:
    """Whether the native kernels take this tensor: float32 on the CPU."""
    return cpu is not None and tensor.dtype is torch.float32 and tensor.device.type == "cpu"
