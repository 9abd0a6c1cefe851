"""Reads ggml's block formats as small integers with scales: what is stored, without a float for each element.

A tensor is a row of blocks; each block holds 32 or 256 quantised elements, in groups that have a scale each. In
every format

    element = scale * code + minimum         or, where there are no minimums (signed formats),
    element = scale * (code - 2^(bits - 1))

with a code of 4, 5, 6 or 8 bits. Scales and minimums are float16, or int8 times a float16 for the whole block. One
function per format takes [num_blocks, block_bytes] uint8 and gives codes [num_blocks, elements], scales and minimums
[num_blocks, groups] and their steps [num_blocks, 1]. They differ in where the parts of a block lie
(the diagram in each docstring); what they share is how integers narrower than a byte are packed: byte i of a run
of n bytes holds elements i, i + n, i + 2n and so on, lowest bits first. `_unpack` undoes that for any width. Bits
beyond 4 or 2 are packed apart, likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import Factors

IQ4_NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Codes(NamedTuple):
    """A quantised matrix [rows, columns], not packed.

    codes: uint8 [rows, columns], below 2^bits.
    scales: values [rows, columns / group], steps [rows, columns / 256].
    minimums: the same, or None for codes that mean code - 2^(bits - 1).
    """

    codes: torch.Tensor
    scales: Factors
    minimums: Factors | None
    bits: int
    group: int


class BlockCodes(NamedTuple):
    """The same of single blocks: codes [num_blocks, elements], scales and minimums [num_blocks, groups]."""

    codes: torch.Tensor
    scales: Factors
    minimums: Factors | None


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
        scales=_in_rows(found.scales, rows),
        minimums=None if found.minimums is None else _in_rows(found.minimums, rows),
        bits=code_bits(ggml_type),
        group=ggml_type.block_elements // found.scales.values.shape[1],
    )


def code_bits(ggml_type: GGMLType) -> int:
    """The width of a format's codes."""
    return _FORMATS[ggml_type][1]


def block_codes(blocks: torch.Tensor, ggml_type: GGMLType) -> BlockCodes:
    """The integers and scales of blocks [num_blocks, block_bytes] uint8 in a format that `has_codes`."""
    return _FORMATS[ggml_type][0](blocks)


def _in_rows(factors: Factors, rows: int) -> Factors:
    return factors.map(lambda part: part.reshape(rows, -1))


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """[n, 1] float16: the float of each block that starts at byte `start`."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


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
    return BlockCodes(_unpack(blocks[:, 2:], 4, 16), Factors(_half(blocks, 0)), None)


def _q4_1(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | minimum f16 | 16 bytes of 4-bit |"""
    return BlockCodes(_unpack(blocks[:, 4:], 4, 16), Factors(_half(blocks, 0)), Factors(_half(blocks, 2)))


def _q5_0(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 32 high bits | 16 bytes of 4-bit |, integers offset by 16."""
    integers = _unpack(blocks[:, 6:], 4, 16) | (_bits(blocks, 2) << 4)
    return BlockCodes(integers, Factors(_half(blocks, 0)), None)


def _q5_1(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | minimum f16 | 32 high bits | 16 bytes of 4-bit |"""
    integers = _unpack(blocks[:, 8:], 4, 16) | (_bits(blocks, 4) << 4)
    return BlockCodes(integers, Factors(_half(blocks, 0)), Factors(_half(blocks, 2)))


def _q8_0(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 32 int8 |"""
    return BlockCodes(blocks[:, 2:] ^ 128, Factors(_half(blocks, 0)), None)


def _iq4_nl(blocks: torch.Tensor) -> BlockCodes:
    """| scale f16 | 16 bytes of 4-bit |, each an index of 16 uneven levels, which need 8 bits."""
    levels = torch.tensor([level + 128 for level in IQ4_NL_LEVELS], dtype=torch.uint8, device=blocks.device)
    return BlockCodes(levels[_unpack(blocks[:, 2:], 4, 16).int()], Factors(_half(blocks, 0)), None)


def _q2_k(blocks: torch.Tensor) -> BlockCodes:
    """| 16 bytes: 4-bit scale, 4-bit minimum | 64 bytes of 2-bit | scale of scales f16 | of minima f16 |

    Minima are subtracted.
    """
    packed = blocks[:, :16]
    scales = Factors((packed & 0x0F).to(torch.int8), _half(blocks, 80))
    minimums = Factors(-(packed >> 4).to(torch.int8), _half(blocks, 82))
    return BlockCodes(_unpack(blocks[:, 16:80], 2, 32), scales, minimums)


def _q3_k(blocks: torch.Tensor) -> BlockCodes:
    """| 32 bytes of high bits | 64 bytes of 2-bit | 12 bytes: 16 scales of 6 bits | scale of scales f16 |

    Scales are 4 low bits (8 bytes) and 2 high bits (4 bytes), offset by 32; integers are offset by 4, and by 8 as codes
    of 4 bits.
    """
    scales = _unpack(blocks[:, 96:104], 4, 8) | (_unpack(blocks[:, 104:108], 2, 4) << 4)
    integers = _unpack(blocks[:, 32:96], 2, 32) | (_unpack(blocks[:, :32], 1, 32) << 2)
    return BlockCodes(integers + 4, Factors(scales.to(torch.int8) - 32, _half(blocks, 108)), None)


def _scales_and_minimums(blocks: torch.Tensor) -> tuple[Factors, Factors]:
    """Q4_K's and Q5_K's 8 scales and 8 minima of 6 bits: [n, 8] each. Minima are subtracted.

    | scale f16 | scale of minima f16 | a: 4 bytes | b: 4 bytes | c: 4 bytes |
    The low 6 bits of a are scales 0 to 3, those of b minima 0 to 3. The halves of c are the low 4 bits of
    scales and minima 4 to 7, whose high 2 bits are the high 2 bits of a and b.
    """
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([a & 0x3F, (c & 0x0F) | (a >> 6 << 4)], dim=1).to(torch.int8)
    minima = torch.cat([b & 0x3F, (c >> 4) | (b >> 6 << 4)], dim=1).to(torch.int8)
    return Factors(scales, _half(blocks, 0)), Factors(-minima, _half(blocks, 2))


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
    return BlockCodes(integers, Factors(blocks[:, 192:208].view(torch.int8), _half(blocks, 208)), None)


# How to read each format, and the bits that its codes need.
_FORMATS: dict[GGMLType, tuple[Callable[[torch.Tensor], BlockCodes], int]] = {
    GGMLType.Q4_0: (_q4_0, 4),
    GGMLType.Q4_1: (_q4_1, 4),
    GGMLType.Q5_0: (_q5_0, 5),
    GGMLType.Q5_1: (_q5_1, 5),
    GGMLType.Q8_0: (_q8_0, 8),
    GGMLType.IQ4_NL: (_iq4_nl, 8),
    GGMLType.Q2_K: (_q2_k, 4),
    GGMLType.Q3_K: (_q3_k, 4),
    GGMLType.Q4_K: (_q4_k, 4),
    GGMLType.Q5_K: (_q5_k, 5),
    GGMLType.Q6_K: (_q6_k, 6),
}
