"""GET /openapi.json: the API in a form for programs, made from the protocol types."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import fathom
from fathom.entrypoints.server.errors import ANTHROPIC_PATH
from fathom.entrypoints.server.http import json_response
from fathom.entrypoints.server.protocol.chat import ChatCompletion, ChatCompletionRequest
from fathom.entrypoints.server.protocol.common import AnthropicErrorBody, ErrorBody
from fathom.entrypoints.server.protocol.completion import Completion, CompletionRequest
from fathom.entrypoints.server.protocol.messages import CountTokensRequest, Message, MessagesRequest, TokensCount
from fathom.entrypoints.server.protocol.other import (
    DetokenizeAnswer,
    DetokenizeRequest,
    LoadAnswer,
    ModelCard,
    ModelList,
    StatusAnswer,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
    VersionAnswer,
)
from fathom.entrypoints.server.protocol.responses import ResponseAnswer, ResponsesRequest
from fathom.entrypoints.server.protocol.steps import StepsAnswer
from fathom.entrypoints.server.serving import Serving

OPERATIONS: list[tuple[str, str, str, Any, Any]] = [
    ("post", "/v1/completions", "Carry text on", CompletionRequest, Completion),
    ("post", "/v1/chat/completions", "Carry a conversation on", ChatCompletionRequest, ChatCompletion),
    ("post", "/v1/responses", "Carry a conversation on", ResponsesRequest, ResponseAnswer),
    ("post", "/v1/messages", "Carry a conversation on, as Anthropic has it", MessagesRequest, Message),
    ("post", "/v1/messages/count_tokens", "Count the tokens of a conversation", CountTokensRequest, TokensCount),
    ("get", "/v1/models", "List the served names", None, ModelList),
    ("get", "/v1/models/{model}", "Show one of them", None, ModelCard),
    ("post", "/tokenize", "Text or messages to token ids", TokenizeRequest, TokenizeAnswer),
    ("post", "/detokenize", "Token ids to text", DetokenizeRequest, DetokenizeAnswer),
    ("get", "/tokenizer_info", "Special tokens and chat template", None, TokenizerInfo),
    ("get", "/health", "Whether the server serves", None, StatusAnswer),
    ("get", "/ping", "The same", None, StatusAnswer),
    ("post", "/ping", "The same", None, StatusAnswer),
    ("get", "/version", "Fathom's version", None, VersionAnswer),
    ("get", "/load", "How much is under way", None, LoadAnswer),
    ("get", "/engine/steps", "The engine's last steps", None, StepsAnswer),
]
STREAMED = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/engine/steps"})
"""Paths whose answers may also come as server-sent events."""
_EVENT = {
    "type": "object",
    "description": "One event. data: JSON, or [DONE].",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_ERRORS = {
    "400": "Something is wrong with the request",
    "401": "No key, or a wrong one",
    "404": "No such model or path",
    "413": "The body is too large",
    "429": "The queue is full",
    "500": "The server failed",
    "503": "The server is stopping, or its engine is gone",
}


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    kinds = [kind for operation in OPERATIONS for kind in operation[3:] if kind is not None]
    kinds = list(dict.fromkeys([*kinds, ErrorBody, AnthropicErrorBody]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, summary, asked, answered in OPERATIONS:
        answer = _content("The answer", schema_of[answered])
        if path in STREAMED:
            answer["content"]["text/event-stream"] = {"schema": _EVENT}
        error = AnthropicErrorBody if path.startswith(ANTHROPIC_PATH) else ErrorBody
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": f"{method}{path.translate(str.maketrans('/{}', '_  ')).replace(' ', '')}",
            "responses": {
                "200": answer,
                **{status: _content(words, schema_of[error]) for status, words in _ERRORS.items()},
            },
        }
        if asked is not None:
            operation["requestBody"] = {"required": True, **_content("", schema_of[asked])}
            operation["requestBody"].pop("description")
        if "{model}" in path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fathom", "version": fathom.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _content(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


async def show(serving: Serving, http: Request) -> Response:
    """The API in a form for programs."""
    root = serving.settings.root_path
    return json_response(document() | {"servers": [{"url": root}]} if root else document())
