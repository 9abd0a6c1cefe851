"""A GGUF file's copy with its matrices decoded to 16 bits: an unquantised checkpoint of a real model."""

from __future__ import annotations

from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize


def write_unquantised(source: Path, target: Path, ggml_type: str = "F16") -> Path:
    """Write ``target`` and return it. ggml_type: F16 or BF16, of what is not float32 already."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *element = field.types
            writer.add_key_value(name, field.contents(), kind, element[0] if element else None)
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        plain = tensor.tensor_type == gguf.GGMLQuantizationType.F32
        qtype = tensor.tensor_type if plain else gguf.GGMLQuantizationType[ggml_type]
        writer.add_tensor(tensor.name, quantize(numbers, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
