"""Fields that requests share, and the parts that their answers have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from fathom.entrypoints.server.protocol.fields import BadWord, Doc, ModelName, ProcessorName, StopString, refused

_GRAMMAR = "constrained decoding is not part of this version"
_ONE_ENGINE = "this server has no engines of different roles"


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """stream_options of a request."""

    include_usage: Annotated[bool, Doc(description="Send the usage in a last chunk without choices.")] = False
    continuous_usage_stats: Annotated[bool, Doc(description="Send the usage so far in every chunk.")] = False
    include_obfuscation: Annotated[Any, refused("chunks are not padded", False)] = None


class EngineRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all of OpenAI's ways of asking for text have in common: who answers, how tokens are chosen, until when."""

    model: Annotated[ModelName | None, Doc(description="A name of /v1/models; left out: the served model.")] = None
    stream: Annotated[bool | None, Doc(description="Send the answer as server-sent events, as it comes.")] = None
    user: Annotated[
        Annotated[str, Doc(max_length=512)] | None, Doc(description="Who asks, for the log of requests.")
    ] = None

    temperature: Annotated[
        float | None, Doc(description="0 is greedy; default: the model's, else 1.", extra_json_schema={"minimum": 0})
    ] = None
    top_p: Annotated[
        float | None,
        Doc(
            description="Share of the distribution that is kept.",
            extra_json_schema={"exclusiveMinimum": 0, "maximum": 1},
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Doc(description="In [-2, 2]; counts generated tokens.", extra_json_schema={"minimum": -2, "maximum": 2}),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Doc(description="In [-2, 2]; counts generated tokens.", extra_json_schema={"minimum": -2, "maximum": 2}),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[str, float], Doc(max_length=1024)] | None, Doc(description="Token id -> value in [-100, 100].")
    ] = None
    seed: Annotated[int | None, Doc(description="Makes the answer repeatable, whatever else runs.")] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Doc(max_length=64)] | None,
        Doc(description="The answer ends before this text."),
    ] = None

    # vLLM's extensions
    top_k: Annotated[
        int | None,
        Doc(description="Number of best tokens that are kept; 0 or -1: all.", extra_json_schema={"minimum": -1}),
    ] = None
    min_p: Annotated[
        float | None,
        Doc(
            description="Least probability, relative to the best token's.",
            extra_json_schema={"minimum": 0, "maximum": 1},
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None, Doc(description="At least 1e-6; counts the prompt too.", extra_json_schema={"minimum": 1e-6})
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[int], Doc(max_length=1024)] | None, Doc(description="The answer ends at one of these tokens.")
    ] = None
    include_stop_str_in_output: Annotated[bool, Doc(description="Keep what ended the answer in its text.")] = False
    ignore_eos: Annotated[bool, Doc(description="Go on past the end-of-sequence token.")] = False
    min_tokens: Annotated[int, Doc(description="No end before this many tokens.", extra_json_schema={"minimum": 0})] = 0
    skip_special_tokens: Annotated[bool, Doc(description="Leave special tokens out of the text.")] = True
    spaces_between_special_tokens: Annotated[
        bool, Doc(description="Without effect, as no spaces are put there either way.")
    ] = True
    allowed_token_ids: Annotated[
        Annotated[list[int], Doc(max_length=65_536)] | None, Doc(description="Only these tokens may come.")
    ] = None
    bad_words: Annotated[
        Annotated[list[BadWord], Doc(max_length=1024)] | None, Doc(description="Words that may not come.")
    ] = None
    priority: Annotated[
        int, Doc(description="Lower goes first; other than 0 only with --scheduling-policy priority.")
    ] = 0
    cache_salt: Annotated[
        Annotated[str, Doc(min_length=1, max_length=128)] | None,
        Doc(description="Shares cached prefixes only with the same salt."),
    ] = None
    request_id: Annotated[
        Annotated[str, Doc(max_length=128)] | None,
        Doc(description="Becomes part of the answer's id; default: X-Request-Id, else random."),
    ] = None
    vllm_xargs: Annotated[
        Annotated[dict[str, Any], Doc(max_length=64)] | None,
        Doc(description="extra_args for custom logits processors."),
    ] = None

    # Fathom's own
    timeout: Annotated[
        Annotated[float, Doc(gt=0)] | None,
        Doc(description="Seconds; then the answer ends as it is, finish_reason abort, stop_reason deadline."),
    ] = None

    service_tier: Annotated[Any, refused("there is one tier", "auto", "default")] = None


