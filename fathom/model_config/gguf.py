"""Reads the model's shape from a GGUF header.

GGUF states numbers ("llama.block_count") and leaves rules to the program that runs the file: which layers
slide, how queries are scaled, whether there are biases. Those come from the family here, or from which
tensors the file holds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.model_config.keys import Keys
from fathom.model_config.values import ModelConfig, RopeConfig
from fathom.quant.ggml_types import GGMLType
from fathom.weights.gguf import GGUFFile

ROPE_DIVISORS = "rope_freqs.weight"
CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type
# How chat models end their turn. Files often name the end of the document only as eos.
END_OF_TURN = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"})
GEMMA3_27B_LAYERS = 62
_FLOAT_DTYPES = {GGMLType.F32: "float32", GGMLType.F16: "float16", GGMLType.BF16: "bfloat16"}


@dataclass(frozen=True)
class _Family:
    architecture: str
    activation: Literal["silu", "gelu_tanh"] = "silu"


_FAMILIES: dict[str, _Family] = {
    "llama": _Family("LlamaForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM"),
    "qwen3": _Family("Qwen3ForCausalLM"),
    "gemma3": _Family("Gemma3ForCausalLM", activation="gelu_tanh"),
}


def from_gguf(file: GGUFFile) -> ModelConfig:
    """The ModelConfig that a GGUF file describes.

    Raises:
        CheckpointError: a key or the embedding is missing, or has a value that cannot be; names file and key.
        UnsupportedModelError: an architecture or option that Fathom does not implement.
    """
    source = str(file.path)
    name = Keys(source, file.metadata).get("general.architecture")
    if name not in _FAMILIES:
        raise UnsupportedModelError(
            f"{source}: general.architecture={name!r} is not supported; Fathom knows {', '.join(_FAMILIES)}.",
            parameter="general.architecture",
            value=name,
        )
    family, keys = _FAMILIES[name], Keys(source, file.metadata, prefix=f"{name}.")
    if keys.get("expert_count"):
        raise keys.unsupported("expert_count", "Fathom runs dense models")
    num_layers, hidden_size = keys.integer("block_count"), keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    rope, rope_local = _ropes(file, keys, name, head_dim)
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, num_heads),
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        max_position_embeddings=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        rope_local=rope_local,
        layer_windows=_layer_windows(keys, name, num_layers),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias=name == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        activation=family.activation,
        # Gemma 3 scales queries by the head's size, except for its largest model.
        attention_scale=(hidden_size / num_heads) ** -0.5
        if name == "gemma3" and num_layers == GEMMA3_27B_LAYERS
        else 0.0,
        attention_softcap=keys.optional_number("attn_logit_softcapping"),
        final_logit_softcap=keys.optional_number("final_logit_softcapping"),
        bos_token_id=Keys(source, file.metadata).token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(file),
        dtype=_dtype(file),
    )


def _dtype(file: GGUFFile) -> str:
    """How most of the file's numbers are stored: a float type, or a quantised one by ggml's name ("Q4_1")."""
    sizes = Counter[GGMLType]()
    for tensor in file.tensors.values():
        sizes[tensor.ggml_type] += math.prod(tensor.shape)
    most = max(sizes, key=lambda kind: sizes[kind])
    return _FLOAT_DTYPES.get(most, most.name)


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{file.path} lacks the tensor token_embd.weight.", parameter="model", value=str(file.path)
        )
    return embedding.shape[0]


def _num_kv_heads(keys: Keys, num_heads: int) -> int:
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise keys.corrupt("attention.head_count_kv", f"must divide attention.head_count={num_heads}")
    return num_kv_heads


def _layer_windows(keys: Keys, name: str, num_layers: int) -> tuple[int | None, ...]:
    if name != "gemma3":
        return (None,) * num_layers
    window = keys.integer("attention.sliding_window")
    pattern = keys.integer("attention.sliding_window_pattern", 6)
    return tuple(None if (layer + 1) % pattern == 0 else window for layer in range(num_layers))


def _ropes(file: GGUFFile, keys: Keys, name: str, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """(rotary embedding of full layers, of sliding layers)."""
    if keys.integer("rope.dimension_count", head_dim) != head_dim:
        raise keys.unsupported("rope.dimension_count", f"Fathom rotates whole heads of {head_dim}")
    theta = keys.number("rope.freq_base", 10_000.0)
    rope = RopeConfig(theta, **_rope_scaling(keys), frequency_divisors=_frequency_divisors(file, head_dim))
    if name != "gemma3":
        return rope, rope
    return rope, RopeConfig(keys.number("rope.freq_base_swa", 10_000.0))


def _rope_scaling(keys: Keys) -> dict[str, Any]:
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    factor = keys.number("rope.scaling.factor")
    if kind == "linear":
        return {"scaling": "linear", "factor": factor}
    if kind == "yarn":
        original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
        return {"scaling": "yarn", "factor": factor, "original_max_position": original}
    raise keys.unsupported("rope.scaling.type", "known are none, linear, yarn")


def _frequency_divisors(file: GGUFFile, head_dim: int) -> tuple[float, ...]:
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return ()
    if tensor.ggml_type != GGMLType.F32 or tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path}: {ROPE_DIVISORS} must hold {head_dim // 2} numbers of F32, "
            f"got {list(tensor.shape)} of {tensor.ggml_type.name}.",
            parameter=ROPE_DIVISORS,
        )
    return tuple(file.raw(ROPE_DIVISORS).view(np.float32).tolist())


def _eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Declared ends of document, turn and message, then control tokens that end a turn by their name."""
    keys = Keys(str(file.path), file.metadata, prefix="tokenizer.ggml.")
    found = [i for key in ("eos_token_id", "eot_token_id", "eom_token_id") for i in keys.token_ids(key)]
    types = keys.get("token_type")
    if types is not None:
        tokens = keys.get("tokens", [])
        found += [i for i in np.flatnonzero(types == CONTROL_TOKEN).tolist() if tokens[i] in END_OF_TURN]
    return tuple(dict.fromkeys(found))
