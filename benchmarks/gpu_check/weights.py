"""Weights for a made-up model, for which dummy ones, that are small and alike, would not do."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.gpu_check.models import SHAPES


def add_weights(name: str, folder: Path, seed: int) -> None:
    """Random float32 weights, wide enough that the next token depends on the ones before it, in model.safetensors."""
    shape, chance = SHAPES[name], torch.Generator().manual_seed(seed)
    hidden, heads = shape["hidden_size"], shape["head_dim"] * shape["num_attention_heads"]
    kv_heads, inner = shape["head_dim"] * shape["num_key_value_heads"], shape["intermediate_size"]

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=chance) * 1.5 * columns**-0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(shape["vocab_size"], hidden, generator=chance),
        "lm_head.weight": matrix(shape["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": torch.ones(hidden),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden),
            prefix + "self_attn.q_proj.weight": matrix(heads, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, heads),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
        if shape["architectures"] == ["Qwen3ForCausalLM"]:
            for norm in ("q_norm", "k_norm"):
                weight = 1 + 0.2 * torch.randn(shape["head_dim"], generator=chance)
                tensors[f"{prefix}self_attn.{norm}.weight"] = weight
    save_file(tensors, folder / "model.safetensors")
