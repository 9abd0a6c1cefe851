"""Qwen2 and Qwen2.5: a plain pre-norm decoder whose query, key and value projections always have a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fathom.models.decoder import CausalLM, DecoderAttention, GatedMLP, PreNormLayer
from fathom.models.weight_names import PRE_NORM_DECODER

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.model_config import ModelConfig


class Qwen2ForCausalLM(CausalLM):
    weight_names = PRE_NORM_DECODER

    def __init__(self, config: ModelConfig, build: BuildContext):
        def layer(index: int) -> PreNormLayer:
            attention = DecoderAttention(config, index, build, qkv_bias=True)
            return PreNormLayer(config, build, attention, GatedMLP(config, build))

        super().__init__(config, build, layer)
