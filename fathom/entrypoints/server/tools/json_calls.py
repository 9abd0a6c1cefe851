"""Calls as JSON objects: {"name": "f", "arguments": {...}}, within markup, in a list, or bare.

Hermes and Qwen, Llama 3, Mistral's list, Granite and others differ in the markup alone. The arguments are
passed on as they come. The keys may stand in any order; arguments that come first wait for the name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import SPACE, Emit, Markers, TextReader, Wait, drop
from fathom.entrypoints.server.tools.dialect import Tools, open_call
from fathom.entrypoints.server.tools.json_text import copy_json, is_json, read_string

_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_BARE_KEYS = ("type", "id")
_BETWEEN_CALLS = re.compile(r"[ \t\r\n,;]+")
_STRAY = re.compile(r"[ \t\r\n}\]]+")


@dataclass(frozen=True)
class JsonCalls:
    """One call or several behind an opening, maybe in a list, up to the closing.

    An opening of "{" or "[" is part of the JSON. So bare a call must have arguments, and no keys of its own,
    lest ordinary JSON be taken for one, or held back.
    """

    openings: tuple[str, ...]
    closing: str = ""

    @property
    def markup(self) -> tuple[str, ...]:
        """See CallForm."""
        return () if self.bare else (*self.openings, self.closing) if self.closing else self.openings

    @cached_property
    def bare(self) -> bool:
        """Whether there is no markup."""
        return self.openings[0] in "{["

    @cached_property
    def ends(self) -> Markers:
        """Where malformed arguments end at the latest."""
        return Markers(self.markup)

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        if not self.bare:
            yield from reader.accept_any(self.openings)
        yield from reader.skip_space()
        in_list = yield from reader.accept("[")
        yield from reader.skip_space()
        if not (yield from _JsonCall(self, reader, out, tools).read()):
            return False
        while (yield from self._read_another(reader, out, tools)):
            pass
        yield from self._close(reader, in_list)
        return True

    def _read_another(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        reader.mark()
        yield from reader.copy_run(_BETWEEN_CALLS, drop)
        if (yield from _JsonCall(self, reader, out, tools).read()):
            return True
        reader.rewind()
        return False

    def _close(self, reader: TextReader, in_list: bool) -> Wait[None]:
        reader.mark()
        yield from reader.copy_run(_STRAY, drop)
        if self.closing and (yield from reader.accept(self.closing)):
            reader.release()
            return
        reader.rewind()
        if in_list:
            yield from reader.skip_space()
            yield from reader.accept("]")


class _JsonCall:
    """One call on its way."""

    def __init__(self, form: JsonCalls, reader: TextReader, out: Collector, tools: Tools):
        self._form = form
        self._reader = reader
        self._out = out
        self._tools = tools
        self._name: str | None = None
        self._arguments: str | None = None  # what came before the name
        self._opened = False

    def read(self) -> Wait[bool]:
        """Read an object; whether it is a call, complete or not."""
        reader = self._reader
        if not (yield from reader.accept("{")):
            return False
        more = True
        while more:
            yield from reader.skip_space()
            if not (yield from self._read_entry()):
                return self._opened
            yield from reader.skip_space()
            more = yield from reader.accept(",")
        if (yield from reader.accept("}")) and self._name is not None and not self._form.bare:
            self._open("{}")
        return self._opened

    def _read_entry(self) -> Wait[bool]:
        reader = self._reader
        key = yield from read_string(reader)
        yield from reader.skip_space()
        if key is None or not (yield from reader.accept(":")):
            return False
        yield from reader.skip_space()
        if key in _NAME_KEYS and not self._opened:
            return (yield from self._read_name())
        if key in _ARGUMENT_KEYS and not self._opened:
            return (yield from self._read_arguments())
        if self._form.bare and key not in _BARE_KEYS:
            return False
        return (yield from copy_json(reader, drop))

    def _read_name(self) -> Wait[bool]:
        self._name = yield from read_string(self._reader)
        if self._name not in self._tools:
            return False
        if self._arguments is not None:
            self._open(self._arguments)
        return True

    def _read_arguments(self) -> Wait[bool]:
        if (yield from self._reader.peek()) == "{" and self._name is not None:
            self._open("")
            if (yield from copy_json(self._reader, self._out.add_arguments)):
                return True
            yield from copy_malformed(self._reader, self._out.add_arguments, self._form.ends, wrapped=True)
            return False
        parts: list[str] = []
        if not (yield from copy_json(self._reader, parts.append)):
            return False
        self._arguments = _as_object("".join(parts))
        if self._arguments is not None and self._name is not None:
            self._open(self._arguments)
        return self._arguments is not None

    def _open(self, arguments: str) -> None:
        """Begin the call, the first time."""
        if self._opened or self._name is None:
            return
        self._opened = True
        open_call(self._reader, self._out, self._name)
        if arguments:
            self._out.add_arguments(arguments)


def _as_object(text: str) -> str | None:
    """A JSON value as the text of an object: null is {}, a string may hold the object. None if it is no object."""
    if text.startswith('"'):
        text = json.loads(text).strip()
        if text and not is_json(text):
            return None
    if text in ("", "null"):
        return "{}"
    return text if text.startswith("{") else None


def copy_malformed(reader: TextReader, emit: Emit, ends: Markers, *, wrapped: bool) -> Wait[None]:
    """Pass on the rest of arguments that are no JSON, up to the markup's end or the text's.

    The end's white space is left out, and so are a list's bracket and, if wrapped, the brace of the call's own
    object.
    """
    tail = ""

    def hold(text: str) -> None:
        nonlocal tail
        text = tail + text
        kept = text.rstrip(SPACE + "}]")
        tail = text[len(kept) :]
        if kept:
            emit(kept)

    yield from reader.copy_until(ends, hold)
    tail = tail.rstrip(SPACE)
    if wrapped:
        tail = tail.removesuffix("]").rstrip(SPACE).removesuffix("}")
    if tail:
        emit(tail)
