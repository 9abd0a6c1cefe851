"""Every ggml format decodes to exactly the values of the `gguf` package's decoder."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from fathom.errors import CheckpointError
from fathom.quant import ggml
from fathom.quant.ggml import dequantize
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


@pytest.mark.parametrize("ggml_type", list(GGMLType), ids=lambda member: member.name)
def test_equals_the_gguf_package(ggml_type: GGMLType) -> None:
    num_blocks = 96
    blocks = random_blocks(ggml_type, num_blocks)
    oracle_type = gguf.GGMLQuantizationType[ggml_type.name]
    assert oracle_type == ggml_type
    assert gguf.GGML_QUANT_SIZES[oracle_type] == (ggml_type.block_elements, ggml_type.block_bytes)
    shape = (4, num_blocks * ggml_type.block_elements // 4)

    values = dequantize(torch.from_numpy(blocks.reshape(-1)), ggml_type, shape)

    expected = gguf.dequantize(blocks.reshape(4, -1), oracle_type)
    assert values.dtype == torch.float32
    assert values.shape == shape
    np.testing.assert_array_equal(values.numpy(), expected)


def test_chunks_do_not_change_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_blocks(GGMLType.Q6_K, 100).reshape(-1))
    whole = dequantize(raw, GGMLType.Q6_K, (100, 256))
    monkeypatch.setattr(ggml, "CPU_CHUNK", 7 * 256)  # 100 blocks leave a short last chunk
    assert torch.equal(dequantize(raw, GGMLType.Q6_K, (100, 256)), whole)


def test_a_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"Q8_0 of shape \[2, 32\] needs 68 bytes, got 34"):
        dequantize(torch.zeros(34, dtype=torch.uint8), GGMLType.Q8_0, (2, 32))
