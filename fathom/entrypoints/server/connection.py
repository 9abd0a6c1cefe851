"""One client's connection: uvicorn's, with limits on what a client may send outside of bodies and how long it may take.

The parser keeps a request's head in memory until it is complete, before anybody has looked at the key, and has no limit
of its own; nor has it one for trailers and the extensions of chunks. And a request that is never sent to its end would
hold its connection for ever: uvicorn's own timeout is for connections between two requests.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fathom.entrypoints.server.errors import ApiError

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers; one read from the socket more may be held for a moment."""

_Receiving = Enum("_Receiving", ["NOTHING", "HEAD", "BODY"])


def connections(read_timeout_s: float) -> type[Connection]:
    """The connections of a server whose clients have this long to send a head, and then a body; 0: as they like."""
    return type("Connection", (Connection,), {"read_timeout_s": read_timeout_s})


class Connection(HttpToolsProtocol):
    """Ends with a 400 at MAX_HEAD_BYTES in a row that complete no head and belong to no body, with a 408 in time.

    The time runs from the connection's or a head's first byte to the head's end, and from there to the body's. It
    stands while an earlier request of the connection is being answered.
    """

    read_timeout_s = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loose_bytes = 0
        self._receiving = _Receiving.NOTHING
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop at the beginning."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop at the end."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what has come."""
        if self._timer is None:
            self._start_timer()
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a head."""
        self._receiving = _Receiving.HEAD
        if self._timer is None:  # it comes right behind another request
            self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head."""
        self._loose_bytes = 0
        self._receiving = _Receiving.BODY
        self._start_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a part of a body."""
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of a request."""
        self._receiving = _Receiving.NOTHING
        self._stop_timer()
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        if self.read_timeout_s:
            self._timer = self.loop.call_later(self.read_timeout_s, self._out_of_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _out_of_time(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (answering and self._receiving is not _Receiving.BODY):
            self._start_timer()  # an earlier request is being answered
            return
        unanswered = self._receiving is _Receiving.HEAD or (answering and not self.cycle.response_started)
        if self._receiving is not _Receiving.NOTHING and unanswered:
            self._say_late()
        self.transport.close()

    def _say_late(self) -> None:
        part = "head" if self._receiving is _Receiving.HEAD else "body"
        message = f"The {part} of the request did not come within {self.read_timeout_s:g} s (--request-read-timeout)."
        body = ApiError(408, message, code="request_timeout").encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[408] + head + body)
