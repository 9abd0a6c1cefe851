"""Which rounds are left: what was measured is not measured again, and nothing is compared across rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count, islice

QUALIFYING = -1
"""The round that chooses each rival's format and warms everything up; it counts for nothing else."""
Who = tuple[str, str]
"""A contender and its format."""


def rounds_left(done: Iterable[tuple[Who, int]], field: set[Who], pairs: int) -> list[int]:
    """Numbers of the rounds that this field still has to run, until it has been in `pairs` rounds together.

    A round that lacks some of the field, and has nobody else, was interrupted and is run again. Rounds of another
    field stay as they are: who joins later gets rounds of its own, in which Fathom runs once more.
    """
    present: dict[int, set[Who]] = defaultdict(set)
    for who, number in done:
        if number != QUALIFYING:
            present[number].add(who)
    complete = sum(field <= names for names in present.values())
    interrupted = sorted(number for number, names in present.items() if names < field)
    fresh = (number for number in count() if number not in present)
    return [*interrupted, *islice(fresh, max(pairs, 0))][: max(0, pairs - complete)]
