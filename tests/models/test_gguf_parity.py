"""A GGUF file gives the logits of the Hugging Face folder that it was converted from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from fathom.errors import CheckpointError
from tests.models.loading import load
from tests.models.paged import PagedRun
from tests.models.tiny_gguf import write_gguf

NAMES = (
    "llama-gqa",
    "llama-mqa-tied",
    "llama-biases",
    "llama-head-dim",
    "llama-rope-llama3",
    "llama-rope-linear",
    "llama-rope-yarn",
    "qwen2",
    "qwen3-tied",
    "gemma3",
)
TOKENS = [(7 * i * i + 3) % 512 for i in range(60)]


def logits(path: Path) -> torch.Tensor:
    return PagedRun(load(path)).step({"a": TOKENS})["a"]


@pytest.mark.parametrize("name", NAMES)
def test_float32_file(tiny: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    path = write_gguf(tiny(name), tmp_path / "model.gguf")
    torch.testing.assert_close(logits(path), logits(tiny(name)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("quantization", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", ["llama-biases", "gemma3"])
def test_packed_file(tiny: Callable[[str], Path], tmp_path: Path, name: str, quantization: str) -> None:
    """The expected logits are those of a folder whose matrices went through the gguf package's own coder."""
    path = write_gguf(tiny(name), tmp_path / "model.gguf", quantization)
    qtype = gguf.GGMLQuantizationType[quantization]
    folder = tmp_path / "rounded"
    shutil.copytree(tiny(name), folder)
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        if tensor.dim() > 1:
            tensor.copy_(torch.from_numpy(dequantize(quantize(tensor.numpy(), qtype), qtype)))
    save_file(tensors, folder / "model.safetensors")
    actual, expected = logits(path), logits(folder)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(actual, logits(tiny(name)), atol=1e-5)


def test_missing_tensors_are_named_as_the_file_names_them(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = gguf.GGUFWriter.add_tensor

    def add_most(writer: gguf.GGUFWriter, name: str, *args: object, **kwargs: object) -> None:
        if name != "blk.1.ffn_up.weight":
            add(writer, name, *args, **kwargs)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_most)
    path = write_gguf(tiny("llama-gqa"), tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=r"model\.gguf .* 1 missing \(blk\.1\.ffn_up\.weight\)"):
        load(path)
