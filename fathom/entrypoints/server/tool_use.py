"""What tools, tool_choice and the dialect come to: the tools of the prompt, how the answer begins, who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.parsing import OutputParser, closed_reasoning, make_parser
from fathom.entrypoints.server.prompts import template_source
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest, NamedToolChoice, Tool
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.tools import tool_dialect_of

_JSON_CALL = ('{"name":', ' "%s", "arguments": {')
_OPENINGS = {
    "hermes": ("<tool_call>\n", *_JSON_CALL),
    "qwen3_json": ("<tool_call>\n", *_JSON_CALL),
    "granite": ("<tool_call>", *_JSON_CALL),
    "mistral": ("[TOOL_CALLS] [", *_JSON_CALL),
    "llama3_json": ("", '{"name":', ' "%s", "parameters": {'),
}
"""Dialect -> how a call begins: markup, JSON up to the name, and the name up to the arguments' first brace.

With tool_choice required or a name, the prompt ends with it. So the answer is a call, of that name if one is given;
that required calls one of the tools, and that arguments fit their schema, is up to the model. A reasoning block that
the template has opened is closed first: a call within it is none.
"""


@dataclass(frozen=True)
class ToolUse:
    """How one request's tools are used.

    shown: tools that the prompt shows. prefix: the forced beginning of the answer, at the end of the prompt.
    named: tool_choice names the function.
    """

    shown: list[Tool]
    prefix: str
    named: bool
    parallel: bool
    tool_parser: str | None
    reasoning_parser: str | None
    template: str

    def opening(self, prompt: str) -> str:
        """What follows the rendered prompt: the forced beginning of the answer, outside of reasoning."""
        if not self.prefix:
            return ""
        return closed_reasoning(self.reasoning_parser, self.template, prompt) + self.prefix

    def parser(self, prompt: str) -> OutputParser:
        """Who reads the answer to this prompt."""
        return make_parser(
            self.tool_parser,
            self.reasoning_parser,
            self.template,
            _plain(self.shown),
            parallel_tool_calls=self.parallel,
            prompt=prompt,
        )


def tool_use_of(serving: Serving, request: ChatCompletionRequest) -> ToolUse:
    """How a request's tools are used.

    Raises:
        ApiError: a choice without tools, of a tool that is not there, or that cannot be kept.
    """
    settings = serving.settings
    template = template_source(serving, request.chat_template or serving.template)
    choice = _checked_choice(request)
    if choice == "auto" and not settings.enable_auto_tool_choice:
        choice = "none"
    shown = [] if choice == "none" else request.tools or []
    named = isinstance(choice, NamedToolChoice)
    dialect = settings.tool_call_parser or tool_dialect_of(template)
    if shown and dialect is None:
        raise bad_request(
            "tools are not supported: the model's chat template shows no way of writing calls that is known here. "
            "Use a model that was trained for tools; if this one was, start the server with --tool-call-parser.",
            "tools",
            "unsupported_parameter",
        )
    return ToolUse(
        shown=shown,
        prefix=_opening(dialect, choice) if shown else "",
        named=named,
        parallel=request.parallel_tool_calls is not False and not named,
        tool_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        template=template,
    )


def _checked_choice(request: ChatCompletionRequest) -> str | NamedToolChoice:
    tools = request.tools or []
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("tools holds two functions of one name.", "tools")
    choice = request.tool_choice or ("auto" if tools else "none")
    if choice != "none" and not tools:
        raise bad_request("tool_choice needs tools.", "tool_choice")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise bad_request(f"tool_choice names {choice.function.name!r}, which is not in tools.", "tool_choice")
    return choice


def _opening(dialect: str | None, choice: str | NamedToolChoice) -> str:
    """The beginning of the answer that the choice forces."""
    if isinstance(choice, str) and choice != "required":
        return ""
    if dialect not in _OPENINGS:
        raise bad_request(
            f"tool_choice can be none or auto with the dialect {dialect}: a call cannot be enforced.",
            "tool_choice",
            "unsupported_parameter",
        )
    markup, head, to_arguments = _OPENINGS[dialect]
    return markup + head + (to_arguments % choice.function.name if isinstance(choice, NamedToolChoice) else "")


def _plain(tools: list[Tool]) -> list[Mapping[str, Any]]:
    return [msgspec.to_builtins(tool) for tool in tools]
