"""A plugin for tests: makes a worker's forward pass fail as a file in a folder says, once it is there.

The file is called like the worker's process, such as "fathom::Worker_TP1"; its content is one of FAULTS.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from setproctitle import getproctitle

FOLDER_VARIABLE = "FATHOM_TEST_FAULTS"


def _hang() -> None:
    while True:
        time.sleep(60)


def _raise() -> None:
    raise RuntimeError("out of luck")


class UnspeakableError(Exception):
    """What goes wrong cannot be told."""

    def __str__(self) -> str:
        raise ValueError("no words for it")


def _raise_unspeakable() -> None:
    raise UnspeakableError


FAULTS = {
    "hang": _hang,
    "raise": _raise,
    "raise unspeakable": _raise_unspeakable,
    "exit": lambda: os._exit(7),
    "crash": lambda: ctypes.string_at(0),
}


def install() -> None:
    """Has the forward pass of this process look for a fault; the caller's process and the engine's have none."""
    if not getproctitle().startswith("fathom::Worker"):
        return
    from fathom.models.decoder import CausalLM

    forward = CausalLM.forward
    order = Path(os.environ[FOLDER_VARIABLE]) / getproctitle()

    def with_fault(self: CausalLM, *args: Any) -> Any:
        if order.exists():
            kind = order.read_text()
            order.unlink()
            FAULTS[kind]()
        return forward(self, *args)

    CausalLM.forward = with_fault


def write_plugin(folder: Path) -> None:
    """Makes `folder`, once it is on sys.path, a place where the plugin is found."""
    info = folder / "fathom_test_faults-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fathom-test-faults\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fathom.general_plugins]\nfaults = tests.executor.faults:install\n")
