"""Codes, scales and minimums hold exactly the numbers that a ggml format means, packed as well as not."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from fathom.quant.ggml_codes import codes, has_codes
from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import Factors, pack
from tests.weights.ggml_blocks import random_blocks

FORMATS = {  # bits, group, whether there are minimums, whether scales have steps
    GGMLType.Q4_0: (4, 32, False, False),
    GGMLType.Q4_1: (4, 32, True, False),
    GGMLType.Q4_K: (4, 32, True, True),
    GGMLType.Q5_0: (5, 32, False, False),
    GGMLType.Q5_1: (5, 32, True, False),
    GGMLType.Q5_K: (5, 32, True, True),
    GGMLType.Q8_0: (8, 32, False, False),
    GGMLType.IQ4_NL: (8, 32, False, False),
    GGMLType.Q2_K: (4, 16, True, True),
    GGMLType.Q3_K: (4, 16, False, True),
    GGMLType.Q6_K: (6, 16, False, True),
}
ROWS, BLOCKS_PER_ROW = 19, 3


@pytest.mark.parametrize("ggml_type", FORMATS, ids=lambda member: member.name)
def test_nothing_is_lost(ggml_type: GGMLType) -> None:
    blocks = random_blocks(ggml_type, ROWS * BLOCKS_PER_ROW)
    columns = BLOCKS_PER_ROW * ggml_type.block_elements
    found = codes(torch.from_numpy(blocks.reshape(-1)), ggml_type, (ROWS, columns))

    assert found.codes.dtype == torch.uint8
    assert found.codes.shape == (ROWS, columns)
    assert found.scales.values.shape == (ROWS, columns // found.group)
    assert int(found.codes.max()) < 1 << found.bits
    expected = gguf.dequantize(blocks.reshape(ROWS, -1), gguf.GGMLQuantizationType[ggml_type.name])
    np.testing.assert_array_equal(values(found), expected)
    packed = pack(found.codes, found.scales, found.minimums, found.bits)
    assert packed.format == FORMATS[ggml_type]
    np.testing.assert_array_equal(packed.dense().numpy(), expected)


def values(found) -> np.ndarray:
    """What the docstring of ggml_codes says that codes mean, in numpy."""
    integers = found.codes.numpy().astype(np.float32).reshape(ROWS, -1, found.group)
    scales = widened(found.scales)[:, :, None]
    if found.minimums is None:
        return (scales * (integers - 2 ** (found.bits - 1))).reshape(ROWS, -1)
    return (scales * integers + widened(found.minimums)[:, :, None]).reshape(ROWS, -1)


def widened(factors: Factors) -> np.ndarray:
    """Each group's factor as float32."""
    found = factors.values.numpy().astype(np.float32)
    if factors.steps is None:
        return found
    steps = factors.steps.numpy().astype(np.float32)
    return found * steps.repeat(found.shape[1] // steps.shape[1], axis=1)


def test_plain_float_types_have_no_codes() -> None:
    assert {member for member in GGMLType if has_codes(member)} == set(FORMATS)
