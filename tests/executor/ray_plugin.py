"""A plugin for tests: what a file in a folder asks for happens in workers that are Ray actors.

delayed    workers that start while it is there have a device that runs behind
hang       the worker that finds it first takes it away, and waits for ever in its forward pass
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "FATHOM_TEST_RAY"


def install() -> None:
    if not Path("/proc/self/cmdline").read_bytes().startswith(b"ray::"):
        return
    import fathom.worker.worker
    from fathom.models.decoder import CausalLM
    from tests.worker.delayed_device import DelayedDevice

    folder = Path(os.environ[FOLDER_VARIABLE])
    if (folder / "delayed").exists():
        fathom.worker.worker.make_device = DelayedDevice  # type: ignore[assignment]
    forward = CausalLM.forward

    def with_fault(self: CausalLM, *args: Any) -> Any:
        try:
            (folder / "hang").unlink()
        except FileNotFoundError:
            return forward(self, *args)
        return threading.Event().wait()

    CausalLM.forward = with_fault  # type: ignore[method-assign]


def write_plugin(folder: Path) -> None:
    """Makes `folder`, once it is on sys.path, a place where the plugin is found."""
    info = folder / "fathom_test_ray-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fathom-test-ray\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fathom.general_plugins]\nray = tests.executor.ray_plugin:install\n")
