"""POST /v1/chat/completions: a conversation, carried on."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.assembly.chat import ChatAssembler, ChatOptions, fold_chat
from fathom.entrypoints.server.assembly.common import Explainer
from fathom.entrypoints.server.assembly.logprobs import TokenNames
from fathom.entrypoints.server.assembly.reasoning_tokens import pieces_of
from fathom.entrypoints.server.conversation import Conversation, prepare
from fathom.entrypoints.server.generation import streamed, whole
from fathom.entrypoints.server.http import read_request
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest
from fathom.entrypoints.server.serving import Serving


async def create_chat_completion(serving: Serving, http: Request) -> Response:
    """Carry a conversation on, whole or streamed."""
    serving.check_open()
    request = await read_request(http, ChatCompletionRequest, serving.settings.max_body_bytes)
    explain = serving.wants_explanation(http, request)
    conversation = await prepare(serving, http, request, "chatcmpl-", explain)
    options = _options(serving, request, conversation, explain)
    assembler = ChatAssembler(conversation.envelope, options, conversation.prompt_length)
    if request.stream:
        return await streamed(serving, conversation.job, assembler)
    return await whole(serving, http, conversation.job, assembler, fold_chat)


def _options(
    serving: Serving, request: ChatCompletionRequest, conversation: Conversation, explain: bool
) -> ChatOptions:
    names = TokenNames(serving.engine.tokenizer, request.return_tokens_as_token_ids) if request.logprobs else None
    return ChatOptions(
        n=request.n or 1,
        role=serving.settings.response_role,
        parser=conversation.parser,
        pieces=pieces_of(serving.need_tokenizer("messages")),
        prefix=conversation.tools.prefix,
        echo=_echo(request),
        named=conversation.tools.named,
        include_reasoning=request.include_reasoning,
        names=names,
        top_logprobs=request.top_logprobs or 0,
        token_ids=request.return_token_ids,
        prompt_logprobs=request.prompt_logprobs is not None,
        explainer=Explainer(conversation.params, conversation.envelope.model) if explain else None,
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
