"""InputBatch: rows follow their requests, and the BatchUpdate tells a processor how."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup
from fathom.sampling_params import SamplingParams
from fathom.step import NewRequestData, SchedulerOutput
from fathom.worker.input_batch import InputBatch
from fathom.worker.sample.batch_update import MoveDirectionality

KV = KVCacheConfig(64, 4, 1, (KVCacheGroup((0,)), KVCacheGroup((1,), window=8)), 0)


def new(request_id: str, prompt: list[int], output: tuple[int, ...] = (), computed: int = 0) -> NewRequestData:
    tokens = np.array([*prompt, *output], np.int32)
    blocks = list(range(1, 1 + -(-len(tokens) // 4)))
    params = SamplingParams(temperature=0.0, max_tokens=len(prompt))
    return NewRequestData(request_id, tokens, len(prompt), computed, (blocks, blocks), params, seed=-1, choice=2)


def step(add: list[NewRequestData] = (), drop: list[str] = (), blocks: dict | None = None) -> SchedulerOutput:
    return SchedulerOutput({}, 0, list(add), blocks or {}, list(drop), 0, 0)


def test_a_new_request_fills_a_row() -> None:
    batch = InputBatch(4, 32, KV)
    update = batch.apply(step([new("a", [7, 8, 9, 10, 11], (5,), computed=4)]))
    assert batch.request_ids == ["a"]
    assert batch.token_ids[0, :6].tolist() == [7, 8, 9, 10, 11, 5]
    assert (batch.num_tokens[0], batch.num_prompt_tokens[0], batch.num_computed_tokens[0]) == (6, 5, 4)
    assert (int(batch.seeds[0]), int(batch.choices[0])) == (2**64 - 1, 2)
    assert [table[0, :2].tolist() for table in batch.block_tables] == [[1, 2], [1, 2]]
    (added,) = update.added
    assert (added[0], added[2], added[3]) == (0, [7, 8, 9, 10, 11], [5])
    assert (update.batch_size, list(update.removed), list(update.moved)) == (1, [], [])


def test_nothing_changed_is_none_even_when_blocks_are_appended() -> None:
    batch = InputBatch(4, 32, KV)
    batch.apply(step([new("a", [1] * 4)]))
    assert batch.apply(step(blocks={"a": ([9], [10])})) is None
    assert [table[0, :2].tolist() for table in batch.block_tables] == [[1, 9], [1, 10]]


def test_the_output_list_is_live() -> None:
    batch = InputBatch(4, 32, KV)
    (added,) = batch.apply(step([new("a", [1, 2])])).added
    assert batch.note_tokens([0], [42]) == {"a": 42}
    assert added[3] == [42]


def test_a_new_request_takes_the_place_of_one_that_left() -> None:
    batch = InputBatch(4, 32, KV)
    batch.apply(step([new(name, [1]) for name in "abc"]))
    update = batch.apply(step([new("d", [2])], drop=["b", "unknown"]))
    assert batch.request_ids == ["a", "d", "c"]
    assert (list(update.removed), update.added[0][0], list(update.moved)) == ([], 1, [])


def test_the_last_row_moves_into_a_hole() -> None:
    batch = InputBatch(4, 32, KV)
    batch.apply(step([new(name, [ord(name)]) for name in "abcd"]))
    update = batch.apply(step(drop=["a", "d"]))
    assert batch.request_ids == ["c", "b"]
    assert batch.token_ids[:2, 0].tolist() == [ord("c"), ord("b")]
    assert sorted(update.removed) == [0, 3]
    assert list(update.moved) == [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    assert batch.row_of == {"c": 0, "b": 1}


def test_a_preempted_request_may_come_back_in_the_same_step() -> None:
    batch = InputBatch(4, 32, KV)
    batch.apply(step([new("a", [1]), new("b", [2])]))
    batch.apply(step([new("a", [1], (3, 4))], drop=["a"]))
    assert batch.output_ids[batch.row_of["a"]] == [3, 4]
    assert batch.num_rows == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_processor_that_follows_the_updates_agrees_with_the_rows(seed: int) -> None:
    """Random steps; a dictionary driven by removed, added, moved must end up with each row's own request."""
    chance = random.Random(seed)
    batch, follower, alive, count = InputBatch(8, 32, KV), {}, [], 0
    for _ in range(2_000):
        drop = [name for name in alive if chance.random() < 0.2]
        alive = [name for name in alive if name not in drop]
        add = []
        while len(alive) < 8 and chance.random() < 0.5:
            add.append(new(str(count), [count]))
            alive.append(str(count))
            count += 1
        update = batch.apply(step(add, drop))
        assert (update is None) == (not add and not drop)
        if update is not None:
            for row in update.removed:
                follower.pop(row, None)
            for row, _, prompt, _ in update.added:
                follower[row] = prompt[0]
            for source, target, _ in update.moved:
                follower[target] = follower.pop(source)
            assert update.batch_size == batch.num_rows
        assert follower == {row: int(name) for row, name in enumerate(batch.request_ids)}
        assert batch.row_of == {name: row for row, name in enumerate(batch.request_ids)}
        assert batch.token_ids[: batch.num_rows, 0].tolist() == [int(name) for name in batch.request_ids]
