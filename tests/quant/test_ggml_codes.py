"""Codes, scales and minimums hold exactly the numbers that a ggml format means, packed as well as not."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from fathom.quant.ggml_codes import codes, has_codes
from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import pack
from tests.weights.ggml_blocks import random_blocks

FORMATS = {  # bits, group, whether there are minimums
    GGMLType.Q4_0: (4, 32, True),
    GGMLType.Q4_1: (4, 32, True),
    GGMLType.Q4_K: (4, 32, True),
    GGMLType.Q5_0: (8, 32, False),
    GGMLType.Q5_1: (8, 32, True),
    GGMLType.Q5_K: (8, 32, True),
    GGMLType.Q8_0: (8, 32, False),
    GGMLType.IQ4_NL: (8, 32, False),
    GGMLType.Q2_K: (8, 16, True),
    GGMLType.Q3_K: (8, 16, False),
    GGMLType.Q6_K: (8, 16, False),
}
ROWS, BLOCKS_PER_ROW = 19, 3


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda member: member.name)
def test_nothing_is_lost(ggml_type: GGMLType) -> None:
    blocks = random_blocks(ggml_type, ROWS * BLOCKS_PER_ROW)
    columns = BLOCKS_PER_ROW * ggml_type.block_elements
    found = codes(torch.from_numpy(blocks.reshape(-1)), ggml_type, (ROWS, columns))

    assert (found.bits, found.group, found.minimums is not None) == FORMATS[ggml_type]
    assert found.codes.dtype == torch.uint8
    assert found.codes.shape == (ROWS, columns)
    assert found.scales.shape == (ROWS, columns // found.group)
    assert int(found.codes.max()) < 1 << found.bits
    expected = gguf.dequantize(blocks.reshape(ROWS, -1), gguf.GGMLQuantizationType[ggml_type.name])
    np.testing.assert_array_equal(values(found), expected)
    packed = pack(found.codes, found.scales, found.minimums, found.bits)
    np.testing.assert_array_equal(packed.dense().numpy(), expected)


def values(found) -> np.ndarray:
    """What the docstring of ggml_codes says that codes mean, in numpy."""
    integers = found.codes.numpy().astype(np.float32).reshape(ROWS, -1, found.group)
    scales = found.scales.numpy()[:, :, None]
    if found.minimums is None:
        return (scales * (integers - 128)).reshape(ROWS, -1)
    return (scales * integers + found.minimums.numpy()[:, :, None]).reshape(ROWS, -1)


def test_plain_float_types_have_no_codes() -> None:
    assert {member for member in GGMLType if has_codes(member)} == set(FORMATS)
