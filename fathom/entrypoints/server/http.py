"""Reading requests and writing answers: bodies with a limit, typed JSON, event streams, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fathom.entrypoints.server.errors import ApiError, bad_request, decoding_error, failure_of
from fathom.entrypoints.server.protocol.fields import refusals_of

T = TypeVar("T")
RequestStruct = TypeVar("RequestStruct", bound=msgspec.Struct)


class ClientGone(Exception):
    """Whoever asked has closed the connection; nobody reads the answer."""


async def read_request(request: Request, kind: type[RequestStruct], limit: int) -> RequestStruct:
    """The body as a struct.

    Raises:
        ApiError: 413 if it is larger than `limit` bytes; 400 if it is not JSON, not of this kind, or has a field that
            is not supported.
    """
    body = await _read_body(request, limit)
    if not body:
        raise bad_request("The body is empty; it must be a JSON object.", code="invalid_json")
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise decoding_error(error, kind) from None
    check_refusals(decoded)
    return decoded


def check_refusals(struct: msgspec.Struct, where: str = "") -> None:
    """Refuse, by name, fields that are known but not supported, also those of structs within."""
    for name, refusal in refusals_of(type(struct)):
        value = getattr(struct, name)
        if not refusal.lets_pass(value):
            raise bad_request(
                f"{where}{name} is not supported: {refusal.why}.", f"{where}{name}", "unsupported_parameter"
            )
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is None:
            continue
        if isinstance(value, msgspec.Struct):
            check_refusals(value, f"{where}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            for index, item in enumerate(value):
                check_refusals(item, f"{where}{name}[{index}].")


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"The body is larger than {limit} bytes.", code="body_too_large")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise bad_request(f"Content-Encoding {encoding} is not supported: send the body as it is.", "Content-Encoding")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def json_response(value: Any, status: int = 200) -> Response:
    """A struct as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. If the client goes away first, the work is cancelled.

    Raises:
        ClientGone: it went away. Whatever the work raises.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for pending in (task, watch):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pending


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


DONE = b"data: [DONE]\n\n"


def event(data: bytes, name: str | None = None) -> bytes:
    """One server-sent event. name: its type, for protocols that have them."""
    if name is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


Emit = Callable[[bytes], Awaitable[None]]
"""Sends whole events; to be awaited, which takes as long as the client is behind."""


class EventStream(Response):
    """An answer of server-sent events, sent as they come; the client's going away ends it.

    Args:
        events: emits them. An exception becomes a last one, with the error; then `end` follows all the same.
        close: is awaited when nothing more will be sent, however it ended.
        end: the last event of every stream.
        encode_error: an error as an event; OpenAI's form if left out.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Callable[[Emit], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        *,
        end: bytes = DONE,
        encode_error: Callable[[ApiError], bytes] | None = None,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._end = end
        self._encode_error = encode_error or (lambda error: event(error.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, self._send_all(scope, send))
        finally:
            await self._close()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        def emit(piece: bytes) -> Awaitable[None]:
            return send({"type": "http.response.body", "body": piece, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._events(emit)
            last = self._end
        except Exception as error:
            last = self._encode_error(failure_of(scope, error)) + self._end
        await send({"type": "http.response.body", "body": last, "more_body": False})
