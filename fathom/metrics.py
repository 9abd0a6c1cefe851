"""Metrics as values, for programs that want numbers and not Prometheus' text: what `LLM.get_metrics` returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_PREFIX = "fathom:"


@dataclass(frozen=True)
class Metric:
    """name: as in `/metrics`, without endings such as _total. labels: model_name, engine and so on."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass(frozen=True)
class Gauge(Metric):
    """A number as it is now."""

    value: float


@dataclass(frozen=True)
class Histogram(Metric):
    """How observations are spread. buckets: upper bound, "+Inf" for the last, -> how many are not above it."""

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = field(default_factory=dict)


def read_metrics(families: Iterable[Family]) -> list[Metric]:
    """Fathom's metrics among those that a registry collects."""
    found: list[Metric] = []
    for family in families:
        if not family.name.startswith(_PREFIX):
            continue
        if family.type == "histogram":
            found += _histograms(family)
        elif family.type == "counter":
            found += [
                Counter(family.name, dict(sample.labels), int(sample.value))
                for sample in family.samples
                if sample.name == f"{family.name}_total"
            ]
        else:
            found += [Gauge(family.name, dict(sample.labels), sample.value) for sample in family.samples]
    return found


def _histograms(family: Family) -> list[Histogram]:
    """One for each set of labels."""
    parts: dict[tuple[tuple[str, str], ...], dict[str, dict[str, float]]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        part = parts.setdefault(tuple(labels.items()), {"bucket": {}, "sum": {}, "count": {}})
        ending = sample.name.removeprefix(f"{family.name}_")
        if ending in part:  # not _created
            part[ending][sample.labels.get("le", "")] = sample.value
    return [
        Histogram(
            family.name,
            dict(labels),
            count=int(part["count"][""]),
            sum=part["sum"][""],
            buckets={bound: int(number) for bound, number in part["bucket"].items()},
        )
        for labels, part in parts.items()
    ]
