"""GGUFFile: a memory-mapped GGUF file, every length checked before it is believed.

    | magic "GGUF" | version | tensor count | key count |              little endian, versions 2 and 3
    | key | type | value | ...                          |              metadata, vocabulary included
    | name | dims | ggml type | offset | ...            |              one entry per tensor
    | padding to general.alignment |                                   <- data_start
    | tensor bytes, each at data_start + offset |

Only the header is read on opening; tensor bytes stay in the file until `raw` is looked at.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.quant.ggml_types import UNSUPPORTED_TYPE_NAMES, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBER_DTYPES: dict[int, np.dtype] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

# The smallest metadata entry (empty key, a byte) and tensor entry (no name, no dims) bound the counts.
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of the file.

    shape is in torch order, slowest dimension first (GGUF stores it the other way round); offset is counted
    from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    offset: int
    nbytes: int


class GGUFFile:
    """A GGUF file, opened and checked.

    metadata: key -> int, float, bool, str, list[str], or a numpy array of numbers.
    tensors: name -> GGUFTensor, in the file's order.

    Raises:
        CheckpointError: not a GGUF file, truncated, or inconsistent; names the file and the sizes.
        UnsupportedModelError: a version, byte order or tensor type that Fathom does not read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._bytes = _map_file(self.path)
        header = _Header(self.path, self._bytes)
        tensor_count, key_count = header.preamble()
        self.metadata: dict[str, Any] = header.metadata(key_count)
        self.tensors: dict[str, GGUFTensor] = header.tensors(tensor_count, self._alignment())
        self._data = np.frombuffer(self._bytes, dtype=np.uint8)

    def raw(self, name: str) -> np.ndarray:
        """The tensor's packed bytes: a read-only uint8 view into the mapped file."""
        tensor = self.tensors[name]
        return self._data[tensor.offset : tensor.offset + tensor.nbytes]

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(
                f"{self.path}: general.alignment is {alignment!r}, must be a power of two.",
                parameter="general.alignment",
                value=alignment,
            )
        return alignment


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # an empty file cannot be mapped
        raise CheckpointError(f"{path}: the file is empty.", parameter="model", value=str(path)) from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}).", parameter="model", value=str(path)
        ) from error


