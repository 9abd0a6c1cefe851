"""Logging: one logger tree called "fathom", quiet below its level, one line for each thing that matters."""

from __future__ import annotations

import logging
import sys

from fathom import env


def setup_logging(process: str = "") -> None:
    """Attach a handler to the "fathom" logger once, unless the application has set up logging itself.

    Args:
        process: which of several processes of a kind this is, for its lines.
    """
    logger = logging.getLogger("fathom")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    name = f"[{process}] " if process else ""
    handler.setFormatter(logging.Formatter(f"%(levelname)s %(asctime)s {name}[%(name)s] %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(env.logging_level())
    logger.propagate = False
