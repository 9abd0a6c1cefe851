"""A conversation made ready for the engine: what every endpoint that answers one needs, whatever its protocol.

The others state their requests as chat completions, so tools, templates and limits mean the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from fathom.entrypoints.server.assembly.common import Envelope
from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.generation import Job
from fathom.entrypoints.server.parsing import OutputParser
from fathom.entrypoints.server.prompts import ServedPrompt, chat_prompt, truncate
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest
from fathom.entrypoints.server.sampling import default_max_tokens, fit_max_tokens, sampling_params
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.tool_use import ToolUse, tool_use_of
from fathom.entrypoints.server.tracing import trace_of
from fathom.sampling_params import SamplingParams


@dataclass(frozen=True)
class Conversation:
    """What the engine is to do for a conversation, and how its answer is read.

    parser: reads the answer, of which tools.prefix is the beginning that the prompt holds.
    """

    envelope: Envelope
    job: Job
    params: SamplingParams
    prompt_length: int
    tools: ToolUse
    parser: OutputParser


async def prepare(
    serving: Serving, http: Request, request: ChatCompletionRequest, id_prefix: str, explain: bool = False
) -> Conversation:
    """Render, tokenise and check a conversation.

    Args:
        id_prefix: how the answer's id begins.
        explain: what was done will be told.

    Raises:
        ApiError, ValidationError: something is wrong with the request.
    """
    envelope = serving.envelope(id_prefix, http, request)
    tools, prompt = await prompt_of(serving, request, must_fit=request.truncate_prompt_tokens is None)
    parser = tools.parser((prompt.text or "").removesuffix(tools.prefix))
    prompt = _cut(serving, request, prompt)
    params = _params(serving, request, len(prompt.token_ids), _reads_special_tokens(serving, parser), explain)
    job = Job(
        id=envelope.id,
        prompts=[{"prompt": prompt.text, "prompt_token_ids": prompt.token_ids, "cache_salt": request.cache_salt}],
        params=[params],
        priority=request.priority,
        seconds=serving.deadline_of(http, request),
        user=request.user if request.metadata is None else f"{request.user} {request.metadata}",
        trace=trace_of(http.scope),
    )
    return Conversation(envelope, job, params, len(prompt.token_ids), tools, parser)


async def prompt_of(
    serving: Serving, request: ChatCompletionRequest, *, must_fit: bool = False
) -> tuple[ToolUse, ServedPrompt]:
    """How the tools are used, and the prompt, with the beginning of an answer that is forced."""
    tools = tool_use_of(serving, request)
    return tools, await chat_prompt(serving, request, tools.shown, tools.opening, must_fit=must_fit)


def _cut(serving: Serving, request: ChatCompletionRequest, prompt: ServedPrompt) -> ServedPrompt:
    room = serving.engine.input_processor.max_model_len - max(1, _max_tokens(request) or 1)
    kept = truncate(prompt.token_ids, request.truncate_prompt_tokens, request.truncation_side, max(0, room))
    return prompt if kept is prompt.token_ids else ServedPrompt(None, kept)


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    """The limit under its new name or its old one."""
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise bad_request(f"max_tokens={old} contradicts max_completion_tokens={new}.", "max_tokens")
    return old if new is None else new


def _reads_special_tokens(serving: Serving, parser: OutputParser) -> bool:
    """Whether the parser looks for strings that are special tokens, which the text then must not leave out."""
    tokenizer = serving.need_tokenizer("messages")
    return any(tokenizer.token_to_id(word) in tokenizer.all_special_ids for word in parser.markup)


def _params(
    serving: Serving, request: ChatCompletionRequest, prompt_length: int, keep_special_tokens: bool, explain: bool
) -> SamplingParams:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")
    most = serving.engine.config.model.max_logprobs
    if request.top_logprobs is not None and -1 < most < request.top_logprobs:
        raise bad_request(
            f"top_logprobs={request.top_logprobs} is more than this server allows, {most} (--max-logprobs).",
            "top_logprobs",
        )
    params = sampling_params(
        serving,
        request,
        n=request.n or 1,
        max_tokens=fit_max_tokens(serving, _max_tokens(request), prompt_length, default_max_tokens(serving)),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        explain=explain,
        deltas=bool(request.stream or explain),
    )
    if keep_special_tokens:
        params.skip_special_tokens = False
    return params
