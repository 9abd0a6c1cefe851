"""Checkpoints give exactly the tensors that were written, and refuse damaged files by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fathom.errors import CheckpointError
from fathom.quant.ggml_types import GGMLType
from fathom.weights.checkpoint import Checkpoint, GGUFCheckpoint, open_checkpoint
from fathom.weights.dummy import fill_with_random
from fathom.weights.page_in import page_in
from fathom.weights.resolve import ResolvedModel
from tests.weights.gguf_files import small_model

TENSORS = {
    "model.embed_tokens.weight": torch.randn(6, 8, generator=torch.Generator().manual_seed(0)),
    "model.norm.weight": torch.linspace(-1, 1, 8, dtype=torch.float16),
    "lm_head.weight": torch.linspace(-3, 3, 48, dtype=torch.bfloat16).view(6, 8),
}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def single(folder: Path, tensors: dict[str, torch.Tensor] = TENSORS) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def sharded(folder: Path) -> Path:
    """Two shards and their index."""
    first, *rest = TENSORS
    save_file({first: TENSORS[first]}, folder / SHARDS[0])
    save_file({name: TENSORS[name] for name in rest}, folder / SHARDS[1])
    weight_map = {first: SHARDS[0], **dict.fromkeys(rest, SHARDS[1])}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder / INDEX


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(ResolvedModel(path, "gguf" if path.suffix == ".gguf" else "safetensors", "tiny"))


@pytest.mark.parametrize("write", [single, sharded])
def test_safetensors_as_stored(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    write(tmp_path)
    checkpoint = opened(tmp_path)
    assert checkpoint.format == "safetensors"
    assert set(checkpoint.names()) == set(TENSORS)
    for name, expected in TENSORS.items():
        assert checkpoint.shape(name) == tuple(expected.shape)
        loaded = checkpoint.load(name)
        assert loaded.dtype == expected.dtype
        assert torch.equal(loaded, expected)


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_checkpoint(tmp_path: Path, prefix: str) -> None:
    inner = "model." if prefix == "language_model." else ""
    tensors = {
        f"{prefix}{inner}norm.weight": torch.ones(3),
        "vision_tower.norm.weight": torch.zeros(3),
        "lm_head.weight": torch.zeros(2, 3),
    }
    single(tmp_path, tensors)
    checkpoint = opened(tmp_path)
    assert set(checkpoint.names()) == {"model.norm.weight", "lm_head.weight"}
    assert torch.equal(checkpoint.load("model.norm.weight"), torch.ones(3))


def test_gguf_dequantises_to_float32(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    checkpoint = opened(path)
    assert isinstance(checkpoint, GGUFCheckpoint)
    assert checkpoint.format == "gguf"
    assert checkpoint.names() == ["token_embd.weight", "blk.0.ffn_up.weight"]
    for tensor in gguf.GGUFReader(path).tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert checkpoint.shape(tensor.name) == expected.shape
        assert checkpoint.load(tensor.name).dtype == torch.float32
        np.testing.assert_array_equal(checkpoint.load(tensor.name).numpy(), expected)
    raw, ggml_type, shape = checkpoint.packed("blk.0.ffn_up.weight")
    assert (raw.numel(), ggml_type, shape) == (8 * 34, GGMLType.Q8_0, (8, 32))


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def declare_header(path: Path, length: int) -> None:
    """Overwrite the header's length, the first 8 bytes of a safetensors file."""
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])


def break_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"dtype"', b'"dtyp!"', 1))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 16)


SAFETENSORS_DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: cut(path, 0),
    "cut in the header": lambda path: cut(path, 40),
    "cut in the tensors": lambda path: cut(path, path.stat().st_size - 5),
    "header longer than the file": lambda path: declare_header(path, 10**6),
    "header of absurd length": lambda path: declare_header(path, 2**62),
    "header is not JSON": break_header,
    "bytes after the end": append,
    "not there": Path.unlink,
}


@pytest.mark.parametrize("kind", SAFETENSORS_DAMAGE)
def test_a_damaged_safetensors_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = single(tmp_path)
    SAFETENSORS_DAMAGE[kind](path)
    with pytest.raises(CheckpointError) as caught:
        opened(tmp_path)
    assert str(path) in str(caught.value)


def test_a_damaged_shard_is_refused_by_name(tmp_path: Path) -> None:
    sharded(tmp_path)
    cut(tmp_path / SHARDS[1], 60)
    with pytest.raises(CheckpointError, match=SHARDS[1]):
        opened(tmp_path)


def index_with(path: Path, weight_map: object) -> None:
    path.write_text(json.dumps({"weight_map": weight_map}))


INDEX_DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "not JSON": (lambda path: path.write_text("{"), "not a safetensors index"),
    "no weight map": (lambda path: path.write_text("{}"), "not a safetensors index"),
    "weight map is a list": (lambda path: index_with(path, ["a"]), "not a safetensors index"),
    "missing shard": (lambda path: path.with_name(SHARDS[1]).unlink(), f"{SHARDS[1]}, which does not exist"),
    "shard elsewhere": (lambda path: index_with(path, {"a": "../x.safetensors"}), "not a file of its folder"),
    "tensor that is nowhere": (
        lambda path: index_with(path, {"ghost.weight": SHARDS[0]}),
        "names 1 tensors that no shard holds, such as ghost.weight",
    ),
}


@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_a_damaged_index_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = sharded(tmp_path)
    damage, message = INDEX_DAMAGE[kind]
    damage(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(tmp_path)
    assert str(path) in str(caught.value)


def test_reading_ahead_leaves_it_to_loading_to_say_that_a_shard_is_not_there(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / SHARDS[1]).unlink()
    (tmp_path / SHARDS[1]).symlink_to(tmp_path / "of a download that broke off")
    page_in(ResolvedModel(tmp_path, "safetensors", "tiny"))
    with pytest.raises(CheckpointError, match=rf"names the shard {SHARDS[1]}, which does not exist"):
        opened(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file(TENSORS, tmp_path / SHARDS[1])
    with pytest.raises(CheckpointError, match=r"is in .* too"):
        opened(tmp_path)


def tiny_module() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.RMSNorm(32), nn.Linear(32, 8, dtype=torch.float16))


def test_dummy_weights_are_small_and_the_same_for_the_same_seed() -> None:
    first, second, other = tiny_module(), tiny_module(), tiny_module()
    for module, seed in ((first, 1), (second, 1), (other, 2)):
        fill_with_random(module, seed=seed)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert first[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(first[0].bias, torch.zeros(32))
    assert torch.equal(first[1].weight, torch.ones(32))
