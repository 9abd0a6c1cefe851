"""Options of vLLM's engine that Fathom lacks, or says in other words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fathom.errors import ConfigError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "additional_config": (None, {}),
    "allowed_local_media_path": ("", None),
    "allowed_media_domains": (None,),
    "attention_config": (None, {}),
    "calculate_kv_scales": (False,),
    "code_revision": (None,),  # code that comes with a checkpoint is never run
    "compilation_config": (None, 0, {}),
    "config_format": ("auto", "hf"),
    "convert": ("auto", "none", None),
    "cpu_offload_gb": (0,),
    "data_parallel_size": (1,),
    "decode_context_parallel_size": (1,),
    "disable_cascade_attn": (False, True),
    "disable_custom_all_reduce": (False, True),
    "disable_hybrid_kv_cache_manager": (False, None),
    "disable_log_requests": (True,),
    "disable_sliding_window": (False,),
    "download_dir": (None,),
    "enable_dbo": (False,),
    "enable_eplb": (False,),
    "enable_expert_parallel": (False,),
    "enable_log_outputs": (False,),
    "enable_log_requests": (False,),
    "enable_lora": (False, None),
    "enable_mm_embeds": (False,),
    "enable_prompt_embeds": (False,),
    "enable_return_routed_experts": (False,),
    "enable_sleep_mode": (False,),
    "guided_decoding_backend": ("auto", None),
    "hf_config_path": (None,),
    "hf_overrides": (None, {}),
    "hf_token": (None, True, False),
    "ignore_patterns": (None, [], "original/**/*", ["original/**/*"]),
    "kv_cache_dtype_skip_layers": (None, []),
    "kv_events_config": (None,),
    "kv_offloading_size": (None,),
    "kv_sharing_fast_prefill": (False,),
    "kv_transfer_config": (None,),
    "language_model_only": (False, True),  # that is what Fathom has
    "limit_mm_per_prompt": (None, {}),
    "max_num_partial_prefills": (1,),
    "mm_processor_cache_gb": (None, 0, 4),
    "mm_processor_kwargs": (None, {}),
    "model_impl": ("auto", "vllm"),
    "model_loader_extra_config": (None, {}),
    "num_gpu_blocks_override": (None,),
    "optimization_level": (None, 0),
    "override_generation_config": (None, {}),
    "override_pooler_config": (None,),
    "performance_mode": (None, "balanced"),
    "pooler_config": (None,),
    "prefill_context_parallel_size": (1,),
    "prefix_caching_hash_algo": ("sha256",),
    "profiler_config": (None, {}),
    "quantization_config": (None, {}),
    "renderer_num_workers": (1,),
    "rope_scaling": (None, {}),
    "rope_theta": (None,),
    "runner": ("auto", "generate"),
    "scheduler_cls": (None,),
    "scheduler_reserve_full_isl": (True,),
    "served_model_name": (None,),
    "skip_tokenizer_init": (False,),
    "speculative_config": (None,),
    "stream_interval": (1,),
    "structured_outputs_config": (None, {}),
    "swap_space": (0, 4),
    "task": ("auto", "generate"),
    "tokenizer_mode": ("auto", "hf", "slow"),
    "tokenizer_revision": (None,),
    "trust_remote_code": (False, True),  # as code_revision
    "use_tqdm_on_load": (True,),
    "watermark": (0, 0.0),
    "worker_cls": ("auto",),
    "worker_extension_cls": ("", None),
}
"""Options without a counterpart, each with the values that change nothing."""

_WAYS_OUT = {
    "data_parallel_size": "Start several engines, each with its own cores (cpu_cores).",
    "download_dir": "Set FATHOM_CACHE, or HF_HOME for Hugging Face repositories.",
    "enable_log_requests": "It is a flag of the server: fathom serve --log-requests.",
    "enable_sleep_mode": "Shut the engine down instead, and start a new one: that takes seconds.",
    "guided_decoding_backend": "Fathom has no structured output yet.",
    "hf_token": "Set HF_TOKEN in the environment.",
    "num_gpu_blocks_override": "Say the size of the KV cache with kv_cache_memory_bytes.",
    "override_generation_config": "Set these in SamplingParams; generation_config='none' ignores the model's file.",
    "profiler_config": "Call llm.start_profile(folder) and llm.stop_profile().",
    "served_model_name": "It is a flag of the server: fathom serve --served-model-name.",
    "skip_tokenizer_init": "Pass token ids as prompts, and SamplingParams(detokenize=False).",
    "structured_outputs_config": "Fathom has no structured output yet.",
    "tokenizer_revision": "Name a folder as tokenizer, or the revision of both with revision.",
    "use_tqdm_on_load": "Use show_progress=False.",
}

_OF_COMPILATION_CONFIG = {"cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"}
"""Entries of vLLM's compilation_config that are options of ours."""

