"""Launches that a CUDA graph has captured: grids and Python numbers are frozen, and later steps are longer.

A graph is captured with padding only, one key for each row, and must serve every step up to max_model_len: lengths and
tables are read on the device, and whatever the host works out comes from shapes that do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from fathom.kernels.attention import ref as attention_ref
from fathom.kernels.attention import triton as attention
from fathom.kernels.rotate_and_store import ref as rotate_ref
from fathom.kernels.rotate_and_store import triton as rotate
from tests.kernels.kv_pages import nan_cache

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # rows that pad a tile

ROWS, HEADS, KV_HEADS, DIM, PAGE, MAX_MODEL_LEN = 3, 2, 1, 8, 8, 100
LENGTHS = [[100, 64, 1], [33, 1, 99]]
"""Of later steps; a row of 1 is padding."""


class Launches:
    """Those of the calls within `with`, which run as they are noted, and again in `replay`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls: list[Callable[[], Any]] = []
        self._patch = monkeypatch

    def __enter__(self) -> None:
        run = InterpretedFunction.run

        def noting_run(kernel: InterpretedFunction, *args: Any, **keywords: Any) -> None:
            self._calls.append(lambda: run(kernel, *args, **keywords))
            run(kernel, *args, **keywords)

        self._patch.setattr(InterpretedFunction, "run", noting_run)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def replay(self) -> None:
        for call in self._calls:
            call()


class Step:
    """One layer's inputs in buffers that stay where they are; earlier keys are in two equal caches."""

    def __init__(self, dtype: str) -> None:
        blocks_each = -(-MAX_MODEL_LEN // PAGE)
        self.caches = [nan_cache(1 + ROWS * blocks_each, PAGE, KV_HEADS, DIM, dtype) for _ in range(2)]
        self.qkv = torch.zeros(ROWS, (HEADS + 2 * KV_HEADS) * DIM)
        self.positions, self.slots = torch.zeros(ROWS, dtype=torch.int64), torch.zeros(ROWS, dtype=torch.int64)
        self.tables = torch.zeros(ROWS, blocks_each, dtype=torch.int32)
        self.starts, self.lengths = torch.arange(ROWS + 1, dtype=torch.int32), torch.ones(ROWS, dtype=torch.int32)
        angles = torch.linspace(0, 3, MAX_MODEL_LEN)[:, None] * torch.linspace(1, 0.1, DIM // 2)
        self._tables_of_angles = angles.cos(), angles.sin()

    def write(self, lengths: list[int], seed: int) -> None:
        """Requests of these lengths, in shuffled blocks; one of 1 is padding, on the null block."""
        chance = torch.Generator().manual_seed(seed)
        pool = torch.randperm(len(self.caches[0].keys) - 1, generator=chance).add(1).tolist()
        self.qkv.copy_(torch.randn(self.qkv.shape, generator=chance))
        self.lengths.copy_(torch.tensor(lengths))
        self.positions.copy_(self.lengths - 1)
        self.tables.fill_(10**6)  # what lies behind a request's blocks is not to be looked at
        self.tables[:, 0] = 0
        for row, length in enumerate(lengths):
            if length > 1:
                blocks = torch.tensor([pool.pop() for _ in range(-(-length // PAGE))], dtype=torch.int32)
                self.tables[row, : len(blocks)] = blocks
                before = torch.arange(length - 1)
                kv = torch.randn(2, length - 1, KV_HEADS, DIM, generator=chance)
                for cache in self.caches:
                    rotate_ref.store(*kv, blocks.long()[before // PAGE] * PAGE + before % PAGE, cache)
        last = self.tables[torch.arange(ROWS), self.positions // PAGE]
        self.slots.copy_(last.long() * PAGE + self.positions % PAGE)

    def run(self, rotate: Any, attention: Any, cache: int, options: dict[str, Any]) -> torch.Tensor:
        cos, sin = self._tables_of_angles
        query = rotate.rotate_and_store(self.qkv, self.positions, cos, sin, self.slots, self.caches[cache])
        return attention.paged_attention(
            query, self.caches[cache], self.tables, self.starts, self.lengths, 0.25, **options
        )


@pytest.mark.parametrize(("dtype", "options"), [("int8", {}), ("float16", {"window": 50, "softcap": 3.0})])
def test_a_captured_decode_serves_longer_sequences(
    monkeypatch: pytest.MonkeyPatch, dtype: str, options: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MIN_RANGE_KEYS", 32)  # so that 100 keys make ranges
        step = Step(dtype)
        launches = Launches(monkeypatch)
        with launches:
            attended = step.run(rotate, attention, 0, options)
        assert attended.isfinite().all()  # the null block's own content is what padding has just written
        for seed, lengths in enumerate(LENGTHS):
            step.write(lengths, seed)
            launches.replay()
            is_request = torch.tensor(lengths) > 1
            expected = step.run(rotate_ref, attention_ref, 1, options)
            torch.testing.assert_close(attended[is_request], expected[is_request], rtol=1e-4, atol=1e-4)
            assert attended.isfinite().all()
            called = step.run(rotate, attention, 0, options)
            assert torch.equal(attended[is_request], called[is_request])  # as if it had not been captured
