"""A server of OpenAI's completions that knows nothing but the standard fields: what a client may meet elsewhere."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.client.processes import PATIENCE_S


class PlainServer:
    """Answers with one word for each token asked for, in a thread for each connection.

    Args:
        strict: refuses fields beyond OpenAI's, with 400.
        takes_ids: takes prompts of token ids; else refuses them with 400.
        fails_every: each n-th request after the first gets 500; 0: none does.
        counts: sends usage.
        drops: closes a connection at the second request, without an answer.
        alone, company, last: after the first so many requests, none is answered until so many are under way at once, or
            so many have come in all.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        takes_ids: bool = True,
        fails_every: int = 0,
        counts: bool = True,
        drops: bool = False,
        alone: int = 0,
        company: int = 1,
        last: int = 0,
    ) -> None:
        self.strict, self.takes_ids, self.fails_every, self.counts = strict, takes_ids, fails_every, counts
        self.drops = drops
        self.alone, self.company, self.last = alone, company, last
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._under_way = 0
        self._changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def refusal(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """Status and message, if this request is not answered."""
        if self.strict and "ignore_eos" in body:
            return 400, "unknown field ignore_eos"
        if not self.takes_ids and not isinstance(body["prompt"], str):
            return 400, "prompt must be a text"
        number = len(self.bodies) - 1
        return (500, "broken") if self.fails_every and number and number % self.fails_every == 0 else None

    def _may_answer(self) -> bool:
        return len(self.bodies) <= self.alone or self.most_at_once >= self.company or len(self.bodies) >= self.last

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: object) -> None:
                pass

            def do_GET(self) -> None:
                self._send(200, json.dumps({"data": [{"id": "plain"}]}).encode())

            def do_POST(self) -> None:
                if server.drops and getattr(self, "used", False):
                    self.close_connection = True
                    return
                self.used = True
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._changed:
                    server.bodies.append(body)
                    refused = server.refusal(body)
                    server._under_way += 1
                    server.most_at_once = max(server.most_at_once, server._under_way)
                    server._changed.notify_all()
                    server._changed.wait_for(server._may_answer, PATIENCE_S)
                    server._under_way -= 1
                if refused is not None:
                    self._send(refused[0], json.dumps({"error": {"message": refused[1]}}).encode())
                    return
                count = body["max_tokens"]
                events = [{"choices": [{"index": 0, "text": " word", "finish_reason": None}]} for _ in range(count)]
                events[-1]["choices"][0]["finish_reason"] = "length"
                if server.counts:
                    events.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": count}})
                self._send(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())

            def _send(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler
