"""EngineArgs: the engine's options as vLLM's scripts gather them before an engine is made."""

from __future__ import annotations

import argparse
from dataclasses import field, make_dataclass
from typing import Any

from fathom.compat.options import check_vllm_options, vllm_only_options
from fathom.config import EngineConfig, iter_options

_OPTIONS = [(name, kind, field(default=default)) for name, kind, default, _ in iter_options()]


class EngineArgs(make_dataclass("_Options", _OPTIONS, init=False)):  # type: ignore[misc]
    """Every option of `fathom.config`, as an attribute; for LLMEngine.from_engine_args and AsyncLLM.from_engine_args.

        engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2-135m", max_model_len=512))

    A dataclass, so `LLM(**asdict(args))` works as well. Options of vLLM's are treated as `LLM` treats them.

    Raises:
        TypeError: an option that does not exist. ConfigError: one that is wrong, or asks for what Fathom does not do.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        if model is not None:
            options["model"] = model
        given = check_vllm_options(options)
        EngineConfig.from_options(**given)
        for name, _, default, _ in iter_options():
            setattr(self, name, given.get(name, default))

    def create_engine_config(self) -> EngineConfig:
        """The config that these describe, as they are now.

        Raises:
            ConfigError: an attribute was set to what it may not be.
        """
        return EngineConfig.from_options(**{name: getattr(self, name) for name, _, _, _ in iter_options()})

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each option, as the `fathom` command has them; only those that are given get a value."""
        from fathom.entrypoints.cli.engine_flags import add_engine_flags

        add_engine_flags(parser, prefix="")
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """From the flags that were given; whatever else the script's own parser has is left alone."""
        names = [name for name, _, _, _ in iter_options()] + [name for name, _ in vllm_only_options()]
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})


class AsyncEngineArgs(EngineArgs):
    """The same, under the name that goes with AsyncLLM."""
