"""What servers did under a load, round by round, on disk and as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.peers.ratios import OURS
from benchmarks.peers.rounds import QUALIFYING, Who
from fathom.entrypoints.cli.bench.latencies import percentile

OVERHEAD, OFFLINE = "overhead", "offline"
"""The work that compares Fathom's server with its own engine, and that engine's name among the records."""


@dataclass(frozen=True)
class OnlineRecord:
    """One round of one server.

    rate: generated tokens/s. ttft, tpot: milliseconds of each request. at: when it ended.
    """

    work: str
    contender: str
    format: str
    round: int
    rate: float
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    at: str = ""


class OnlineResults:
    """The records, in memory and in a file of the run's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "online.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._records = [OnlineRecord(**json.loads(line)) for line in lines]

    def add(self, record: OnlineRecord) -> None:
        self._records.append(record)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def done(self, work: str) -> list[tuple[Who, int]]:
        """Who has run which rounds of a work."""
        return [((record.contender, record.format), record.round) for record in self._records if record.work == work]

    def has(self, work: str, contender: str, format_name: str, number: int) -> bool:
        """Whether that round was measured."""
        wanted = (work, contender, format_name, number)
        return wanted in [(record.work, record.contender, record.format, record.round) for record in self._records]

    def best_format(self, work: str, contender: str) -> str | None:
        """The one of the highest rate in the qualifying round; None if there was none."""
        tried = [record for record in self._of(work, contender) if record.round == QUALIFYING]
        return max(tried, key=lambda record: record.rate).format if tried else None

    def counted(self, work: str, contender: str) -> list[OnlineRecord]:
        """The rounds that count: in the best format, without the qualifying one."""
        best = self.best_format(work, contender)
        return [record for record in self._of(work, contender) if record.format == best and record.round != QUALIFYING]

    def ratio(self, work: str, contender: str) -> float:
        """Fathom's rate over another's: the median of the rounds that both have run."""
        theirs = {record.round: record.rate for record in self.counted(work, contender)}
        ours = self.counted(work, OURS)
        return statistics.median(record.rate / theirs[record.round] for record in ours if record.round in theirs)

    def _of(self, work: str, contender: str) -> list[OnlineRecord]:
        return [record for record in self._records if (record.work, record.contender) == (work, contender)]


def markdown(results: OnlineResults, titles: Mapping[str, str], rivals: Sequence[str]) -> str:
    """Throughput and latencies side by side, and the server against the engine offline. titles: of each work."""
    lines = ["| load | server | tokens/s | TTFT p50 / p99, ms | TPOT p50 / p99, ms | Fathom / it |", f"|{'---|' * 6}"]
    for work, title in titles.items():
        for contender in (OURS, *rivals):
            records = results.counted(work, contender)
            if records:
                label = contender if contender == OURS else f"{contender} [{records[0].format}]"
                rate = statistics.median(record.rate for record in records)
                ttft = _two([value for record in records for value in record.ttft])
                tpot = _two([value for record in records for value in record.tpot])
                ratio = "" if contender == OURS else f"{results.ratio(work, contender):.2f}"
                lines.append(f"| {title} | {label} | {rate:,.0f} | {ttft} | {tpot} | {ratio} |")
    if results.counted(OVERHEAD, OFFLINE):
        share = 100 * results.ratio(OVERHEAD, OFFLINE)
        lines += ["", f"Fathom's server reaches {share:.1f} % of the tokens/s of its engine offline."]
    return "\n".join(lines)


def _two(values: Sequence[float]) -> str:
    return f"{percentile(values, 50):,.1f} / {percentile(values, 99):,.1f}"
