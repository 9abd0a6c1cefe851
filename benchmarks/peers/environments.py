"""Where rivals are installed: each in an environment of its own, once, and never in Fathom's.

~/.cache/fathom-peers/llama.cpp/   built from source, and the quantised files made with it
~/.cache/fathom-peers/openvino/    a virtual environment
~/.cache/fathom-peers/vllm/        a virtual environment, and the weights it reads
~/.cache/fathom-peers/runs/        results
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
"""Scripts that run in the rivals' environments."""


class ContenderError(RuntimeError):
    """An engine could not be installed, could not start, or could not do its work."""


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/fathom-peers, else ~/.cache/fathom-peers; made if it is not there."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fathom-peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def virtual_environment(name: str) -> Path:
    """The Python of the environment of this name, which is made if need be."""
    folder = cache_dir() / name
    python = folder / "bin" / "python"
    if not python.exists():
        run_logged([sys.executable, "-m", "venv", folder], cache_dir() / f"{name}-install.log")
    return python


def pip_install(python: Path, arguments: Sequence[str], log: Path) -> None:
    """pip install in the environment of that Python."""
    run_logged([python, "-m", "pip", "install", "--disable-pip-version-check", *arguments], log)


def run_logged(command: Sequence[str | Path], log: Path) -> None:
    """Run a long command with its output in a file.

    Raises:
        ContenderError: it failed; the message has its last lines.
    """
    with log.open("ab") as output:
        ended = subprocess.run([str(word) for word in command], stdout=output, stderr=output, check=False)
    if ended.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise ContenderError(f"{' '.join(map(str, command[:4]))} ... failed; the end of {log}:\n{tail}")
