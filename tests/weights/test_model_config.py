"""ModelConfig from config.json, checked against transformers' own reading, and from GGUF headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from fathom.errors import CheckpointError, UnsupportedModelError
from fathom.model_config import (
    ModelConfig,
    RopeConfig,
    from_gguf,
    from_hf_config,
    load_generation_config,
    load_model_config,
)
from fathom.quant.ggml_types import GGMLType
from fathom.weights.gguf import GGUFFile
from fathom.weights.resolve import ResolvedModel
from tests.weights.gguf_files import SHAPE, small_model, write_gguf

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL = {**BASE, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {**BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**BASE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
GEMMA3 = {**BASE, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
LLAMA3_ROPE = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING, FULL = "sliding_attention", "full_attention"

CASES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama, new spelling": {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "llama, old spelling": {**LLAMA, "rope_theta": 5e5, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5},
    "llama, new dtype": {**LLAMA, "dtype": "float16", "head_dim": 32},
    "llama, biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama, kv heads null": {**LLAMA, "num_key_value_heads": None, "head_dim": None},
    "llama, eos list": {**LLAMA, "eos_token_id": [5, 6], "bos_token_id": 4},
    "llama, linear": {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e4},
    "llama 3": {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE}},
    "llama 3, new": {**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_ROPE}},
    "mistral": {**MISTRAL, "sliding_window": 16},
    "mistral, absent window": MISTRAL,
    "mistral, no window": {**MISTRAL, "sliding_window": None, "rope_theta": 1e6},
    "qwen2": {**QWEN2, "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 3},
    "qwen2, sliding": {**QWEN2, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    "qwen2, types": {
        **QWEN2,
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": [FULL, SLIDING] * 3 + [FULL],
    },
    "qwen2, yarn": {
        **QWEN2,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "qwen3": QWEN3,
    "qwen3, bias and head": {**QWEN3, "attention_bias": True, "head_dim": 24, "tie_word_embeddings": True},
    "gemma3, absent keys": GEMMA3,
    "gemma3, old spelling": {
        **GEMMA3,
        "head_dim": 16,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "query_pre_attn_scalar": 168,
    },
    "gemma3, new spelling": {
        **GEMMA3,
        "layer_types": [SLIDING, FULL] * 3 + [SLIDING],
        "sliding_window": 32,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 2e4},
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        },
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": False,
    },
}


def oracle_rope(parameters: dict[str, Any]) -> RopeConfig:
    kind = parameters["rope_type"]
    fields = {"factor": parameters.get("factor", 1.0)}
    if kind in ("llama3", "yarn"):
        fields["original_max_position"] = parameters["original_max_position_embeddings"]
    if kind == "llama3":
        fields |= {key: parameters[key] for key in ("low_freq_factor", "high_freq_factor")}
    return RopeConfig(parameters["rope_theta"], kind, **fields)


def oracle(config: dict[str, Any]) -> ModelConfig:
    """The same ModelConfig, by way of transformers' configuration class and what its models do with it."""
    theirs = AutoConfig.for_model(**config)
    gemma = theirs.model_type == "gemma3_text"
    types = getattr(theirs, "layer_types", None)
    if types is None:
        types = [SLIDING if theirs.model_type == "mistral" else FULL] * theirs.num_hidden_layers
    ropes = theirs.rope_parameters if gemma else {FULL: theirs.rope_parameters, SLIDING: theirs.rope_parameters}
    eos = theirs.eos_token_id
    bias = theirs.model_type == "qwen2" or getattr(theirs, "attention_bias", False)
    return ModelConfig(
        architecture=theirs.architectures[0],
        vocab_size=theirs.vocab_size,
        hidden_size=theirs.hidden_size,
        num_layers=theirs.num_hidden_layers,
        num_heads=theirs.num_attention_heads,
        num_kv_heads=theirs.num_key_value_heads,
        head_dim=getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads,
        intermediate_size=theirs.intermediate_size,
        max_position_embeddings=theirs.max_position_embeddings,
        norm_eps=theirs.rms_norm_eps,
        rope=oracle_rope(ropes[FULL]),
        rope_local=oracle_rope(ropes[SLIDING]),
        layer_windows=tuple(theirs.sliding_window if kind == SLIDING else None for kind in types),
        tie_word_embeddings=theirs.tie_word_embeddings,
        attention_bias=bias,
        attention_output_bias=bias and theirs.model_type != "qwen2",
        mlp_bias=getattr(theirs, "mlp_bias", False),
        activation="gelu_tanh" if gemma else "silu",
        attention_scale=theirs.query_pre_attn_scalar**-0.5 if gemma else 0.0,
        attention_softcap=getattr(theirs, "attn_logit_softcapping", None),
        final_logit_softcap=getattr(theirs, "final_logit_softcapping", None),
        bos_token_id=theirs.bos_token_id,
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        dtype=str(theirs.dtype or "float32").removeprefix("torch."),
    )


