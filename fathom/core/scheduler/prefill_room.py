"""How much of prompts goes into a step, beside one token of every request that generates.

A step makes everybody wait who reads a stream, so its size is a time. `StepSize` is that time in tokens; a token far
into its prompt counts for more than one, since attention reads all that is before it. `PrefillRoom` deals one step's
share out among prompts: in order of service, but a prompt that does not fit into a step leaves half of what is there
to those behind it, and takes what they do not need. So a short prompt waits for no long one, and the first prompt in
the order always gets half of each step.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from itertools import islice

from fathom.core.request import Request

LEAST_ROOM = 32
"""Tokens of prompts that a step has room for however many requests generate, so that newcomers get on."""


@dataclass(frozen=True)
class StepSize:
    """What a step may hold.

    tokens: of one prompt, at its beginning. doubling: the position at which a prompt's token takes twice as long as
    its first one; infinite if that is not known. capacity: what a step's tokens may count for together; None: what
    `tokens` do at a prompt's beginning.
    """

    tokens: int
    doubling: float = math.inf
    capacity: float | None = None

    @property
    def room(self) -> float:
        """The capacity, in tokens at a prompt's beginning."""
        return self.cost(0, self.tokens) if self.capacity is None else self.capacity

    def cost(self, position: int, count: int) -> float:
        """What `count` tokens from `position` on count for: count * (1 + their mean position / doubling)."""
        return count * (1 + (position + count / 2) / self.doubling)

    def fitting(self, position: int, room: float) -> int:
        """How many tokens from `position` on fit into `room`."""
        if self.doubling == math.inf:
            return int(room)
        each = 1 + position / self.doubling  # count * each + count^2 / (2 doubling) = room, solved for count
        count = self.doubling * (math.sqrt(each * each + 2 * room / self.doubling) - each)
        return int(count + 1e-6)

    def is_long(self, position: int, missing: int) -> bool:
        """Whether `missing` tokens from `position` on take more than a step."""
        return missing > self.tokens or self.fitting(position, self.room) < missing


class PrefillRoom:
    """One step's room for prompts.

    Args:
        size: of a step.
        limit: most tokens of a step, as the worker's buffers hold them.
        longest_chunk: most tokens of one prompt.
        running: all requests that do; each that generates takes a token of the step, whatever is left for prompts.
        looked_at: of these, in order, the ones that the step looks at; the others all generate.

    Attributes:
        num_passed: of `looked_at`, in order, those that are known to generate; only the others are counted. To be
            kept up to date until something is first asked.
    """

    def __init__(
        self, size: StepSize, limit: int, longest_chunk: int, running: Sized, looked_at: list[Request]
    ) -> None:
        self.num_passed = 0
        self.num_long = 0
        self.first_long: Request | None = None
        self._size = size
        self._longest_chunk = longest_chunk
        self._limit = limit
        self._running = running
        self._looked_at = looked_at
        self._tokens_left = -1  # not known yet
        self._left = 0.0

    @property
    def is_used_up(self) -> bool:
        self._measure()
        return self._left < 1 or self._tokens_left < 1

    def holds(self, position: int, missing: int) -> bool:
        """Whether what a prompt lacks fits into what is left of this step."""
        self._measure()
        return missing <= self._tokens_left and self._size.cost(position, missing) <= self._left

    def take(self, request: Request, position: int, missing: int) -> int:
        """The next chunk of a prompt, in tokens; 0 if there is no room. Ask in order of service."""
        self._measure()
        share = self._left
        if self._size.is_long(position, missing):
            self.num_long += 1
            self.first_long = self.first_long or request
            share = max(1.0, share / 2)
        return self._chunk(position, min(missing, self._longest_chunk), share)

    def take_rest(self, request: Request, taken: int) -> int:
        """What the first long prompt gets on top of a chunk of `taken` tokens, over which its cursor has passed."""
        wanted = min(request.num_missing, self._longest_chunk - taken)
        return self._chunk(request.num_computed_tokens, wanted, self._left)

    def _measure(self) -> None:
        """See what there is, when it is first asked for: a step without prompts need not look at all requests."""
        if self._tokens_left < 0:
            others = islice(self._looked_at, self.num_passed, None)
            num_decodes = len(self._running) - sum(request.num_missing > 1 for request in others)
            self._tokens_left = self._limit - num_decodes
            self._left = max(self._size.room - num_decodes, min(LEAST_ROOM, self._size.tokens))

    def _chunk(self, position: int, wanted: int, share: float) -> int:
        if self.is_used_up:
            return 0
        count = min(wanted, self._tokens_left, max(1, self._size.fitting(position, share)))
        self._tokens_left -= count
        self._left -= self._size.cost(position, count)
        return count
