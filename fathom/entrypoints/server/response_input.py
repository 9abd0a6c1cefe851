"""The input of /v1/responses, as the messages of a chat."""

from __future__ import annotations

from typing import Any

import msgspec

from fathom.entrypoints.server.errors import bad_request, decoding_error
from fathom.entrypoints.server.http import check_refusals
from fathom.entrypoints.server.protocol.chat import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    Tool,
)
from fathom.entrypoints.server.protocol.common import EngineRequest
from fathom.entrypoints.server.protocol.responses import (
    INPUT_ITEMS,
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
    NamedFunctionChoice,
    ReasoningItem,
    ResponsesRequest,
)


def as_chat(request: ResponsesRequest) -> tuple[ChatCompletionRequest, list[str]]:
    """The chat completion that asks for the same, and for each of its messages, the field that its content is from.

    Raises:
        ApiError: an input item that is none.
    """
    choice = request.tool_choice
    history = _history(request)
    chat = ChatCompletionRequest(
        **{name: getattr(request, name) for name in EngineRequest.__struct_fields__},
        messages=history.messages,
        max_completion_tokens=request.max_output_tokens,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=NamedToolChoice(function=NamedFunction(name=choice.name))
        if isinstance(choice, NamedFunctionChoice)
        else choice,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        metadata=request.metadata,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    return chat, history.origins


def _tool(tool: Any) -> Tool:
    return Tool(function=FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.parameters))


def _history(request: ResponsesRequest) -> _History:
    history = _History()
    if request.instructions is not None:
        history.add(MessageItem(role="system", content=request.instructions), "instructions")
    if isinstance(request.input, str):
        history.add(MessageItem(role="user", content=request.input), "input")
    else:
        for index, given in enumerate(request.input):
            item = _item(given, f"input[{index}]")
            field = "output" if isinstance(item, FunctionCallOutputItem) else "content"
            history.add(item, f"input[{index}].{field}")
    return history


def _item(given: dict[str, Any], where: str) -> msgspec.Struct:
    kind = given.get("type", "message")
    if not isinstance(kind, str) or kind not in INPUT_ITEMS:
        known = ", ".join(INPUT_ITEMS)
        raise bad_request(f"{where} is an item of type {kind!r}, which is none of {known}.", f"{where}.type")
    try:
        item: msgspec.Struct = msgspec.convert(given, INPUT_ITEMS[kind])
    except msgspec.ValidationError as error:
        raise decoding_error(error, INPUT_ITEMS[kind], within=where) from None
    check_refusals(item, f"{where}.")
    return item


class _History:
    """Gathers messages. What the model wrote in a row, reasoning, text and calls, is one message of the assistant."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.origins: list[str] = []
        self._names: dict[str, str] = {}  # of functions, by the id of a call

    def add(self, item: Any, origin: str) -> None:
        """Add an input item. origin: the field that has its content."""
        if isinstance(item, ReasoningItem):
            message = self._assistant(origin)
            message.reasoning = (message.reasoning or "") + "".join(part.text for part in item.content or ())
        elif isinstance(item, FunctionCallItem):
            self._names[item.call_id] = item.name
            function = {"name": item.name, "arguments": item.arguments}
            message = self._assistant(origin)
            message.tool_calls = [
                *(message.tool_calls or ()),
                {"id": item.call_id, "type": "function", "function": function},
            ]
        elif isinstance(item, FunctionCallOutputItem):
            name = item.name or self._names.get(item.call_id)
            output: Any = item.output
            self._append(ChatMessage(role="tool", content=output, tool_call_id=item.call_id, name=name), origin)
        elif item.role == "assistant" and self._lacks_text():
            self.messages[-1].content = item.content
            self.origins[-1] = origin
        else:
            self._append(ChatMessage(role=item.role, content=item.content), origin)

    def _append(self, message: ChatMessage, origin: str) -> None:
        self.messages.append(message)
        self.origins.append(origin)

    def _lacks_text(self) -> bool:
        """Whether the last message is the assistant's and has no text and no calls yet."""
        last = self.messages[-1] if self.messages else None
        return last is not None and last.role == "assistant" and last.content is None and not last.tool_calls

    def _assistant(self, origin: str) -> ChatMessage:
        """The message of the assistant to which reasoning or a call belongs."""
        if not self.messages or self.messages[-1].role != "assistant":
            self._append(ChatMessage(role="assistant"), origin)
        return self.messages[-1]