@pytest.mark.parametrize("case", CASES)
def test_equals_transformers_reading(case: str) -> None:
    config = CASES[case]
    assert from_hf_config(json.loads(json.dumps(config))) == oracle(config)


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_writes_back_reads_the_same(case: str) -> None:
    """to_json_string gives the newest spelling, with every default written out."""
    written = json.loads(AutoConfig.for_model(**CASES[case]).to_json_string(use_diff=False))
    assert from_hf_config(written) == oracle(CASES[case])


@pytest.mark.parametrize("family", [LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3], ids=lambda c: c["model_type"])
def test_absent_keys_have_the_defaults_of_transformers(family: dict[str, Any]) -> None:
    required = ("architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers")
    config = {key: family[key] for key in required}
    if family is not GEMMA3:
        config |= {"vocab_size": 96, "num_attention_heads": 32}
    config["hidden_size"] = 64
    assert from_hf_config(config) == oracle(config)


def test_multimodal_models_give_their_text_part() -> None:
    text = {key: value for key, value in GEMMA3.items() if key != "architectures"}
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    config = {**outer, "text_config": text, "torch_dtype": "bfloat16", "eos_token_id": [1, 106]}
    expected = from_hf_config({**GEMMA3, "dtype": "bfloat16", "eos_token_id": [1, 106]})
    assert from_hf_config(config) == expected


def test_a_configuration_without_architectures_goes_by_its_model_type() -> None:
    config = {**QWEN3, "architectures": None}
    assert from_hf_config(config) == from_hf_config(QWEN3)


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (7, {}, (7,)),
        (7, {"eos_token_id": 9}, (9,)),
        (7, {"eos_token_id": [9, 7]}, (9, 7)),
        ([7, 8], {"eos_token_id": None}, (7, 8)),
        (0, None, (0,)),
    ],
)
def test_generation_config_wins_for_the_end_of_sequence(own: Any, generation: Any, expected: Any) -> None:
    assert from_hf_config({**LLAMA, "eos_token_id": own}, generation).eos_token_ids == expected


def test_attention_factor_of_yarn_with_two_scales() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16}
    config = from_hf_config({**QWEN2, "rope_scaling": {**rope, "original_max_position_embeddings": 64}})
    expected = (0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1)
    assert config.rope.attention_factor == pytest.approx(expected, rel=1e-15)
    assert config.rope.beta_fast == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json lacks the key hidden_size"),
        ({"hidden_size": "48"}, "config.json: hidden_size must be a positive integer, got '48'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads=4, got 3"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a positive number, got -1.0"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id must be a token id or a list of them"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "config.json lacks the key factor"),
    ],
)
def test_keys_that_are_missing_or_wrong_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        from_hf_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**LLAMA, "architectures": ["T5Model"]},
            "T5Model is not supported; Fathom knows LlamaForC",
        ),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "longrope"}},
            "embedding 'longrope' is not supported",
        ),
        ({**LLAMA, "hidden_act": "relu"}, "hidden_act='relu' is not supported; known are silu"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            {**GEMMA3, "use_bidirectional_attention": True},
            "_bidirectional_attention=True is not supported",
        ),
        ({**QWEN2, "use_sliding_window": True, "layer_types": ["chunked_attention"] * 7}, "layer_types"),
    ],
)
def test_what_is_not_implemented_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedModelError, CheckpointError), match=message):
        from_hf_config(config)


# --- folders ---------------------------------------------------------------------------------------------


def test_a_folder_is_read_with_its_generation_config(tmp_path: Path) -> None:
    resolved = ResolvedModel(tmp_path, "safetensors", "tiny")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_generation_config(resolved) == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4], "temperature": 0.6}')
    assert load_generation_config(resolved) == {"eos_token_id": [3, 4], "temperature": 0.6}
    assert load_model_config(resolved) == from_hf_config({**LLAMA, "eos_token_id": [3, 4]})


