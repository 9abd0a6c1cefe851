"""Waiting requests in their order of service.

It is that of arrival for FCFS, that of priority and then of arrival for priority (`Request.order`). A preempted request
comes back with the place that it had, hence before all that arrived after it. Long prompts have a queue of their own,
since one that has to wait for another long one does not hold up the short ones behind it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from fathom.core.request import Request


class RequestQueue:
    """A heap of requests. Removal marks; marked entries are dropped when they surface or outnumber the rest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Request]] = []
        self._live: set[Request] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: Request) -> bool:
        return request in self._live

    def push(self, request: Request) -> None:
        self._live.add(request)
        heapq.heappush(self._heap, (request.order, request))

    def peek(self) -> Request | None:
        """The next request, or None."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Take the request that `peek` shows."""
        request = heapq.heappop(self._heap)[1]
        self._live.remove(request)
        return request

    def remove(self, request: Request) -> None:
        self._live.discard(request)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)


class WaitingRequests:
    """The queue of short prompts and the queue of long ones.

    Args:
        is_long: which a request belongs to; asked when it is pushed.
    """

    def __init__(self, is_long: Callable[[Request], bool]) -> None:
        self._is_long = is_long
        self._short = RequestQueue()
        self._long = RequestQueue()

    def __len__(self) -> int:
        return len(self._short._live) + len(self._long._live)  # asked twice in each step

    def push(self, request: Request) -> None:
        (self._long if self._is_long(request) else self._short).push(request)

    def heads(self) -> list[Request]:
        """The next of either queue, in order of service."""
        heads = [head for head in (self._short.peek(), self._long.peek()) if head is not None]
        return sorted(heads, key=lambda request: request.order)

    def pop(self, head: Request) -> None:
        """Take a request that `heads` shows."""
        (self._long if head in self._long else self._short).pop()

    def remove(self, request: Request) -> None:
        self._short.remove(request)
        self._long.remove(request)
