"""Calls as Python writes them: [f(a=1), g(b="x")].

A call is read to its closing parenthesis, parsed with `ast` (nothing is evaluated), and passed on as JSON at
once: only then is it known to be one. Positional arguments get the names of the tool's parameters, in order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import TextReader, Wait, drop
from fathom.entrypoints.server.tools.dialect import Tools, open_call
from fathom.entrypoints.server.tools.json_text import to_json

_BETWEEN_CALLS = re.compile(r"[ \t\r\n,;]+")
_ESCAPES = "\\'\"abfnrtv01234567xNuU\n"
_JSON_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class PythonCalls:
    """Calls behind an opening, maybe in a list, up to the closing; an opening of "[" is the list's own."""

    openings: tuple[str, ...]
    closing: str = ""

    @property
    def markup(self) -> tuple[str, ...]:
        """See CallForm."""
        return tuple(filter(None, (*self.openings, self.closing))) if self.openings != ("[",) else ()

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        if self.openings != ("[",):
            yield from reader.accept_any(self.openings)
        yield from reader.skip_space()
        in_list = yield from reader.accept("[")
        if not (yield from _read_call(reader, out, tools)):
            return False
        while True:
            reader.mark()
            if not (yield from _read_call(reader, out, tools)):
                reader.rewind()
                break
        for word in filter(None, ("]" if in_list else "", self.closing)):
            yield from reader.accept_after_space(word)
        return True


def _read_call(reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
    yield from reader.copy_run(_BETWEEN_CALLS, drop)
    printed = yield from reader.accept("print(")
    name = yield from reader.accept_any(tools)
    if not name or not (yield from reader.accept("(")):
        return False
    source = yield from _read_arguments(reader)
    if source is None or (printed and not (yield from reader.accept(")"))):
        return False
    arguments = python_arguments(source, tools[name])
    if arguments is None:
        return False
    open_call(reader, out, name)
    out.add_arguments(arguments)
    return True


def _read_arguments(reader: TextReader) -> Wait[str | None]:
    """The source of the arguments up to the parenthesis that ends them; None if there is none."""
    parts: list[str] = []
    depth = 0
    while char := (yield from reader.peek()):
        reader.advance()
        if char == ")" and depth == 0:
            return "".join(parts)
        depth += (char in "([{") - (char in ")]}")
        parts.append(char)
        if char in "\"'" and not (yield from _read_string(reader, parts, char)):
            return None
    return None


def _read_string(reader: TextReader, parts: list[str], quote: str) -> Wait[bool]:
    """The source of a string behind its quote. Line breaks and backslashes out of place become escapes."""
    raw = "".join(parts[-3:-1])[-1:] in ("r", "R")
    if (yield from reader.accept(quote)):
        parts.append(quote)
        if not (yield from reader.accept(quote)):
            return True
        parts.append(quote)
        quote *= 3
    while char := (yield from reader.peek()):
        if (yield from reader.accept(quote)):
            parts.append(quote)
            return True
        reader.advance()
        parts.append("\\n" if char == "\n" and len(quote) == 1 else char)
        if char == "\\":
            escaped = yield from reader.peek()
            reader.advance(len(escaped))
            parts.append(escaped if raw or escaped in _ESCAPES else "\\" + escaped)
    return False


def python_arguments(source: str, parameters: Iterable[str]) -> str | None:
    """JSON text of a Python call's arguments; None if they are not literals.

    Args:
        source: what stands between the parentheses.
        parameters: names for positional arguments.
    """
    try:
        call = ast.parse(f"f({source})", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        names = list(parameters)
        arguments = {names[index]: _value(node) for index, node in enumerate(call.args)}
        for keyword in call.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = _value(keyword.value)
        return to_json(arguments)
    except (SyntaxError, ValueError, TypeError, IndexError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=("true" | "false" | "null") as name):
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=(int() | float()) as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError
