"""Processes of our own: started so that nothing of the caller's script runs in them; and how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_BOOTSTRAP = (
    "import signal; [signal.signal(getattr(signal, name), signal.SIG_IGN) for name in {ignored!r}]; "
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; sys.exit(main(sys.argv[2:]))"
)


def python_command(module: str, *arguments: str, ignored: tuple[str, ...]) -> list[str]:
    """The command that runs `main(arguments)` of a module.

    It gets our sys.path whole, so -P: nothing in the working directory may pose as a module before that.

    Args:
        ignored: names of signals that the process ignores from its first line on.
    """
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    return [sys.executable, "-P", "-c", _BOOTSTRAP.format(ignored=ignored, module=module), paths, *arguments]


def spawn(module: str, arguments: Sequence[str], pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process that runs `module.main(arguments)` and has inherited these descriptors.

    Signals to all of a group are for the caller, who tells the process what to do.
    """
    command = python_command(module, *arguments, ignored=("SIGINT", "SIGTERM"))
    environment = {**os.environ, "FATHOM_IN_ENGINE_PROCESS": "1"}
    return subprocess.Popen(command, pass_fds=tuple(pass_fds), stdin=subprocess.DEVNULL, env=environment)


def exit_words(code: int | None) -> str:
    """How a process ended, for people."""
    if code is None:
        return "does not answer"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return f"exited with code {code}"
