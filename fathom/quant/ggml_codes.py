"""Reads ggml's block formats as small integers with scales: what is stored, without a float for each element.

A tensor is a row of blocks; each block holds 32 or 256 quantised elements, in groups that have a scale each. In
every format

    element = scale * code + minimum         or, where there are no minimums (signed formats of 8 bits),
    element = scale * (code - 128)

with a code of 4 or 8 bits. One function per format takes [num_blocks, block_bytes] uint8 and gives codes
[num_blocks, elements], scales and minimums [num_blocks, groups]. They differ in where the parts of a block lie
(the diagram in each docstring); what they share is how integers narrower than a byte are packed: byte i of a run
of n bytes holds elements i, i + n, i + 2n and so on, lowest bits first. `_unpack` undoes that for any width. Bits
beyond 4 or 2 are packed apart, likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import SIGNED_ZERO

IQ4_NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Codes(NamedTuple):
    """A quantised matrix [rows, columns], not packed.

    codes: uint8 [rows, columns], below 16 if bits is 4.
    scales: float32 [rows, columns / group].
    minimums: float32 [rows, columns / group], or None for codes that mean code - 128.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    bits: int
    group: int


class BlockCodes(NamedTuple):
    """The same of single blocks: codes [num_blocks, elements], scales and minimums [num_blocks, groups]."""

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None


def has_codes(ggml_type: GGMLType) -> bool:
    """Whether the format is one of integers and scales; the plain float types are not."""
    return ggml_type in _FORMATS


def codes(raw: torch.Tensor, ggml_type: GGMLType, shape: tuple[int, ...]) -> Codes:
    """The integers and scales of a matrix.

    Args:
        raw: 1-D uint8, the matrix's bytes.
        ggml_type: their format, one that `has_codes`.
        shape: (rows, columns); rows are whole blocks.
    """
    rows, columns = shape
    found = block_codes(raw.view(-1, ggml_type.block_bytes), ggml_type)
    return Codes(
        codes=found.codes.reshape(rows, columns),
        scales=found.scales.reshape(rows, -1),
        minimums=None if found.minimums is None else found.minimums.reshape(rows, -1),
        bits=_FORMATS[ggml_type][1],
        group=ggml_type.block_elements // found.scales.shape[1],
    )


def block_codes(blocks: torch.Tensor, ggml_type: GGMLType) -> BlockCodes:
    """The integers and scales of blocks [num_blocks, block_bytes] uint8 in a format that `has_codes`."""
    return _FORMATS[ggml_type][0](blocks)


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """[n, 1] float32: the 16-bit float of each block that starts at byte `start`."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _unpack(packed: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """[n, bytes] uint8 of `bits`-bit integers, in runs of `run` bytes -> [n, bytes * 8 / bits] uint8."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    runs = packed.reshape(packed.shape[0], -1, 1, run) >> shifts[:, None]
    return (runs & ((1 << bits) - 1)).flatten(1)


def _bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """[n, 32] uint8: the bits of the 32-bit word at byte `start`, lowest first."""
    return _unpack(blocks[:, start : start + 4], 1, 1)


