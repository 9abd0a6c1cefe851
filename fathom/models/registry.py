"""Architecture name (as in config.json) -> the class that implements it, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from fathom.errors import UnsupportedModelError

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.model_config import ModelConfig
    from fathom.models.decoder import CausalLM

ARCHITECTURES = {
    "LlamaForCausalLM": "fathom.models.llama:LlamaForCausalLM",
    "MistralForCausalLM": "fathom.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "fathom.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "fathom.models.qwen3:Qwen3ForCausalLM",
    "Gemma3ForCausalLM": "fathom.models.gemma3:Gemma3ForCausalLM",
}


def model_class(architecture: str) -> Callable[[ModelConfig, BuildContext], CausalLM]:
    """The class that implements an architecture.

    Raises:
        UnsupportedModelError: nothing implements it; the message lists what exists.
    """
    target = ARCHITECTURES.get(architecture)
    if target is None:
        raise UnsupportedModelError(
            f"The architecture {architecture!r} is not supported.",
            parameter="model",
            value=architecture,
            hint=f"Supported: {', '.join(sorted(ARCHITECTURES))}.",
        )
    module, name = target.split(":")
    return getattr(import_module(module), name)
