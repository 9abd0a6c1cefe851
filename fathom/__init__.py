"""Fathom: an LLM inference and serving engine.

    from fathom import LLM, SamplingParams

Public names are imported when they are first used, so that `import fathom` costs nothing and brings no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "LLM": "fathom.entrypoints.llm",
    "LLMEngine": "fathom.frontend.engine",
    "AsyncLLM": "fathom.frontend.async_engine",
    "EngineConfig": "fathom.config",
    "EngineArgs": "fathom.compat.engine_args",
    "AsyncEngineArgs": "fathom.compat.engine_args",
    "SamplingParams": "fathom.sampling_params",
    "RequestOutputKind": "fathom.sampling_params",
    "BeamSearchParams": "fathom.entrypoints.beam_search",
    "TextPrompt": "fathom.inputs",
    "TokensPrompt": "fathom.inputs",
    "Prompt": "fathom.inputs",
    "RequestOutput": "fathom.outputs",
    "CompletionOutput": "fathom.outputs",
    "Logprob": "fathom.outputs",
    "LogitsProcessor": "fathom.worker.sample.interface",
    "AdapterLogitsProcessor": "fathom.worker.sample.interface",
    "BatchUpdate": "fathom.worker.sample.interface",
    "MoveDirectionality": "fathom.worker.sample.interface",
}
_OTHER_NAMES = {"AsyncLLMEngine": "AsyncLLM", "PromptType": "Prompt"}
"""vLLM's names."""

__all__ = [
    "__version__",
    *_HOMES,
    *_OTHER_NAMES,
]

if TYPE_CHECKING:
    from fathom.compat.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from fathom.compat.engine_args import EngineArgs as EngineArgs
    from fathom.config import EngineConfig as EngineConfig
    from fathom.entrypoints.beam_search import BeamSearchParams as BeamSearchParams
    from fathom.entrypoints.llm import LLM as LLM
    from fathom.frontend.async_engine import AsyncLLM as AsyncLLM
    from fathom.frontend.async_engine import AsyncLLM as AsyncLLMEngine  # noqa: F401
    from fathom.frontend.engine import LLMEngine as LLMEngine
    from fathom.inputs import Prompt as Prompt
    from fathom.inputs import Prompt as PromptType  # noqa: F401
    from fathom.inputs import TextPrompt as TextPrompt
    from fathom.inputs import TokensPrompt as TokensPrompt
    from fathom.outputs import CompletionOutput as CompletionOutput
    from fathom.outputs import Logprob as Logprob
    from fathom.outputs import RequestOutput as RequestOutput
    from fathom.sampling_params import RequestOutputKind as RequestOutputKind
    from fathom.sampling_params import SamplingParams as SamplingParams


def __getattr__(name: str) -> Any:
    own_name = _OTHER_NAMES.get(name, name)
    home = _HOMES.get(own_name)
    if home is None:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), own_name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
