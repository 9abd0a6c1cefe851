"""/v1/completions: the request, and the answer, which is also the form of a chunk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from fathom.entrypoints.server.protocol.common import Explanation, GenerationRequest, Usage
from fathom.entrypoints.server.protocol.fields import Doc, refused

MAX_PROMPTS = 1024
PromptIds = list[int]


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        str | list[str | int | PromptIds],
        Doc(description=f"A text, token ids, or up to {MAX_PROMPTS} of either."),
    ]
    max_tokens: Annotated[
        Annotated[int, Doc(ge=0)] | None,
        Doc(description="Most tokens of an answer, cut to what fits; default 16. 0: none."),
    ] = None
    echo: Annotated[bool | None, Doc(description="Begin the answer's text, and its logprobs, with the prompt.")] = None
    logprobs: Annotated[
        Annotated[int, Doc(ge=-1)] | None,
        Doc(description="Number of best tokens at each position, beside the chosen one."),
    ] = None
    best_of: Annotated[
        Annotated[int, Doc(ge=1, le=128)] | None,
        Doc(description="Make this many answers and return the n of best mean logprob; not streamed."),
    ] = None
    add_special_tokens: Annotated[bool, Doc(description="Let the tokenizer add its BOS to a text.")] = True

    suffix: Annotated[Any, refused("filling in the middle is not part of this version", "")] = None
    prompt_embeds: Annotated[Any, refused("prompts are text or token ids")] = None


class CompletionLogprobs(msgspec.Struct):
    """Four lists, one entry a token. text_offset: where the token begins in the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or in a chunk what is new of it. index: prompt * n + number of the answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, Any] | None] | UnsetType = UNSET
    explain: Explanation | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer of /v1/completions, and each chunk of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
