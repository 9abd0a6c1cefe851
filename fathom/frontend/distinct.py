"""map_distinct: work on each distinct object of a batch once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_distinct(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`function` of each item, called once for each object: items that are the same object share one result.

    So parameters that a batch shares are still shared after they were changed, and are sent once.
    """
    done: dict[int, R] = {}
    for item in items:
        if id(item) not in done:
            done[id(item)] = function(item)
    return [done[id(item)] for item in items]
