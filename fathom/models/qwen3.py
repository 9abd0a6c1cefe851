"""Qwen3: a plain pre-norm decoder that normalises each query and key head before rotating it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fathom.models.decoder import CausalLM, DecoderAttention, GatedMLP, PreNormLayer
from fathom.models.weight_names import PRE_NORM_DECODER, QK_NORMS

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.model_config import ModelConfig


class Qwen3ForCausalLM(CausalLM):
    weight_names = (*PRE_NORM_DECODER, *QK_NORMS)

    def __init__(self, config: ModelConfig, build: BuildContext):
        def layer(index: int) -> PreNormLayer:
            attention = DecoderAttention(
                config,
                index,
                build,
                qkv_bias=config.attention_bias,
                output_bias=config.attention_output_bias,
                qk_norm=True,
            )
            return PreNormLayer(config, build, attention, GatedMLP(config, build))

        super().__init__(config, build, layer)
