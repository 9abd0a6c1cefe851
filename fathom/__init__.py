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
    "SamplingParams": "fathom.params",
    "RequestOutputKind": "fathom.params",
    "RequestOutput": "fathom.outputs",
    "CompletionOutput": "fathom.outputs",
    "Logprob": "fathom.outputs",
    "LogitsProcessor": "fathom.worker.sample.interface",
    "AdapterLogitsProcessor": "fathom.worker.sample.interface",
    "BatchUpdate": "fathom.worker.sample.interface",
    "MoveDirectionality": "fathom.worker.sample.interface",
}

__all__ = [
    "__version__",
    *_HOMES,
]

if TYPE_CHECKING:
    from fathom.config import EngineConfig as EngineConfig
    from fathom.entrypoints.llm import LLM as LLM
    from fathom.frontend.async_engine import AsyncLLM as AsyncLLM
    from fathom.frontend.engine import LLMEngine as LLMEngine
    from fathom.outputs import CompletionOutput as CompletionOutput
    from fathom.outputs import Logprob as Logprob
    from fathom.outputs import RequestOutput as RequestOutput
    from fathom.params import RequestOutputKind as RequestOutputKind
    from fathom.params import SamplingParams as SamplingParams


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
