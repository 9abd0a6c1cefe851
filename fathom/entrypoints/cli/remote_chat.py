"""RemoteConversation: a Conversation with a server's model instead of an engine here."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

import httpx2
import msgspec

from fathom.entrypoints.cli.openai_client import CONNECT_SECONDS, Choice, EventReader, Remote, error_text, unreachable
from fathom.entrypoints.cli.stream import Answer, with_what_was_said
from fathom.errors import RequestFailedError


class RemoteConversation:
    """Turns of one conversation with a server of OpenAI's API; it renders the chat template."""

    def __init__(self, remote: Remote, system: str | None = None) -> None:
        self._remote = remote
        self._http = httpx2.Client(headers=remote.headers, timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS))
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str, params: dict[str, Any]) -> Answer:
        """Add a user's turn, print the model's, and remember both; of an answer with reasoning, the content.

        Raises:
            RequestFailedError: the server refused, failed, or could not be reached; the turn is forgotten.
            KeyboardInterrupt, as it came: of the answer what was printed is remembered, if anything was.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        content: list[str] = []
        reason: str | None = None
        try:
            with closing(self._choices(messages, params)) as choices:
                for choice in choices:
                    content.append((choice.delta and choice.delta.content) or "")
                    reason = choice.finish_reason or reason
                    sys.stdout.write(choice.piece)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            self.messages = with_what_was_said(self.messages, messages, content)
            raise
        finally:
            if content:
                sys.stdout.write("\n")
                sys.stdout.flush()
        self.messages = [*messages, {"role": "assistant", "content": "".join(content)}]
        return Answer("".join(content), reason)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> RemoteConversation:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def _choices(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> Generator[Choice]:
        """The parts of the answer; closing this ends the request."""
        body = {"model": self._remote.model, "messages": messages, "stream": True} | params
        url, reader = f"{self._remote.url}/v1/chat/completions", EventReader()
        try:
            with self._http.stream("POST", url, content=msgspec.json.encode(body)) as response:
                if response.status_code != 200:
                    raise RequestFailedError(error_text(response.read()))
                for data in response.iter_bytes():
                    for chunk in reader.feed(data):
                        yield from chunk.choices or []
        except httpx2.ConnectError as error:
            raise RequestFailedError(str(unreachable(self._remote.url, error))) from None
        except httpx2.HTTPError as error:
            raise RequestFailedError(f"the connection was lost: {error or type(error).__name__}.") from None
