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
from tests.weights.ggml_blocks import random_blocks


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