@pytest.mark.parametrize("content", [None, '{"hidden_size": 4', "[1, 2]", "\xff"])
def test_a_damaged_config_json_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model_config(ResolvedModel(tmp_path, "safetensors", "tiny"))


# --- GGUF ------------------------------------------------------------------------------------------------


def read(path: Path) -> ModelConfig:
    return load_model_config(ResolvedModel(path, "gguf", "tiny"))


def test_gguf_llama(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf", **{"rope.freq_base": 5e5})
    assert read(path) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=6,
        hidden_size=32,
        num_layers=7,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=512,
        norm_eps=float(np.float32(1e-5)),
        rope=RopeConfig(5e5),
        rope_local=RopeConfig(5e5),
        layer_windows=(None,) * 7,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
        dtype="Q8_0",
    )


def test_gguf_gemma3(tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 16, "attention.key_length": 16, "rope.freq_base": 1e6}
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = read(small_model(tmp_path / "m.gguf", "gemma3", **keys, **scaling))
    assert config.architecture == "Gemma3ForCausalLM"
    assert config.head_dim == 16
    assert config.layer_windows == (16, 16, 16, 16, 16, None, 16)
    assert config.rope == RopeConfig(1e6, "linear", factor=8.0)
    assert config.rope_local == RopeConfig(1e4)
    assert (config.activation, config.attention_scale) == ("gelu_tanh", 0.0)


def test_gguf_qwen2_has_biases_and_qwen3_none(tmp_path: Path) -> None:
    assert read(small_model(tmp_path / "q2.gguf", "qwen2")).attention_bias
    assert not read(small_model(tmp_path / "q3.gguf", "qwen3")).attention_bias


def test_gguf_tensors_say_what_the_model_has(tmp_path: Path) -> None:
    row, names = (
        np.zeros(32, np.float32),
        ("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"),
    )
    tensors = {
        "token_embd.weight": np.zeros((6, 32), np.float32),
        "output.weight": np.zeros((6, 32), np.float32),
    }
    tensors |= dict.fromkeys(names, row) | {"rope_freqs.weight": np.array([1, 1, 2.5, 8], np.float32)}
    config = read(write_gguf(tmp_path / "m.gguf", "llama", dict(SHAPE), tensors))
    assert not config.tie_word_embeddings
    assert config.attention_bias
    assert config.attention_output_bias
    assert config.mlp_bias
    assert config.rope.frequency_divisors == (1.0, 1.0, 2.5, 8.0)


def test_gguf_end_of_turn_tokens_end_a_sequence(tmp_path: Path) -> None:
    tokens = ["<eos>", "<end_of_turn>", "<|im_end|>", "x", "y", "z"]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1]}
    path = small_model(tmp_path / "m.gguf", **keys, **{"tokenizer.ggml.eos_token_id": 0})
    assert read(path).eos_token_ids == (0, 1)  # <|im_end|> is not a control token here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, r"m\.gguf lacks the key llama\.block_count"),
        (
            {"attention.head_count": "four"},
            r"m\.gguf: llama\.attention\.head_count must be a positive",
        ),
        (
            {"attention.head_count_kv": 3},
            r"head_count_kv must divide attention\.head_count=4, got 3",
        ),
        ({"expert_count": 8}, r"llama\.expert_count=8 is not supported"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, r"rope\.scaling\.type='longrope'"),
        ({"rope.dimension_count": 4}, r"rope\.dimension_count=4 is not supported"),
    ],
)
def test_gguf_keys_that_are_missing_or_wrong_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read(small_model(tmp_path / "m.gguf", **changes))


def test_gguf_of_an_unknown_architecture(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'bert' is not supported; Fathom knows llama, qwen2"):
        from_gguf(GGUFFile(small_model(tmp_path / "m.gguf", "bert")))


def test_gguf_without_an_embedding(tmp_path: Path) -> None:
    packed = (np.zeros((8, 34), np.uint8), GGMLType.Q8_0)
    path = write_gguf(tmp_path / "m.gguf", "llama", dict(SHAPE), {"blk.0.ffn_up.weight": packed})
    with pytest.raises(CheckpointError, match=r"m\.gguf lacks the tensor token_embd\.weight"):
        read(path)
