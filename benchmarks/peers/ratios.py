"""From records to what is claimed: rates, and ratios of rates that were measured in the same round."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.results import Record
from benchmarks.peers.rounds import QUALIFYING

OURS = "Fathom"


@dataclass(frozen=True)
class Spread:
    """The median of some samples, and the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True)
class Standing:
    """How one contender did: its rates in tokens/s, and Fathom's rate over its, round by round (None: our own)."""

    contender: str
    format: str
    rate: Spread
    ratio: Spread | None
    pairs: int


def standings(records: Sequence[Record]) -> list[Standing]:
    """Of one work: Fathom first, then its rivals, fastest first. Only rounds in which Fathom ran too count."""
    rates: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for record in records:
        if record.round != QUALIFYING:
            rates[record.contender, record.format][record.round] = record.rate
    ours = next((by_round for (name, _), by_round in rates.items() if name == OURS), {})
    found = []
    for (name, format_name), by_round in rates.items():
        pairs = [ours[number] / by_round[number] for number in by_round if number in ours]
        if pairs:
            ratio = None if name == OURS else Spread.of(pairs)
            found.append(Standing(name, format_name, Spread.of(list(by_round.values())), ratio, len(pairs)))
    return sorted(found, key=lambda standing: (standing.ratio is not None, -standing.rate.median))


def best_format(records: Sequence[Record], contender: str) -> str | None:
    """The one of the highest rate in the qualifying round; None if the contender is not in it."""
    tried = [record for record in records if record.contender == contender and record.round == QUALIFYING]
    return max(tried, key=lambda record: record.rate).format if tried else None
