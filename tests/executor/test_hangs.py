"""HangWatch: who owes an answer and does nothing is looked into, and whoever waits for others is not to blame."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import pytest

from fathom.dist.place import Place
from fathom.executor import hangs
from fathom.executor.hangs import IDLE_S, LOOK_S, HangWatch

IN_A_KERNEL = 'Stack:\n  File "/fathom/models/decoder.py", line 1 in forward\n  File "/fathom/executor/worker_main.py"'
FOR_RANKS = f'Stack:\n  File "/fathom/dist/shared_sums.py", line 1 in _wait\n{IN_A_KERNEL}'
FOR_TORCH = f'Stack:\n  File "/torch/distributed/distributed_c10d.py", line 1 in wait\n{IN_A_KERNEL}'
FOR_CALLS = 'Stack:\n  File "/fathom/executor/worker_main.py", line 1 in run'

HANGS = f"hangs: it has done nothing for 1 s in the middle of execute_model\n{IN_A_KERNEL}"


@dataclass
class Worker:
    """One that the system tells this of."""

    place: Place
    num_finished_calls: int = 1
    computed_s: float = 0.0
    state: str = psutil.STATUS_SLEEPING
    stack: str = IN_A_KERNEL

    def cpu_seconds(self) -> float:
        return self.computed_s

    def status(self) -> str:
        return self.state

    def ask_for_stack(self) -> str:
        return self.stack


class Watching:
    """A watch over two workers that owe the second call, and the time as it sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str = "execute_model", judges: bool = True) -> None:
        self.now = 1000.0
        monkeypatch.setattr(hangs.time, "monotonic", lambda: self.now)
        self.workers = [Worker(Place(rank, 2)) for rank in range(2)]
        self._watch = HangWatch(self.workers, judges)
        self._method = method

    def find(self) -> tuple[Worker, str] | None:
        return self._watch.find(2, lambda number: self._method)

    def after(self, seconds: float) -> tuple[Worker, str] | None:
        self.now += seconds
        return self.find()


@pytest.mark.parametrize("stack", [FOR_RANKS, FOR_TORCH, FOR_CALLS, ""])
def test_whoever_waits_for_another_is_not_to_blame(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    watching = Watching(monkeypatch)
    first, second = watching.workers
    first.stack = stack
    assert watching.find() is None
    found = watching.after(IDLE_S)
    assert found == (second, HANGS)


def test_only_a_whole_second_of_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching(monkeypatch)
    first, second = watching.workers
    second.num_finished_calls = 2
    assert watching.find() is None
    assert watching.after(IDLE_S / 2) is None
    first.computed_s = 0.03
    assert watching.after(IDLE_S / 2) is None
    first.state = psutil.STATUS_DISK_SLEEP
    assert watching.after(IDLE_S) is None
    first.state = psutil.STATUS_SLEEPING
    first.num_finished_calls = 0
    assert watching.after(IDLE_S) is None
    first.computed_s = 0.04  # less than the system's clock can tell
    assert watching.after(IDLE_S / 2) is None
    assert watching.after(IDLE_S / 2) == (first, HANGS)
    assert watching.after(LOOK_S / 2) is None  # nobody is looked at so often
    assert watching.after(LOOK_S / 2) == (first, HANGS)


def test_who_has_finished_all_calls_begins_anew_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching(monkeypatch)
    first, second = watching.workers
    second.num_finished_calls = 2
    assert watching.find() is None
    first.num_finished_calls = 2
    assert watching.after(LOOK_S) is None
    first.num_finished_calls = 1  # stands for another call
    assert watching.after(IDLE_S) is None
    assert watching.after(IDLE_S) is not None


@pytest.mark.parametrize(("method", "judges"), [("collective_rpc", True), ("execute_model", False)])
def test_what_may_wait_for_something_else_hangs_only_if_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, method: str, judges: bool
) -> None:
    watching = Watching(monkeypatch, method, judges)
    assert watching.find() is None
    assert watching.after(IDLE_S) is None
    watching.workers[1].state = psutil.STATUS_STOPPED
    assert watching.after(IDLE_S) is None
    assert watching.after(IDLE_S) == (watching.workers[1], "is stopped (SIGSTOP, or a debugger)")