def _q4_0(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 16 bytes of 4-bit |, integers offset by 8."""
    scales = _half(blocks, 0)
    return BlockCodes(_unpack(blocks[:, 2:], 4, 16), scales, -8 * scales)


def _q4_1(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | minimum f16 | 16 bytes of 4-bit |"""
    return BlockCodes(_unpack(blocks[:, 4:], 4, 16), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 32 high bits | 16 bytes of 4-bit |, integers offset by 16."""
    integers = _unpack(blocks[:, 6:], 4, 16) | (_bits(blocks, 2) << 4)
    return BlockCodes(integers + (SIGNED_ZERO - 16), _half(blocks, 0), None)


def _q5_1(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | minimum f16 | 32 high bits | 16 bytes of 4-bit |"""
    integers = _unpack(blocks[:, 8:], 4, 16) | (_bits(blocks, 4) << 4)
    return BlockCodes(integers, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 32 int8 |"""
    return BlockCodes(blocks[:, 2:] ^ SIGNED_ZERO, _half(blocks, 0), None)


def _iq4_nl(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 16 bytes of 4-bit |, each an index of 16 uneven levels."""
    levels = torch.tensor([level + SIGNED_ZERO for level in IQ4_NL_LEVELS], dtype=torch.uint8, device=blocks.device)
    return BlockCodes(levels[_unpack(blocks[:, 2:], 4, 16).int()], _half(blocks, 0), None)


def _q2_k(blocks: torch.Tensor) -> BlockCodes:
    """| 16 bytes: 4-bit scale, 4-bit minimum | 64 bytes of 2-bit | scale of scales f16 | of minima f16 |

    Minima are subtracted.
    """
    packed = blocks[:, :16]
    scales = _half(blocks, 80) * (packed & 0x0F).float()
    minima = _half(blocks, 82) * (packed >> 4).float()
    return BlockCodes(_unpack(blocks[:, 16:80], 2, 32), scales, -minima)


def _q3_k(blocks: torch.Tensor) -> BlockCodes:
    """| 32 bytes of high bits | 64 bytes of 2-bit | 12 bytes: 16 scales of 6 bits | scale of scales f16 |

    Scales are 4 low bits (8 bytes) and 2 high bits (4 bytes), offset by 32; integers are offset by 4.
    """
    scales = _unpack(blocks[:, 96:104], 4, 8) | (_unpack(blocks[:, 104:108], 2, 4) << 4)
    integers = _unpack(blocks[:, 32:96], 2, 32) | (_unpack(blocks[:, :32], 1, 32) << 2)
    return BlockCodes(integers + (SIGNED_ZERO - 4), _half(blocks, 108) * (scales.float() - 32), None)


def _scales_and_minimums(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q4_K's and Q5_K's 8 scales and 8 minima of 6 bits, multiplied out: [n, 8] each. Minima are subtracted.

    | scale f16 | scale of minima f16 | a: 4 bytes | b: 4 bytes | c: 4 bytes |
    The low 6 bits of a are scales 0 to 3, those of b minima 0 to 3. The halves of c are the low 4 bits of
    scales and minima 4 to 7, whose high 2 bits are the high 2 bits of a and b.
    """
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([a & 0x3F, (c & 0x0F) | (a >> 6 << 4)], dim=1)
    minima = torch.cat([b & 0x3F, (c >> 4) | (b >> 6 << 4)], dim=1)
    return _half(blocks, 0) * scales.float(), -_half(blocks, 2) * minima.float()


def _q4_k(blocks: torch.Tensor) -> BlockCodes:
    """| scales and minima, 16 bytes | 128 bytes of 4-bit |"""
    return BlockCodes(_unpack(blocks[:, 16:], 4, 32), *_scales_and_minimums(blocks))


def _q5_k(blocks: torch.Tensor) -> BlockCodes:
    """| scales and minima, 16 bytes | 32 bytes of high bits | 128 bytes of 4-bit |"""
    integers = _unpack(blocks[:, 48:], 4, 32) | (_unpack(blocks[:, 16:48], 1, 32) << 4)
    return BlockCodes(integers, *_scales_and_minimums(blocks))


def _q6_k(blocks: torch.Tensor) -> BlockCodes:
    """| 128 bytes of 4-bit | 64 bytes of high 2 bits | 16 scales int8 | scale of scales f16 |

    Integers are offset by 32.
    """
    integers = _unpack(blocks[:, :128], 4, 64) | (_unpack(blocks[:, 128:192], 2, 32) << 4)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return BlockCodes(integers + (SIGNED_ZERO - 32), scales, None)


# How to read each format, and the bits that its codes need.
_FORMATS: dict[GGMLType, tuple[Callable[[torch.Tensor], BlockCodes], int]] = {
    GGMLType.Q4_0: (_q4_0, 4),
    GGMLType.Q4_1: (_q4_1, 4),
    GGMLType.Q5_0: (_q5_0, 8),
    GGMLType.Q5_1: (_q5_1, 8),
    GGMLType.Q8_0: (_q8_0, 8),
    GGMLType.IQ4_NL: (_iq4_nl, 8),
    GGMLType.Q2_K: (_q2_k, 8),
    GGMLType.Q3_K: (_q3_k, 8),
    GGMLType.Q4_K: (_q4_k, 4),
    GGMLType.Q5_K: (_q5_k, 8),
    GGMLType.Q6_K: (_q6_k, 8),
}
