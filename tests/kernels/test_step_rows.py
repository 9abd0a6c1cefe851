"""The rows of a step: the native operations write what numpy's do, and those what the rules say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fathom.kernels import native
from fathom.kernels.step_rows import BatchRows, StepArrays, cpu, ref

ROWS, LENGTH, BLOCK, TOKENS, GROUPS = 6, 40, 4, 64, 2
BLOCKS = LENGTH // BLOCK

needs_native = pytest.mark.skipif(native.cpu is None, reason="the native kernels are not built")


def make_batch(seed: int) -> BatchRows:
    """Rows of 5 to 20 tokens, up to 4 of which are computed; every block has another number."""
    numbers = np.random.default_rng(seed)
    length = numbers.integers(5, 21, ROWS)
    return BatchRows(
        token_ids=numbers.integers(0, 1000, (ROWS, LENGTH + 1), np.int32),
        num_tokens=length,
        num_computed=numbers.integers(0, 5, ROWS),
        num_prompt_tokens=length - numbers.integers(0, 3, ROWS),
        seeds=numbers.integers(0, 2**63, ROWS, np.uint64),
        choices=numbers.integers(0, 3, ROWS, np.uint64),
        block_tables=[1 + 100 * group + np.arange(ROWS * BLOCKS, dtype=np.int32).reshape(ROWS, -1) for group in (0, 1)],
    )


def make_step() -> StepArrays:
    return StepArrays(
        rows=np.zeros(ROWS, np.int64),
        counts=np.zeros(ROWS, np.int64),
        complete=np.zeros(ROWS, np.bool_),
        input_ids=np.zeros(TOKENS, np.int64),
        positions=np.zeros(TOKENS, np.int64),
        query_start_loc=np.zeros(ROWS + 1, np.int32),
        seq_lens=np.zeros(ROWS, np.int32),
        block_tables=[np.zeros((ROWS, BLOCKS), np.int32) for _ in range(GROUPS)],
        slot_mappings=[np.zeros(TOKENS, np.int64) for _ in range(GROUPS)],
    )


def schedule(step: StepArrays, rows: list[int], counts: list[int]) -> int:
    step.rows[: len(rows)], step.counts[: len(rows)] = rows, counts
    return len(rows)


@pytest.mark.parametrize("module", [ref, pytest.param(cpu, marks=needs_native)], ids=["ref", "cpu"])
def test_two_rows_of_a_step(module: Any) -> None:
    batch, step = make_batch(0), make_step()
    batch.num_tokens[:], batch.num_computed[:] = 9, 5
    step_rows = module.StepRows(batch, step, BLOCK)
    num_reqs = schedule(step, [1, 4], [3, 4])
    assert step_rows.flatten(num_reqs) == 1
    assert step.input_ids[:7].tolist() == [*batch.token_ids[1, 5:8], *batch.token_ids[4, 5:9]]
    assert step.positions[:7].tolist() == [5, 6, 7, 5, 6, 7, 8]
    assert step.query_start_loc[:3].tolist() == [0, 3, 7]
    assert step.seq_lens[:2].tolist() == [8, 9]
    assert step.complete[:2].tolist() == [False, True]
    assert batch.num_computed.tolist() == [5, 8, 5, 5, 9, 5]
    for group, (table, slots) in enumerate(zip(step.block_tables, step.slot_mappings, strict=True)):
        first = 1 + 100 * group
        assert table[0, :2].tolist() == [first + BLOCKS, first + BLOCKS + 1]
        assert table[1, :3].tolist() == [first + 4 * BLOCKS + block for block in range(3)]
        at = (first + BLOCKS + 1) * BLOCK
        assert slots[:3].tolist() == [at + 1, at + 2, at + 3]
    step_rows.append(num_reqs, [77])
    assert batch.num_tokens.tolist() == [9, 9, 9, 9, 10, 9]
    assert batch.token_ids[4, 9] == 77


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_native_and_numpy_write_the_same(seed: int) -> None:
    chance = random.Random(seed)
    batches, steps = [make_batch(seed) for _ in range(2)], [make_step() for _ in range(2)]
    both = [module.StepRows(batch, step, BLOCK) for module, batch, step in zip((ref, cpu), batches, steps, strict=True)]
    for _ in range(15):
        missing = batches[0].num_tokens - batches[0].num_computed
        rows = [row for row in range(ROWS) if missing[row] > 0 and chance.random() < 0.8]
        if not rows:
            continue
        counts = [chance.randint(1, min(9, int(missing[row]))) for row in rows]
        for step in steps:
            schedule(step, rows, counts)
        complete = [one.flatten(len(rows)) for one in both]
        assert complete[0] == complete[1]
        tokens = [chance.choice([-1, 7, 999]) for _ in range(complete[0])]
        assert both[0].uniforms(rows) == both[1].uniforms(rows)
        for one in both:
            one.append(len(rows), tokens)
        for plain, fast in (batches, [specified(step, len(rows)) for step in steps]):
            for name in plain._fields:
                assert np.array_equal(getattr(plain, name), getattr(fast, name)), name


def specified(step: StepArrays, num_reqs: int) -> StepArrays:
    """The step without the entries of block tables behind a row's last block."""
    used = np.arange(BLOCKS) < -(-step.seq_lens[:num_reqs, None] // BLOCK)
    return step._replace(block_tables=[table[:num_reqs] * used for table in step.block_tables])
