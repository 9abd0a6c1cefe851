"""A conversation in Anthropic's form, as the messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.prompts import template_source
from fathom.entrypoints.server.protocol.chat import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    Tool,
)
from fathom.entrypoints.server.protocol.messages import (
    CountTokensRequest,
    InputMessage,
    MessagesRequest,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from fathom.entrypoints.server.reasoning import reasoning_tags_of
from fathom.entrypoints.server.serving import Serving

_SWITCH = re.compile(r"\benable_thinking\b|\bif (not )?thinking\b|\bthinking is\b")
"""How chat templates ask whether the model is to think."""


def as_chat(serving: Serving, request: CountTokensRequest) -> ChatCompletionRequest:
    """The chat completion that asks for the same.

    Raises:
        ApiError: what cannot be asked for.
    """
    chat = ChatCompletionRequest(
        model=request.model,
        messages=_messages(request),
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        chat_template_kwargs=_thinking(serving, request),
        reasoning_effort=None if request.output_config is None else request.output_config.effort,
    )
    if request.tool_choice is not None:
        chat.tool_choice = _choice(request.tool_choice)
        chat.parallel_tool_calls = not request.tool_choice.disable_parallel_tool_use
    if chat.messages and chat.messages[-1].role == "assistant":
        if chat.messages[-1].tool_calls:
            raise bad_request("The last message calls a tool; its tool_result must follow.", "messages")
        chat.add_generation_prompt, chat.continue_final_message = False, True
    if isinstance(request, MessagesRequest):
        chat.stream = request.stream
        chat.max_completion_tokens = request.max_tokens
        chat.stop = request.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
        chat.user = None if request.metadata is None else request.metadata.user_id
    return chat


def _tool(tool: Any) -> Tool:
    return Tool(function=FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema))


def _choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise bad_request("tool_choice of type tool needs a name.", "tool_choice.name")
    return NamedToolChoice(function=NamedFunction(name=choice.name))


def _thinking(serving: Serving, request: CountTokensRequest) -> dict[str, Any] | None:
    """The switch of the chat template.

    Raises:
        ApiError: the model thinks, and cannot be told not to.
    """
    if request.thinking is None:
        return None
    thinks = request.thinking.type != "disabled"
    source = template_source(serving, serving.template)
    reasons = (serving.settings.reasoning_parser or reasoning_tags_of(source) or "none") != "none"
    if not thinks and reasons and not _SWITCH.search(source):
        raise bad_request(
            "thinking cannot be disabled: the model thinks, and its chat template has no switch for it.",
            "thinking",
            "unsupported_parameter",
        )
    return {"enable_thinking": thinks, "thinking": thinks}


# ---------------------------------------------------------------- messages


def _messages(request: CountTokensRequest) -> list[ChatMessage]:
    names: dict[str, str] = {}  # of tools, by the id of a call
    messages = [] if not request.system else [ChatMessage(role="system", content=_text(request.system))]
    for index, message in enumerate(request.messages):
        if isinstance(message.content, str):
            messages.append(ChatMessage(role=message.role, content=message.content))
        elif message.role == "assistant":
            messages.append(_assistant(message.content, names, f"messages[{index}]"))
        else:
            messages += _others(message, names, f"messages[{index}]")
    return messages


def _text(content: str | Sequence[TextContent]) -> str | list[str | dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": block.text} for block in content]


def _assistant(blocks: list[Any], names: dict[str, str], where: str) -> ChatMessage:
    """What the model wrote: thinking, text and calls. A template has one place for each."""
    texts, calls, thinking = [], [], []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolUseBlock):
            names[block.id] = block.name
            function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif isinstance(block, ThinkingBlock):
            thinking.append(block.thinking)
        else:
            raise _misplaced("tool_result", "assistant", f"{where}.content[{index}]")
    return ChatMessage(
        role="assistant",
        content=_text(texts) if texts else None,
        tool_calls=calls or None,
        reasoning="\n".join(thinking) or None,
    )


def _others(message: InputMessage, names: dict[str, str], where: str) -> list[ChatMessage]:
    """Text and results, in their order; text in a row is one message."""
    messages: list[ChatMessage] = []
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            if not messages or messages[-1].role == "tool":
                messages.append(ChatMessage(role=message.role, content=[]))
            content: Any = messages[-1].content
            content.append({"type": "text", "text": block.text})
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            messages.append(_result(block, names))
        else:
            kind = str(block.__struct_config__.tag)  # type: ignore[union-attr]
            raise _misplaced(kind, message.role, f"{where}.content[{index}]")
    return messages


def _result(block: ToolResultBlock, names: dict[str, str]) -> ChatMessage:
    content: Any = _text(block.content)
    if block.is_error:
        content = f"Error: {content}" if isinstance(content, str) else [{"type": "text", "text": "Error:"}, *content]
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id, name=names.get(block.tool_use_id))


def _misplaced(kind: str, role: str, where: str) -> Exception:
    return bad_request(f"{where}: a block of type {kind} has no place in a message of role {role}.", where)
