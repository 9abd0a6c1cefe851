"""Tiny models with random weights, built by transformers and saved as it saves real ones.

Each stands for one thing that an architecture can do. `make_tiny(name, folder)` writes config.json,
model.safetensors and a byte-level BPE tokenizer with <s> and </s>; the folder is what a user would name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

VOCAB_SIZE = 512
BOS, EOS = 0, 1

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def _llama(**changes: Any) -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(**{**_SHAPE, **changes})


def _gemma3(**changes: Any) -> transformers.PreTrainedConfig:
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    defaults = {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "layer_types": layer_types,
        "tie_word_embeddings": True,
    }
    return transformers.Gemma3TextConfig(**{**_SHAPE, **defaults, **changes})


_CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama-gqa": _llama,
    "llama-mqa-tied": lambda: _llama(num_key_value_heads=1, tie_word_embeddings=True),
    "llama-biases": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama-head-dim": lambda: _llama(head_dim=24),
    "llama-rope-llama3": lambda: _llama(rope_parameters=_LLAMA3_ROPE),
    "llama-rope-linear": lambda: _llama(rope_parameters=_LINEAR_ROPE),
    "llama-rope-yarn": lambda: _llama(rope_parameters=_YARN_ROPE),
    "mistral-window": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(**_SHAPE),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen3-tied": lambda: transformers.Qwen3Config(**{**_SHAPE, "tie_word_embeddings": True}, head_dim=24),
    "gemma3": _gemma3,
    "gemma3-softcaps": lambda: _gemma3(
        query_pre_attn_scalar=24, final_logit_softcapping=5.0, attn_logit_softcapping=0.5
    ),
}

TINY_NAMES = tuple(_CONFIGS)


def make_tiny(name: str, folder: Path) -> Path:
    """Write the tiny model called ``name`` to ``folder`` (created if need be) and return the folder."""
    torch.manual_seed(TINY_NAMES.index(name))
    model = transformers.AutoModelForCausalLM.from_config(_CONFIGS[name](), dtype=torch.float32)
    _spread(model)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def load_oracle(folder: Path) -> transformers.PreTrainedModel:
    """The same model in transformers: float32, with its plain attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def _spread(model: transformers.PreTrainedModel) -> None:
    """Draw every weight anew, wide enough that each one shows in the logits.

    As transformers initialises them, biases are zero and norms the identity, and a loader that forgot them
    would pass.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.15)


def _write_tokenizer(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(__doc__ or "") * 4], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
