"""Results on disk: a folder for each run, a line for each measurement, written as soon as it is known.

A run that was interrupted goes on where it stopped. Its name says which Fathom was measured, so that figures of
different code never get into one run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ContenderError, cache_dir
from benchmarks.peers.levels import NATIVE
from benchmarks.peers.rounds import Who

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Record:
    """One measurement. rate: tokens/s. seconds: what it took. busy: percent of the cores in use just before."""

    work: str
    contender: str
    format: str
    round: int
    rate: float
    seconds: float
    busy: float
    at: str


class Results:
    """The records of a run, in memory and in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "records.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.records = [Record(**json.loads(line)) for line in lines]

    def add(self, record: Record) -> None:
        self.records.append(record)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def of(self, work: str, *, round: int | None = None) -> list[Record]:
        """The newest record of each contender, format and round of a work: a round may have been begun twice."""
        newest = {(r.contender, r.format, r.round): r for r in self.records if r.work == work}
        return [record for record in newest.values() if round is None or record.round == round]

    def done(self, work: str) -> list[tuple[Who, int]]:
        """Who has run which rounds of a work."""
        return [((record.contender, record.format), record.round) for record in self.of(work)]

    def write_machine(self, facts: Mapping[str, Any]) -> None:
        """Keeps the versions of contenders that took part before.

        Raises:
            ContenderError: the run is one of another level, whose figures are not to be mixed with these.
        """
        if (self.folder / "machine.json").exists():
            before = self.machine()
            if before["level"] != facts["level"]:
                raise ContenderError(f"{self.folder} has figures of the level {before['level']}; give another --run")
            facts = {**facts, "versions": before["versions"] | facts["versions"]}
        (self.folder / "machine.json").write_text(json.dumps(facts, indent=2) + "\n")

    def machine(self) -> dict[str, Any]:
        return {"level": NATIVE} | json.loads((self.folder / "machine.json").read_text())


def default_run(level: str = NATIVE) -> Path:
    """A folder named after today, the commit, what was changed since, and the level."""
    commit = _git("rev-parse", "--short", "HEAD") or "no-commit"
    changes = _git("diff", "HEAD", "--", "fathom", "csrc", "benchmarks/peers")
    changed = f"-{hashlib.sha256(changes.encode()).hexdigest()[:6]}" if changes else ""
    limited = "" if level == NATIVE else f"-{level}"
    return cache_dir() / "runs" / f"{date.today().isoformat()}-{commit}{changed}{limited}"


def machine_facts(level: str, threads: int, versions: Mapping[str, str]) -> dict[str, Any]:
    """Date, processor, level, threads, and the version of everyone."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "level": level,
        "threads": threads,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "versions": dict(versions),
    }


def _processor() -> str:
    """The model's name, and the instruction sets that decide how fast integers are multiplied."""
    text = Path("/proc/cpuinfo").read_text()
    facts = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    present = [name for name in wanted if name in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} ({', '.join(present)})"


def _git(*arguments: str) -> str:
    ended = subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True, check=False)
    return ended.stdout.strip()
