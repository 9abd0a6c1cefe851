"""Llama 2, 3 and 3.x, and what is built like it: SmolLM2, Mistral (with its sliding window).

The plain pre-norm decoder: grouped-query attention, rotary positions, gated SiLU, no biases unless the config
asks for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fathom.models.decoder import CausalLM, DecoderAttention, GatedMLP, PreNormLayer
from fathom.models.weight_names import PRE_NORM_DECODER, QUERY_AND_KEY

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.model_config import ModelConfig


def halves_from_pairs(num_rows: int, config: ModelConfig) -> np.ndarray:
    """The order that undoes GGUF's order of a head's rows.

    Llama GGUF files hold rotary partners side by side (0, d/2, 1, d/2 + 1, ...); we pair i with i + d/2.
    """
    return np.arange(num_rows).reshape(-1, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


class LlamaForCausalLM(CausalLM):
    weight_names = tuple(
        replace(row, gguf_rows=halves_from_pairs) if row in QUERY_AND_KEY else row for row in PRE_NORM_DECODER
    )

    def __init__(self, config: ModelConfig, build: BuildContext):
        def layer(index: int) -> PreNormLayer:
            attention = DecoderAttention(
                config,
                index,
                build,
                qkv_bias=config.attention_bias,
                output_bias=config.attention_output_bias,
            )
            return PreNormLayer(config, build, attention, GatedMLP(config, build, bias=config.mlp_bias))

        super().__init__(config, build, layer)
