"""Reads a Hugging Face config.json, in the old and in the transformers-5 spelling.

| meaning         | old spelling                                   | new spelling                            |
|-----------------|------------------------------------------------|-----------------------------------------|
| rotary          | rope_theta, rope_scaling, rope_local_base_freq | rope_parameters (nested per layer type) |
| sliding layers  | sliding_window_pattern, max_window_layers      | layer_types                             |
| type of weights | torch_dtype                                    | dtype                                   |

A key that is absent has the default of the family's configuration class in transformers, since that is what
the file's writer relied on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from fathom.errors import UnsupportedModelError
from fathom.model_config.keys import Keys
from fathom.model_config.values import ModelConfig, RopeConfig

SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class _Family:
    """What a family's configuration class assumes where the file is silent (None: the key is required)."""

    model_type: str
    max_position_embeddings: int
    vocab_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_heads
    activation_key: str = "hidden_act"
    activation: str = "silu"
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    sliding_window: int | None = None
    theta: float = 10_000.0


_GEMMA3 = _Family(
    "gemma3_text",
    131_072,
    vocab_size=262_208,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
    tie_word_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
    sliding_window=4096,
    theta=1_000_000.0,
)
_FAMILIES: dict[str, _Family] = {
    "LlamaForCausalLM": _Family("llama", 2048, bos_token_id=1, eos_token_id=2),
    "MistralForCausalLM": _Family(
        "mistral", 131_072, num_kv_heads=8, bos_token_id=1, eos_token_id=2, sliding_window=4096
    ),
    "Qwen2ForCausalLM": _Family("qwen2", 32_768, num_kv_heads=32, sliding_window=4096),
    "Qwen3ForCausalLM": _Family("qwen3", 32_768, num_kv_heads=32, head_dim=128, sliding_window=4096),
    "Gemma3ForCausalLM": _GEMMA3,
}
# Multimodal architectures of which Fathom runs the text part.
_TEXT_PARTS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}


def from_hf_config(
    config: dict[str, Any], generation_config: dict[str, Any] | None = None, source: str = "config.json"
) -> ModelConfig:
    """The ModelConfig that a config.json describes.

    Args:
        config: the parsed file. The text part of a multimodal model is taken from its `text_config`.
        generation_config: the parsed generation_config.json; its end-of-sequence ids win.
        source: the file's name, for messages.

    Raises:
        CheckpointError: a key is missing or has a value that cannot be; names file and key.
        UnsupportedModelError: an architecture or option that Fathom does not implement.
    """
    keys = Keys(source, {**config, **config.get("text_config", {})})
    architecture = _architecture(config, source)
    family = _FAMILIES[architecture]
    num_layers = keys.integer("num_hidden_layers")
    num_heads = keys.integer("num_attention_heads", family.num_heads)
    hidden_size = keys.integer("hidden_size")
    num_kv_heads = keys.optional_integer("num_key_value_heads", family.num_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise keys.corrupt("num_key_value_heads", f"must divide num_attention_heads={num_heads}")
    rope, rope_local = _ropes(keys, family)
    attention_bias, attention_output_bias, mlp_bias = _biases(keys, family)
    activation = keys.get(family.activation_key, family.activation)
    if activation not in ACTIVATIONS:
        raise keys.unsupported(family.activation_key, f"known are {', '.join(ACTIVATIONS)}")
    generation = Keys("generation_config.json", generation_config or {})
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size", family.vocab_size),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=keys.optional_integer("head_dim", family.head_dim) or hidden_size // num_heads,
        intermediate_size=keys.integer("intermediate_size"),
        max_position_embeddings=keys.integer("max_position_embeddings", family.max_position_embeddings),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=rope,
        rope_local=rope_local,
        layer_windows=_layer_windows(keys, family, num_layers),
        tie_word_embeddings=keys.flag("tie_word_embeddings", family.tie_word_embeddings),
        attention_bias=attention_bias,
        attention_output_bias=attention_output_bias,
        mlp_bias=mlp_bias,
        activation=ACTIVATIONS[activation],
        attention_scale=keys.number("query_pre_attn_scalar", 256) ** -0.5 if family is _GEMMA3 else 0.0,
        attention_softcap=keys.optional_number("attn_logit_softcapping") if family is _GEMMA3 else None,
        final_logit_softcap=keys.optional_number("final_logit_softcapping") if family is _GEMMA3 else None,
        bos_token_id=keys.token_id("bos_token_id", family.bos_token_id),
        eos_token_ids=generation.token_ids("eos_token_id") or keys.token_ids("eos_token_id", family.eos_token_id),
        dtype=_dtype(keys),
    )


def _architecture(config: dict[str, Any], source: str) -> str:
    """The first declared architecture; a configuration saved without a model has its model_type only."""
    declared = config.get("architectures")
    if declared is None:
        by_type = {family.model_type: name for name, family in _FAMILIES.items()}
        name = by_type.get(str(config.get("model_type")), f"model_type {config.get('model_type')!r}")
    else:
        name = declared[0] if isinstance(declared, list) and declared else str(declared)
    name = _TEXT_PARTS.get(name, name)
    if name not in _FAMILIES:
        raise UnsupportedModelError(
            f"{source}: the architecture {name} is not supported; Fathom knows {', '.join(_FAMILIES)}.",
            parameter="architectures",
            value=name,
        )
    return name


