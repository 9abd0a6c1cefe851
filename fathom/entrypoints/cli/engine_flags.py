"""Command-line flags of the engine, generated from config.py: one flag per option, its help line and default."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from fathom.config import EngineConfig, iter_options

_SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"}
_NOT_SET = argparse.SUPPRESS  # so that only flags that were given reach the config


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add a --kebab-case flag for every option of the config."""
    add_flags(parser, "engine", iter_options(), _SHORT)


def add_flags(
    parser: argparse.ArgumentParser,
    section: str,
    options: Iterable[tuple[str, Any, Any, str]],
    aliases: Mapping[str, str] | None = None,
) -> None:
    """Add a --kebab-case flag for each of a section's options: (name, type, default, help).

    Args:
        aliases: name -> a second flag, dashes included.
    """
    group = parser.add_argument_group(f"{section} options")
    for name, kind, default, help_line in options:
        text = help_line if default in (None, ()) else f"{help_line} (default: {default})"
        group.add_argument(
            *(flag for flag in (f"--{name.replace('_', '-')}", (aliases or {}).get(name)) if flag is not None),
            dest=f"{section}.{name}",
            default=_NOT_SET,
            help=text.replace("%", "%%"),
            **_how(kind),
        )


def config_from_flags(options: argparse.Namespace) -> EngineConfig:
    """The EngineConfig that the given flags describe."""
    return EngineConfig.from_options(**given_flags(options, "engine"))


def given_flags(options: argparse.Namespace, section: str) -> dict[str, Any]:
    """The options of a section that were given, by name."""
    prefix = f"{section}."
    return {name[len(prefix) :]: value for name, value in vars(options).items() if name.startswith(prefix)}


def _how(kind: Any) -> dict[str, Any]:
    """argparse's keywords for a type."""
    alternatives = [item for item in get_args(kind) if item is not type(None)] or [kind]
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"action": "append", "metavar": "NAME"}  # one a flag: a list would swallow what follows it
    first = alternatives[0]
    if get_origin(first) is Literal:
        return {"choices": get_args(first)}
    if get_origin(first) is tuple:  # of numbers, which what follows is not
        return {"type": get_args(first)[0], "nargs": "+", "metavar": "N"}
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": first, "metavar": first.__name__.upper()}
