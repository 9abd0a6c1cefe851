"""Calls between tags: <function=f><parameter=a>value</parameter></function>, and GLM's <arg_key>, <arg_value>.

Values are plain text. One whose schema says string, or that has no schema, is passed on as it comes; another
waits for its end and becomes what its schema says.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fathom.entrypoints.server.parsed import Collector
from fathom.entrypoints.server.text_reader import Markers, TextReader, Wait
from fathom.entrypoints.server.tools.dialect import Tools, open_call
from fathom.entrypoints.server.tools.json_text import to_json

_KEY_END = Markers((">",))
# A value's lines stand between the tags; their first and last line break belong to the markup.
_VALUE_END = Markers(("\n</parameter>", "</parameter>"))
_ARG_KEY_END = Markers(("</arg_key>",))
_ARG_VALUE_END = Markers(("\n</arg_value>", "</arg_value>"))


@dataclass(frozen=True)
class XmlCalls:
    """One call, with or without the outer tag: Qwen3-Coder and, with an outer tag of its own, Seed-OSS."""

    outer: tuple[str, str] = ("<tool_call>", "</tool_call>")

    @property
    def openings(self) -> tuple[str, ...]:
        """See CallForm."""
        return (self.outer[0], "<function=")

    @property
    def markup(self) -> tuple[str, ...]:
        """See CallForm."""
        return self.outer

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        if (yield from reader.accept(self.outer[0])):
            yield from reader.skip_space()
        if not (yield from reader.accept("<function=")):
            return False
        name = yield from reader.accept_any(tools)
        if not name or not (yield from reader.accept(">")):
            return False
        open_call(reader, out, name)
        out.add_arguments("{")
        yield from _read_parameters(reader, out, tools[name])
        end = yield from reader.accept_any(("</function>", self.outer[1]))
        if end:  # without one the output was cut off, and must not look complete
            out.add_arguments("}")
        if end == "</function>":
            yield from reader.accept_after_space(self.outer[1])
        return True


@dataclass(frozen=True)
class ArgTagCalls:
    """One call of GLM-4.5: <tool_call>f<arg_key>a</arg_key><arg_value>value</arg_value></tool_call>."""

    openings: tuple[str, ...] = ("<tool_call>",)
    markup: tuple[str, ...] = (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    )  # fmt: skip

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        yield from reader.accept("<tool_call>")
        yield from reader.skip_space()
        name = yield from reader.accept_any(tools)
        yield from reader.skip_space()
        if not name or (yield from reader.peek()) != "<":
            return False
        open_call(reader, out, name)
        before = "{"
        while (yield from reader.accept("<arg_key>")):
            parts: list[str] = []
            yield from reader.copy_until(_ARG_KEY_END, parts.append)
            yield from reader.accept("</arg_key>")
            yield from reader.skip_space()
            if not (yield from reader.accept("<arg_value>")):
                break
            key = "".join(parts).strip()
            out.add_arguments(f"{before}{to_json(key)}: ")
            before = ", "
            yield from _read_value(reader, out, tools[name].get(key), _ARG_VALUE_END)
            yield from reader.skip_space()
        if (yield from reader.accept("</tool_call>")):
            out.add_arguments("{}" if before == "{" else "}")
        return True


def _read_parameters(reader: TextReader, out: Collector, schemas: Mapping[str, Any]) -> Wait[None]:
    before = ""
    yield from reader.skip_space()
    while (yield from reader.accept("<parameter=")):
        parts: list[str] = []
        yield from reader.copy_until(_KEY_END, parts.append)
        yield from reader.accept(">")
        key = "".join(parts)
        out.add_arguments(f"{before}{to_json(key)}: ")
        before = ", "
        yield from _read_value(reader, out, schemas.get(key), _VALUE_END)
        yield from reader.skip_space()


def _read_value(reader: TextReader, out: Collector, schema: Any, end: Markers) -> Wait[None]:
    yield from reader.accept("\n")
    if schema is None or (isinstance(schema, Mapping) and schema.get("type") == "string"):
        out.add_arguments('"')
        if (yield from reader.copy_until(end, lambda text: out.add_arguments(to_json(text)[1:-1]))):
            out.add_arguments('"')
    else:
        parts: list[str] = []
        if (yield from reader.copy_until(end, parts.append)):
            out.add_arguments(to_json(typed_value("".join(parts), schema)))
    yield from reader.accept_any(end.words)


def typed_value(text: str, schema: Any) -> Any:
    """A value by its schema: text where text may stand, else JSON, or Python's way to write it, if it is any."""
    types = schema.get("type") if isinstance(schema, Mapping) else None
    types = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    if "string" in types:
        return None if text == "null" and "null" in types else text
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
            json.dumps(value, allow_nan=False)
            return value
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return text
