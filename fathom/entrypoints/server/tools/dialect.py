"""How a family of models writes tool calls: the forms that a call may have, looked for within the content.

Three rules hold for every form:

- A call names a tool that the request declares. What names another, or breaks off before its name and the
  beginning of its arguments are sure, is content, markup and all: nothing is lost, and nothing is called that
  nobody offered.
- Once a call has begun it cannot be taken back, for it may have been streamed. If its arguments then turn out
  malformed they go on as the model wrote them, to the end of the markup; OpenAI's clients check arguments too.
- Markup that models leave out (an end, the outer tag) is not missed; nor is a brace too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import Markers, TextReader, Wait

Tools = Mapping[str, Mapping[str, Any]]
"""Name of a declared tool -> the JSON schemas of its arguments by name, in order."""


class CallForm(Protocol):
    """One way to write calls."""

    @property
    def openings(self) -> tuple[str, ...]:
        """The strings with which calls of this form begin."""
        ...

    @property
    def markup(self) -> tuple[str, ...]:
        """All strings of the form that may be special tokens."""
        ...

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """Read calls from a marked cursor at an opening; False, with nothing passed to `out`, if there is none.

        Where the first call is sure, the reader's mark is released and the call opened.
        """
        ...


class Dialect:
    """The forms of a family, tried in order where an opening is found."""

    def __init__(self, *forms: CallForm):
        self._forms = forms
        self._openings = Markers(opening for form in forms for opening in form.openings)
        self.markup = frozenset(word for form in forms for word in form.markup)

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[None]:
        """Read a text to its end: calls to `out` as calls, and everything else as content."""
        while opening := (yield from reader.copy_until(self._openings, out.add_content)):
            if not (yield from self._read_calls(opening, reader, out, tools)):
                reader.advance(len(opening))
                out.add_content(opening)

    def _read_calls(self, opening: str, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        for form in self._forms:
            if opening in form.openings:
                reader.mark()
                if (yield from form.read(reader, out, tools)):
                    return True
                reader.rewind()
        return False


def declared(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The Tools of a request: {"type": "function", "function": {...}}, or the function alone."""
    return dict(map(_named_properties, map(_function, tools)))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _named_properties(function: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return function["name"], properties if isinstance(properties, Mapping) else {}


def open_call(reader: TextReader, out: Collector, name: str) -> None:
    """Begin a call: from here there is no way back."""
    reader.release()
    out.open_call(name)
