"""The HTTP application: which path leads where, and what surrounds every request.

A new family of endpoints is a file beside this one, and its lines in ROUTES.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fathom.entrypoints.server import (
    chat,
    completion,
    messages,
    models,
    openapi,
    operations,
    pooling,
    responses,
    steps,
    tokens,
    web,
)
from fathom.entrypoints.server.errors import ApiError, failure_of
from fathom.entrypoints.server.http import ClientGone
from fathom.entrypoints.server.serving import Serving, request_id_of
from fathom.entrypoints.server.tracing import TracedRequests

Handler = Callable[[Serving, Request], Awaitable[Response]]

ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/", web.page),
    ("POST", "/v1/completions", completion.create_completion),
    ("POST", "/v1/chat/completions", chat.create_chat_completion),
    ("POST", "/v1/responses", responses.create_response),
    ("POST", "/v1/messages", messages.create_message),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/{model:path}", models.show_model),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/health", operations.health),
    ("GET", "/ping", operations.health),
    ("POST", "/ping", operations.health),
    ("GET", "/version", operations.version),
    ("GET", "/load", operations.load),
    ("GET", "/metrics", operations.metrics),
    ("GET", "/engine/steps", steps.engine_steps),
    ("GET", "/openapi.json", openapi.show),
    *[
        ("POST", path, pooling.unable)
        for path in (
            "/v1/embeddings",
            "/pooling",
            "/classify",
            "/score",
            "/v1/score",
            "/rerank",
            "/v1/rerank",
            "/v2/rerank",
        )
    ],
]
ADMIN_ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/reset_prefix_cache", operations.reset_prefix_cache),
    ("POST", "/start_profile", operations.start_profile),
    ("POST", "/stop_profile", operations.stop_profile),
]
WEB_ROUTES: list[tuple[str, str, Handler]] = [("GET", path, web.page) for path in web.FILES if path != "/"]
"""What the page is made of."""
OPEN_PATHS = frozenset({"/health", "/ping", *web.FILES})
"""Need no key. The page asks for it."""


def create_app(serving: Serving) -> Starlette:
    """The application that serves an engine."""
    settings = serving.settings
    middleware = [Middleware(_Surroundings, serving=serving)]
    if serving.tracing is not None:
        middleware.append(Middleware(TracedRequests, tracing=serving.tracing))
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id"],
            )
        )
    middleware.append(Middleware(_KeyCheck, keys=settings.keys))
    routes = ROUTES + WEB_ROUTES + (ADMIN_ROUTES if settings.enable_admin else [])
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in routes:
        by_path.setdefault(path, {})[method] = handler
    return Starlette(
        routes=[
            Route(path, _endpoint(serving, path, handlers), methods=list(handlers))
            for path, handlers in by_path.items()
        ],
        middleware=middleware,
        exception_handlers={404: _failed, 405: _failed, Exception: _failed},
    )


def _endpoint(serving: Serving, path: str, handlers: dict[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    """A handler as Starlette wants it; whatever it raises becomes an answer."""

    async def endpoint(http: Request) -> Response:
        try:
            handler = handlers["GET" if http.method == "HEAD" else http.method]
            response = await handler(serving, http)
        except ClientGone:
            response = Response(status_code=499)  # nobody reads it; the code is the one that proxies log
        except Exception as error:
            failed = failure_of(http.scope, error)
            if failed.body.error.code == "queue_full":
                serving.metrics.rejected("queue_full")
            response = failed.response(path)
        serving.metrics.answered(path, response.status_code)
        return response

    return endpoint


async def _failed(http: Request, error: Exception) -> Response:
    response = failure_of(http.scope, error).response(http.url.path)
    response.headers.update(getattr(error, "headers", None) or {})  # a 405 says what is allowed
    return response


class _Surroundings:
    """Puts the request's id into every answer's headers."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Request(scope)).encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


class _KeyCheck:
    """Lets in who has a key: every path but OPEN_PATHS, also those that do not exist. Without keys, everybody."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN_PATHS and not self._has_key(scope):
            refusal = ApiError(401, "This server needs a key, as `Authorization: Bearer KEY`.", code="invalid_api_key")
            response = refusal.response(scope["path"])
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        """As OpenAI's clients send it, or as Anthropic's do. Takes the same time for every wrong key."""
        headers = dict(scope["headers"])
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = headers.get(b"x-api-key", b"")
        return max(hmac.compare_digest(given.strip(), key) for key in self._keys)
