"""/v1/responses: the request, the items of a conversation, and the answer. Its events: response_events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from fathom.entrypoints.server.protocol.common import EngineRequest
from fathom.entrypoints.server.protocol.fields import Doc, refused

_NOT_STORED = "answers are not stored; send the whole conversation as input"

# ---------------------------------------------------------------- the conversation

Returned = Annotated[str | None, Doc(description="Comes with the items of an answer, and may come back; not read.")]


class MessageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An input item of type message, which is what an item without a type is. content: text or text parts."""

    role: Annotated[
        Literal["user", "assistant", "system", "developer"],
        Doc(description="developer is system where the chat template does not know it."),
    ]
    content: Annotated[
        str | list[dict[str, Any]], Doc(description="A text, or parts of type input_text or output_text.")
    ]
    type: Literal["message"] = "message"
    id: Returned = None
    status: Returned = None
    phase: Annotated[Any, refused("messages have no phases")] = None


class FunctionCallItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call that the model made: an input item and an output item. arguments: JSON text."""

    call_id: str
    name: str
    arguments: Annotated[str, Doc(description="JSON text.")]
    type: Literal["function_call"] = "function_call"
    id: Returned = None
    status: Returned = None
    namespace: Annotated[Any, refused("functions have no namespaces")] = None
    caller: Annotated[Any, refused("programs do not call functions", {"type": "direct"})] = None


class FunctionCallOutputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a call gave. output: text or text parts."""

    call_id: str
    output: Annotated[str | list[dict[str, Any]], Doc(description="A text, or parts of type input_text.")]
    type: Literal["function_call_output"] = "function_call_output"
    id: Returned = None
    status: Returned = None
    name: Annotated[str | None, Doc(description="The function; left out: that of the call.")] = None
    namespace: Annotated[Any, refused("functions have no namespaces")] = None
    caller: Annotated[Any, refused("programs do not call functions", {"type": "direct"})] = None


class ReasoningText(msgspec.Struct, kw_only=True):
    """The text of a reasoning item."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class ReasoningItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the model thought before what follows: an input item and an output item."""

    content: Annotated[list[ReasoningText] | None, Doc(description="Parts of type reasoning_text.")] = None
    summary: Annotated[Any, refused("reasoning is read in full, as content", [])] = []
    type: Literal["reasoning"] = "reasoning"
    id: Returned = None
    status: Returned = None
    encrypted_content: Annotated[Any, refused("reasoning is read in full, as content")] = None


