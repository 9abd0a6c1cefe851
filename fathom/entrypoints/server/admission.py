"""Admission: who may come in. More than the engine can serve soon is turned away at once, with 429.

Both limits are counted by the server, so that turning away costs a comparison and no message. An answer counts as
waiting if more are under way than the engine runs at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fathom.entrypoints.server.errors import ApiError, bad_request
from fathom.entrypoints.server.under_way import UnderWay
from fathom.frontend.stats import EngineObserver

if TYPE_CHECKING:
    from fathom.frontend.output_processor import RequestState

_RETRY_AFTER_S = 1


class Admission(EngineObserver):
    """Counts answers under way, and the prompt tokens of those that have not begun.

    Args:
        max_running: answers that the engine runs at once.
        max_queue: answers that may wait beside them.
        max_queue_tokens: prompt tokens of answers that have not begun; None: any number.
        under_way: where all of them are counted.
    """

    def __init__(self, max_running: int, max_queue: int, max_queue_tokens: int | None, under_way: UnderWay) -> None:
        self._max_answers = max_running + max_queue
        self._max_tokens = max_queue_tokens
        self._tokens: dict[str, int] = {}  # request id -> prompt tokens, until its first token
        self._under_way = under_way

    @contextmanager
    def answers(self, count: int) -> Iterator[None]:
        """Places for a request's answers while it is served.

        Raises:
            ApiError: 429, there are too many; 400, there are more than could ever have a place.
        """
        if count > self._max_answers:
            raise bad_request(f"The request asks for {count} answers; {self._max_answers} have a place here.", "n")
        with self._under_way.exclusive():
            now = self._under_way.answers
            if now + count > self._max_answers:
                raise ApiError(
                    429,
                    f"The queue is full: {now} answers are under way, {count} more would be beyond "
                    f"{self._max_answers}. Try again later, or start the server with a larger --max-queue.",
                    code="queue_full",
                    retry_after=_RETRY_AFTER_S,
                )
            self._under_way.add(answers=count)
        try:
            yield
        finally:
            self._under_way.add(answers=-count)

    def expect(self, lengths: dict[str, int]) -> None:
        """Prompts that are about to be handed to the engine: id -> tokens.

        Raises:
            ApiError: 429, there are too many tokens. A prompt alone is always let in.
        """
        new = sum(lengths.values())
        with self._under_way.exclusive():
            waiting = self._under_way.tokens
            if self._max_tokens is not None and waiting and waiting + new > self._max_tokens:
                raise ApiError(
                    429,
                    f"Too many prompt tokens wait: {waiting}, {new} more would be beyond {self._max_tokens}. "
                    "Try again later, or start the server with a larger --max-queue-tokens.",
                    code="queue_full",
                    retry_after=_RETRY_AFTER_S,
                )
            self._under_way.add(tokens=new)
        self._tokens |= lengths

    def begun(self, request_id: str) -> None:
        """The prompt of this id waits no longer. May be called twice."""
        self._under_way.add(tokens=-self._tokens.pop(request_id, 0))

    def tokens(self, state: RequestState, num_new: int, gap_s: float | None) -> None:
        """A first token: its prompt waits no longer."""
        if gap_s is None:
            self.begun(state.request.request_id)
