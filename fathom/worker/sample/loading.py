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

from fathom.errors import ConfigError
from fathom.logits_processors import ProcessorName, processors_of_engine
from fathom.worker.sample.interface import LogitsProcessor


def load_logits_processors(options: Sequence[str]) -> dict[type[LogitsProcessor], frozenset[str]]:
    """The classes that are installed as entry points, then the named ones in their order, none twice.

    Returns:
        Each class with all that requests may call it.

    Raises:
        ConfigError: a name leads nowhere, or to something that is no LogitsProcessor class.
    """
    classes: dict[type[LogitsProcessor], frozenset[str]] = {}
    for name in processors_of_engine(options):
        kind = _resolve(name)
        classes[kind] = classes.get(kind, frozenset()) | name.known_as
    return classes


def _resolve(name: ProcessorName) -> type[LogitsProcessor]:
    if not name.where or not name.class_name:
        raise _failure(name, 'is no "module:Class"')
    try:
        namespace = _run_script(name.where) if name.is_file else vars(importlib.import_module(name.where))
    except Exception as error:
        raise _failure(name, f"could not be imported ({type(error).__name__}: {error})") from error
    outermost, *nested = name.class_name.split(".")
    if outermost not in namespace:
        raise _failure(name, f"does not exist: {name.where} has no {outermost}")
    found = functools.reduce(lambda outer, inner: getattr(outer, inner, None), nested, namespace[outermost])
    if not isinstance(found, type) or not issubclass(found, LogitsProcessor):
        raise _failure(name, "is no subclass of fathom.worker.sample.interface.LogitsProcessor")
    return found


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


def _failure(name: ProcessorName, what: str) -> ConfigError:
    return ConfigError(
        f"The logits processor {name.full!r} {what}.",
        parameter="logits_processors",
        value=name.full,
        hint='Name it as "module:Class", with the module importable from where Fathom runs.',
    )
