"""Command-line flags of the engine, generated from config.py: one flag per option, its help line and default.

vLLM's flags without a counterpart are there too, unlisted: compat/options.py judges them, and says what to do instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args, get_origin

from fathom.compat.options import check_vllm_options, in_our_words, read_size, vllm_only_options
from fathom.config import EngineConfig, iter_options

_SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"}
_NOT_SET = argparse.SUPPRESS  # so that only flags that were given reach the config


def add_engine_flags(parser: argparse.ArgumentParser, prefix: str = "engine.") -> None:
    """Add a --kebab-case flag for every option of the config.

    Args:
        prefix: of the names in the namespace, which keeps them apart from those of a command.
    """
    add_flags(parser, "engine", iter_options(), _SHORT, prefix)
    add_unlisted_flags(parser, prefix, vllm_only_options())


def add_unlisted_flags(
    parser: argparse.ArgumentParser, prefix: str, options: Iterable[tuple[str, tuple[Any, ...]]]
) -> None:
    """Add flags of vLLM's without a counterpart: (name, values that change nothing)."""
    for name, neutral in options:
        how = _how(bool) if isinstance(neutral[0], bool) else {"type": _json_or_text}
        with contextlib.suppress(argparse.ArgumentError):  # the command has this one itself
            parser.add_argument(
                f"--{name.replace('_', '-')}", dest=f"{prefix}{name}", default=_NOT_SET, help=argparse.SUPPRESS, **how
            )


def add_flags(
    parser: argparse.ArgumentParser,
    section: str,
    options: Iterable[tuple[str, Any, Any, str]],
    aliases: Mapping[str, str] | None = None,
    prefix: str | None = None,
) -> None:
    """Add a --kebab-case flag for each of a section's options: (name, type, default, help).

    Args:
        aliases: name -> a second flag, dashes included.
        prefix: of the names in the namespace; default: the section and a dot.
    """
    group = parser.add_argument_group(f"{section} options")
    for name, kind, default, help_line in options:
        text = help_line if default in (None, ()) else f"{help_line} (default: {default})"
        group.add_argument(
            *(flag for flag in (f"--{name.replace('_', '-')}", (aliases or {}).get(name)) if flag is not None),
            dest=f"{section}.{name}" if prefix is None else f"{prefix}{name}",
            default=_NOT_SET,
            help=text.replace("%", "%%"),
            **_how(kind, name),
        )


def config_from_flags(options: argparse.Namespace) -> EngineConfig:
    """The EngineConfig that the given flags describe.

    Raises:
        ConfigError: a value is wrong, or asks for what vLLM does and Fathom does not.
    """
    return EngineConfig.from_options(**check_vllm_options(given_flags(options, "engine")))


def given_flags(options: argparse.Namespace, section: str) -> dict[str, Any]:
    """The options of a section that were given, by name."""
    prefix = f"{section}."
    return {name[len(prefix) :]: value for name, value in vars(options).items() if name.startswith(prefix)}


def _how(kind: Any, name: str = "") -> dict[str, Any]:
    """argparse's keywords for a type."""
    alternatives = [item for item in get_args(kind) if item is not type(None)] or [kind]
    choices = kind if get_origin(kind) is Literal else alternatives[0]
    if get_origin(choices) is Literal:
        return {"choices": get_args(choices), "type": partial(in_our_words, name)}
    if get_origin(kind) is tuple:
        # one a flag, or all as vLLM's JSON list: words apart would swallow what follows them
        return {"action": "extend", "type": _names, "metavar": "NAME"}
    first = alternatives[0]
    if get_origin(first) is tuple:  # of numbers, which what follows is not
        return {"type": get_args(first)[0], "nargs": "+", "metavar": "N"}
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    if name in ("max_model_len", "kv_cache_memory_bytes", "max_num_batched_tokens"):
        return {"type": _size, "metavar": "INT"}
    return {"type": first, "metavar": first.__name__.upper()}


def _names(text: str) -> list[str]:
    """A name, or vLLM's JSON list of names."""
    if not text.startswith("["):
        return [text]
    names = _json_or_text(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise argparse.ArgumentTypeError(f"neither a name nor a JSON list of names: {text!r}")
    return names


def _size(text: str) -> int | str:
    """A number, in letters too ("8k"); "auto" and what is negative are left to the options' own check."""
    if text == "auto" or text.removeprefix("-").isdecimal():
        return text if text == "auto" else int(text)
    size = read_size(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r} (write 8192, 8k or 8K)")
    return size


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
