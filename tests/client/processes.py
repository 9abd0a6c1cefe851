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
PATIENCE_S = 120
"""How long is waited for what must happen: longer than any machine takes, and seen only by a test that fails."""

PRELUDE = """
import asyncio, os, signal, sys, time
from fathom import LLM, AsyncLLM, EngineConfig, SamplingParams
from fathom.errors import EngineDeadError
MODEL = sys.argv[1]
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)  # of the endless model: no test sees its end

def make_llm(**options):
    return LLM(MODEL, num_threads=1, max_num_seqs=16, show_progress=False, **options)

def generate(llm, prompts=([5, 6, 7],), params=SHORT):
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), params, use_tqdm=False)]

def generate_for_ever(llm):
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
        return [process for process in psutil.process_iter() if is_of_session(process, self.process.pid)]

    def engine(self) -> psutil.Process:
        return engine_of(self.process.pid)

    def finish(self) -> tuple[int, str, str]:
        """Wait for its end: exit code, and the rest of what it wrote."""
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.kill()
        return self.process.returncode, out, err

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def engine_of(pid: int) -> psutil.Process:
    """The engine process that a process has started."""
    (engine,) = (child for child in psutil.Process(pid).children() if title_of(child) == TITLE)
    return engine


def title_of(process: psutil.Process) -> str:
    """The first word of its command line, which our processes set; empty if it has just ended."""
    try:
        return next(iter(process.cmdline()), "")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def is_of_session(process: psutil.Process, session: int) -> bool:
    try:
        return not is_gone(process) and os.getsid(process.pid) == session
    except ProcessLookupError:
        return False


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def comes_true(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true, sooner or later."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def socket_folders(tmp: Path) -> list[Path]:
    return list(tmp.glob("fathom-*"))


def write_plugins(folder: Path, **functions: str) -> None:
    """A distribution with general plugins; `note(name)` in them appends the name and the process's id to a file."""
    module_name = f"plugins_of_{folder.name}"
    info = folder / "some_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugins\nVersion: 1.0\n")
    lines = [f"{name} = {module_name}:{name}" for name in functions]
    (info / "entry_points.txt").write_text("\n".join(["[fathom.general_plugins]", *lines]))
    module = ["import os", f"LOG = {str(folder / 'log')!r}", "def note(name):"]
    module += ["    with open(LOG, 'a') as file: file.write(f'{name} {os.getpid()}\\n')"]
    module += [f"def {name}(): {body}" for name, body in functions.items()]
    (folder / f"{module_name}.py").write_text("\n".join(module))


def hold_boots(folder: Path) -> Path:
    """A plugin with which engines do not get ready as long as a file is there: a test finds them booting, however late.

    Returns:
        the file, which is there.
    """
    held = folder / "held"
    held.touch()
    looks = f"iter(lambda: setproctitle.getproctitle() == {TITLE!r} and os.path.exists({str(held)!r}), False)"
    write_plugins(folder, hold=f"import setproctitle, time; [time.sleep(0.01) for _ in {looks}]")
    return held


def with_plugins_of(folder: Path) -> str:
    """A PYTHONPATH by which scripts and their engines find the plugins in a folder."""
    return os.pathsep.join([str(folder), *sys.path])
