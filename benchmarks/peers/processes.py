"""Ending an engine with all processes that it has started: some leave workers behind when they are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psutil

STOP_SECONDS = 20


def end_with_children(process: subprocess.Popen, ask_to_end: Callable[[], object]) -> None:
    """Ask it to end, and kill what is left of it and its descendants after some seconds."""
    if process.poll() is not None:
        return
    parent = psutil.Process(process.pid)
    children = parent.children(recursive=True)
    ask_to_end()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = psutil.wait_procs(children, timeout=1)[1]
    for child in left:
        child.kill()
    psutil.wait_procs(left, timeout=STOP_SECONDS)
