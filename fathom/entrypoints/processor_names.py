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
        ConfigError: a class that no name leads to (defined in a function or typed at a prompt).
    """
    return tuple(item if isinstance(item, str) else _name(item, own_process) for item in processors)


def _name(kind: type, own_process: bool) -> str:
    if "<locals>" in kind.__qualname__:
        raise _unreachable(kind, "it is defined inside a function")
    if kind.__module__ != "__main__" or not own_process:
        return f"{kind.__module__}:{kind.__qualname__}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise _unreachable(kind, "it was defined at a prompt")
    return f"file:{script}:{kind.__qualname__}"


def _unreachable(kind: type, why: str) -> ConfigError:
    return ConfigError(
        f"the engine's process cannot import {kind.__qualname__}: {why}.",
        parameter="logits_processors",
        value=kind.__qualname__,
        hint="Move it to the top level of a module, or run the engine in this process with multiprocess=False.",
    )
