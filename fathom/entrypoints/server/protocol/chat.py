"""/v1/chat/completions: the request, the answer, and the chunks of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from fathom.entrypoints.server.protocol.common import Explanation, GenerationRequest, Usage
from fathom.entrypoints.server.protocol.fields import Doc, refused

# ---------------------------------------------------------------- request


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message, of any role; fields that a role does not have are left out."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None

    # What an answer holds and clients send back with the history.
    annotations: Annotated[Any, refused("annotations are not read", [])] = None
    audio: Annotated[Any, refused("models take text only")] = None
    function_call: Annotated[Any, refused("use tool_calls")] = None


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the model may call. parameters: a JSON schema."""

    name: Annotated[str, Doc(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[Any, refused("constrained decoding is not part of this version", False)] = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The name in a NamedToolChoice."""

    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """tool_choice that asks for one function."""

    function: NamedFunction
    type: Literal["function"] = "function"


class ChatCompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Doc(description="The conversation; contents are text or text parts.", max_length=16_384)
    ]
    max_completion_tokens: Annotated[
        Annotated[int, Doc(ge=1)] | None,
        Doc(description="Most tokens of an answer, cut to what fits; default: what fits."),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Doc(ge=1)] | None, Doc(description="The old name of max_completion_tokens.")
    ] = None
    logprobs: Annotated[bool | None, Doc(description="Report the logprob of each token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Doc(ge=-1)] | None, Doc(description="Number of best tokens at each position; needs logprobs.")
    ] = None
    tools: Annotated[
        Annotated[list[Tool], Doc(max_length=128)] | None, Doc(description="Functions that the model may call.")
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedToolChoice | None,
        Doc(description="none, auto (the default with tools), required, or one function by name."),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Doc(description="false: at most one call in an answer.")] = None
    metadata: Annotated[
        Annotated[dict[str, str], Doc(max_length=16)] | None, Doc(description="For the log of requests.")
    ] = None
    reasoning_effort: Annotated[
        Annotated[str, Doc(max_length=64)] | None,
        Doc(description="A variable of the chat template; refused if the template has none."),
    ] = None

    # vLLM's extensions
    echo: Annotated[bool, Doc(description="Begin with the final message, if it is the assistant's.")] = False
    add_generation_prompt: Annotated[bool, Doc(description="End the prompt with the start of an answer.")] = True
    continue_final_message: Annotated[bool, Doc(description="Carry the final message on.")] = False
    add_special_tokens: Annotated[
        bool, Doc(description="Let the tokenizer add a BOS; the template has written it already.")
    ] = False
    documents: Annotated[
        Annotated[list[dict[str, Any]], Doc(max_length=1024)] | None,
        Doc(description="A variable of the chat template."),
    ] = None
    chat_template: Annotated[
        str | None, Doc(description="A Jinja template; only with --trust-request-chat-template.")
    ] = None
    chat_template_kwargs: Annotated[
        Annotated[dict[str, Any], Doc(max_length=64)] | None, Doc(description="Further variables of the chat template.")
    ] = None
    include_reasoning: Annotated[bool, Doc(description="false: leave the reasoning out of the answer.")] = True

    store: Annotated[Any, refused("answers are not stored", False)] = None
    modalities: Annotated[Any, refused("models answer in text only", ["text"])] = None
    audio: Annotated[Any, refused("models answer in text only")] = None
    prediction: Annotated[Any, refused("predicted outputs are not part of this version")] = None
    web_search_options: Annotated[Any, refused("the server does not search")] = None
    functions: Annotated[Any, refused("use tools", [])] = None
    function_call: Annotated[Any, refused("use tool_choice", "none", "auto")] = None
    verbosity: Annotated[Any, refused("ask for it in the prompt", "medium")] = None
    prompt_cache_key: Annotated[Any, refused("prefixes are found by their tokens; cache_salt sets them apart")] = None
    prompt_cache_retention: Annotated[Any, refused("the cache keeps what fits", "in_memory", "in-memory")] = None
    safety_identifier: Annotated[Any, refused("use user")] = None
    mm_processor_kwargs: Annotated[Any, refused("models take text only")] = None
    media_io_kwargs: Annotated[Any, refused("models take text only")] = None
    return_prompt_text: Annotated[Any, refused("/tokenize shows the prompt", False)] = None


# ---------------------------------------------------------------- answer


class FunctionCall(msgspec.Struct):
    """A call that the model makes. arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """One tool call of an answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class TopLogprob(msgspec.Struct):
    """A token that might have come. bytes: its UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """A token that came, and the best ones at its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry for each token of the answer."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The message of an answer; content is null if there are only tool calls."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, Any] | None] | UnsetType = UNSET


class FunctionCallDelta(msgspec.Struct, omit_defaults=True):
    """What is new of a call: its name comes once, its arguments in pieces."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is new of the tool call at `index`."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionCallDelta


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is new of an answer's message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """What is new of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, Any] | None] | UnsetType = UNSET
