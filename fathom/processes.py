"""Processes of our own: started so that nothing of the caller's script runs in them; and how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

_CALLERS = {signal.SIGINT, signal.SIGTERM}  # the caller tells our processes what to do
_BOOTSTRAP = (
    "import signal; callers = (signal.SIGINT, signal.SIGTERM); "
    "[signal.signal(number, signal.SIG_IGN) for number in callers]; "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, callers); "
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; sys.exit(main(sys.argv[2:]))"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main(arguments)` of a module, and ignores SIGINT and SIGTERM from its first line on.

    It gets our sys.path whole, so -P: nothing in the working directory may pose as a module before that.
    """
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    return [sys.executable, "-P", "-c", _BOOTSTRAP.format(module=module), paths, *arguments]


def spawn(module: str, arguments: Sequence[str], pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that runs `module.main(arguments)` and has inherited these descriptors."""
    command = python_command(module, *arguments)
    environment = {**os.environ, "FATHOM_IN_ENGINE_PROCESS": "1"}
    with signals_held_back():
        return subprocess.Popen(command, pass_fds=tuple(pass_fds), stdin=subprocess.DEVNULL, env=environment)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """SIGINT and SIGTERM come afterwards; a `python_command` that is started meanwhile has not seen them either.

    Until its first line it would end on them, and print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CALLERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CALLERS - before)


def exit_words(code: int | None) -> str:
    """How a process ended, for people."""
    if code is None:
        return "does not answer"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"exited with code {code}"
