"""POST /v1/chat/completions: a conversation, carried on."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.assembly.chat import ChatAssembler, ChatOptions, fold_chat
from fathom.entrypoints.server.assembly.common import Explainer
from fathom.entrypoints.server.assembly.logprobs import TokenNames
from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.generation import Job, streamed, whole
from fathom.entrypoints.server.http import read_request
from fathom.entrypoints.server.parsing import OutputParser
from fathom.entrypoints.server.prompts import ServedPrompt, chat_prompt, truncate
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest
from fathom.entrypoints.server.sampling import default_max_tokens, fit_max_tokens, sampling_params
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.tool_use import ToolUse, tool_use_of
from fathom.params import SamplingParams


async def create_chat_completion(serving: Serving, http: Request) -> Response:
    """Carry a conversation on, whole or streamed."""
    serving.check_open()
    request = await read_request(http, ChatCompletionRequest, serving.settings.max_body_bytes)
    envelope = serving.envelope("chatcmpl", http, request)
    explain = serving.wants_explanation(http, request)
    tools = tool_use_of(serving, request)
    prompt = await chat_prompt(serving, request, tools.shown, tools.prefix)
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
    )
    explainer = Explainer(params, envelope.model) if explain else None
    options = _options(serving, request, tools, parser, explainer)
    assembler = ChatAssembler(envelope, options, len(prompt.token_ids))
    if request.stream:
        return await streamed(serving, job, assembler)
    return await whole(serving, http, job, assembler, fold_chat)


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


def _options(
    serving: Serving,
    request: ChatCompletionRequest,
    tools: ToolUse,
    parser: OutputParser,
    explainer: Explainer | None,
) -> ChatOptions:
    names = TokenNames(serving.engine.tokenizer, request.return_tokens_as_token_ids) if request.logprobs else None
    return ChatOptions(
        n=request.n or 1,
        role=serving.settings.response_role,
        parser=parser,
        prefix=tools.prefix,
        echo=_echo(request),
        named=tools.named,
        include_reasoning=request.include_reasoning,
        names=names,
        top_logprobs=request.top_logprobs or 0,
        token_ids=request.return_token_ids,
        prompt_logprobs=request.prompt_logprobs is not None,
        explainer=explainer,
    )


def _echo(request: ChatCompletionRequest) -> str:
    """With echo, the final message's text if it is the assistant's."""
    final = request.messages[-1]
    if not request.echo or final.role != "assistant":
        return ""
    content: Any = final.content or ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
