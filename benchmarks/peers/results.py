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

from benchmarks.peers.environments import cache_dir

REPOSITORY = Path(__file__).resolve().parents[2]
QUALIFYING = -1
"""The round that chooses each rival's format and warms everything up; it counts for nothing else."""


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

    def write_machine(self, facts: Mapping[str, Any]) -> None:
        """Keeps the versions of contenders that took part before."""
        if (self.folder / "machine.json").exists():
            facts = {**facts, "versions": self.machine()["versions"] | facts["versions"]}
        (self.folder / "machine.json").write_text(json.dumps(facts, indent=2) + "\n")

    def machine(self) -> dict[str, Any]:
        return json.loads((self.folder / "machine.json").read_text())


def default_run() -> Path:
    """A folder named after today, the commit, and what was changed since."""
    commit = _git("rev-parse", "--short", "HEAD") or "no-commit"
    changes = _git("diff", "HEAD", "--", "fathom", "csrc", "benchmarks/peers")
    changed = f"-{hashlib.sha256(changes.encode()).hexdigest()[:6]}" if changes else ""
    return cache_dir() / "runs" / f"{date.today().isoformat()}-{commit}{changed}"


def machine_facts(threads: int, versions: Mapping[str, str]) -> dict[str, Any]:
    """Date, processor, threads, and the version of everyone."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
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
