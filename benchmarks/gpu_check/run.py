"""Runs parts: each in a process of its own, killed at its limit; none begins that the budget has no room for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.plan import Comparison, Part
from benchmarks.gpu_check.rows import Row
from fathom.processes import exit_words

ROOT = Path(__file__).resolve().parents[2]
LEAST_S = 10.0
"""With less than this left, no part is begun."""


class Check:
    """The parts' rows, as far as they are known.

    Args:
        work: an empty folder for models, kernels that Triton compiles, and what parts write.
        carried: folders with modules that Python does not find by itself.
        at_once: parts that may run beside each other.
        budget_s: seconds for all of them.
        tell: called with every row.
    """

    def __init__(
        self,
        work: Path,
        carried: Sequence[str],
        *,
        interpret: bool,
        at_once: int,
        budget_s: float,
        tell: Callable[[Row], None],
    ) -> None:
        self.rows: list[Row] = []
        self._work = work
        self._carried = list(carried)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TRITON_CACHE_DIR": str(work / "triton"),
            "TRITON_INTERPRET": "1" if interpret else "0",
            "HF_HUB_OFFLINE": "1",
        }
        self._at_once = at_once
        self._end = time.monotonic() + budget_s
        self._tell = tell

    def run(self, parts: Sequence[Part]) -> None:
        """Parts that may run beside each other do; the others each have the machine for themselves."""
        for beside, group in groupby(parts, key=lambda part: part.beside):
            with ThreadPoolExecutor(self._at_once if beside else 1) as pool:
                list(pool.map(self._run_part, group))

    def compare(self, comparisons: Sequence[Comparison]) -> None:
        """A row for each comparison whose figures are both there."""
        figures = {(row.part, row.what): row.figure for row in self.rows if row.figure is not None}
        for one in comparisons:
            ours, theirs = figures.get((one.part, one.row)), figures.get((one.over, one.row))
            if ours is not None and theirs:
                self._add(Row("compared", one.what, ours / theirs, "x"))

    def _run_part(self, part: Part) -> None:
        left = self._end - time.monotonic()
        if left < LEAST_S:
            self._add(Row(part.name, "left out", note="the time is up"))
            return
        limit_s = min(part.limit_s, left)
        name = part.name.replace(" ", "-").replace(",", "")
        said, errors = self._work / f"{name}.jsonl", self._work / f"{name}.log"
        said.touch()
        began = time.monotonic()
        code = self._call(part, said, errors, limit_s)
        for line in said.read_text(encoding="utf-8").splitlines():
            self._add(Row(part.name, **json.loads(line)))
        if code != 0:
            why = f"not done after {limit_s:.0f} s" if code is None else _reason(errors, code)
            self._add(Row(part.name, "part", note=why, failed=True))
        self._add(Row(part.name, "took", time.monotonic() - began, "s"))

    def _call(self, part: Part, said: Path, errors: Path, limit_s: float) -> int | None:
        """The exit code of the part's process; None if it was killed. Nothing that it has started is left."""
        arguments: dict[str, Any] = {**part.arguments, "carried": self._carried}
        if part.module in ("engine", "tokens"):
            arguments["folder"] = str(self._work / said.stem)
        if part.module == "engine":
            arguments["spawned"] = time.time()
        if part.ceilings:
            arguments["ceilings"] = self._ceilings()
        command = [sys.executable, "-m", "benchmarks.gpu_check.part", part.module, str(said), json.dumps(arguments)]
        with errors.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
            )
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end_group(process)

    def _ceilings(self) -> dict[str, float] | None:
        """Bytes and operations a second, the best that were seen; None if they could not be measured."""
        figures = {row.what: row.figure for row in self.rows if row.part == "ceilings" and row.figure is not None}
        read = [figure * 1e9 for what, figure in figures.items() if what.startswith("bandwidth")]
        multiplied = [figure * 1e12 for what, figure in figures.items() if what.startswith("matmul")]
        return {"bandwidth": max(read), "peak": max(multiplied)} if read and multiplied else None

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self._tell(row)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and of those that it has started: they are a session of their own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _reason(errors: Path, code: int) -> str:
    """How the process ended, and its last line, which of an exception is its message."""
    lines = errors.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{exit_words(code)}: {last[:300]}"
