"""Checkpoint: a model's tensors by name, read one at a time from safetensors or GGUF.

Opening checks the headers against the files' real sizes; tensor bytes are read by `load`. Names, layouts and
values are the file's own: each model's weight-name table says what they mean.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fathom.errors import CheckpointError
from fathom.pages import drop_pages
from fathom.quant.ggml import FLOAT_DTYPES, dequantize
from fathom.quant.ggml_types import GGMLType
from fathom.weights.gguf import GGUFFile
from fathom.weights.resolve import ResolvedModel

if TYPE_CHECKING:
    from fathom.model_config.values import CheckpointFormat

SINGLE_FILE = "model.safetensors"
INDEX_FILE = f"{SINGLE_FILE}.index.json"

# Where multimodal models keep their language model -> where a model of text alone has it.
TEXT_PREFIXES = {"language_model.": "", "model.language_model.": "model."}


Rows = slice | np.ndarray
"""Which rows of a checkpoint's matrix: a range, or their numbers."""


class Checkpoint(ABC):
    """Tensors by name; `format` says whose names they are."""

    format: CheckpointFormat

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""

    @abstractmethod
    def load(self, name: str) -> torch.Tensor:
        """The tensor on the CPU: in its stored dtype from safetensors, float32 from GGUF.

        Raises:
            CheckpointError: its bytes cannot be read; names the file and the tensor.
        """

    @abstractmethod
    def part(self, name: str, rows: Rows, columns: slice) -> torch.Tensor:
        """Some rows and columns of a matrix: floats in their stored dtype, else float32. No more of it is read.

        Raises:
            CheckpointError: as `load`.
        """

    @abstractmethod
    def release(self, name: str) -> None:
        """Let go of the memory that the tensor's part of the file takes; reading it again costs reading the file."""


def open_checkpoint(resolved: ResolvedModel) -> Checkpoint:
    """Open the files of a resolved model.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt; names it.
    """
    if resolved.format == "gguf":
        return GGUFCheckpoint(resolved.path)
    return SafetensorsCheckpoint(resolved.path)


class SafetensorsCheckpoint(Checkpoint):
    """A folder with model.safetensors, or with shards and the index that names them.

    Of a multimodal model it shows the text part, under the names that a model of text alone would have.
    """

    format = "safetensors"

    def __init__(self, folder: Path):
        index = folder / INDEX_FILE
        stored = _open_shards(index) if index.is_file() else _open_file(folder / SINGLE_FILE)
        self._tensors = _text_part(stored)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._tensors[name]
        return tuple(stored.file.get_slice(stored.name).get_shape())

    def load(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        try:
            tensor: torch.Tensor = stored.file.get_tensor(stored.name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise _unreadable(stored.path, f"tensor {stored.name!r} cannot be read: {error}") from error
        return tensor

    def part(self, name: str, rows: Rows, columns: slice) -> torch.Tensor:
        # What `load` returns is the mapped file, of which only what is looked at is read.
        return self.load(name)[rows if isinstance(rows, slice) else torch.from_numpy(rows), columns]

    def release(self, name: str) -> None:
        # safetensors maps its files, so what it returns is a part of the mapping.
        tensor = self.load(name)
        drop_pages(tensor.data_ptr(), tensor.nbytes)


class _Stored(NamedTuple):
    """A tensor in an open safetensors file."""

    name: str
    file: Any
    path: Path


def _open_shards(index: Path) -> dict[str, _Stored]:
    """The tensors of all shards that an index names; every shard and every tensor named must be there."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(index, f"not a safetensors index ({error!r})") from error
    tensors: dict[str, _Stored] = {}
    for shard in shards:
        # The index is outside data: it may name files of its own folder only.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise _unreadable(index, f"names the shard {shard!r}, which is not a file of its folder")
        if not (index.parent / shard).is_file():
            raise _unreadable(index, f"names the shard {shard}, which does not exist")
        opened = _open_file(index.parent / shard)
        twice = sorted(opened.keys() & tensors.keys())
        if twice:
            raise _unreadable(index.parent / shard, f"tensor {twice[0]!r} is in {tensors[twice[0]].path} too")
        tensors |= opened
    absent = sorted(weight_map.keys() - tensors.keys())
    if absent:
        raise _unreadable(index, f"names {len(absent)} tensors that no shard holds, such as {absent[0]}")
    return tensors


def _open_file(path: Path) -> dict[str, _Stored]:
    """The tensors of one safetensors file, whose header is checked against its size."""
    try:
        file = safe_open(path, framework="pt", device="cpu")
        names: list[str] = list(file.keys())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise _unreadable(path, "the file does not exist") from None
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, f"truncated or corrupt ({path.stat().st_size} bytes): {error}") from error
    return {name: _Stored(name, file, path) for name in names}


def _text_part(tensors: dict[str, _Stored]) -> dict[str, _Stored]:
    """The language model's tensors without their prefix, if some have one; else all."""
    for prefix, replacement in TEXT_PREFIXES.items():
        if any(name.startswith(prefix) for name in tensors):
            return {
                name.replace(prefix, replacement, 1): stored
                for name, stored in tensors.items()
                if name.startswith((prefix, "lm_head."))
            }
    return tensors


class GGUFCheckpoint(Checkpoint):
    """A GGUF file; `packed` gives a tensor's bytes as they are, `load` decodes them."""

    format = "gguf"

    def __init__(self, path: Path):
        self._file = GGUFFile(path)

    def names(self) -> list[str]:
        return list(self._file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[name].shape

    def ggml_type(self, name: str) -> GGMLType:
        """The format that a tensor is stored in."""
        return self._file.tensors[name].ggml_type

    def packed(
        self, name: str, rows: Rows = slice(None), blocks: slice = slice(None)
    ) -> tuple[torch.Tensor, GGMLType, tuple[int, ...]]:
        """(1-D uint8 bytes as they lie in the file, their format, their shape once decoded).

        rows, blocks: of which rows, and in each of them which of the format's blocks.
        """
        tensor = self._file.tensors[name]
        kind = tensor.ggml_type
        stored = self._file.raw(name).reshape(tensor.shape[0], -1, kind.block_bytes)
        # A copy, since torch has no read-only tensors and the mapped file must stay as it is.
        chosen = np.array(stored[rows, blocks])
        shape = (len(chosen), *tensor.shape[1:])
        if blocks != slice(None):
            shape = (len(chosen), chosen.shape[1] * kind.block_elements)
        return torch.from_numpy(chosen.reshape(-1)), kind, shape

    def load(self, name: str) -> torch.Tensor:
        return dequantize(*self.packed(name))

    def part(self, name: str, rows: Rows, columns: slice) -> torch.Tensor:
        blocks, within = blocks_around(columns, self.ggml_type(name))
        raw, ggml_type, shape = self.packed(name, rows, blocks)
        dtype = FLOAT_DTYPES.get(ggml_type)
        found = dequantize(raw, ggml_type, shape) if dtype is None else raw.view(dtype).view(shape)
        return found[:, within]

    def release(self, name: str) -> None:
        raw = self._file.raw(name)
        drop_pages(raw.ctypes.data, raw.nbytes)


def blocks_around(columns: slice, ggml_type: GGMLType) -> tuple[slice, slice]:
    """The blocks of a row that hold these columns, and where in those blocks' columns they lie."""
    size = ggml_type.block_elements
    first = columns.start // size
    return slice(first, -(-columns.stop // size)), slice(columns.start - first * size, columns.stop - first * size)


def _unreadable(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: {problem}.", parameter="model", value=str(path))
