"""GGUFFile reads what the `gguf` package writes, and refuses damaged files by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.quant.ggml_types import GGMLType
from fathom.weights.gguf import GGUFFile
from tests.weights.gguf_files import VOCABULARY, small_model, write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return small_model(tmp_path / "model.gguf")


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "types.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -70_000)
    writer.add_float32("f32", 0.5)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "né 日本")
    writer.add_uint64("u64", 2**40)
    writer.add_int64("i64", -(2**40))
    writer.add_float64("f64", 0.1)
    writer.add_array("strings", VOCABULARY)
    writer.add_array("floats", [0.5, -1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    metadata = GGUFFile(tmp_path / "types.gguf").metadata

    np.testing.assert_array_equal(metadata.pop("floats"), np.array([0.5, -1.5], np.float32))
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -5,
        "u16": 60_000,
        "i16": -300,
        "u32": 4_000_000_000,
        "i32": -70_000,
        "f32": 0.5,
        "yes": True,
        "no": False,
        "text": "né 日本",
        "u64": 2**40,
        "i64": -(2**40),
        "f64": 0.1,
        "strings": VOCABULARY,
    }


def test_tensors_have_torch_shapes_and_their_own_bytes(path: Path) -> None:
    file = GGUFFile(path)
    assert list(file.tensors) == ["token_embd.weight", "blk.0.ffn_up.weight"]
    embedding, packed = file.tensors.values()
    assert (embedding.shape, embedding.ggml_type, embedding.nbytes) == ((6, 32), GGMLType.F32, 6 * 32 * 4)
    assert (packed.shape, packed.ggml_type, packed.nbytes) == ((8, 32), GGMLType.Q8_0, 8 * 34)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = np.frombuffer(tensor.data.tobytes(), np.uint8)
        np.testing.assert_array_equal(file.raw(tensor.name), expected)
        assert file.raw(tensor.name).dtype == np.uint8


def test_another_alignment(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "wide.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(3, dtype=np.float32))
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "wide.gguf")
    assert file.tensors["b"].offset % 256 == 0
    np.testing.assert_array_equal(file.raw("b").view(np.float32), np.arange(5, dtype=np.float32))


def with_bytes(offset: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + new + data[offset + len(new) :]


def with_string_length(needle: bytes, length: int) -> Callable[[bytes], bytes]:
    """Overwrite the 8-byte length before the string `needle`."""

    def damage(data: bytes) -> bytes:
        at = data.index(struct.pack("<Q", len(needle)) + needle)
        return data[:at] + struct.pack("<Q", length) + data[at + 8 :]

    return damage


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return damage


EMBEDDING = struct.pack("<Q", 17) + b"token_embd.weight"
DIMS = struct.pack("<IQQ", 2, 32, 6)

DAMAGE = {
    "empty": (lambda data: b"", "the file is empty"),
    "magic": (with_bytes(0, b"GGML"), "not a GGUF file"),
    "half the header": (lambda data: data[:200], "truncated or corrupt.*the file has 200 bytes"),
    "cut within the vocabulary": (lambda data: data[: data.index(b"<s>")], "truncated"),
    "half the tensors": (lambda data: data[:-200], r"'blk.0.ffn_up.weight' is declared to end at byte \d+"),
    "tensor count": (with_bytes(8, struct.pack("<Q", 2**60)), "1152921504606846976 tensors"),
    "key count": (with_bytes(16, struct.pack("<Q", 2**63)), "9223372036854775808 metadata keys"),
    "key length": (with_string_length(b"general.architecture", 2**62), "metadata key at byte 32 needs"),
    "token length": (with_string_length("▁the".encode(), 2**40), "a string of tokenizer.ggml.tokens"),
    "array length": (
        replaced(struct.pack("<IQ", 8, len(VOCABULARY)), struct.pack("<IQ", 8, 2**50)),
        "strings of tokenizer.ggml.tokens",
    ),
    "value type": (
        replaced(b"llama.block_count" + struct.pack("<I", 4), b"llama.block_count" + struct.pack("<I", 77)),
        "'llama.block_count' has the unknown value type 77",
    ),
    "not UTF-8": (replaced("né".encode(), b"n\xff\xff"), "is not UTF-8"),
    "shape": (
        replaced(EMBEDDING + DIMS, EMBEDDING + struct.pack("<IQQ", 2, 32, 2**50)),
        "'token_embd.weight' is declared to end at byte",
    ),
    "dimensions": (
        replaced(EMBEDDING + DIMS[:4], EMBEDDING + struct.pack("<I", 4_000_000)),
        "4000000 dimensions",
    ),
    "part of a block": (
        replaced(
            b"blk.0.ffn_up.weight" + struct.pack("<IQ", 2, 32),
            b"blk.0.ffn_up.weight" + struct.pack("<IQ", 2, 31),
        ),
        "rows of whole blocks of 32",
    ),
    "offset": (
        replaced(EMBEDDING + DIMS + struct.pack("<IQ", 0, 0), EMBEDDING + DIMS + struct.pack("<IQ", 0, 7)),
        "offset 7, not a multiple of 32",
    ),
    "key twice": (replaced(b"bos_token_id", b"eos_token_id"), "'tokenizer.ggml.eos_token_id' occurs twice"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_by_name(path: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("version", [1, 4])
def test_an_unknown_version_is_refused(path: Path, version: int) -> None:
    path.write_bytes(with_bytes(4, struct.pack("<I", version))(path.read_bytes()))
    with pytest.raises(UnsupportedModelError, match=f"model.gguf has GGUF version {version}"):
        GGUFFile(path)


def test_a_big_endian_file_is_refused(path: Path) -> None:
    path.write_bytes(with_bytes(4, struct.pack(">I", 3))(path.read_bytes()))
    with pytest.raises(UnsupportedModelError, match="big-endian"):
        GGUFFile(path)


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    packed = (np.zeros((2, 136), np.uint8), 23)
    path = write_gguf(tmp_path / "new.gguf", "llama", {}, {"blk.0.attn_q.weight": packed})
    with pytest.raises(UnsupportedModelError, match=r"new.gguf: tensor 'blk.0.attn_q.weight' has ggml type IQ4_XS"):
        GGUFFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none.gguf: cannot be read \(No such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_every_truncation_is_refused(path: Path) -> None:
    """Cut the header at every byte: never a crash, never a file that seems whole."""
    data = path.read_bytes()
    for size in range(1, GGUFFile(path).tensors["token_embd.weight"].offset):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            GGUFFile(path)
