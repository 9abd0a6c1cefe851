"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's way to carry a conversation on."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.assembly.blocks import BlockReader
from fathom.entrypoints.server.assembly.messages import MessagesAssembler
from fathom.entrypoints.server.conversation import prepare, prompt_of
from fathom.entrypoints.server.generation import whole
from fathom.entrypoints.server.http import json_response, read_request
from fathom.entrypoints.server.message_input import as_chat
from fathom.entrypoints.server.protocol.messages import CountTokensRequest, MessagesRequest, Ping, TokensCount
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.typed_events import encoded, typed_stream


async def create_message(serving: Serving, http: Request) -> Response:
    """Carry a conversation on, as Anthropic's clients ask, whole or streamed."""
    serving.check_open()
    request = await read_request(http, MessagesRequest, serving.settings.max_body_bytes)
    conversation = await prepare(serving, http, as_chat(serving, request), "msg_")
    tokenizer = serving.need_tokenizer("messages")
    assembler = MessagesAssembler(
        conversation.envelope,
        request.max_tokens,
        BlockReader(conversation.parser, conversation.tools.prefix),
        conversation.prompt_length,
        lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
    )
    if request.stream:
        return await typed_stream(serving, conversation.job, assembler, idle=encoded([Ping()]))
    return await whole(serving, http, conversation.job, assembler, assembler.fold)


async def count_tokens(serving: Serving, http: Request) -> Response:
    """How many tokens a conversation has as a prompt."""
    request = await read_request(http, CountTokensRequest, serving.settings.max_body_bytes)
    serving.check_model(request.model)
    _, prompt = await prompt_of(serving, as_chat(serving, request))
    return json_response(TokensCount(len(prompt.token_ids)))
