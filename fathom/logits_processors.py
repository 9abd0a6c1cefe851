"""The custom logits processors of an engine as names: which there are, and what requests may call them.

A processor is an entry point of an installed package or an option of the engine's. A request calls it by its class's
name, by its entry point's, or in full, as module:Class. Nothing is imported for that: classes belong to the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from fathom import env

ENTRY_POINT_GROUP = "fathom.logits_processors"
_FILE_PREFIX = "file:"


@dataclass(frozen=True, slots=True)
class ProcessorName:
    """One processor.

    where: module, or path of a script if is_file. class_name: within it, "Outer.Inner" for a nested class; empty if
    the name is none. short: what lists show. known_as: all that requests may call it.
    """

    full: str
    where: str
    class_name: str
    short: str
    is_file: bool = False

    @property
    def known_as(self) -> frozenset[str]:
        return frozenset({self.short, self.class_name, self.full, f"{self.where}:{self.class_name}"})


def processors_of_engine(options: Sequence[str]) -> Iterator[ProcessorName]:
    """Those that are installed as entry points, as far as FATHOM_PLUGINS allows, then the named ones in their order.

    Args:
        options: module:Class, module.Class, or file:/path/x.py:Class for a class of the user's main script.
    """
    allowed = env.plugins()
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if allowed is None or entry.name in allowed:
            yield ProcessorName(entry.value, entry.module, entry.attr, entry.name)
    for option in options:
        is_file = option.startswith(_FILE_PREFIX)
        where, _, class_name = option.removeprefix(_FILE_PREFIX).rpartition(":" if ":" in option else ".")
        yield ProcessorName(option, where, class_name, class_name, is_file)
