"""The compiled kernels, if they are here: fathom._cpu, built from csrc/cpu.

Without them (a source checkout that was not built) everything runs on the ref kernels, with one warning.
FATHOM_CPU_LEVEL chooses the instruction set level; without it they run at the best that the processor has.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from fathom import env
from fathom.errors import ConfigError
from fathom.kernels.kv_cache import KVCache
from fathom.quant.packed import PackedWeight

logger = logging.getLogger(__name__)


def _load() -> Any:
    try:
        from fathom import _cpu
    except ImportError as error:
        logger.warning("the native CPU kernels are not built (%s); plain torch does their work, slower", error)
        return None
    level = env.cpu_level()
    if level is not None:
        if level not in _cpu.levels():
            usable = ", ".join(_cpu.levels())
            raise ConfigError(
                f"The environment variable FATHOM_CPU_LEVEL must be a level of this processor, got {level!r}.",
                parameter="FATHOM_CPU_LEVEL",
                value=level,
                hint=f"Here are: {usable}.",
            )
        _cpu.use_level(level)
    return _cpu


cpu = _load()
"""The extension module, or None."""

TYPE_NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""The numbers that csrc/cpu/kernels.h (FloatType) gives to the dtypes."""


def serves_device(device: torch.device) -> bool:
    """Whether there are native kernels for what lies on this device."""
    return cpu is not None and device.type == "cpu"


KV_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
"""Numbers of the formats in csrc/cpu/kernels.h."""


def kv_cache_arguments(cache: KVCache) -> tuple[int, ...]:
    """What the extension's functions take in place of a KVCache, in their order."""
    num_kv_heads, head_dim, block_size = cache.keys.shape[1:]
    return (
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        0 if cache.scales is None else cache.scales.data_ptr(),
        cache.keys.stride(0) * cache.keys.itemsize,
        block_size,
        num_kv_heads,
        head_dim,
        KV_FORMATS[cache.keys.dtype],
    )


def packed_arguments(weight: PackedWeight) -> tuple[int, ...]:
    """What the extension's functions take in place of a PackedWeight, in their order."""
    minimums, minimum_steps = weight.minimums or (None, None)
    tensors = (weight.quants, *weight.scales, minimums, minimum_steps)
    return (
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        weight.rows,
        weight.columns,
        weight.bits,
        weight.group,
    )


def serves(tensor: torch.Tensor) -> bool:
    """Whether the native kernels take this tensor: float32 on the CPU."""
    return tensor.dtype is torch.float32 and serves_device(tensor.device)
