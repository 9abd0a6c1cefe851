"""A tiny model's folder rewritten as a GGUF file, the way that llama.cpp's converter does it.

Tensor names come from the gguf package's own map, so that our tables are checked against somebody else's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Gemma3ForCausalLM": gguf.MODEL_ARCH.GEMMA3,
}


def write_gguf(folder: Path, path: Path, quantization: str = "F32", **others: str) -> Path:
    """Write the model of ``folder`` to ``path`` and return ``path``.

    quantization: the type of its matrices, one that the gguf package can write.
    others: types of some of them, by the module's name: v_proj="Q8_0".
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    arch = ARCHITECTURES[config.architectures[0]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_shape(writer, config)
    _add_rope(writer, config)
    _add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        converted = _convert(name, tensor, config).numpy()
        chosen = others.get(stem.rpartition(".")[2], quantization)
        qtype = gguf.GGMLQuantizationType[chosen if converted.ndim > 1 else "F32"]
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", quantize(converted, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _convert(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        halves = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + 1
    return tensor


def _add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(config.layer_types.index("full_attention") + 1)


def _add_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        head_dim = config.hidden_size // config.num_attention_heads
        plain = rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / stretched.numpy()).astype(np.float32))


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: Any) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), config.vocab_size)]
    special = {config.bos_token_id, config.eos_token_id}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
