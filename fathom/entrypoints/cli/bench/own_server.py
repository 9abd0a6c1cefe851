"""`fathom serve` in a process of its own, for as long as a benchmark, or whoever else starts it, needs it.

It ends with the process that started it, however that ends: it holds the other end of a pipe, which closes then.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fathom.errors import EngineStartError

_URL = re.compile(r"serving .* at (http://\S+)")
STOP_SECONDS = 30


def start_server(arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start `fathom serve` with these arguments, on a free port unless they name one. It ends when this process does.

    Args:
        options: more of Popen's. Standard input is the pipe that tells of this process's end, and stays open for that.

    Returns:
        the process; the server's first line comes on its standard output.
    """
    command = [sys.executable, "-m", "fathom.entrypoints.cli.bench.own_server", "--port=0", *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is ours
        **options,
    )


@contextmanager
def own_server(options: dict[str, Any], flags: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server with these engine options, on a free port; ended in the end.

    Raises:
        EngineStartError: it did not start; why, it has said on standard error.
    """
    process = start_server([*flags, *(flag for name, value in options.items() for flag in _flags(name, value))])
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        found = _URL.search(process.stdout.readline())
        if found is None:
            raise EngineStartError("the server to be measured did not start.")
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()
        process.stdout.close()


def _flags(name: str, value: Any) -> list[str]:
    """The command line's spelling of an option."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}={item}" for item in (value if isinstance(value, list) else [value])]


def main(flags: list[str]) -> int:
    """In the process of its own: serve, until told to end or until the one that started it is gone."""
    from fathom.entrypoints.cli.main import main as fathom

    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    return fathom(["serve", *flags])


def _end_with_the_starter() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written; it returns when the pipe closes. Python's own reader
    # would hold a lock that the interpreter wants at exit, and end it with a fatal error
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
