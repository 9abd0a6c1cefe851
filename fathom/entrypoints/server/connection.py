"""One client's connection: uvicorn's, with a limit on what a client may send outside of bodies.

The parser keeps a request's head in memory until it is complete, before anybody has looked at the key, and has no limit
of its own; nor has it one for trailers and the extensions of chunks.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers; one read from the socket more may be held for a moment."""


class Connection(HttpToolsProtocol):
    """Ends with a 400 at MAX_HEAD_BYTES in a row that complete no head and belong to no body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loose_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Called by the loop with what has come."""
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head."""
        self._loose_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a part of a body."""
        self._loose_bytes = 0
        super().on_body(body)
