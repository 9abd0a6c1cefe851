"""Finding custom logits processors by name.

module:Class          also module.Class
file:/path/x.py:Class a class of the user's main script, which no module name leads to
entry points          every one in the group "fathom.logits_processors"; FATHOM_PLUGINS limits them by name
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

from fathom import env
from fathom.errors import ConfigError
from fathom.worker.sample.interface import LogitsProcessor

ENTRY_POINT_GROUP = "fathom.logits_processors"
_FILE_PREFIX = "file:"


def load_logits_processors(names: Sequence[str]) -> list[type[LogitsProcessor]]:
    """The classes that are installed as entry points, then the named ones in their order, none twice.

    Raises:
        ConfigError: a name leads nowhere, or to something that is no LogitsProcessor class.
    """
    classes = [*_installed(), *(_checked(name, _resolve(name)) for name in names)]
    return list(dict.fromkeys(classes))


def _installed() -> list[type[LogitsProcessor]]:
    allowed = env.plugins()
    classes = []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if allowed is None or entry.name in allowed:
            try:
                found = entry.load()
            except Exception as error:
                raise _failure(entry.value, f"could not be loaded ({type(error).__name__}: {error})") from error
            classes.append(_checked(entry.value, found))
    return classes


def _resolve(name: str) -> object:
    is_file = name.startswith(_FILE_PREFIX)
    where, _, class_name = name.removeprefix(_FILE_PREFIX).rpartition(":" if ":" in name else ".")
    if not where or not class_name:
        raise _failure(name, 'is no "module:Class"')
    try:
        namespace = _run_script(where) if is_file else vars(importlib.import_module(where))
    except Exception as error:
        raise _failure(name, f"could not be imported ({type(error).__name__}: {error})") from error
    outermost, *nested = class_name.split(".")
    if outermost not in namespace:
        raise _failure(name, f"does not exist: {where} has no {outermost}")
    return functools.reduce(lambda outer, inner: getattr(outer, inner, None), nested, namespace[outermost])


def _run_script(path: str) -> Mapping[str, object]:
    """The globals of a script; run under multiprocessing's name, so that a __main__ guard holds.

    A process that Python's multiprocessing has spawned has run the main script already.
    """
    for name in ("__main__", "__mp_main__"):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is not None and file is not None and os.path.realpath(file) == os.path.realpath(path):
            return vars(module)
    return runpy.run_path(path, run_name="__mp_main__")


def _checked(name: str, found: object) -> type[LogitsProcessor]:
    if not isinstance(found, type) or not issubclass(found, LogitsProcessor):
        raise _failure(name, "is no subclass of fathom.worker.sample.interface.LogitsProcessor")
    return found


def _failure(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"The logits processor {name!r} {what}.",
        parameter="logits_processors",
        value=name,
        hint='Name it as "module:Class", with the module importable from where Fathom runs.',
    )
