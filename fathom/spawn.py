"""How Fathom starts a process of its own: from a command line, so that nothing of the caller's script runs in it."""

from __future__ import annotations

import json
import sys

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
