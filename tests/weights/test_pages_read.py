"""What of a file is read: the pages that this process has of its mapping, as the system counts them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fathom.dist.group import ALONE, Alone, Groups
from fathom.weights.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint
from fathom.weights.repack import Quantization, read_matrix
from tests.models.loading import load
from tests.models.tiny_gguf import write_gguf
from tests.weights.gguf_files import SHAPE
from tests.weights.gguf_files import write_gguf as write_tensors

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell")

AROUND = 2**21
"""What the system may map around a page that is read, if it is in memory already."""


def bytes_read(file: Path) -> int:
    """Of a file that is mapped."""
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    of_file = [mapping for mapping in mappings if mapping.partition("\n")[0].endswith(str(file))]
    return sum(int(found) * 1024 for mapping in of_file for found in re.findall(r"^Rss: +(\d+) kB", mapping, re.M))


class Second(Alone):
    """The second of two ranks, as long as nothing is said."""

    rank, size = 1, 2


@pytest.fixture(scope="module")
def wide(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model nearly all of which is the MLP of its one layer: three matrices with a side of 65,536."""
    folder = shutil.copytree(tiny("llama-gqa"), tmp_path_factory.mktemp("wide") / "wide")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "intermediate_size": 65_536}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not re.search(r"layers\.[12]\.", name)}
    for name in ("gate_proj", "up_proj", "down_proj"):
        shape = (64, 65_536) if name == "down_proj" else (65_536, 64)
        kept[f"model.layers.0.mlp.{name}.weight"] = torch.full(shape, 0.25)
    save_file(kept, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("weights", ["packed", "dense"])
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_rank_reads_its_share(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, weights: str
) -> None:
    path = write_gguf(wide, tmp_path / "model.gguf", "Q8_0") if form == "gguf" else wide
    file = path if form == "gguf" else wide / "model.safetensors"
    read: list[int] = []
    for kind in (SafetensorsCheckpoint, GGUFCheckpoint):  # so that what was read stays
        monkeypatch.setattr(kind, "release", lambda self, name: read.append(bytes_read(file)))
    groups = Groups(Second(), ALONE.pipeline)
    model = load(path, weights=weights, groups=groups)
    assert model.layers[0].mlp.gate_up.out_features == 65_536
    matrix = file.stat().st_size / 3  # nearly
    # Of the down projection every row is cut, within what is mapped around its half.
    assert matrix <= read[-1] <= 2 * matrix + AROUND


MATRIX = torch.rand(8, 2**21, generator=torch.Generator().manual_seed(0))
"""Each of its rows takes 8 MB."""


def checkpoint_of(form: str, folder: Path) -> tuple[Checkpoint, Path]:
    if form == "gguf":
        path = write_tensors(folder / "m.gguf", "llama", dict(SHAPE), {"a": MATRIX.numpy()})
        return GGUFCheckpoint(path), path
    save_file({"a": MATRIX}, folder / "model.safetensors")
    return SafetensorsCheckpoint(folder), folder / "model.safetensors"


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_rows_and_columns_are_read_and_nothing_else_and_let_go_of(tmp_path: Path, form: str) -> None:
    checkpoint, file = checkpoint_of(form, tmp_path)
    for rows in (slice(2, 4), np.array([6, 1])):
        part = checkpoint.part("a", rows, slice(0, 2**19))
        assert torch.equal(part, MATRIX[rows, : 2**19])
        assert 2 * 2**21 <= bytes_read(file) <= 2 * (2**21 + 2 * AROUND)
        checkpoint.release("a")
        assert bytes_read(file) <= AROUND


@pytest.mark.parametrize("quantization", [None, "int4"])
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_matrix_is_made_from_its_part_of_the_file(
    tmp_path: Path, form: str, quantization: Quantization | None
) -> None:
    checkpoint, file = checkpoint_of(form, tmp_path)
    assert read_matrix(checkpoint, "a", slice(5, 6), slice(2**20, 2**20 + 2**19), quantization).rows == 1
    assert 2**21 <= bytes_read(file) <= 2**21 + 3 * AROUND
