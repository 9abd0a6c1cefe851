"""What is asked of torch.cuda, on a machine without it: calls are answered by stand-ins for its functions alone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from fathom.worker.device import CUDADevice
from fathom.worker.graph_capture import TorchGraphCapture

GPU = torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls, in order."""
    calls: list[str] = []

    class Graph:
        def capture_begin(self, pool: str, capture_error_mode: str) -> None:
            calls.append(f"begin in {pool}, {capture_error_mode}")

        def capture_end(self) -> None:
            calls.append("end")

        def replay(self) -> None:
            calls.append("replay")

    @contextlib.contextmanager
    def on_stream(stream: str) -> Any:
        calls.append(f"on {stream}")
        yield
        calls.append("off")

    for name, answer in {
        "CUDAGraph": Graph,
        "Stream": lambda device: "side stream",
        "stream": on_stream,
        "graph_pool_handle": lambda: "pool",
        "synchronize": lambda device: calls.append("wait"),
        "empty_cache": lambda: calls.append("empty cache"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return calls


def test_graphs_share_a_pool_and_a_stream(calls: list[str]) -> None:
    capture = TorchGraphCapture(GPU)
    with capture.session():
        for _ in range(2):
            capture.begin()
            replay = capture.end()
    replay()
    one = ["begin in pool, thread_local", "end"]
    assert calls == ["wait", "empty cache", "on side stream", *one, *one, "off", "wait", "empty cache", "replay"]


def test_no_capture_stays_open(calls: list[str]) -> None:
    capture = TorchGraphCapture(GPU)

    def fail() -> None:
        with capture.session():
            capture.begin()
            raise IndexError

    with pytest.raises(IndexError):
        fail()
    assert calls[-3:] == ["end", "wait", "empty cache"]
    with capture.session():
        capture.begin()
        capture.end()


def test_what_memory_is_left(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1000 bytes 900 may be used; others have 40, and the driver takes 10 more while the largest batch is run."""
    taken = {"others": 40, "reserved": 300}

    def run_largest_batch() -> None:
        calls.append("largest batch")
        taken["others"] += 10

    def measure_graphs() -> int:
        calls.append("graphs")
        return 25

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 - sum(taken.values()), 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: taken["reserved"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset peak"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 380)
    device = object.__new__(CUDADevice)
    device.torch_device, device._share = GPU, 0.9
    memory = device.profile(290, run_largest_batch, measure_graphs)
    assert (memory.others, memory.weights, memory.activations, memory.graphs) == (50, 290, 90, 25)
    assert memory.kv_cache == 900 - 50 - 290 - 90 - 25
    order = [call for call in calls if call not in ("wait", "empty cache")]
    assert order == ["reset peak", "largest batch", "graphs"]
