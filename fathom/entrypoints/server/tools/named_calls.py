"""Calls as a name and then the JSON of the arguments: DeepSeek's tokens, Mistral's [TOOL_CALLS]f[ARGS]{...}.

What stands between the name and the arguments (a separator, a call id, a fence) is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import Markers, TextReader, Wait
from fathom.entrypoints.server.tools.dialect import Tools, open_call
from fathom.entrypoints.server.tools.json_calls import copy_malformed
from fathom.entrypoints.server.tools.json_text import copy_json

_LONGEST_SEPARATION = 80
_NAME_GOES_ON = re.compile(r"[\w-]")


@dataclass(frozen=True)
class NamedCalls:
    """One call.

    begin: before a name; prefixes: what may stand between that and the name; separators: markup between name and
    arguments; end: after the arguments; section: before the first call and after the last.
    """

    begin: str
    separators: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    end: str = ""
    section: tuple[str, str] = ("", "")

    @property
    def openings(self) -> tuple[str, ...]:
        """See CallForm."""
        return tuple(filter(None, (self.section[0], self.begin)))

    @property
    def markup(self) -> tuple[str, ...]:
        """See CallForm."""
        return tuple(filter(None, (*self.openings, *self.separators, self.end, self.section[1])))

    @cached_property
    def ends(self) -> Markers:
        """Where malformed arguments end at the latest."""
        return Markers(filter(None, (*self.openings, self.end, self.section[1])))

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        if self.section[0] and (yield from reader.accept(self.section[0])):
            yield from reader.skip_space()
        if not (yield from reader.accept(self.begin)):
            return False
        yield from reader.skip_space()
        yield from reader.accept_any(self.prefixes)
        name = yield from reader.accept_any(tools)
        if not name or not (yield from _reach_arguments(reader)):
            return False
        open_call(reader, out, name)
        if not (yield from copy_json(reader, out.add_arguments)):
            yield from copy_malformed(reader, out.add_arguments, self.ends, wrapped=False)
        yield from self._close(reader)
        return True

    def _close(self, reader: TextReader) -> Wait[None]:
        for word in ("```", self.end, self.section[1]):
            if word:
                yield from reader.accept_after_space(word)


def _reach_arguments(reader: TextReader) -> Wait[bool]:
    """Go from the end of a name to its arguments' brace."""
    if _NAME_GOES_ON.match((yield from reader.peek())):
        return False
    for _ in range(_LONGEST_SEPARATION):
        char = yield from reader.peek()
        if char in ("", "{"):
            return bool(char)
        reader.advance()
    return False
