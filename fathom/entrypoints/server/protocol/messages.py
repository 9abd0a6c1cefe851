"""/v1/messages and /v1/messages/count_tokens, Anthropic's: the requests, the blocks, the answer, and its events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from fathom.entrypoints.server.protocol.fields import Doc, ModelName, StopString, refused

CacheControl = Annotated[Any, Doc(description="Every prefix is cached for as long as there is room, marked or not.")]
_DIRECT = {"type": "direct"}

# ---------------------------------------------------------------- blocks of messages


class TextContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every block of text holds."""

    text: str
    cache_control: CacheControl = None
    citations: Annotated[Any, refused("models do not cite", [])] = None
    parsed_output: Annotated[Any, refused("send the text")] = None


class TextBlock(TextContent, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A text, one of several kinds of blocks."""


class PlainText(TextContent, kw_only=True, forbid_unknown_fields=True):
    """A text where there is no other kind of block."""

    type: Literal["text"]


class ToolUseBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call that the model made."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: Annotated[Any, refused("programs do not call tools", _DIRECT)] = None
    toolset_name: Annotated[Any, refused("tools have no sets")] = None


class ToolResultBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a call gave."""

    tool_use_id: str
    content: str | list[PlainText] = ""
    is_error: Annotated[
        bool | None, Doc(description='Puts "Error: " before the content, since templates know no other way to say so.')
    ] = None
    cache_control: CacheControl = None
    toolset_name: Annotated[Any, refused("tools have no sets")] = None


class ThinkingBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the model thought."""

    thinking: str
    signature: Annotated[str, Doc(description="This server's is empty, and another's is not checked.")] = ""


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message. Of the blocks, tool_result is the user's; thinking and tool_use are the assistant's."""

    role: Literal["user", "assistant", "system"]
    content: str | list[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock]


# ---------------------------------------------------------------- requests


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call. input_schema: a JSON schema."""

    name: Annotated[str, Doc(min_length=1, max_length=128)]
    input_schema: Annotated[dict[str, Any], Doc(description="A JSON schema.")]
    description: Annotated[str | None, Doc(description="For the chat template.")] = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl = None
    eager_input_streaming: Annotated[bool | None, Doc(description="Inputs are always streamed as they come.")] = None
    strict: Annotated[Any, refused("constrained decoding is not part of this version", False)] = None
    defer_loading: Annotated[Any, refused("the prompt shows every tool", False)] = None
    allowed_callers: Annotated[Any, refused("programs do not call tools", ["direct"])] = None
    input_examples: Annotated[Any, refused("put them into the description", [])] = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tool_choice. name: with type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str | None, Doc(description="With type tool.")] = None
    disable_parallel_tool_use: Annotated[bool | None, Doc(description="true: at most one call in an answer.")] = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`thinking` of a request."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive"],
        Doc(
            description="The switch of the chat template (enable_thinking, thinking). disabled is refused if a model "
            "that thinks has none; the others let a model think that can."
        ),
    ]
    budget_tokens: Annotated[
        int | None, Doc(description="Part of type enabled. A model thinks as long as it does: max_tokens ends it.")
    ] = None
    display: Annotated[Any, refused("thinking is shown in full", "summarized")] = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`output_config` of a request."""

    effort: Annotated[
        Annotated[str, Doc(max_length=64)] | None,
        Doc(description="The variable reasoning_effort of the chat template; refused if the template has none."),
    ] = None
    format: Annotated[Any, refused("constrained decoding is not part of this version")] = None


class Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`metadata` of a request."""

    user_id: Annotated[
        Annotated[str, Doc(max_length=512)] | None, Doc(description="Who asks, for the log of requests.")
    ] = None


_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/messages/count_tokens: all that becomes the prompt."""

    model: Annotated[ModelName | None, Doc(description="A name of /v1/models; left out: the served model.")] = None
    messages: Annotated[
        list[InputMessage],
        Doc(
            description="The conversation. If the last message is the assistant's, the answer carries it on.",
            max_length=16_384,
        ),
    ]
    system: Annotated[str | list[PlainText] | None, Doc(description="A system message before the others.")] = None
    tools: Annotated[
        Annotated[list[ToolDefinition], Doc(max_length=512)] | None,
        Doc(description="Tools that the model may call; the server has none of its own."),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None, Doc(description="auto (the default with tools), any, a tool by name, or none.")
    ] = None
    thinking: Annotated[Thinking | None, Doc(description="Left out: as the chat template does.")] = None
    output_config: Annotated[OutputConfig | None, Doc(description="How much the model thinks.")] = None
    cache_control: CacheControl = None

    context_management: Annotated[Any, refused("leave messages out", {"edits": []}, _KEEPS_ALL)] = None
    mcp_servers: Annotated[Any, refused("the server does not call tools", [])] = None
    speed: Annotated[Any, refused("there is one speed", "standard")] = None
    user_profile_id: Annotated[Any, refused("use metadata.user_id")] = None
    workspace_id: Annotated[Any, refused("there are no workspaces")] = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[int, Doc(description="Most tokens of the answer, thinking included.", ge=1)]
    stream: Annotated[bool | None, Doc(description="Send the answer as server-sent events, as it comes.")] = None
    stop_sequences: Annotated[
        Annotated[list[StopString], Doc(max_length=64)] | None, Doc(description="The answer ends before this text.")
    ] = None
    temperature: Annotated[float | None, Doc(description="0 is greedy; default: the model's, else 1.")] = None
    top_p: Annotated[float | None, Doc(description="Share of the distribution that is kept.")] = None
    top_k: Annotated[int | None, Doc(description="Number of best tokens that are kept.")] = None
    metadata: Annotated[Metadata | None, Doc(description="For the log of requests.")] = None

    service_tier: Annotated[Any, refused("there is one tier", "auto", "standard_only")] = None
    inference_geo: Annotated[Any, refused("the server is where it is")] = None
    container: Annotated[Any, refused("the server runs no code")] = None
    diagnostics: Annotated[Any, refused("/metrics has numbers")] = None


# ---------------------------------------------------------------- the answer


class AnswerText(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """A text of an answer."""

    text: str


class AnswerToolUse(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call. Arguments that are no JSON object, as of an answer that was cut off, are {"INVALID_JSON": text}."""

    id: str
    name: str
    input: dict[str, Any]


class AnswerThinking(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """What the model thought, not signed."""

    thinking: str
    signature: str = ""


AnswerBlock = AnswerText | AnswerToolUse | AnswerThinking


class ThinkingTokens(msgspec.Struct):
    """thinking_tokens: the thinking's text in tokens."""

    thinking_tokens: int = 0


class MessageUsage(msgspec.Struct, kw_only=True):
    """Tokens of a request. The prompt is input_tokens, which were computed, and cache_read_input_tokens."""

    input_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: ThinkingTokens = msgspec.field(default_factory=ThinkingTokens)


class Message(msgspec.Struct, kw_only=True):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokensCount(msgspec.Struct):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


# ---------------------------------------------------------------- events


class MessageStart(msgspec.Struct):
    """The answer, still empty; what of the prompt is cached is not known yet."""

    message: Message
    type: Literal["message_start"] = "message_start"


class BlockStart(msgspec.Struct):
    """A block, still empty."""

    index: int
    content_block: AnswerBlock
    type: Literal["content_block_start"] = "content_block_start"


class TextGrowth(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class InputGrowth(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's input."""

    partial_json: str


class ThinkingGrowth(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class BlockDelta(msgspec.Struct):
    """What is new of the block at `index`."""

    index: int
    delta: TextGrowth | InputGrowth | ThinkingGrowth
    type: Literal["content_block_delta"] = "content_block_delta"


class BlockStop(msgspec.Struct):
    """The end of a block."""

    index: int
    type: Literal["content_block_stop"] = "content_block_stop"


class StopInfo(msgspec.Struct):
    """Why an answer ended, and at which stop sequence."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct):
    """Why the answer ended, and its usage."""

    delta: StopInfo
    usage: MessageUsage
    type: Literal["message_delta"] = "message_delta"


class MessageStop(msgspec.Struct):
    """The end."""

    type: Literal["message_stop"] = "message_stop"


class Ping(msgspec.Struct):
    """A sign of life."""

    type: Literal["ping"] = "ping"