class _Header:
    """A cursor over the file's header."""

    def __init__(self, path: Path, data: mmap.mmap):
        self._path = path
        self._data = data
        self._size = len(data)
        self._pos = 0

    def preamble(self) -> tuple[int, int]:
        """Magic and version checked; (tensor count, key count)."""
        magic = bytes(self._data[: len(MAGIC)])
        if magic != MAGIC:
            raise self._corrupt(f"not a GGUF file (starts with {magic!r}, not {MAGIC!r})")
        self._pos = len(MAGIC)
        version = self._u32("version")
        if version not in VERSIONS:
            big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            what = "is big-endian" if big_endian else f"has GGUF version {version}"
            raise UnsupportedModelError(
                f"{self._path} {what}; Fathom reads little-endian versions 2 and 3.",
                parameter="model",
                value=str(self._path),
                hint="Convert the model again with a current llama.cpp.",
            )
        tensor_count, key_count = self._u64("tensor count"), self._u64("key count")
        self._require(tensor_count * _MIN_TENSOR_BYTES, f"{tensor_count} tensors")
        self._require(key_count * _MIN_KEY_BYTES, f"{key_count} metadata keys")
        return tensor_count, key_count

    def metadata(self, count: int) -> dict[str, Any]:
        """`count` key-value pairs."""
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("metadata key")
            if key in found:
                raise self._corrupt(f"metadata key {key!r} occurs twice")
            found[key] = self._value(self._u32(f"type of {key}"), key)
        return found

    def tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        """`count` tensor entries, each checked to lie within the file."""
        entries = [self._tensor_entry() for _ in range(count)]
        data_start = -(-self._pos // alignment) * alignment
        found: dict[str, GGUFTensor] = {}
        for name, shape, ggml_type, offset in entries:
            if name in found:
                raise self._corrupt(f"tensor {name!r} occurs twice")
            if offset % alignment:
                raise self._corrupt(f"tensor {name!r} has offset {offset}, not a multiple of {alignment}")
            nbytes = math.prod(shape) // ggml_type.block_elements * ggml_type.block_bytes
            start = data_start + offset
            if start + nbytes > self._size:
                raise self._corrupt(
                    f"truncated or corrupt: tensor {name!r} is declared to end at byte {start + nbytes}, "
                    f"the file has {self._size} bytes"
                )
            found[name] = GGUFTensor(name, shape, ggml_type, start, nbytes)
        return found

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self._string("tensor name")
        num_dims = self._u32(f"dimensions of {name}")
        if num_dims > MAX_DIMS:
            raise self._corrupt(f"tensor {name!r} has {num_dims} dimensions, at most {MAX_DIMS} are possible")
        shape = tuple(self._u64(f"shape of {name}") for _ in range(num_dims))[::-1]
        ggml_type = self._ggml_type(self._u32(f"type of {name}"), name)
        row = shape[-1] if shape else 1
        if 0 in shape or row % ggml_type.block_elements:
            raise self._corrupt(
                f"tensor {name!r} has shape {list(shape)}; {ggml_type.name} needs rows of whole blocks of "
                f"{ggml_type.block_elements}"
            )
        return name, shape, ggml_type, self._u64(f"offset of {name}")

    def _ggml_type(self, type_id: int, name: str) -> GGMLType:
        try:
            return GGMLType(type_id)
        except ValueError:
            type_name = UNSUPPORTED_TYPE_NAMES.get(type_id, f"number {type_id}")
            known = ", ".join(member.name for member in GGMLType)
            raise UnsupportedModelError(
                f"{self._path}: tensor {name!r} has ggml type {type_name}; Fathom reads {known}.",
                parameter="model",
                value=str(self._path),
            ) from None

    def _value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self._string(key)
        if type_id != _ARRAY:
            return self._numbers(type_id, 1, key)[0].item()
        element_type, count = self._u32(key), self._u64(key)
        if element_type == _STRING:
            return self._strings(count, key)
        return self._numbers(element_type, count, key)

    def _numbers(self, type_id: int, count: int, key: str) -> np.ndarray:
        dtype = _NUMBER_DTYPES.get(type_id)
        if dtype is None:
            raise self._corrupt(f"metadata key {key!r} has the unknown value type {type_id}")
        start = self._take(count * dtype.itemsize, key)
        return np.frombuffer(self._data, dtype, count, start).copy()

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _strings(self, count: int, what: str) -> list[str]:
        """`count` length-prefixed UTF-8 strings. A vocabulary has 262,144 of them: nothing but this loop."""
        self._require(count * _U64.size, f"{count} strings of {what}")
        data, size, pos = self._data, self._size, self._pos
        length_at = _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                pos = start + length_at(data, pos)[0]
                if pos > size:
                    self._pos = start
                    self._require(pos - start, f"a string of {what}")
                found.append(data[start:pos].decode())
        except struct.error:
            raise self._corrupt(f"truncated within {what}: the file has {size} bytes") from None
        except UnicodeDecodeError:
            raise self._corrupt(f"a string of {what} at byte {start} is not UTF-8") from None
        self._pos = pos
        return found

    def _u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._data, self._take(_U32.size, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._data, self._take(_U64.size, what))[0])

    def _take(self, nbytes: int, what: str) -> int:
        """Move past `nbytes`; their start."""
        self._require(nbytes, what)
        start = self._pos
        self._pos += nbytes
        return start

    def _require(self, nbytes: int, what: str) -> None:
        if self._pos + nbytes > self._size:
            raise self._corrupt(
                f"truncated or corrupt: {what} at byte {self._pos} needs {nbytes} bytes, "
                f"the file has {self._size} bytes"
            )

    def _corrupt(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {problem}.", parameter="model", value=str(self._path))
