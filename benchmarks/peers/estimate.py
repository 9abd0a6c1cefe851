"""How long a race will take: what the same works took before, starts of engines and busy waits included."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from benchmarks.peers.contender import Contender
from benchmarks.peers.rounds import QUALIFYING, Who
from benchmarks.peers.works import Work

LONGEST = 600
"""Seconds between two measurements of one run; more is a break."""
Costs = Mapping[tuple[str, str], float]
"""Seconds of one measurement, by work and contender."""


class Done(Protocol):
    """Results of either race."""

    def done(self, work: str) -> list[tuple[Who, int]]:
        """Who has run which rounds of a work."""


@dataclass(frozen=True)
class Estimate:
    """seconds: what is left. unknown: contenders that take part and have never been measured."""

    seconds: float
    unknown: frozenset[str] = frozenset()

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.seconds + other.seconds, self.unknown | other.unknown)

    def __str__(self) -> str:
        without = f", without {', '.join(sorted(self.unknown))}, not measured before" if self.unknown else ""
        return f"about {self.seconds / 60:.1f} minutes are left, going by earlier runs{without}"


def known_costs(runs: Path) -> Costs:
    """The median over all runs below a folder, of the time from the measurement before to the end of this one."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for file in runs.glob("*/*.jsonl"):
        for before, record in pairwise(json.loads(line) for line in file.read_text().splitlines()):
            if before.get("at") and record.get("at"):
                seconds = (_time(record) - _time(before)).total_seconds()
                if 0 <= seconds <= LONGEST:
                    found[record["work"], record["contender"]].append(seconds)
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def estimate(
    works: Sequence[Work], ours: Contender, rivals: Sequence[Contender], results: Done, pairs: int, costs: Costs
) -> Estimate:
    """Of rounds in which Fathom meets all of these rivals."""
    seconds, unknown = 0.0, set()
    for work, contender, times in _left(works, ours, rivals, results, pairs):
        if (work, contender) in costs:
            seconds += times * costs[work, contender]
        elif times:
            unknown.add(contender)
    return Estimate(seconds, frozenset(unknown))


def _left(
    works: Sequence[Work], ours: Contender, rivals: Sequence[Contender], results: Done, pairs: int
) -> Iterator[tuple[str, str, int]]:
    """Work, contender, and the measurements that it still has to do; Fathom runs as often as whoever lacks most."""
    for work in works:
        rounds: dict[str, set[int]] = defaultdict(set)
        for (name, _), number in results.done(work.name):
            rounds[name].add(number)
        wanted = min(pairs, work.most_pairs or pairs)
        most = 0
        for contender in [*(c for c in rivals if work.rivals is None or c.name in work.rivals), ours]:
            done = rounds[contender.name]
            is_new = QUALIFYING not in done and work.qualifies_in is None
            left = most if contender is ours else max(0, wanted - len(done - {QUALIFYING}))
            most = max(most, left)
            yield work.name, contender.name, left + (len(contender.formats(work)) if is_new else 0)


def _time(record: Mapping[str, str]) -> datetime:
    return datetime.fromisoformat(record["at"])
