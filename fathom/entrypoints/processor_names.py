"""Names for logits processor classes: the engine's process gets names, never pickled code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fathom.errors import ConfigError


def processor_names(processors: Sequence[str | type], *, own_process: bool) -> tuple[str, ...]:
    """Each processor as a name that the worker can import: "module:Class", or for a script's own class its file.

    Args:
        processors: classes, or names that are passed on as they are.
        own_process: the worker is in another process, where this script is not `__main__`.

    Raises:
        ConfigError: neither class nor name, or a class that no name leads to (made in a function or at a prompt).
    """
    if isinstance(processors, str) or not isinstance(processors, Sequence):
        raise _invalid(processors, f"logits_processors must be a list, got {processors!r}.", "Put it in brackets.")
    return tuple(item if isinstance(item, str) else _name(item, own_process) for item in processors)


def _name(kind: type, own_process: bool) -> str:
    if not isinstance(kind, type):
        way_out = "Pass the class; the engine makes the instance."
        raise _invalid(kind, f"a logits processor must be a class or its name, got {kind!r}.", way_out)
    lost = f"the engine cannot import {kind.__qualname__}: it was defined"
    if "<locals>" in kind.__qualname__:
        raise _invalid(kind, f"{lost} inside a function.", "Move it to the top level of a module.")
    if kind.__module__ != "__main__" or not own_process:
        return f"{kind.__module__}:{kind.__qualname__}"
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m
        return f"{main.__spec__.name}:{kind.__qualname__}"
    script = getattr(main, "__file__", None)
    if script is None:
        way_out = "Move it to a module, or run the engine in this process with multiprocess=False."
        raise _invalid(kind, f"{lost} at a prompt.", way_out)
    return f"file:{script}:{kind.__qualname__}"


def _invalid(value: object, message: str, way_out: str) -> ConfigError:
    return ConfigError(message, parameter="logits_processors", value=value, hint=way_out)
