"""OutputCollector: where one request's outputs wait for a reader who may be slow. Never more than one waits."""

from __future__ import annotations

import asyncio

from fathom.errors import FathomError
from fathom.outputs import RequestOutput
from fathom.sampling_params import RequestOutputKind


class OutputCollector:
    """Merges what has not been read yet, so that its size is that of the answer at most, however slow the reader.

    Args:
        kind: of the request's outputs: deltas are joined, others take the place of what waits.
    """

    def __init__(self, kind: RequestOutputKind) -> None:
        self._aggregate = kind is RequestOutputKind.DELTA
        self._waiting: RequestOutput | None = None
        self._error: FathomError | None = None
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] | None = None  # what the reader waits for; an Event does more for each token

    def put(self, output: RequestOutput | FathomError) -> None:
        """Add an output, or the error that ends the request."""
        if isinstance(output, FathomError):
            self._error = output
        elif self._waiting is None:
            self._waiting = output
        else:
            self._waiting.add(output, aggregate=self._aggregate)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def get(self) -> RequestOutput:
        """All that has come since the last call, as one output; the error, once nothing else waits."""
        while (output := self._waiting) is None:
            if self._error is not None:
                raise self._error
            self._woken = self._loop.create_future()
            await self._woken
        self._waiting = None
        return output
