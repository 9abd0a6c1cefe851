"""repack: a GGUF matrix in the kernels' layout is the matrix that `load` decodes, chunk by chunk and row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import PackedWeight
from fathom.weights import repack as repack_module
from fathom.weights.checkpoint import GGUFCheckpoint
from fathom.weights.repack import repack
from tests.weights.ggml_blocks import random_blocks
from tests.weights.gguf_files import SHAPE, write_gguf

ROWS = 75  # four panels and a part of one
TYPES = (GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q6_K)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> GGUFCheckpoint:
    tensors = {t.name: (random_blocks(t, ROWS * 2).reshape(ROWS, -1), t) for t in TYPES}
    tensors["plain"] = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
    return GGUFCheckpoint(write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", "llama", dict(SHAPE), tensors))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("chunk", [1, 40 * 64, 1 << 30], ids=["panel by panel", "some panels", "whole"])
@pytest.mark.parametrize("name", [t.name for t in TYPES])
def test_the_matrix_is_the_decoded_one(
    checkpoint: GGUFCheckpoint, name: str, chunk: int, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack_module, "CHUNK", chunk)
    order = np.random.default_rng(1).permutation(ROWS) if shuffled else None
    weight = repack(checkpoint, name, order)
    assert isinstance(weight, PackedWeight)
    assert weight.quants.shape[0] == 5
    expected = checkpoint.load(name)
    assert torch.equal(weight.dense(), expected if order is None else expected[torch.from_numpy(order)])


def test_a_plain_matrix_stays_plain(checkpoint: GGUFCheckpoint) -> None:
    order = np.arange(ROWS)[::-1].copy()
    assert torch.equal(repack(checkpoint, "plain", None), checkpoint.load("plain"))
    assert torch.equal(repack(checkpoint, "plain", order), checkpoint.load("plain").flip(0))
