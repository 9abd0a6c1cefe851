"""Methods of vLLM's LLM that Fathom's has not, and what to do instead."""

from __future__ import annotations

_POOLING = "Fathom has no pooling models yet; generate and chat are what it does"
_SLEEP = "there is no sleep mode; shutdown() frees everything, and a new LLM takes seconds to start"
_WEIGHTS = "weights cannot be replaced while the engine runs; make a new LLM"
_NO_IMAGES = "models take text only, so there is no cache of anything else"

WAYS_OUT = {
    "encode": _POOLING,
    "embed": _POOLING,
    "classify": _POOLING,
    "score": _POOLING,
    "reward": _POOLING,
    "sleep": _SLEEP,
    "wake_up": _SLEEP,
    "release_kv_cache_memory": _SLEEP,
    "reset_mm_cache": _NO_IMAGES,
    "apply_model": "functions do not cross the process boundary; collective_rpc calls a worker's own methods by name",
    "preprocess": "generate, chat and enqueue prepare prompts themselves",
    "set_tokenizer": "name another tokenizer with LLM(tokenizer=...)",
    "init_weight_transfer_engine": _WEIGHTS,
    "update_weights": _WEIGHTS,
    "start_weight_update": _WEIGHTS,
    "finish_weight_update": _WEIGHTS,
}


def absent_method(owner: str, name: str) -> AttributeError:
    """The error for a method that is not there, so that hasattr says so too."""
    if name in WAYS_OUT:
        return AttributeError(f"{owner}.{name} is not supported: {WAYS_OUT[name]}.")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")
