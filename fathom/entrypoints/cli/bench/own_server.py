"""`fathom serve` in a process of its own, for as long as a benchmark needs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fathom.errors import EngineStartError

_URL = re.compile(r"serving .* at (http://\S+)")
STOP_SECONDS = 30


@contextmanager
def own_server(options: dict[str, Any], flags: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server with these engine options, on a free port; ended in the end.

    Raises:
        EngineStartError: it did not start; why, it has said on standard error.
    """
    command = [sys.executable, "-m", "fathom", "serve", "--port=0", *flags]
    command += [flag for name, value in options.items() for flag in _flags(name, value)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # Ctrl-C is ours
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
        process.stdout.close()


def _flags(name: str, value: Any) -> list[str]:
    """The command line's spelling of an option."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}={item}" for item in (value if isinstance(value, list) else [value])]
