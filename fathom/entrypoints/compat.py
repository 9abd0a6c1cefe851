"""Options of vLLM's LLM that Fathom does not have: accepted at the value that changes nothing, else refused by name."""

from __future__ import annotations

import logging
from typing import Any

from fathom.errors import ConfigError

logger = logging.getLogger(__name__)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "quantization": (None,),
    "kv_cache_dtype": ("auto",),
    "cpu_offload_gb": (0,),
    "swap_space": (0,),
    "skip_tokenizer_init": (False,),
    "tokenizer_mode": ("auto", "hf"),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "enable_lora": (False,),
    "speculative_config": (None,),
    "compilation_config": (None,),
    "hf_overrides": (None,),
    "trust_remote_code": (False, True),  # code that comes with a checkpoint is never run
    "enforce_eager": (False, True),  # no graphs are captured yet, so every step is eager
}


def check_vllm_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that Fathom can leave out.

    Raises:
        ConfigError: one asks for something that Fathom does not do.
    """
    ours = {}
    for name, value in options.items():
        if name not in _NEUTRAL:
            ours[name] = value
        elif value not in _NEUTRAL[name]:
            neutral = " or ".join(repr(item) for item in _NEUTRAL[name])
            raise ConfigError(
                f"{name}={value!r} is not supported.",
                parameter=name,
                value=value,
                hint=f"Leave it out, or at {neutral}.",
            )
    return ours
