"""Steps between `schedule` and `update_from_output`, and the requests that coast through them.

Most of what a running request needs in a step is the same for all: one more token. While its tokens fall into the block
that it has, and none of them can be the last by length, there is nothing to decide about it, and how many steps that
lasts is known beforehand. For so long it coasts: every step computes a token of it, and nobody looks at it. Its cursor
and its tokens stand still and are made up for when it is attended to again,

    step         | 7      | 8     | 9     | 10    | 11                                             |
    a request    | attend | coast | coast | coast | attend: make up for three steps, get a block   |

which is when those steps are over, or before, if it is to be preempted or dropped or has sampled a token that may end
it. A step's cost is thus that of the requests which need something: with blocks of 16 tokens one in sixteen. To go
through thousands of objects for every token would take longer for each of them the more there are, since they do not
stay in the processor's cache from one step to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from fathom.core.request import ATTENDED, Request
from fathom.step import SchedulerOutput

MOST_STEPS = 16
"""That a request coasts. The tokens of as many steps are kept, and of up to as many more."""


@dataclass(slots=True)
class StepInFlight:
    """A step between `schedule` and `update_from_output`.

    attended: its requests but those that have coasted ever since; the objects, since an id may have passed to another
    request meanwhile. registered: blocks that are findable although it is this step that fills them.
    num_arrived: requests that had arrived when it was scheduled.
    """

    work: SchedulerOutput
    num_arrived: int
    attended: dict[str, Request]
    registered: list[int]


class StepsInFlight:
    """The steps, the oldest first, and by their ids the requests that coast.

    Attributes:
        coasting: each has one token in every step that is scheduled.
        num_watched: of those, how many have callers who wait for each token.
    """

    def __init__(self) -> None:
        self.coasting: dict[str, Request] = {}
        self.num_watched = 0
        self._steps: deque[StepInFlight] = deque()
        self._num_launched = 0
        self._sampled: list[Mapping[str, int]] = []  # by the steps that landed last
        self._due: dict[int, list[Request]] = {}  # by the number of the step that is to attend to them
        self._end_token_ids: set[int] = set()  # of all that coast, and of some that did

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def num_launched(self) -> int:
        """Steps so far."""
        return self._num_launched

    def launch(self, step: StepInFlight) -> None:
        """Add the newest step."""
        self._steps.append(step)
        self._num_launched += 1

    def land(self, work: SchedulerOutput, sampled_token_ids: Mapping[str, int]) -> StepInFlight:
        """Take the oldest step, with the tokens that it has sampled."""
        step = self._steps.popleft()
        assert step.work is work, "steps are to be updated in the order in which they were scheduled"
        self._sampled.append(sampled_token_ids)
        if len(self._sampled) > 2 * MOST_STEPS:
            del self._sampled[:MOST_STEPS]
        return step

    def drop(self) -> StepInFlight:
        """Take the oldest step, of which nothing is to be known. Only while nobody coasts."""
        return self._steps.popleft()

    def coast(self, request: Request) -> bool:
        """Let a running request coast from the next step on; False if that needs to look at it."""
        # The step's token must have a slot, and the token that it samples must not be the last that may be.
        num_steps = min(request.settled_until, request.max_num_tokens - 2) - request.num_computed_tokens
        if num_steps < 1 or request.num_missing != 1 or request.params.logprobs is not None:
            return False
        if not request.num_awaited_tokens:  # it is a prompt's last token that is missing
            return False
        request.coasts_from = self._num_launched
        request.coasts_until = until = self._num_launched + min(num_steps, MOST_STEPS)
        self.coasting[request.request_id] = request
        self.num_watched += request.is_watched
        if request.end_token_ids:
            self._end_token_ids |= request.end_token_ids
        due = self._due.get(until)
        if due is None:
            self._due[until] = [request]
        else:
            due.append(request)
        return True

    def due(self) -> list[Request]:
        """Those that coast and that the step to be scheduled next must look at, some twice. Asked once for a step."""
        number = self._num_launched
        due = self._due.pop(number, None)
        return [] if due is None else [request for request in due if request.coasts_until == number]

    def may_end(self, sampled_token_ids: Mapping[str, int]) -> list[Request]:
        """Those that coast whose token, by the oldest step, is among the ones that end them."""
        ends, coasting = self._end_token_ids, self.coasting
        if not ends:
            return []
        found = [(request_id, token_id) for request_id, token_id in sampled_token_ids.items() if token_id in ends]
        return [
            coasting[request_id]
            for request_id, token_id in found
            if request_id in coasting and token_id in coasting[request_id].end_token_ids
        ]

    def stop_coasting(self, request: Request) -> None:
        """Bring a request that coasts up to date, and have the steps in flight attend to it."""
        request_id = request.request_id
        del self.coasting[request_id]
        self.num_watched -= request.is_watched
        begin, launched = request.coasts_from, self._num_launched
        request.coasts_from = request.coasts_until = ATTENDED
        landed = launched - len(self._steps)
        if begin < landed:
            request.token_ids.extend([sampled[request_id] for sampled in self._sampled[begin - landed :]])
            begin_in_flight = landed
        else:
            begin_in_flight = begin
        for step in islice(self._steps, begin_in_flight - landed, None):
            step.attended[request_id] = request
        request.num_awaited_tokens += launched - begin_in_flight
        request.num_computed_tokens += launched - begin
        if not self.coasting:
            self._forget_all()

    def _forget_all(self) -> None:
        """Nobody coasts: keep nothing for it."""
        self._due.clear()
        self._sampled.clear()
        self._end_token_ids.clear()
