"""Decodes ggml's block formats to float32.

A tensor is a row of blocks; each block holds 32 or 256 quantised elements with their scales. One function per
format takes [num_blocks, block_bytes] uint8 and gives block_elements float32 for each. They differ in where
the parts of a block lie (the diagram in each docstring); what they share is

    element = scale * integer (+ or - minimum)

and how integers narrower than a byte are packed: byte i of a run of n bytes holds elements i, i + n, i + 2n
and so on, lowest bits first. `_unpack` undoes that for any width. Bits beyond 4 or 2 are packed apart,
likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fathom.errors import CheckpointError
from fathom.quant.ggml_types import GGMLType

# Elements decoded at a time. On a CPU, torch runs an operation on so few of them in the calling thread: the chunk
# stays in the cache, and no operation waits for threads to meet (which costs seconds where other processes
# want the cores). An accelerator wants few, large launches; the bound is then for the intermediate tensors.
CPU_CHUNK = 1 << 15
ACCELERATOR_CHUNK = 1 << 24

IQ4_NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


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
    decode = _DECODERS[ggml_type]
    blocks = raw.view(num_blocks, ggml_type.block_bytes)
    values = torch.empty(num_blocks, ggml_type.block_elements, dtype=torch.float32, device=raw.device)
    chunk = CPU_CHUNK if raw.device.type == "cpu" else ACCELERATOR_CHUNK
    step = chunk // ggml_type.block_elements
    for start in range(0, num_blocks, step):
        values[start : start + step] = decode(blocks[start : start + step]).flatten(1)
    return values.view(shape)


def _float(blocks: torch.Tensor, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """[n, 1] float32: the float of each block that starts at byte `start`."""
    return blocks[:, start : start + dtype.itemsize].contiguous().view(dtype).float()


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    return _float(blocks, torch.float16, start)


def _unpack(packed: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """[n, bytes] uint8 of `bits`-bit integers, in runs of `run` bytes -> [n, bytes * 8 / bits] uint8."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    runs = packed.reshape(packed.shape[0], -1, 1, run) >> shifts[:, None]
    return (runs & ((1 << bits) - 1)).flatten(1)


def _bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """[n, 32] uint8: the bits of the 32-bit word at byte `start`, lowest first."""
    words = blocks[:, start : start + 4].contiguous().view(torch.int32)
    return (words >> torch.arange(32, dtype=torch.int32, device=blocks.device) & 1).to(torch.uint8)


def _scaled(integers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[n, elements] integers times their group's scale, [n, groups] -> [n, groups, elements / groups]."""
    return integers.float().reshape(*scales.shape, -1).mul_(scales[:, :, None])


def _f32(blocks: torch.Tensor) -> torch.Tensor:
    return _float(blocks, torch.float32)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return _float(blocks, torch.float16)


def _bf16(blocks: torch.Tensor) -> torch.Tensor:
    return _float(blocks, torch.bfloat16)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | 16 bytes of 4-bit |, integers offset by 8."""
    return _half(blocks, 0) * (_unpack(blocks[:, 2:], 4, 16).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | minimum f16 | 16 bytes of 4-bit |"""
    return _half(blocks, 0) * _unpack(blocks[:, 4:], 4, 16).float() + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | 32 high bits | 16 bytes of 4-bit |, integers offset by 16."""
    integers = _unpack(blocks[:, 6:], 4, 16) | (_bits(blocks, 2) << 4)
    return _half(blocks, 0) * (integers.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | minimum f16 | 32 high bits | 16 bytes of 4-bit |"""
    integers = _unpack(blocks[:, 8:], 4, 16) | (_bits(blocks, 4) << 4)
    return _half(blocks, 0) * integers.float() + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | 32 int8 |"""
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    """| scale f16 | 16 bytes of 4-bit |, each an index of 16 uneven levels."""
    levels = torch.tensor(IQ4_NL_LEVELS, dtype=torch.float32, device=blocks.device)
    return _half(blocks, 0) * levels[_unpack(blocks[:, 2:], 4, 16).int()]


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """| 16 bytes: 4-bit scale, 4-bit minimum | 64 bytes of 2-bit | scale of scales f16 | of minima f16 |"""
    packed = blocks[:, :16]
    scales = _half(blocks, 80) * (packed & 0x0F).float()
    minima = _half(blocks, 82) * (packed >> 4).float()
    return _scaled(_unpack(blocks[:, 16:80], 2, 32), scales) - minima[:, :, None]


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """| 32 bytes of high bits | 64 bytes of 2-bit | 12 bytes: 16 scales of 6 bits | scale of scales f16 |

    Scales are 4 low bits (8 bytes) and 2 high bits (4 bytes), offset by 32; integers are offset by 4.
    """
    scales = _unpack(blocks[:, 96:104], 4, 8) | (_unpack(blocks[:, 104:108], 2, 4) << 4)
    integers = _unpack(blocks[:, 32:96], 2, 32) | (_unpack(blocks[:, :32], 1, 32) << 2)
    return _scaled(integers.float() - 4, _half(blocks, 108) * (scales.float() - 32))


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K's and Q5_K's 8 scales and 8 minima of 6 bits, multiplied out: [n, 8] and [n, 8, 1].

    | scale f16 | scale of minima f16 | a: 4 bytes | b: 4 bytes | c: 4 bytes |
    The low 6 bits of a are scales 0 to 3, those of b minima 0 to 3. The halves of c are the low 4 bits of
    scales and minima 4 to 7, whose high 2 bits are the high 2 bits of a and b.
    """
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([a & 0x3F, (c & 0x0F) | (a >> 6 << 4)], dim=1)
    minima = torch.cat([b & 0x3F, (c >> 4) | (b >> 6 << 4)], dim=1)
    return _half(blocks, 0) * scales.float(), (_half(blocks, 2) * minima.float())[:, :, None]


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """| scales and minima, 16 bytes | 128 bytes of 4-bit |"""
    scales, minima = _scales_and_minima(blocks)
    return _scaled(_unpack(blocks[:, 16:], 4, 32), scales) - minima


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """| scales and minima, 16 bytes | 32 bytes of high bits | 128 bytes of 4-bit |"""
    integers = _unpack(blocks[:, 48:], 4, 32) | (_unpack(blocks[:, 16:48], 1, 32) << 4)
    scales, minima = _scales_and_minima(blocks)
    return _scaled(integers, scales) - minima


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """| 128 bytes of 4-bit | 64 bytes of high 2 bits | 16 scales int8 | scale of scales f16 |

    Integers are offset by 32.
    """
    integers = _unpack(blocks[:, :128], 4, 64) | (_unpack(blocks[:, 128:192], 2, 32) << 4)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return _scaled(integers.float() - 32, scales)


_DECODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}
