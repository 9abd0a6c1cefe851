"""POST /v1/responses: OpenAI's newer way to carry a conversation on, without its storage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.assembly.blocks import BlockReader
from fathom.entrypoints.server.assembly.common import Envelope
from fathom.entrypoints.server.assembly.reasoning_tokens import pieces_of, reasoning_tokens
from fathom.entrypoints.server.assembly.responses import ResponsesAssembler, fold_responses
from fathom.entrypoints.server.conversation import Conversation, prepare
from fathom.entrypoints.server.errors import to_api_error
from fathom.entrypoints.server.generation import whole
from fathom.entrypoints.server.http import read_request
from fathom.entrypoints.server.protocol.responses import ReasoningOptions, ResponseAnswer, ResponsesRequest
from fathom.entrypoints.server.response_input import as_chat
from fathom.entrypoints.server.serving import Serving
from fathom.entrypoints.server.typed_events import typed_stream
from fathom.errors import ClientError


async def create_response(serving: Serving, http: Request) -> Response:
    """Carry a conversation on, whole or streamed as typed events; nothing is stored."""
    serving.check_open()
    request = await read_request(http, ResponsesRequest, serving.settings.max_body_bytes)
    chat, origins = as_chat(request)
    with _in_terms_of_the_request(origins):
        conversation = await prepare(serving, http, chat, "resp_")
    assembler = _assembler(serving, request, conversation)
    if request.stream:
        return await typed_stream(serving, conversation.job, assembler)
    return await whole(serving, http, conversation.job, assembler, fold_responses)


@contextmanager
def _in_terms_of_the_request(origins: list[str]) -> Iterator[None]:
    """Errors that name a field of the chat completion name the one that it came from."""
    try:
        yield
    except ClientError as error:
        failed = to_api_error(error)
        info = failed.body.error
        info.message = _MESSAGE.sub(lambda found: origins[int(found[1])], info.message)
        if (info.param or "").startswith("messages"):
            info.param = _MESSAGE.sub(lambda found: origins[int(found[1])], info.param or "").replace(
                "messages", "input"
            )
        raise failed from error


_MESSAGE = re.compile(r"\bmessages\[(\d+)\]\.content")


def _assembler(serving: Serving, request: ResponsesRequest, conversation: Conversation) -> ResponsesAssembler:
    tokenizer = serving.need_tokenizer("input")
    return ResponsesAssembler(
        conversation.envelope,
        _answer(request, conversation.envelope, conversation),
        BlockReader(conversation.parser, conversation.tools.prefix),
        conversation.prompt_length,
        reasoning_tokens(conversation.parser, pieces_of(tokenizer), conversation.tools.prefix),
    )


def _answer(request: ResponsesRequest, envelope: Envelope, conversation: Conversation) -> ResponseAnswer:
    """The answer as it begins: with the settings in effect, and empty."""
    return ResponseAnswer(
        id=envelope.id,
        created_at=envelope.created,
        model=envelope.model,
        status="in_progress",
        output=[],
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        temperature=conversation.params.temperature,
        top_p=conversation.params.top_p,
        tools=request.tools or [],
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=request.reasoning or ReasoningOptions(),
        text={"format": {"type": "text"}},
        metadata=request.metadata or {},
        user=request.user,
        prompt_cache_key=request.prompt_cache_key,
    )
