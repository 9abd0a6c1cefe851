"""run_batch: read rows, ask a bounded number of them at a time, and write each answer as it comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Message

from fathom.entrypoints.batch.files import OutputFile, read_lines
from fathom.entrypoints.batch.rows import (
    DUPLICATE,
    AnsweredRow,
    answered_row,
    identity_of,
    read_row,
    refused_row,
    usage_of,
)
from fathom.entrypoints.server.errors import ApiError, bad_request
from fathom.errors import EngineDeadError


@dataclass
class Tally:
    """What became of the rows of one run; skipped: the output had them already."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class BatchRun:
    """One run over a file.

    Args:
        app: the server's application.
        key: what it wants to see, if it has keys.
        longest: most bytes of a row.
        told: is called after each row, with the tally.
    """

    def __init__(self, app: ASGIApp, output: OutputFile, key: str | None, longest: int, told: Callable[[Tally], None]):
        self._app = app
        self._output = output
        self._key = key
        self._longest = longest
        self._told = told
        self._seen: set[int] = set()  # hashes of the custom_ids so far
        self.tally = Tally()

    async def run(self, source: Path, in_flight: int) -> None:
        """Answer the rows of a file that the output does not have yet, `in_flight` of them at a time.

        A row that is wrong or fails becomes a row with its error, and ends nothing.

        Raises:
            EngineDeadError: the engine is gone. The rows that it had are not in the output, so another run asks them.
        """
        tasks: set[asyncio.Task[None]] = set()
        try:
            for number, custom_id, line in self._new_rows(source):
                if len(tasks) >= in_flight:
                    tasks = await _first_done(tasks)
                tasks.add(asyncio.create_task(self._answer(number, custom_id, line)))
            while tasks:
                tasks = await _first_done(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _new_rows(self, source: Path) -> Iterator[tuple[int, str | None, bytes]]:
        """(number, custom_id, line) of what is to be asked. What cannot be asked is written at once."""
        for number, line in read_lines(source, self._longest):
            custom_id = None if line is None else identity_of(line)
            repeated = custom_id is not None and hash(custom_id) in self._seen
            self._seen.add(hash(custom_id))
            if self._output.skip(custom_id, repeated):
                self.tally.skipped += 1
                self._told(self.tally)
            elif line is None:
                message = f"Line {number} is longer than {self._longest} bytes; --max-body-bytes allows more."
                self._write(refused_row(None, ApiError(413, message, code="body_too_large")))
            elif repeated:
                error = bad_request(
                    f"custom_id {custom_id!r} has been seen before, line {number}.", "custom_id", DUPLICATE
                )
                self._write(refused_row(custom_id, error))
            else:
                yield number, custom_id, line

    async def _answer(self, number: int, custom_id: str | None, line: bytes) -> None:
        try:
            row = read_row(line, number)
        except ApiError as error:
            self._write(refused_row(custom_id, error))
            return
        request_id = uuid.uuid4().hex
        status, body = await self._ask(row.url, bytes(row.body), request_id)
        answer = answered_row(row.custom_id, status, request_id, body)
        if answer.error is not None and answer.error.code == "engine_dead":
            raise EngineDeadError(
                answer.error.message, hint="The rows that are answered are in the output; run it again for the others."
            )
        self._write(answer)

    async def _ask(self, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
        """(status, body) of a POST to the application, as a server would pass it on."""
        headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
        if self._key is not None:
            headers.append((b"authorization", b"Bearer " + self._key.encode()))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
        }
        unread = [body]
        status, parts = 500, []

        async def receive() -> Message:
            if not unread:
                await asyncio.Event().wait()  # we stay until the answer is there
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, b"".join(parts)

    def _write(self, row: AnsweredRow) -> None:
        self._output.write(row)
        usage = usage_of(row)
        self.tally.answered += row.error is None
        self.tally.failed += row.error is not None
        self.tally.prompt_tokens += usage.prompt_tokens
        self.tally.completion_tokens += usage.completion_tokens
        self._told(self.tally)


async def _first_done(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait for the first of the tasks to end; those that have not. Raises what one has raised."""
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return pending
