"""Fathom: the engine of this checkout, with its defaults."""

from __future__ import annotations

import sys
from pathlib import Path

import fathom
from benchmarks.peers.contender import ScriptSession, Session
from benchmarks.peers.levels import NATIVE, environment
from benchmarks.peers.works import Work


class Fathom:
    """Runs in the Python that runs the race."""

    name = "Fathom"
    slow_to_start = False

    def __init__(self, level: str = NATIVE) -> None:
        self._level = level

    def install(self) -> str:
        return fathom.__version__

    def formats(self, work: Work) -> list[str]:
        return ["default"]

    def open(self, model: Path, format_name: str, threads: int, log: Path) -> Session:
        arguments, variables = [str(model), str(threads)], environment(self._level)
        return ScriptSession(Path(sys.executable), "run_fathom.py", arguments, log, environment=variables)
