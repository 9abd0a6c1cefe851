"""A CPU that stands for a device that runs behind the host: what is copied to the host arrives only when a mark behind
the copy is waited for, and what is copied from the host must still be there by then."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch
from setproctitle import getproctitle

from fathom.worker.device import CPUDevice, Mark


class DelayedDevice(CPUDevice):
    """As on a CUDA device tokens stay here, and nothing is replayed.

    num_waits: how often something was waited for.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.runs_behind, self.replays_steps = True, False
        self.num_waits = 0
        self._lock = threading.Lock()
        self._under_way: list[_Copy] = []
        self._num_arrived = 0

    def copy_to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)
        self._under_way.append(_Copy(source, source.clone(), is_to_host=False))

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        junk = torch.full_like(tensor.view(torch.uint8), 0x5A).view(tensor.dtype)
        self._under_way.append(_Copy(junk, tensor.clone(), is_to_host=True))
        return junk

    def mark(self) -> Mark:
        with self._lock:
            return _DelayedMark(self, self._num_arrived + len(self._under_way))

    @torch.inference_mode()
    def arrive(self, num_copies: int) -> None:
        """Make the first copies of all."""
        with self._lock:
            count = max(num_copies - self._num_arrived, 0)
            arriving, self._under_way[:count] = self._under_way[:count], []
            self._num_arrived += count
            self.num_waits += any(copy.is_to_host for copy in arriving)
            for copy in arriving:
                if copy.is_to_host:
                    copy.host.copy_(copy.values)
                else:
                    assert torch.equal(copy.host, copy.values), "a step's inputs were overwritten before they were read"


class _Copy(NamedTuple):
    """Values that are to be written to the host, or were read from it."""

    host: torch.Tensor
    values: torch.Tensor
    is_to_host: bool


class _DelayedMark(NamedTuple):
    device: DelayedDevice
    num_copies: int

    def synchronize(self) -> None:
        self.device.arrive(self.num_copies)


def install() -> None:
    """As a plugin of workers' processes: their device is a delayed one."""
    if getproctitle().startswith("fathom::Worker"):
        import fathom.worker.worker

        fathom.worker.worker.make_device = DelayedDevice  # type: ignore[assignment]


def write_plugin(folder: Path) -> None:
    """Makes `folder`, once it is on sys.path, a place where the plugin is found."""
    info = folder / "fathom_test_delayed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fathom-test-delayed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fathom.general_plugins]\ndelayed = tests.worker.delayed_device:install\n")
