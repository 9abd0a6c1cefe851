"""Fathom: the engine of this checkout, with its defaults."""

from __future__ import annotations

import sys
from pathlib import Path

import fathom
from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.works import Work


class Fathom:
    """Runs in the Python that runs the race."""

    name = "Fathom"

    def install(self) -> str:
        return fathom.__version__

    def formats(self, work: Work) -> list[str]:
        return ["default"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        return ScriptSession(Path(sys.executable), "run_fathom.py", [str(model), str(threads)], log)
