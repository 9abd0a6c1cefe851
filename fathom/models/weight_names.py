"""The table of a checkpoint's weight names, and the rows that all of the Llama-like families share.

A row says: the tensor of this name in Hugging Face files, and of that name in GGUF files, goes to this
parameter of ours (or to the named part of a merged one), after this change. ``{i}`` stands for the layer. A
row applies if the model has its parameter, so that tables list biases whether or not a config asks for them.

What a change may be depends on the format: numbers from a Hugging Face file may become others, but of a GGUF file
rows may only change places, since it may stay quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fathom.model_config.values import CheckpointFormat, ModelConfig

Transform = Callable[[torch.Tensor, ModelConfig], torch.Tensor]
RowOrder = Callable[[int, ModelConfig], np.ndarray]
"""(number of rows, config) -> for each row of ours its number in the file, int64."""


@dataclass(frozen=True)
class WeightName:
    """One row of an architecture's table.

    part: which rows of a merged weight, by the layer's own names ("q", "gate" ...).
    from_hf: what to do to the tensor read from a Hugging Face file; the shape stays.
    gguf_rows: the order in which a GGUF file has its rows, if it is another.
    """

    hf: str
    gguf: str
    parameter: str
    part: str | None = None
    from_hf: Transform | None = None
    gguf_rows: RowOrder | None = None


@dataclass(frozen=True)
class WeightTarget:
    """Where one tensor of a checkpoint goes: a parameter, or a part of it, after a transform or in another order."""

    parameter: str
    part: str | None
    transform: Transform | None
    row_order: RowOrder | None


def expand(table: tuple[WeightName, ...], file_format: CheckpointFormat, num_layers: int) -> dict[str, WeightTarget]:
    """The table with its layers written out: tensor name in a file of that format -> target."""
    targets = {}
    for row in table:
        in_gguf = file_format == "gguf"
        name = row.gguf if in_gguf else row.hf
        changes = (None, row.gguf_rows) if in_gguf else (row.from_hf, None)
        for i in range(num_layers) if "{i}" in name else (0,):
            targets[name.format(i=i)] = WeightTarget(row.parameter.format(i=i), row.part, *changes)
    return targets


def layer_weight(hf: str, gguf: str, parameter: str, part: str | None = None) -> WeightName:
    """A row that every layer has, by its names inside the layer."""
    return WeightName(f"model.layers.{{i}}.{hf}", f"blk.{{i}}.{gguf}", f"layers.{{i}}.{parameter}", part)


def projection(hf: str, gguf: str, module: str, part: str | None = None) -> tuple[WeightName, ...]:
    """The weight and the bias of one projection of a layer."""
    return tuple(
        layer_weight(f"{hf}.{kind}", f"{gguf}.{kind}", f"{module}.{kind}", part) for kind in ("weight", "bias")
    )


EMBEDDING_AND_HEAD = (
    WeightName("model.embed_tokens.weight", "token_embd.weight", "embedding.weight"),
    WeightName("model.norm.weight", "output_norm.weight", "norm.weight"),
    WeightName("lm_head.weight", "output.weight", "lm_head.matrix.weight"),
)
PRE_NORMS = (
    layer_weight("input_layernorm.weight", "attn_norm.weight", "attention_norm.weight"),
    layer_weight("post_attention_layernorm.weight", "ffn_norm.weight", "mlp_norm.weight"),
)
QUERY_AND_KEY = (
    *projection("self_attn.q_proj", "attn_q", "attention.qkv", "q"),
    *projection("self_attn.k_proj", "attn_k", "attention.qkv", "k"),
)
QK_NORMS = (
    layer_weight("self_attn.q_norm.weight", "attn_q_norm.weight", "attention.query_norm.weight"),
    layer_weight("self_attn.k_norm.weight", "attn_k_norm.weight", "attention.key_norm.weight"),
)
VALUE_AND_OUTPUT = (
    *projection("self_attn.v_proj", "attn_v", "attention.qkv", "v"),
    *projection("self_attn.o_proj", "attn_output", "attention.output"),
)
GATED_MLP = (
    *projection("mlp.gate_proj", "ffn_gate", "mlp.gate_up", "gate"),
    *projection("mlp.up_proj", "ffn_up", "mlp.gate_up", "up"),
    *projection("mlp.down_proj", "ffn_down", "mlp.down"),
)
PRE_NORM_DECODER = (*EMBEDDING_AND_HEAD, *PRE_NORMS, *QUERY_AND_KEY, *VALUE_AND_OUTPUT, *GATED_MLP)
"""All that a plain decoder has (CausalLM, of PreNormLayers)."""
