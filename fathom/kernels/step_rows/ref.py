"""The rows of a step by numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fathom.kernels.step_rows.random import uniform

if TYPE_CHECKING:
    from fathom.kernels.step_rows import BatchRows, StepArrays


class StepRows:
    """See the package's docstring for shapes and rules."""

    def __init__(self, batch: BatchRows, step: StepArrays, block_size: int) -> None:
        self._batch = batch
        self._step = step
        self._block_size = block_size

    def flatten(self, num_reqs: int) -> int:
        batch, step = self._batch, self._step
        rows, counts = step.rows[:num_reqs], step.counts[:num_reqs]
        query_start = np.concatenate([[0], counts.cumsum()])
        num_tokens = int(query_start[-1])
        computed = batch.num_computed[rows]
        seq_lens = computed + counts
        row_of_token = rows.repeat(counts)
        positions = np.arange(num_tokens) + (computed - query_start[:-1]).repeat(counts)
        step.input_ids[:num_tokens] = batch.token_ids[row_of_token, positions]
        step.positions[:num_tokens] = positions
        step.query_start_loc[: num_reqs + 1] = query_start
        step.seq_lens[:num_reqs] = seq_lens
        step.complete[:num_reqs] = seq_lens == batch.num_tokens[rows]
        width = -(-int(seq_lens.max()) // self._block_size)
        block_of_token, offset = np.divmod(positions, self._block_size)
        for table, block_table, slots in zip(batch.block_tables, step.block_tables, step.slot_mappings, strict=True):
            block_table[:num_reqs, :width] = table[rows, :width]
            slots[:num_tokens] = table[row_of_token, block_of_token] * np.int64(self._block_size) + offset
        batch.num_computed[rows] = seq_lens
        return int(step.complete[:num_reqs].sum())

    def uniforms(self, rows: list[int]) -> list[float]:
        batch = self._batch
        positions = batch.num_tokens[rows] - batch.num_prompt_tokens[rows]
        return uniform(batch.seeds[rows], batch.choices[rows], positions).tolist()  # type: ignore[no-any-return]

    def append(self, num_reqs: int, token_ids: list[int]) -> None:
        batch, tokens = self._batch, np.array(token_ids, np.int64)
        rows = self._step.rows[:num_reqs][self._step.complete[:num_reqs]][tokens >= 0]
        batch.token_ids[rows, batch.num_tokens[rows]] = tokens[tokens >= 0]
        batch.num_tokens[rows] += 1
