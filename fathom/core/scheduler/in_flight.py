"""Steps between `schedule` and `update_from_output`, and the requests that coast through them.

Most of what a running request needs in a step is the same for all: one more token. While none of its tokens can be the
last by length there is nothing to decide about it, and so it coasts: every step computes a token of it, and it is
looked at only when it has filled a block and when it needs one, in two of as many steps as a block has tokens. Its
cursor and its tokens stand still meanwhile, and are made up for when it is looked at,

    step         | 6      | 7     | 8     | 9     | 10    | 11                                             |
    a request    | attend | coast | coast | coast | coast | coast: make up for four steps, register a block |

or attended to again: when it has come near its length, is to be preempted or dropped, or has sampled a token that may
end it. A step's cost is thus that of the requests which need something. To go through thousands of objects for every
token would take longer for each of them the more there are, since they do not stay in the processor's cache from one
step to the next. For the same reason what the steps sample is kept as rows of numbers, in which whoever coasts has a
column: the steps' dictionaries would be ten megabytes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, repeat

from fathom.core.request import ATTENDED, Request
from fathom.step import SchedulerOutput

NO_TOKEN = -1
MOST_STEPS = 16
"""That a request coasts without being looked at. The tokens of twice as many are kept, and of up to as many more."""


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
        self._columns: list[str] = []  # who has which; "": nobody
        self._free_columns: list[int] = []
        self._sampled: list[array[int]] = []  # rows of the steps that landed last
        self._due: dict[int, list[Request]] = {}  # by the number of the step that is to look at them
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
        if self._columns:
            self._sampled.append(array("i", list(map(sampled_token_ids.get, self._columns, repeat(NO_TOKEN)))))
        if len(self._sampled) > 3 * MOST_STEPS:
            del self._sampled[:MOST_STEPS]
        return step

    def drop(self) -> StepInFlight:
        """Take the oldest step, of which nothing is to be known. Only while nobody coasts."""
        return self._steps.popleft()

    def coast(self, request: Request) -> bool:
        """Let a running request coast from the next step on; False if that needs to look at it."""
        if request.num_missing != 1 or request.params.logprobs is not None:
            return False
        if not request.num_awaited_tokens:  # it is a prompt's last token that is missing
            return False
        cursor = request.num_computed_tokens
        # The step's token must have a slot, and the token that it samples must not be the last that may be.
        if cursor >= request.settled_until or cursor >= request.max_num_tokens - 2:
            return False
        request.coasts_from = self._num_launched
        self._plan(request, self._num_launched, cursor)
        self.coasting[request.request_id] = request
        self._take_column(request)
        self.num_watched += request.is_watched
        if request.end_token_ids:
            self._end_token_ids |= request.end_token_ids
        return True

    def due(self) -> tuple[list[Request], list[Request]]:
        """Of those that coast, the ones that the step to be scheduled next must look at, and those it must attend to.

        To be asked once for a step.
        """
        number = self._num_launched
        requests = self._due.pop(number, None)
        if requests is None:
            return [], []
        due: list[Request] = []
        near_end: list[Request] = []
        for request in dict.fromkeys(requests):
            if request.coasts_until == number:
                cursor = request.num_computed_tokens + number - request.coasts_from
                (due if cursor < request.max_num_tokens - 2 else near_end).append(request)
        return due, near_end

    def num_behind(self, request: Request) -> int:
        """By how many tokens the cursor of one that coasts is behind, at the step to be scheduled next."""
        return self._num_launched - request.coasts_from

    def go_on(self, request: Request) -> None:
        """Let one that has been looked at coast on, through the step that is being scheduled and those behind it."""
        if self.num_behind(request) >= MOST_STEPS:
            self.catch_up(request)
        cursor = request.num_computed_tokens + self.num_behind(request)
        self._plan(request, self._num_launched + 1, cursor + 1)

    def catch_up(self, request: Request) -> None:
        """Give one that coasts its tokens of the steps that have landed."""
        begin, landed = request.coasts_from, self._num_launched - len(self._steps)
        if begin < landed:
            column = request.column
            tokens = [row[column] for row in self._sampled[begin - landed :]]
            assert min(tokens) > NO_TOKEN, "a step has sampled nothing for a request that coasts"
            request.token_ids.fromlist(tokens)
            request.num_computed_tokens += landed - begin
            request.coasts_from = landed

    def _plan(self, request: Request, step: int, cursor: int) -> None:
        """Have one that coasts looked at in time, `step` or later, its cursor being at `cursor` before that."""
        num_steps = min(request.settled_until - cursor, request.max_num_tokens - 2 - cursor, MOST_STEPS)
        request.coasts_until = until = step + max(num_steps, 0)
        due = self._due.get(until)
        if due is None:
            self._due[until] = [request]
        else:
            due.append(request)

    def _take_column(self, request: Request) -> None:
        if self._free_columns:
            request.column = self._free_columns.pop()
            self._columns[request.column] = request.request_id
        else:
            request.column = len(self._columns)
            self._columns.append(request.request_id)

    def _leave_column(self, request: Request) -> None:
        """Also moves all together when most columns are nobody's, since every step goes through them."""
        self._columns[request.column] = ""
        self._free_columns.append(request.column)
        if len(self._columns) > 4 * len(self.coasting) + MOST_STEPS:
            for other in self.coasting.values():
                self.catch_up(other)
            self._columns, self._free_columns = [], []
            for other in self.coasting.values():
                self._take_column(other)

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
        self.catch_up(request)
        behind = self.num_behind(request)
        for step in islice(self._steps, len(self._steps) - behind, None):
            step.attended[request_id] = request
        request.num_awaited_tokens += behind
        request.num_computed_tokens += behind
        request.coasts_from = request.coasts_until = ATTENDED
        if self.coasting:
            self._leave_column(request)
        else:
            self._forget_all()

    def _forget_all(self) -> None:
        """Nobody coasts: keep nothing for it."""
        self._due.clear()
        self._columns.clear()
        self._free_columns.clear()
        self._sampled.clear()
        self._end_token_ids.clear()
