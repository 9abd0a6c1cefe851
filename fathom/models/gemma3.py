"""Gemma 3, text only. What differs from the plain decoder:

- a norm after each block as well as before it, and norms of queries and keys;
- norm weights stored by Hugging Face as w for a factor of 1 + w (GGUF files hold 1 + w);
- embeddings multiplied by sqrt(hidden_size);
- most layers see a sliding window and rotate with a base of their own (ModelConfig.rope_local);
- a score scale of its own, and soft-caps on scores and logits where the config has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.layers.norm import RMSNorm
from fathom.models.decoder import CausalLM, DecoderAttention, GatedMLP
from fathom.models.weight_names import (
    EMBEDDING_AND_HEAD,
    GATED_MLP,
    QK_NORMS,
    QUERY_AND_KEY,
    VALUE_AND_OUTPUT,
    layer_weight,
)

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.rotary import Rotation
    from fathom.model_config import ModelConfig
    from fathom.worker.forward_batch import ForwardBatch


def one_plus(tensor: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """The factor that a stored norm weight means. In float32: 1 + w would round w away in bfloat16."""
    return 1.0 + tensor.float()


FOUR_NORMS = (
    layer_weight("input_layernorm.weight", "attn_norm.weight", "attention_norm.weight"),
    layer_weight("post_attention_layernorm.weight", "post_attention_norm.weight", "post_attention_norm.weight"),
    layer_weight("pre_feedforward_layernorm.weight", "ffn_norm.weight", "mlp_norm.weight"),
    layer_weight("post_feedforward_layernorm.weight", "post_ffw_norm.weight", "post_mlp_norm.weight"),
)


class Gemma3Layer(nn.Module):
    """x += norm(attention(norm(x))); x += norm(mlp(norm(x)))."""

    def __init__(self, config: ModelConfig, index: int, build: BuildContext):
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.attention_norm = RMSNorm(size, eps, build)
        self.attention = DecoderAttention(
            config,
            index,
            build,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_output_bias,
            qk_norm=True,
        )
        self.post_attention_norm = RMSNorm(size, eps, build)
        self.mlp_norm = RMSNorm(size, eps, build)
        self.mlp = GatedMLP(config, build)
        self.post_mlp_norm = RMSNorm(size, eps, build)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.attention_norm.after_add(hidden, residual)
        hidden = self.post_attention_norm(self.attention(hidden, rotation, batch))
        hidden, residual = self.mlp_norm.after_add(hidden, residual)
        return self.post_mlp_norm(self.mlp(hidden)), residual


class Gemma3ForCausalLM(CausalLM):
    weight_names = tuple(
        replace(row, from_hf=one_plus) if row.parameter.endswith("norm.weight") else row
        for row in (
            *EMBEDDING_AND_HEAD,
            *FOUR_NORMS,
            *QUERY_AND_KEY,
            *QK_NORMS,
            *VALUE_AND_OUTPUT,
            *GATED_MLP,
        )
    )

    def __init__(self, config: ModelConfig, build: BuildContext):
        # Rounded to the model's dtype, as in training: in bfloat16 it is not quite the square root.
        factor = float(torch.tensor(config.hidden_size**0.5, dtype=build.dtype))
        super().__init__(config, build, lambda index: Gemma3Layer(config, index, build), embedding_factor=factor)
