"""The running requests in order of service, and which of them a step looks at."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from fathom.core.request import ATTENDED, Request
from fathom.core.scheduler.in_flight import StepsInFlight

ORDER_OF_SERVICE = attrgetter("order")


class RunningRequests:
    """Those that have blocks and rows; in order.

    Attributes:
        attended: the ones that do not coast, in order.
    """

    def __init__(self, in_flight: StepsInFlight) -> None:
        self.attended: list[Request] = []
        self._in_order: list[Request] = []
        self._in_flight = in_flight

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._in_order)

    @property
    def last(self) -> Request:
        return self._in_order[-1]

    def add(self, request: Request) -> None:
        insort(self._in_order, request, key=ORDER_OF_SERVICE)
        insort(self.attended, request, key=ORDER_OF_SERVICE)

    def remove(self, request: Request) -> None:
        self.attend(request)
        for requests in (self._in_order, self.attended):
            del requests[bisect_left(requests, request.order, key=ORDER_OF_SERVICE)]

    def attend(self, request: Request) -> None:
        """If it coasts, bring it up to date and have it looked at from now on."""
        if request.coasts_from != ATTENDED:
            self._in_flight.stop_coasting(request)
            insort(self.attended, request, key=ORDER_OF_SERVICE)

    def attend_all(self, requests: Iterable[Request]) -> None:
        """The same for several."""
        for request in requests:
            if request.coasts_from != ATTENDED:
                self._in_flight.stop_coasting(request)
                self.attended.append(request)
        self.attended.sort(key=ORDER_OF_SERVICE)

    def let_coast(self) -> None:
        """Have those looked at no longer that the next steps decide nothing about."""
        if self.attended:
            coast = self._in_flight.coast
            self.attended = [request for request in self.attended if not coast(request)]

    def check_invariants(self) -> None:
        """Raise AssertionError unless the requests are in order, and either attended to or coasting."""
        keys = [request.order for request in self._in_order]
        assert keys == sorted(keys)
        assert self.attended == [request for request in self._in_order if request.coasts_from == ATTENDED]
        assert set(self._in_order) == {*self.attended, *self._in_flight.coasting.values()}