def _biases(keys: Keys, family: _Family) -> tuple[bool, bool, bool]:
    """Whether there are biases on (q, k and v; attention output; MLP)."""
    if family.model_type == "qwen2":
        return True, False, False
    if family.model_type == "mistral":
        return False, False, False
    attention = keys.flag("attention_bias", False)
    return attention, attention, family.model_type == "llama" and keys.flag("mlp_bias", False)


def _layer_windows(keys: Keys, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    if family.sliding_window is None:
        return (None,) * num_layers
    if family.model_type in ("qwen2", "qwen3") and not keys.flag("use_sliding_window", False):
        return (None,) * num_layers
    if family is _GEMMA3 and keys.flag("use_bidirectional_attention", False):
        raise keys.unsupported("use_bidirectional_attention", "Fathom's decoders are causal")
    window = keys.optional_integer("sliding_window", family.sliding_window)
    types = keys.get("layer_types") if family.model_type != "mistral" else None
    if types is None:
        types = _layer_types(keys, family, num_layers)
    if len(types) != num_layers or not set(types) <= {SLIDING, FULL}:
        raise keys.corrupt("layer_types", f"must hold {num_layers} times {SLIDING} or {FULL}")
    return tuple(window if kind == SLIDING else None for kind in types)


def _layer_types(keys: Keys, family: _Family, num_layers: int) -> list[str]:
    """The layer types that the older spellings imply."""
    if family is _GEMMA3:
        pattern = keys.integer("sliding_window_pattern", keys.get("_sliding_window_pattern", 6))
        return [FULL if (layer + 1) % pattern == 0 else SLIDING for layer in range(num_layers)]
    first_sliding = keys.get("max_window_layers", 28) if family.model_type != "mistral" else 0
    return [SLIDING if layer >= first_sliding else FULL for layer in range(num_layers)]


def _ropes(keys: Keys, family: _Family) -> tuple[RopeConfig, RopeConfig]:
    """(rotary embedding of full layers, of sliding layers)."""
    parameters = keys.get("rope_parameters") or {}
    nested = FULL in parameters or SLIDING in parameters
    full = parameters.get(FULL) if nested else keys.get("rope_scaling") or parameters
    rope = _rope(keys, full or {}, keys.number("rope_theta", family.theta))
    if family is not _GEMMA3:
        return rope, rope
    # The stretch of older files belongs to the full layers; sliding ones always see positions as they are.
    local = parameters.get(SLIDING) if nested else None
    return rope, _rope(keys, local or {}, keys.number("rope_local_base_freq", 10_000.0))


def _rope(keys: Keys, parameters: dict[str, Any], theta: float) -> RopeConfig:
    own = Keys(keys.source, parameters)
    theta = own.number("rope_theta", theta)
    if own.number("partial_rotary_factor", keys.get("partial_rotary_factor", 1.0)) != 1.0:
        raise own.unsupported("partial_rotary_factor", "Fathom rotates whole heads")
    kind = own.get("rope_type", own.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=own.number("factor"))
    original = own.integer(
        "original_max_position_embeddings",
        keys.get("original_max_position_embeddings") or keys.integer("max_position_embeddings"),
    )
    if kind == "llama3":
        return RopeConfig(
            theta,
            "llama3",
            factor=own.number("factor"),
            low_freq_factor=own.number("low_freq_factor"),
            high_freq_factor=own.number("high_freq_factor"),
            original_max_position=original,
        )
    if kind == "yarn":
        return _yarn(keys, own, theta, original)
    raise UnsupportedModelError(
        f"{keys.source}: the rotary embedding {kind!r} is not supported; known are default, linear, llama3, yarn.",
        parameter="rope_type",
        value=kind,
    )


def _yarn(keys: Keys, own: Keys, theta: float, original: int) -> RopeConfig:
    if not own.flag("truncate", True):
        raise own.unsupported("truncate", "Fathom rounds the bounds of yarn")
    factor = own.optional_number("factor") or keys.integer("max_position_embeddings") / original
    attention_factor = own.optional_number("attention_factor")
    mscale, mscale_all_dim = own.get("mscale"), own.get("mscale_all_dim")
    if attention_factor is None and mscale and mscale_all_dim and factor > 1:
        log = 0.1 * math.log(factor)
        attention_factor = (mscale * log + 1) / (mscale_all_dim * log + 1)
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_max_position=original,
        attention_factor=attention_factor,
        beta_fast=own.get("beta_fast") or 32.0,
        beta_slow=own.get("beta_slow") or 1.0,
    )


def _dtype(keys: Keys) -> str:
    return str(keys.get("dtype") or keys.get("torch_dtype") or "float32").removeprefix("torch.")
