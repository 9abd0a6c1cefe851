"""Chat messages as callers write them -> plain dicts of the one shape that chat templates expect.

The caller's messages are never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fathom.errors import ValidationError
from fathom.frontend.tokenizer.tokenizer import check_text

Message = dict[str, Any]

# Content part type -> the key that holds its text.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True)
class MessageHabits:
    """What a chat template makes of messages, as far as it needs them in one shape and not another.

    keeps_parts: it goes through the parts of a content itself.
    asks_for_null: it asks whether a content is none, and so has its own way with a message of calls alone.
    adds_arguments: it adds a call's arguments to text, and so needs them as text.
    """

    keeps_parts: bool = False
    asks_for_null: bool = False
    adds_arguments: bool = False


def normalise_messages(messages: Sequence[Mapping[str, Any]], habits: MessageHabits) -> list[Message]:
    """Messages for a chat template.

    - Keys that are None are left out; a content that is None or missing is "", or None beside tool calls for a
      template that asks for it.
    - A content of parts stays a list if the template keeps parts, and else becomes their texts, joined by
      newlines.
    - Tool calls get their arguments as an object: JSON text is parsed, "" and "null" are {}, and text that is
      no JSON object stays text. For a template that adds them to text they are text: as given, or as JSON.
      An empty `tool_calls` is left out.
    - Reasoning is found under each name that templates use.

    Raises:
        ValidationError: not a list of messages with a role, a content that is no text, or a lone surrogate.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise ValidationError(
            f"messages must be a list of messages, got {type(messages).__name__}.",
            parameter="messages",
            value=messages,
            hint='A message is a dict such as {"role": "user", "content": "Hello"}.',
        )
    if not messages:
        raise ValidationError("messages is empty; a chat needs at least one.", parameter="messages", value=[])
    return [_message(message, f"messages[{index}]", habits) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, habits: MessageHabits) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValidationError(f"{where} must be a dict with a role.", parameter=where, value=message)
    normal = {key: value for key, value in message.items() if value is not None}
    normal["content"] = _content(message.get("content"), f"{where}.content", habits.keeps_parts)
    tool_calls = normal.pop("tool_calls", None)
    if tool_calls:
        normal["tool_calls"] = _tool_calls(tool_calls, f"{where}.tool_calls", habits.adds_arguments)
        if habits.asks_for_null and message.get("content") is None:
            normal["content"] = None
    reasoning = next((normal[key] for key in _REASONING_KEYS if key in normal), None)
    if reasoning is not None:
        normal = {"thinking": reasoning, **normal, "reasoning_content": reasoning}
    return normal


def _content(content: Any, where: str, keep_parts: bool) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        check_text(content, where)
        return content
    if not isinstance(content, (list, tuple)):
        raise ValidationError(
            f"{where} must be text or a list of text parts, got {type(content).__name__}.",
            parameter=where,
            value=content,
        )
    texts = [_part_text(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return [{"type": "text", "text": text} for text in texts] if keep_parts else "\n".join(texts)


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
    text = part.get(_TEXT_PARTS.get(kind, "")) if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise ValidationError(
            f"{where} is a content part of type {kind!r}, or lacks its text.",
            parameter=where,
            value=part,
            hint='Fathom reads parts such as {"type": "text", "text": "Hello"}.',
        )
    check_text(text, where)
    return text


def _tool_calls(tool_calls: Any, where: str, as_text: bool) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in tool_calls):
        raise ValidationError(f"{where} must be a list of objects.", parameter=where, value=tool_calls)
    return [_tool_call(call, as_text) for call in tool_calls]


def _tool_call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """A call in either form: {"function": {"name", "arguments"}} or {"name", "arguments"}."""
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _tool_call(function, as_text)}
    if "arguments" not in call:
        return dict(call)
    arguments = call["arguments"]
    parsed = _arguments(arguments)
    if not as_text:
        return {**call, "arguments": parsed}
    keeps = isinstance(arguments, str) and parsed != {}
    return {**call, "arguments": arguments if keeps else json.dumps(parsed, ensure_ascii=False)}


def _arguments(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    if parsed is None:
        return {}
    return parsed if isinstance(parsed, dict) else arguments
