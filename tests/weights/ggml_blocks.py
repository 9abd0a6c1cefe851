"""Random blocks of every ggml format."""

from __future__ import annotations

import numpy as np

from fathom.quant.ggml_types import GGMLType

# Byte offsets of the float16 scales and minima, which random bytes would turn into NaN or infinity.
HALF_OFFSETS: dict[GGMLType, tuple[int, ...]] = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}


def random_blocks(ggml_type: GGMLType, num_blocks: int) -> np.ndarray:
    """[num_blocks, block_bytes] uint8: every bit random, but for floats, which are normal numbers."""
    rng = np.random.default_rng(int(ggml_type))
    if ggml_type == GGMLType.BF16:
        return (rng.standard_normal(num_blocks, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if ggml_type in (GGMLType.F32, GGMLType.F16):
        dtype = np.float32 if ggml_type == GGMLType.F32 else np.float16
        return rng.standard_normal(num_blocks).astype(dtype).view(np.uint8)
    blocks = rng.integers(0, 256, (num_blocks, ggml_type.block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS[ggml_type]:
        halves = rng.standard_normal(num_blocks).astype(np.float16)
        blocks[:, offset : offset + 2] = halves[:, None].view(np.uint8)
    return blocks
