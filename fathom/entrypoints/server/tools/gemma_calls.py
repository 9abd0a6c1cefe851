"""Calls in the notation of FunctionGemma and Gemma 4: call:f{city:<escape>Paris<escape>,days:3}.

Strings stand between quote tokens, keys are bare, and the rest is as in JSON. A call is read to its end and
passed on as JSON at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import Markers, TextReader, Wait
from fathom.entrypoints.server.tools.dialect import Tools, open_call
from fathom.entrypoints.server.tools.json_text import to_json


@dataclass(frozen=True)
class GemmaCalls:
    """One call between `begin` and `end`, with strings between two of `quote`."""

    begin: str
    end: str
    quote: str

    @property
    def openings(self) -> tuple[str, ...]:
        """See CallForm."""
        return (self.begin,)

    @property
    def markup(self) -> tuple[str, ...]:
        """See CallForm."""
        return (self.begin, self.end, self.quote)

    @cached_property
    def _end(self) -> Markers:
        return Markers((self.end,))

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        yield from reader.accept(self.begin)
        yield from reader.skip_space()
        yield from reader.accept("call:")
        name = yield from reader.accept_any(tools)
        yield from reader.skip_space()
        if not name or (yield from reader.peek()) != "{":
            return False
        parts: list[str] = []
        yield from reader.copy_until(self._end, parts.append)
        arguments = gemma_arguments("".join(parts), self.quote)
        if arguments is None:
            return False
        open_call(reader, out, name)
        out.add_arguments(arguments)
        yield from reader.accept(self.end)
        return True


def gemma_arguments(source: str, quote: str) -> str | None:
    """JSON text of {key:value,...}; None if it is malformed."""
    try:
        notation = _Notation(source, quote)
        value = notation.value()
        return to_json(value) if isinstance(value, dict) and notation.at_end() else None
    except (ValueError, RecursionError):
        return None


class _Notation:
    def __init__(self, source: str, quote: str):
        self._source = source
        self._at = 0
        quote = re.escape(quote)
        self._string = re.compile(rf'\s*(?:{quote}(.*?){quote}|("(?:[^"\\]|\\.)*"))\s*', re.DOTALL)

    def at_end(self) -> bool:
        return not self._source[self._at :].strip()

    def value(self) -> Any:
        if (text := self._quoted()) is not None:
            return text
        if self._take("{"):
            return dict(self._items("}", self._entry))
        if self._take("["):
            return list(self._items("]", self.value))
        bare = self._bare(r"[^,\]}]+")
        try:
            return json.loads(bare)
        except ValueError:
            return bare

    def _entry(self) -> tuple[str, Any]:
        key = self._quoted()
        if key is None:
            key = self._bare(r"[^:,{}\[\]]+")
        self._need(":")
        return key, self.value()

    def _items(self, closer: str, item: Any) -> Any:
        while not self._take(closer):
            yield item()
            if not self._take(","):
                self._need(closer)
                return

    def _quoted(self) -> str | None:
        if (found := self._string.match(self._source, self._at)) is None:
            return None
        self._at = found.end()
        text, json_text = found.groups()
        return text if json_text is None else str(json.loads(json_text))

    def _bare(self, pattern: str) -> str:
        found = re.compile(pattern).match(self._source, self._at)
        if found is None:
            raise ValueError
        self._at = found.end()
        return found.group().strip()

    def _take(self, char: str) -> bool:
        found = re.compile(rf"\s*{re.escape(char)}").match(self._source, self._at)
        if found:
            self._at = found.end()
        return found is not None

    def _need(self, char: str) -> None:
        if not self._take(char):
            raise ValueError