class GenerationRequest(EngineRequest, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat completions have in common beyond that."""

    n: Annotated[Annotated[int, Doc(ge=1, le=128)] | None, Doc(description="Number of answers.")] = None
    stream_options: Annotated[StreamOptions | None, Doc(description="Only with stream.")] = None

    # vLLM's extensions
    truncate_prompt_tokens: Annotated[
        Annotated[int, Doc(ge=-1)] | None, Doc(description="Keep this many tokens of the prompt; -1: as many as fit.")
    ] = None
    truncation_side: Annotated[Literal["left", "right"], Doc(description="Where a prompt that is too long is cut.")] = (
        "left"
    )
    prompt_logprobs: Annotated[
        Annotated[int, Doc(ge=-1)] | None, Doc(description="Number of best tokens at each prompt position; -1: all.")
    ] = None
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] | None,
        Doc(description="Must be the engine's own --logprobs-mode; any other is refused."),
    ] = None
    logits_processors: Annotated[
        Annotated[list[ProcessorName | dict[str, Any]], Doc(max_length=64)] | None,
        Doc(
            description="Names of loaded processors, the only ones for this request; left out: all; []: none. "
            "One with arguments ({qualname, args, kwargs}) is refused."
        ),
    ] = None
    return_token_ids: Annotated[bool, Doc(description="Add token_ids and prompt_token_ids to the answer.")] = False
    return_tokens_as_token_ids: Annotated[bool, Doc(description="In logprobs, write tokens as token_id:N.")] = False

    # Fathom's own
    explain: Annotated[bool, Doc(description="Add what was done and how long it took to each choice.")] = False

    structured_outputs: Annotated[Any, refused(_GRAMMAR)] = None
    guided_json: Annotated[Any, refused(_GRAMMAR)] = None
    guided_regex: Annotated[Any, refused(_GRAMMAR)] = None
    guided_choice: Annotated[Any, refused(_GRAMMAR)] = None
    guided_grammar: Annotated[Any, refused(_GRAMMAR)] = None
    response_format: Annotated[Any, refused(_GRAMMAR, {"type": "text"})] = None
    use_beam_search: Annotated[Any, refused("beam search is offline only, LLM.beam_search", False)] = None
    length_penalty: Annotated[Any, refused("beam search is offline only, LLM.beam_search", 1.0)] = None
    logprob_token_ids: Annotated[Any, refused("use logprobs or allowed_token_ids")] = None
    thinking_token_budget: Annotated[Any, refused("there is no budget for reasoning alone")] = None
    repetition_detection: Annotated[Any, refused("use repetition_penalty")] = None
    watermarking: Annotated[Any, refused("answers are not watermarked", False)] = None
    stream_interval: Annotated[Any, refused("every token is sent when it is there", 1)] = None
    session_id: Annotated[Any, refused("requests do not belong together")] = None
    mm_payload: Annotated[Any, refused("models take text only")] = None
    routed_experts_prompt_start: Annotated[Any, refused("experts are not reported", 0)] = None
    kv_transfer_params: Annotated[Any, refused(_ONE_ENGINE)] = None
    ec_transfer_params: Annotated[Any, refused(_ONE_ENGINE)] = None


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens whose keys and values came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """reasoning_tokens: generated tokens between the tags of the reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request: each prompt once, and all that was generated.

    completion_tokens_details: of chat completions, where the model's reasoning is told apart.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Explanation(msgspec.Struct):
    """What was done for one choice. Times in milliseconds; sampling_params: those in effect, defaults included."""

    sampling_params: dict[str, Any]
    cached_tokens: int
    num_preemptions: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    model: str
    version: str


class ErrorInfo(msgspec.Struct):
    """OpenAI's error. param: the field at fault. code: a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class AnthropicError(msgspec.Struct):
    """Anthropic's error."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct):
    """The body of every answer of /v1/messages that is not 2xx, and of its error events."""

    error: AnthropicError
    type: Literal["error"] = "error"


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not 2xx, and of the event that ends a stream that failed."""

    error: ErrorInfo
