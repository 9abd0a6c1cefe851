"""Calls as Qwen3-Coder writes them: <function=f><parameter=a>value</parameter></function>.

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


@dataclass(frozen=True)
class XmlCalls:
    """One call, with or without the outer tag."""

    openings: tuple[str, ...] = ("<tool_call>", "<function=")
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def read(self, reader: TextReader, out: Collector, tools: Tools) -> Wait[bool]:
        """See CallForm."""
        if (yield from reader.accept("<tool_call>")):
            yield from reader.skip_space()
        if not (yield from reader.accept("<function=")):
            return False
        name = yield from reader.accept_any(tools)
        if not name or not (yield from reader.accept(">")):
            return False
        open_call(reader, out, name)
        out.add_arguments("{")
        yield from _read_parameters(reader, out, tools[name])
        end = yield from reader.accept_any(("</function>", "</tool_call>"))
        if end:  # without one the output was cut off, and must not look complete
            out.add_arguments("}")
        if end == "</function>":
            yield from reader.accept_after_space("</tool_call>")
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
        yield from _read_value(reader, out, schemas.get(key))
        yield from reader.skip_space()


def _read_value(reader: TextReader, out: Collector, schema: Any) -> Wait[None]:
    yield from reader.accept("\n")
    if schema is None or (isinstance(schema, Mapping) and schema.get("type") == "string"):
        out.add_arguments('"')
        if (yield from reader.copy_until(_VALUE_END, lambda text: out.add_arguments(to_json(text)[1:-1]))):
            out.add_arguments('"')
    else:
        parts: list[str] = []
        if (yield from reader.copy_until(_VALUE_END, parts.append)):
            out.add_arguments(to_json(typed_value("".join(parts), schema)))
    yield from reader.accept_any(_VALUE_END.words)


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
