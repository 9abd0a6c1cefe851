"""Decodes ggml's tensor formats to float32: the plain float types, and the integers of `ggml_codes` times scales."""

from __future__ import annotations

import math

import torch

from fathom.errors import CheckpointError
from fathom.quant.ggml_codes import block_codes, code_bits, has_codes
from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import signed_zero

# Elements decoded at a time. On a CPU, torch runs an operation on so few of them in the calling thread: the chunk
# stays in the cache, and no operation waits for threads to meet (which costs seconds where other processes
# want the cores). An accelerator wants few, large launches; the bound is then for the intermediate tensors.
CPU_CHUNK = 1 << 15
ACCELERATOR_CHUNK = 1 << 24

FLOAT_DTYPES = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}


def dequantize(raw: torch.Tensor, ggml_type: GGMLType, shape: tuple[int, ...]) -> torch.Tensor:
    """Decode packed bytes.

    Args:
        raw: 1-D uint8, the tensor's bytes.
        ggml_type: their format.
        shape: of the result; rows are whole blocks.

    Returns:
        float32 of `shape`, on raw's device.

    Raises:
        CheckpointError: the number of bytes is not what format and shape need.
    """
    num_blocks = math.prod(shape) // ggml_type.block_elements
    if raw.numel() != num_blocks * ggml_type.block_bytes:
        raise CheckpointError(
            f"{ggml_type.name} of shape {list(shape)} needs {num_blocks * ggml_type.block_bytes} bytes, "
            f"got {raw.numel()}."
        )
    if not has_codes(ggml_type):
        return raw.view(FLOAT_DTYPES[ggml_type]).float().view(shape)
    blocks = raw.view(num_blocks, ggml_type.block_bytes)
    values = torch.empty(num_blocks, ggml_type.block_elements, dtype=torch.float32, device=raw.device)
    chunk = CPU_CHUNK if raw.device.type == "cpu" else ACCELERATOR_CHUNK
    step = chunk // ggml_type.block_elements
    for start in range(0, num_blocks, step):
        values[start : start + step] = _decode(blocks[start : start + step], ggml_type)
    return values.view(shape)


def _decode(blocks: torch.Tensor, ggml_type: GGMLType) -> torch.Tensor:
    """[n, block_bytes] uint8 -> [n, block_elements] float32."""
    codes, scales, minimums = block_codes(blocks, ggml_type)
    values = codes.float().unflatten(1, (scales.values.shape[1], -1))
    if minimums is None:
        values = values.sub_(signed_zero(code_bits(ggml_type))).mul_(scales.widened()[:, :, None])
    else:
        values = values.mul_(scales.widened()[:, :, None]).add_(minimums.widened()[:, :, None])
    return values.flatten(1)
