"""Chat messages as callers write them -> plain dicts of the one shape that chat templates expect.

The caller's messages are never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fathom.errors import ValidationError
from fathom.frontend.tokenizer.tokenizer import check_text

Message = dict[str, Any]

# Content part type -> the key that holds its text.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def normalise_messages(messages: Sequence[Mapping[str, Any]], *, keep_parts: bool) -> list[Message]:
    """Messages for a chat template.

    - Keys that are None are left out; a content that is None or missing is "".
    - A content of parts stays a list if keep_parts, and else becomes their texts, joined by newlines.
    - Tool calls get their arguments as an object: JSON text is parsed, "" and "null" are {}, and text that is
      no JSON object stays text. An empty `tool_calls` is left out.
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
    return [_message(message, f"messages[{index}]", keep_parts) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, keep_parts: bool) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValidationError(f"{where} must be a dict with a role.", parameter=where, value=message)
    normal = {key: value for key, value in message.items() if value is not None}
    normal["content"] = _content(message.get("content"), f"{where}.content", keep_parts)
    tool_calls = normal.pop("tool_calls", None)
    if tool_calls:
        normal["tool_calls"] = _tool_calls(tool_calls, f"{where}.tool_calls")
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


def _tool_calls(tool_calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(tool_calls, (list, tuple)) or not all(isinstance(call, Mapping) for call in tool_calls):
        raise ValidationError(f"{where} must be a list of objects.", parameter=where, value=tool_calls)
    return [_tool_call(call) for call in tool_calls]


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call in either form: {"function": {"name", "arguments"}} or {"name", "arguments"}."""
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _tool_call(function)}
    return {**call, "arguments": _arguments(call["arguments"])} if "arguments" in call else dict(call)


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
