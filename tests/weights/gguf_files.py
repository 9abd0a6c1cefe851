"""Tiny GGUF files, written by the `gguf` package: a writer that is not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from fathom.quant.ggml_types import GGMLType

VOCABULARY = ["<unk>", "<s>", "</s>", "▁the", "né", "日本"]

# The numbers of a 7-layer model, as GGUF keys without their architecture.
SHAPE: dict[str, int | float] = {
    "block_count": 7,
    "context_length": 512,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def write_gguf(path: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a file of these keys and tensors.

    keys: name -> number, string or list; the architecture's prefix is added except to general and tokenizer.
    tensors: name -> float32 array, or (packed uint8 array [rows, row bytes], its GGMLType).
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        full = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        _add(writer, full, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=gguf.GGMLQuantizationType(int(tensor[1])))
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def small_model(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A file whose header describes a model and whose only tensors are the embedding and a packed matrix."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (8, 34), dtype=np.uint8)
    packed[:, :2] = np.full((8, 1), 0.25, np.float16).view(np.uint8)
    keys = {**SHAPE, "tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1]}
    keys |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, **changes}
    tensors = {
        "token_embd.weight": rng.standard_normal((6, 32)).astype(np.float32),
        "blk.0.ffn_up.weight": (packed, GGMLType.Q8_0),
    }
    return write_gguf(path, architecture, {k: v for k, v in keys.items() if v is not None}, tensors)
