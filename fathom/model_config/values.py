"""RopeConfig and ModelConfig: what a model is, in Fathom's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckpointFormat = Literal["safetensors", "gguf"]
"""How a model lies on the disk: a folder of safetensors with its config.json, or one GGUF file."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer.

    Args:
        theta: base of the frequencies.
        scaling: which rule stretches the frequencies; "default" is none.
        factor: stretch of "linear", "llama3" and "yarn".
        low_freq_factor, high_freq_factor: bounds of "llama3".
        original_max_position: context before the stretch, for "llama3" and "yarn".
        attention_factor: what "yarn" multiplies cos and sin with; None means 0.1 * ln(factor) + 1.
        beta_fast, beta_slow: bounds of "yarn".
        frequency_divisors: [head_dim / 2] numbers that divide the frequencies, empty for none. GGUF files of
            Llama 3 carry its stretch in this form instead of as parameters.
    """

    theta: float = 10_000.0
    scaling: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    frequency_divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Shape and rules of a decoder-only model.

    ``layer_windows[i]`` is layer i's sliding window in tokens (a query sees itself and the window-1 tokens
    before it), or None for full attention. ``rope_local`` is used by sliding layers where the family has two
    rotary bases (Gemma 3), else equals ``rope``.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeConfig
    rope_local: RopeConfig
    layer_windows: tuple[int | None, ...]
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float = 0.0  # 0 means head_dim ** -0.5
    attention_softcap: float | None = None
    final_logit_softcap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"  # as stored in the checkpoint; ggml's name of a quantised type
