"""Running scripts as a user would, and looking at the processes and folders they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

TITLE = "fathom::EngineCore"
PRELUDE = """
import asyncio, os, signal, sys, time
from fathom import LLM, AsyncLLM, EngineConfig, SamplingParams
from fathom.errors import EngineDeadError
MODEL = sys.argv[1]
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

def make_llm(**options):
    return LLM(MODEL, num_threads=1, show_progress=False, **options)

def generate(llm, prompts=([5, 6, 7],), params=SHORT):
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), params, use_tqdm=False)]

def generate_for_long(llm):
    generate(llm, [[i % 300 + 5, 7] for i in range(4000)], LONG)

def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A Python script under way, in a process group of its own and with `tmp` for its temporary files."""

    def __init__(self, code: str, model: Path, tmp: Path, **env: str) -> None:
        self.tmp = tmp
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(model)],
            env={**os.environ, "TMPDIR": str(tmp), "FATHOM_LOGGING_LEVEL": "ERROR", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"the script ended early: {self.finish()}"
        return line

    def left(self) -> list[psutil.Process]:
        """What runs of it and of all that it started."""
        session = self.process.pid
        return [
            process for process in psutil.process_iter() if not is_gone(process) and os.getsid(process.pid) == session
        ]

    def engine(self) -> psutil.Process:
        return engine_of(self.process.pid)

    def finish(self, timeout_s: float = 20) -> tuple[int, str, str]:
        """Wait for its end: exit code, and the rest of what it wrote."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        finally:
            self.kill()
        return self.process.returncode, out, err

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def engine_of(pid: int) -> psutil.Process:
    """The engine process that a process has started."""
    engines = [child for child in psutil.Process(pid).children() if child.cmdline()[:1] == [TITLE]]
    assert len(engines) == 1
    return engines[0]


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def socket_folders(tmp: Path) -> list[Path]:
    return list(tmp.glob("fathom-*"))