INPUT_ITEMS: dict[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
"""Type of an input item -> its struct."""

# ---------------------------------------------------------------- the request


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. parameters: a JSON schema."""

    name: Annotated[str, Doc(min_length=1, max_length=128)]
    type: Literal["function"] = "function"
    description: Annotated[str | None, Doc(description="For the chat template.")] = None
    parameters: Annotated[dict[str, Any] | None, Doc(description="A JSON schema.")] = None
    strict: Annotated[Any, refused("constrained decoding is not part of this version", False)] = None
    allowed_callers: Annotated[Any, refused("programs do not call functions", ["direct"])] = None
    defer_loading: Annotated[Any, refused("the prompt shows every tool", False)] = None
    output_schema: Annotated[Any, refused("templates show no schemas of results")] = None


class NamedFunctionChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tool_choice that asks for one function."""

    name: str
    type: Literal["function"] = "function"


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`reasoning` of a request."""

    effort: Annotated[
        Annotated[str, Doc(max_length=64)] | None,
        Doc(description="The variable reasoning_effort of the chat template; refused if the template has none."),
    ] = None
    summary: Annotated[Any, refused("reasoning is given in full", "auto")] = None
    generate_summary: Annotated[Any, refused("reasoning is given in full", "auto")] = None
    context: Annotated[Any, refused("the chat template says which reasoning is kept", "auto")] = None
    mode: Annotated[Any, refused("there is one mode", "standard")] = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text` of a request."""

    format: Annotated[Any, refused("constrained decoding is not part of this version", {"type": "text"})] = None
    verbosity: Annotated[Any, refused("ask for it in the prompt", "medium")] = None


class ResponsesStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`stream_options` of a request."""

    include_obfuscation: Annotated[Any, refused("events are not padded", False)] = None


class ResponsesRequest(EngineRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/responses."""

    input: Annotated[
        str | Annotated[list[dict[str, Any]], Doc(max_length=16_384)],
        Doc(
            description="The conversation: a text of the user's, or items: message, function_call, "
            "function_call_output, reasoning."
        ),
    ]
    instructions: Annotated[str | None, Doc(description="A system message before the input.")] = None
    max_output_tokens: Annotated[
        Annotated[int, Doc(ge=1)] | None,
        Doc(description="Most tokens of the answer, reasoning included, cut to what fits; default: what fits."),
    ] = None
    tools: Annotated[
        Annotated[list[FunctionTool], Doc(max_length=128)] | None,
        Doc(description="Functions that the model may call; no other kind of tool."),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedFunctionChoice | None,
        Doc(description="none, auto (the default with tools), required, or one function by name."),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Doc(description="false: at most one call in an answer.")] = None
    reasoning: Annotated[ReasoningOptions | None, Doc(description="How the model thinks before it answers.")] = None
    text: Annotated[TextOptions | None, Doc(description="The form of the text, of which there is one.")] = None
    stream_options: Annotated[ResponsesStreamOptions | None, Doc(description="Only with stream.")] = None
    metadata: Annotated[
        Annotated[dict[str, str], Doc(max_length=16)] | None,
        Doc(description="For the log of requests; comes back with the answer."),
    ] = None
    prompt_cache_key: Annotated[
        Annotated[str, Doc(max_length=512)] | None,
        Doc(description="A hint for routing. One engine has nothing to route; prefixes are found by their tokens."),
    ] = None

    # vLLM's extensions
    chat_template_kwargs: Annotated[
        Annotated[dict[str, Any], Doc(max_length=64)] | None, Doc(description="Further variables of the chat template.")
    ] = None

    store: Annotated[Any, refused("answers are not stored, also where it is left out", False)] = None
    previous_response_id: Annotated[Any, refused(_NOT_STORED)] = None
    conversation: Annotated[Any, refused(_NOT_STORED)] = None
    background: Annotated[Any, refused(_NOT_STORED, False)] = None
    background_options: Annotated[Any, refused(_NOT_STORED)] = None
    prompt: Annotated[Any, refused("prompts are not stored; send instructions and input")] = None
    include: Annotated[
        Any, refused("reasoning is always included, in the open", [], ["reasoning.encrypted_content"])
    ] = None
    truncation: Annotated[Any, refused("leave messages out", "disabled")] = None
    context_management: Annotated[Any, refused("leave messages out", [])] = None
    max_tool_calls: Annotated[Any, refused("it limits built-in tools, and there are none")] = None
    top_logprobs: Annotated[Any, refused("use /v1/chat/completions", 0)] = None
    prompt_cache_options: Annotated[Any, refused("prefixes are found by their tokens; cache_salt sets them apart")] = (
        None
    )
    prompt_cache_retention: Annotated[Any, refused("the cache keeps what fits", "in_memory", "in-memory")] = None
    safety_identifier: Annotated[Any, refused("use user")] = None
    moderation: Annotated[Any, refused("answers are not moderated")] = None
    image: Annotated[Any, refused("models take and give text only")] = None
    access_programs: Annotated[Any, refused("there are none")] = None


# ---------------------------------------------------------------- the answer


class OutputText(msgspec.Struct, kw_only=True):
    """The text of a message."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """An output item with text."""

    id: str
    status: str
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputFunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """An output item with a call."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class OutputReasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """An output item with reasoning."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []


OutputItem = OutputReasoning | OutputMessage | OutputFunctionCall


class InputTokensDetails(msgspec.Struct):
    """cached_tokens: those whose keys and values came from the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """reasoning_tokens: generated tokens between the tags of the reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why an answer failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why an answer is incomplete: max_output_tokens, deadline or shutdown."""

    reason: str


class ResponseAnswer(msgspec.Struct, kw_only=True):
    """The answer of /v1/responses, with the request's settings."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    object: Literal["response"] = "response"
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[FunctionTool]
    tool_choice: str | NamedFunctionChoice
    parallel_tool_calls: bool
    reasoning: ReasoningOptions
    text: dict[str, Any]
    metadata: dict[str, str]
    user: str | None
    prompt_cache_key: str | None
    truncation: Literal["disabled"] = "disabled"
    store: Literal[False] = False
    background: Literal[False] = False
    previous_response_id: None = None
    service_tier: Literal["default"] = "default"