_OTHER_WORDS = {
    ("dtype", "half"): "float16",
    ("dtype", "float"): "float32",
    ("generation_config", "vllm"): "none",
    ("kv_cache_dtype", "half"): "float16",
    ("kv_cache_dtype", "fp16"): "float16",
    ("kv_cache_dtype", "bf16"): "bfloat16",
    ("kv_cache_dtype", "fp32"): "float32",
    ("kv_cache_dtype", "float"): "float32",
    ("kv_cache_dtype", "int8_per_token_head"): "int8",
    ("load_format", "hf"): "auto",
    ("load_format", "safetensors"): "auto",
    ("load_format", "gguf"): "auto",
    ("max_model_len", "auto"): None,
    ("max_model_len", "-1"): None,
    ("quantization", "gguf"): None,
}
_AS_BY_DEFAULT = ("block_size", "enable_chunked_prefill", "enable_prefix_caching")
"""None, which leaves them to vLLM, is the default here."""

_KV_CACHE_TYPES_OF_VLLM = ("fp8_", "nvfp4", "int4", "turboquant", "ultraquant")
_OUR_FP8 = ("fp8_e4m3", "fp8_e5m2")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG])")
_POWERS = {"k": 1, "m": 2, "g": 3}


def check_vllm_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that Fathom can leave out, and with vLLM's other words for a value put into ours.

    Raises:
        ConfigError: one asks for something that Fathom does not do.
    """
    ours = {}
    for name, value in _with_graph_options(options).items():
        if name not in _NEUTRAL:
            if not (value is None and name in _AS_BY_DEFAULT):
                ours[name] = in_our_words(name, value)
        else:
            require_neutral(name, value, _NEUTRAL[name], _WAYS_OUT.get(name))
    return ours


def require_neutral(name: str, value: Any, neutral: tuple[Any, ...], way_out: str | None) -> None:
    """Let an option of vLLM's pass that changes nothing.

    Raises:
        ConfigError: it has another value than the neutral ones.
    """
    if value not in neutral:
        raise ConfigError(
            f"{name}={value!r} is not supported.",
            parameter=name,
            value=value,
            hint=way_out or f"Leave it out, or at {' or '.join(repr(item) for item in neutral)}.",
        )


def vllm_only_options() -> Iterable[tuple[str, tuple[Any, ...]]]:
    """Options of vLLM's without a counterpart, each with the values that change nothing."""
    return _NEUTRAL.items()


def in_our_words(name: str, value: Any) -> Any:
    """A value of one of our options, if vLLM has another word for it.

    Raises:
        ConfigError: a type of KV cache that vLLM has and Fathom has not.
    """
    if name == "kv_cache_dtype" and _is_foreign_cache_type(value):
        raise ConfigError(
            f"{name}={value!r} is not supported.",
            parameter=name,
            value=value,
            hint="Use 'int8', or on CUDA 'fp8', or leave it at 'auto'.",
        )
    if name == "cudagraph_mode" and isinstance(value, str):
        return value.upper()
    if name == "attention_backend" and value != "auto":
        return "auto" if value is None else str(value).upper()
    if name in ("dtype", "kv_cache_dtype"):
        value = str(value).removeprefix("torch.")
    if name in ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes"):
        value = _without_letters(value)
    if name == "max_model_len" and value == -1:
        return None
    return _OTHER_WORDS.get((name, value), value) if isinstance(value, str) else value


def read_size(text: str) -> int | None:
    """A number as vLLM's flags write it: 1k is 1,000, 1K is 1,024, 1.5G is 1.5 x 1,024 cubed; None if it is not one."""
    if text.isdecimal():
        return int(text)
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number, letter = found.groups()
    base = 1000 if letter.islower() else 1024
    return int(float(number) * base ** _POWERS[letter.lower()])


def _with_graph_options(options: dict[str, Any]) -> dict[str, Any]:
    """With a compilation_config that is about CUDA graphs only taken apart."""
    entries = options.get("compilation_config")
    if not isinstance(entries, dict) or not entries or not entries.keys() <= _OF_COMPILATION_CONFIG:
        return options
    return {name: value for name, value in options.items() if name != "compilation_config"} | entries


def _without_letters(value: Any) -> Any:
    size = read_size(value) if isinstance(value, str) else None
    return value if size is None else size


def _is_foreign_cache_type(value: Any) -> bool:
    """Whether vLLM has this type of KV cache and Fathom does not."""
    return isinstance(value, str) and value not in _OUR_FP8 and value.startswith(_KV_CACHE_TYPES_OF_VLLM)
