"""JSON values within a text that arrives in pieces: checked and passed on as they come.

The grammar is JSON's (RFC 8259). Two slips that models often make inside strings are mended, because what is
meant is clear and JSON has no other reading of it: raw control characters (a line break within code) become
escapes, and a backslash that escapes nothing becomes a backslash (`\\d`), or goes away before a single quote.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fathom.entrypoints.server.text_reader import Emit, TextReader, Wait, drop

_CLOSER = {"{": "}", "[": "]"}
_SPACES = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[-+.\w]+", re.ASCII)
_SCALAR_VALUE = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_HEX = "0123456789abcdefABCDEF"


def copy_json(reader: TextReader, emit: Emit) -> Wait[bool]:
    """Pass on one JSON value, without the space before it. False where it breaks off: there the cursor is."""
    open_: list[str] = []  # brackets that are open; a list, since nesting may be deeper than the stack
    yield from reader.skip_space()
    while True:
        char = yield from reader.peek()
        if char in _CLOSER:
            _pass(reader, emit, char)
            open_.append(char)
            yield from reader.copy_run(_SPACES, emit)
            if (yield from reader.peek()) != _CLOSER[char]:
                if char == "{" and not (yield from _copy_key(reader, emit)):
                    return False
                continue
        elif not (yield from (copy_string if char == '"' else _copy_scalar)(reader, emit)):
            return False
        more = yield from _copy_ends(reader, emit, open_)
        if more is not None:
            return more
        if open_[-1] == "{" and not (yield from _copy_key(reader, emit)):
            return False


def _copy_ends(reader: TextReader, emit: Emit, open_: list[str]) -> Wait[bool | None]:
    """After a value: None at a comma, after which the next one begins; True at the end of all; False if neither."""
    while open_:
        yield from reader.copy_run(_SPACES, emit)
        char = yield from reader.peek()
        if char != "," and char != _CLOSER[open_[-1]]:
            return False
        _pass(reader, emit, char)
        if char == ",":
            yield from reader.copy_run(_SPACES, emit)
            return None
        open_.pop()
    return True


def _copy_key(reader: TextReader, emit: Emit) -> Wait[bool]:
    if not (yield from copy_string(reader, emit)):
        return False
    yield from reader.copy_run(_SPACES, emit)
    if (yield from reader.peek()) != ":":
        return False
    _pass(reader, emit, ":")
    yield from reader.copy_run(_SPACES, emit)
    return True


def _copy_scalar(reader: TextReader, emit: Emit) -> Wait[bool]:
    parts: list[str] = []
    yield from reader.copy_run(_SCALAR, parts.append)
    emit("".join(parts))
    return _SCALAR_VALUE.fullmatch("".join(parts)) is not None


def copy_string(reader: TextReader, emit: Emit) -> Wait[bool]:
    """Pass on a string in quotes."""
    if (yield from reader.peek()) != '"':
        return False
    _pass(reader, emit, '"')
    while True:
        yield from reader.copy_run(_PLAIN, emit)
        char = yield from reader.peek()
        if char == "":
            return False
        reader.advance()
        if char == '"':
            emit(char)
            return True
        if char != "\\":
            emit(json.dumps(char)[1:-1])
        elif not (yield from _copy_escape(reader, emit)):
            return False


def _copy_escape(reader: TextReader, emit: Emit) -> Wait[bool]:
    char = yield from reader.peek()
    if char and char in '"\\/bfnrt':
        _pass(reader, emit, char, "\\" + char)
    elif char == "u":
        digits = "\\u"
        reader.advance()
        while len(digits) < 6:
            digit = yield from reader.peek()
            if not digit or digit not in _HEX:
                emit(digits)
                return False
            reader.advance()
            digits += digit
        emit(digits)
    elif char != "'":
        emit("\\\\")
    return True


def read_string(reader: TextReader) -> Wait[str | None]:
    """The value of a string in quotes; None if there is none."""
    parts: list[str] = []
    if not (yield from copy_string(reader, parts.append)):
        return None
    return without_surrogates(json.loads("".join(parts)))


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    reader = TextReader()
    reader.feed(text, finished=True)
    steps = _copy_all(reader)
    try:
        next(steps)
    except StopIteration as result:
        return bool(result.value)
    raise AssertionError("a finished text makes nobody wait")


def _copy_all(reader: TextReader) -> Wait[bool]:
    return (yield from copy_json(reader, drop)) and not (yield from reader.peek())


def without_surrogates(text: str) -> str:
    """The text with what UTF-8 cannot hold, half of a pair written as an escape, made U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def to_json(value: Any) -> str:
    """JSON text of a value that a model wrote in another notation."""
    return without_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _pass(reader: TextReader, emit: Emit, char: str, text: str | None = None) -> None:
    reader.advance(len(char))
    emit(char if text is None else text)
