"""`fathom serve` in a process of its own, watched from outside: its numbers, its memory, and what it leaves behind.

It ends with the process that watches it, however that ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

from fathom.entrypoints.cli.bench.own_server import start_server

_URL = re.compile(r"serving .* at (http://\S+)")
_LABELS = re.compile(r'(engine="0",?|model_name="[^"]*",?)')
_ENGINE_TITLE = "fathom::EngineCore"
_SHARED_MEMORY = "/dev/shm/"


@dataclass(frozen=True)
class Footprint:
    """What a process holds. nbytes: resident memory, what the system maps from files left out."""

    nbytes: int
    descriptors: int
    threads: int


class ServedModel:
    """A running server, in a session of its own and with `folder` for its temporary files and its log.

    Raises:
        SystemExit: it did not start.
    """

    def __init__(self, model: str, folder: Path, *flags: str) -> None:
        self._folder = folder
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = start_server([model, *flags], env={**os.environ, "TMPDIR": str(folder)}, stderr=log)
        assert self.process.stdout is not None
        found = _URL.search(self.process.stdout.readline())
        if found is None:
            self.process.wait()
            raise SystemExit(f"the server did not start:\n{self.log.read_text()}")
        self.url = found[1]
        children = psutil.Process(self.process.pid).children()
        (engine,) = [child for child in children if child.cmdline()[:1] == [_ENGINE_TITLE]]
        self._pids = {"server": self.process.pid, "engine": engine.pid}

    def footprints(self) -> dict[str, Footprint]:
        """What the server's process and the engine's hold now."""
        return {name: _footprint(pid) for name, pid in self._pids.items()}

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: name{labels but the model's and the engine's} -> value, without the prefix."""
        found = {}
        for line in httpx2.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = _LABELS.sub("", name).replace(",}", "}").replace("{}", "")
                found[name.removeprefix("fathom:")] = float(value)
        return found

    def end(self, wait_s: float = 30.0) -> list[str]:
        """Send SIGTERM, wait, and say what is not as it should be: exit code, processes, files, words in the log."""
        shared = {path for pid in self._pids.values() for path in _shared_memory_of(pid)}
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return [f"the server did not end within {wait_s:g} s of SIGTERM"]
        problems = [] if code == 0 else [f"exit code {code}"]
        deadline = time.monotonic() + 3
        while (left := self._left(shared)) and time.monotonic() < deadline:
            time.sleep(0.05)
        problems += [f"left behind: {name}" for name in left]
        if "Traceback" in self.log.read_text():
            problems.append(f"a traceback in {self.log}")
        return problems

    def _left(self, shared: set[str]) -> list[str]:
        session = self.process.pid
        found = [f"process {pid}" for pid in psutil.pids() if _session_of(pid) == session]
        found += [str(path) for path in self._folder.glob("fathom-*")]
        return found + [path for path in shared if os.path.exists(path)]


def _footprint(pid: int) -> Footprint:
    process = psutil.Process(pid)
    memory = process.memory_info()
    return Footprint(memory.rss - memory.shared, process.num_fds(), process.num_threads())


def _shared_memory_of(pid: int) -> set[str]:
    """Files of shared memory that a process has mapped."""
    names = {line.split(maxsplit=5)[-1].strip() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {name for name in names if name.startswith(_SHARED_MEMORY)}


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
