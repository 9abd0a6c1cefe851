"""read_matrix: a matrix in the kernels' layout is the one that `load` gives, chunk by chunk and row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fathom.errors import CheckpointError
from fathom.quant.float_weight import FloatWeight
from fathom.quant.ggml_types import GGMLType
from fathom.quant.packed import PackedWeight
from fathom.weights import repack as repack_module
from fathom.weights.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint
from fathom.weights.repack import Quantization, read_matrix
from tests.weights.ggml_blocks import random_blocks
from tests.weights.gguf_files import SHAPE, write_gguf

ROWS = 75  # four panels and a part of one
ALL_ROWS = slice(0, ROWS)
ALL_COLUMNS = slice(0, 64)
TYPES = (GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q6_K)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> GGUFCheckpoint:
    tensors = {t.name: (random_blocks(t, ROWS * 2).reshape(ROWS, -1), t) for t in TYPES}
    tensors["plain"] = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
    return GGUFCheckpoint(write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", "llama", dict(SHAPE), tensors))


def every_column(checkpoint: Checkpoint, name: str) -> slice:
    return slice(0, checkpoint.shape(name)[1])


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("chunk", [1, 40 * 64, 1 << 30], ids=["panel by panel", "some panels", "whole"])
@pytest.mark.parametrize("name", [t.name for t in TYPES])
def test_the_matrix_is_the_decoded_one(
    checkpoint: GGUFCheckpoint, name: str, chunk: int, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack_module, "CHUNK", chunk)
    order = np.random.default_rng(1).permutation(ROWS) if shuffled else None
    weight = read_matrix(checkpoint, name, ALL_ROWS if order is None else order, every_column(checkpoint, name), None)
    assert isinstance(weight, PackedWeight)
    assert weight.quants.shape[0] == 5
    expected = checkpoint.load(name)
    assert torch.equal(weight.dense(), expected if order is None else expected[torch.from_numpy(order)])


@pytest.mark.parametrize("name", [*(t.name for t in TYPES), "plain"])
def test_a_part_is_cut_out_of_the_matrix(checkpoint: GGUFCheckpoint, name: str) -> None:
    expected = checkpoint.load(name)
    columns = slice(256, 512) if name == "Q6_K" else slice(32, 64)  # whole blocks
    order = np.array([74, 3, 4, 60])
    assert torch.equal(read_matrix(checkpoint, name, slice(16, 70), columns, None).dense(), expected[16:70, columns])
    assert torch.equal(read_matrix(checkpoint, name, order, columns, None).dense(), expected[order, columns])
    assert torch.equal(checkpoint.part(name, order, slice(5, 37)).float(), expected[order, 5:37])


def test_a_cut_within_a_group_is_refused(checkpoint: GGUFCheckpoint) -> None:
    for first, end in ((0, 48), (16, 48)):
        problem = f"Q4_1 is cut to its columns {first} to {end}; Q4_1 needs a multiple of 32. .* tensor_parallel_size"
        with pytest.raises(CheckpointError, match=problem):
            read_matrix(checkpoint, "Q4_1", ALL_ROWS, slice(first, end), None)


@pytest.mark.parametrize("chunk", [1, 40 * 64, 1 << 30], ids=["panel by panel", "some panels", "whole"])
def test_a_matrix_of_floats_keeps_them(checkpoint: GGUFCheckpoint, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack_module, "CHUNK", chunk)
    order = np.arange(ROWS)[::-1].copy()
    expected = checkpoint.load("plain")
    weight = read_matrix(checkpoint, "plain", ALL_ROWS, ALL_COLUMNS, None)
    assert isinstance(weight, FloatWeight)
    assert weight.values.dtype == torch.float32
    assert torch.equal(weight.dense(), expected)
    assert torch.equal(read_matrix(checkpoint, "plain", order, ALL_COLUMNS, None).dense(), expected.flip(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("quantization", [None, "int8", "int4", "fp16"])
def test_safetensors(tmp_path: Path, dtype: torch.dtype, quantization: Quantization | None) -> None:
    matrix = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    save_file({"a": matrix, "b": matrix[:, :40].clone()}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    weight = read_matrix(checkpoint, "a", ALL_ROWS, slice(0, 64), quantization)
    if quantization in ("int8", "int4"):
        assert isinstance(weight, PackedWeight)
        limit = 0.006 if quantization == "int8" else 0.08
        assert 0 < (weight.dense() - matrix.float()).norm() / matrix.float().norm() < limit
        with pytest.raises(CheckpointError, match=r"b has 40 columns; .* Use quantization=fp16"):
            read_matrix(checkpoint, "b", ALL_ROWS, slice(0, 40), quantization)
    else:
        assert isinstance(weight, FloatWeight)
        assert weight.values.dtype == (torch.float16 if quantization else dtype)
        assert torch.equal(weight.dense(), (matrix.half() if quantization else matrix).float())


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.full((16, 32), 1e5)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="a has numbers that float16 cannot hold"):
        read_matrix(SafetensorsCheckpoint(tmp_path), "a", slice(0, 16), slice(0, 32), "fp16")


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_what_was_released_can_be_read_again(checkpoint: GGUFCheckpoint, tmp_path: Path, kind: str) -> None:
    opened: Checkpoint = checkpoint
    if kind == "safetensors":
        save_file({"plain": torch.randn(4096, 64)}, tmp_path / "model.safetensors")
        opened = SafetensorsCheckpoint(tmp_path)
    before = opened.load("plain").clone()
    opened.release("plain")
    assert torch.equal(opened.load("plain"), before)
