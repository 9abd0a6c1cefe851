"""Running out of memory: told apart from other errors, and turned into one error with the numbers and the ways out.

Whoever catches the first error holds on to the frames of the calls that failed, and so to their tensors; `explain` lets
go of it before it raises its own.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from fathom.errors import InsufficientMemoryError
from fathom.worker import ways_out
from fathom.worker.memory import GIB, MemoryUse

if TYPE_CHECKING:
    from fathom.worker.device import Device

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "Cannot allocate memory")
"""In the RuntimeErrors of torch's CPU allocator, of the CUDA runtime and of cuBLAS."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed, the host's or the device's."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


def explain(call: Callable[[], T], device: Device, while_doing: str, hint: str) -> T:
    """The call's result.

    Args:
        while_doing: what the call does, behind "while".
        hint: what to do about it, as sentences.

    Raises:
        InsufficientMemoryError: it has run out of memory; with what the device has, and what it was that failed.
    """
    failure = ""
    try:
        return call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.debug("out of memory while %s", while_doing, exc_info=error)
        failure = f"{type(error).__name__}: {str(error).strip() or 'no more memory'}".splitlines()[0]
    free, total = device.memory()
    device.release_cached_memory()
    raise InsufficientMemoryError(
        f"{device.torch_device} has run out of memory while {while_doing}: {free / GIB:.2f} of "
        f"{total / GIB:.2f} GiB were free ({failure}).",
        hint=hint,
    )


def nothing_left(memory: MemoryUse, device: Device) -> InsufficientMemoryError:
    """The error of a device on which everything else leaves no room for a KV cache."""
    taken = memory.others + memory.weights + memory.activations + memory.graphs
    return InsufficientMemoryError(
        f"Nothing is left for the KV cache: of {device.torch_device}'s {memory.total / GIB:.2f} GiB "
        f"{memory.usable / GIB:.2f} may be used, and {taken / GIB:.2f} are taken: weights {memory.weights / GIB:.2f}, "
        f"activations {memory.activations / GIB:.2f}, CUDA graphs {memory.graphs / GIB:.2f}, others "
        f"{memory.others / GIB:.2f}.",
        hint=ways_out.NOTHING_LEFT,
    )
