"""FakeCapture: stands in for torch.cuda's graph capture on a machine without a GPU.

As a real capture it writes down operations with the addresses and numbers that they were called with, and a replay runs
those again and no Python of the model's; what a captured operation returned is where the replay's result goes. It
refuses what a real capture refuses: to read a tensor's content on the host. One thing differs: it also runs what it
writes down.

Paged attention is one operation of its own (`as_one_operation`), as on a GPU: it reads lengths where they lie, at
replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from setproctitle import getproctitle
from torch.utils._python_dispatch import TorchDispatchMode

from fathom.kernels import native
from fathom.kernels.attention import ref
from fathom.kernels.kv_cache import KVCache

_HOST_READS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal)
_ALLOCATIONS = (torch.ops.aten.empty, torch.ops.aten.new_empty, torch.ops.aten.empty_like)
plain_attention = ref.paged_attention


class FakeCapture:
    """A GraphCapture. num_replays: of all graphs. open_session: whether captures may be made."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.open_session = False
        self._open: _Written | None = None

    @property
    def is_capturing(self) -> bool:
        return self._open is not None

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        assert not self.open_session
        self.open_session = True
        yield
        assert self._open is None
        self.open_session = False

    def begin(self) -> None:
        assert self.open_session
        assert self._open is None, "one capture at a time"
        self._open = _Written()
        self._open.__enter__()

    def end(self) -> Callable[[], None]:
        written, self._open = self._open, None
        assert written is not None
        written.__exit__(None, None, None)
        assert written.calls, "a graph of nothing"

        def replay() -> None:
            assert not self.open_session
            self.num_replays += 1
            written.replay()

        return replay


class _Written(TorchDispatchMode):
    """Runs operations and keeps them: (function, arguments, keywords, result)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _HOST_READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            if func.overloadpacket in _ALLOCATIONS:
                continue
            again = func(*args, **kwargs)
            if func.namespace == "c10d":  # what ranks say to each other: in place, and done when it has been waited for
                again[-1].wait()
                continue
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return [item for item in items if isinstance(item, torch.Tensor)]


@torch.library.custom_op("fathom_tests::paged_attention", mutates_args=())
def _attention_operation(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    cache = KVCache(keys, values, None)
    return plain_attention(query, cache, block_table, query_start_loc, seq_lens, scale, window, softcap)


def _as_one_operation(
    query: torch.Tensor,
    cache: KVCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """`paged_attention` for caches without scales."""
    assert cache.scales is None
    return _attention_operation(
        query, cache.keys, cache.values, block_table, query_start_loc, seq_lens, scale, window, softcap
    )


def use_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No native kernels, whose work is no operation that could be seen; attention in plain torch is one."""
    monkeypatch.setattr(native, "cpu", None)
    monkeypatch.setattr(ref, "paged_attention", _as_one_operation)


def install() -> None:
    """As a plugin of workers' processes: they run behind, can capture graphs, and sum up as NCCL does, in operations
    that are captured. `Worker.num_replays()` tells how often each has replayed one.
    """
    if not getproctitle().startswith("fathom::Worker"):
        return
    import fathom.dist.torch_group
    import fathom.worker.worker
    from tests.worker.delayed_device import DelayedDevice

    fake = FakeCapture()
    native.cpu = None
    ref.paged_attention = _as_one_operation
    fathom.dist.torch_group.is_possible = lambda: False
    fathom.worker.worker.make_device = DelayedDevice  # type: ignore[assignment]
    DelayedDevice.graph_capture = lambda self: fake  # type: ignore[method-assign]
    fathom.worker.worker.Worker.num_replays = lambda self: fake.num_replays  # type: ignore[attr-defined]


def write_plugin(folder: Path) -> None:
    """Makes `folder`, once it is on sys.path, a place where the plugin is found."""
    info = folder / "fathom_test_graphs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fathom-test-graphs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fathom.general_plugins]\ngraphs = tests.worker.fake_graphs:install\n")
