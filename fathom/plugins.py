"""General plugins: functions under the entry point group "fathom.general_plugins".

They run in the caller's process, in each engine process and in each worker's, before anything is built, so that what
they register or patch is there on all sides. FATHOM_PLUGINS names the ones to run; unset means all.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from fathom import env

GENERAL_PLUGINS = "fathom.general_plugins"
logger = logging.getLogger(__name__)


def load_general_plugins() -> None:
    """Run each plugin; one that raises is reported and skipped."""
    allowed = env.plugins()
    for entry in entry_points(group=GENERAL_PLUGINS):
        if allowed is not None and entry.name not in allowed:
            continue
        try:
            entry.load()()
        except Exception:
            logger.exception("plugin %s (%s) failed and is ignored", entry.name, entry.value)
