"""Options of vLLM's LLM that Fathom does not have: accepted at the value that changes nothing, else refused by name."""

from __future__ import annotations

from typing import Any

from fathom.errors import ConfigError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "data_parallel_size": (1,),
    "cpu_offload_gb": (0,),
    "swap_space": (0, 4),
    "skip_tokenizer_init": (False,),
    "tokenizer_mode": ("auto", "hf"),
    "tokenizer_revision": (None,),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "enable_lora": (False,),
    "speculative_config": (None,),
    "structured_outputs_config": (None,),
    "compilation_config": (None,),
    "hf_overrides": (None, {}),
    "hf_token": (None,),
    "mm_processor_kwargs": (None, {}),
    "limit_mm_per_prompt": (None, {}),
    "allowed_local_media_path": ("",),
    "served_model_name": (None,),
    "trust_remote_code": (False, True),  # code that comes with a checkpoint is never run
    "disable_custom_all_reduce": (False, True),
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
}

_KV_CACHE_TYPES_OF_VLLM = ("fp8_", "nvfp4", "int4", "turboquant", "ultraquant")
_OUR_FP8 = ("fp8_e4m3", "fp8_e5m2")


def check_vllm_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that Fathom can leave out, and with vLLM's other words for a value put into ours.

    Raises:
        ConfigError: one asks for something that Fathom does not do.
    """
    ours = {}
    for name, value in _with_graph_options(options).items():
        if name not in _NEUTRAL:
            ours[name] = _in_our_words(name, value)
        elif value not in _NEUTRAL[name]:
            neutral = " or ".join(repr(item) for item in _NEUTRAL[name])
            raise ConfigError(
                f"{name}={value!r} is not supported.",
                parameter=name,
                value=value,
                hint=f"Leave it out, or at {neutral}.",
            )
    return ours


def _with_graph_options(options: dict[str, Any]) -> dict[str, Any]:
    """With a compilation_config that is about CUDA graphs only taken apart."""
    entries = options.get("compilation_config")
    if not isinstance(entries, dict) or not entries or not entries.keys() <= _OF_COMPILATION_CONFIG:
        return options
    return {name: value for name, value in options.items() if name != "compilation_config"} | entries


def _in_our_words(name: str, value: Any) -> Any:
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
    return _OTHER_WORDS.get((name, value), value) if isinstance(value, str) else value


def _is_foreign_cache_type(value: Any) -> bool:
    """Whether vLLM has this type of KV cache and Fathom does not."""
    return isinstance(value, str) and value not in _OUR_FP8 and value.startswith(_KV_CACHE_TYPES_OF_VLLM)
