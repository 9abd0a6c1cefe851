"""The HTTP application: which path leads where, and what surrounds every request.

A new family of endpoints is a file beside this one, and its lines in ROUTES.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
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
    ("GET", "/tokenizer_info", tokens.tokenizer_info),
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


def create_app(serving: Serving) -> ASGIApp:
    """The application that serves an engine.

    Put together of Starlette's parts and not a Starlette(), which would pass each piece of a stream through three
    functions that look out for what is looked after here.
    """
    settings = serving.settings
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ROUTES + WEB_ROUTES + (ADMIN_ROUTES if settings.enable_admin else []):
        by_path.setdefault(path, {})[method] = handler
    routes = [Route(path, _Endpoint(serving, path, handlers), name=path) for path, handlers in by_path.items()]
    app: ASGIApp = Router(routes, default=_unknown_path)
    app = _KeyCheck(app, settings.keys)
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(settings.allowed_origins),
            allow_methods=list(settings.allowed_methods),
            allow_headers=list(settings.allowed_headers),
            allow_credentials=settings.allow_credentials,
            expose_headers=["X-Request-Id"],
        )
    if serving.tracing is not None:
        app = TracedRequests(app, serving.tracing)
    app = _Surroundings(app)
    return _UnderPath(app, settings.root_path) if settings.root_path else app


class _UnderPath:
    """Takes the path under which a proxy publishes the server off, if the proxy has not done so."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._root:  # the page's links are relative to what follows
            await RedirectResponse(f"{path}/")(scope, receive, send)
            return
        if path.startswith(f"{self._root}/"):
            scope = {**scope, "path": path.removeprefix(self._root)}
        await self._app(scope, receive, send)


class _Endpoint:
    """The handlers of a path, by method; whatever one raises becomes an answer."""

    def __init__(self, serving: Serving, path: str, handlers: dict[str, Handler]) -> None:
        self._serving = serving
        self._path = path
        self._handlers = handlers | ({"HEAD": handlers["GET"]} if "GET" in handlers else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        handler = self._handlers.get(http.method)
        if handler is None:
            response = failure_of(scope, HTTPException(405)).response(scope["path"])
            response.headers["Allow"] = ", ".join(self._handlers)
        else:
            response = await self._answer(handler, http)
        await response(scope, receive, send)

    async def _answer(self, handler: Handler, http: Request) -> Response:
        try:
            response = await handler(self._serving, http)
        except ClientGone:
            response = Response(status_code=499)  # nobody reads it; the code is the one that proxies log
        except Exception as error:
            failed = failure_of(http.scope, error)
            if failed.body.error.code == "queue_full":
                self._serving.metrics.rejected("queue_full")
            response = failed.response(self._path)
        self._serving.metrics.answered(self._path, response.status_code)
        return response


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    message = f"There is no {scope['path'][:200]} here. The API is below /v1; /openapi.json has every path."
    await failure_of(scope, HTTPException(404, message)).response(scope["path"])(scope, receive, send)


class _Surroundings:
    """Puts the request's id into every answer's headers, and answers what went wrong outside of an endpoint."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Request(scope)).encode()
        begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if begun:
                raise
            await failure_of(scope, error).response(scope["path"])(scope, receive, send_with_id)


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
