"""What the host does to the rows of a batch in each step: write the step's inputs, draw numbers, append tokens.

    step_rows = make_step_rows(batch, step, block_size)
    step_rows.flatten(n)           -> how many of the step's n rows are complete: their last token is computed
    step_rows.uniforms(rows)       -> the numbers in [0, 1) that these rows' next tokens are drawn with
    step_rows.append(n, token_ids)    a token to each complete row of the n, but for those that are negative

flatten lays the rows' next tokens one after another in one flat dimension. They are those at positions num_computed ..
num_computed + count - 1; they go to input_ids and positions, the slots of their keys and values (block * block_size +
offset) to slot_mappings, a row's blocks up to the last of these tokens to block_tables, and num_computed moves on.

All arrays stay where they are, so this is made once. It is little work, but after a forward pass nothing of Python or
numpy is left in the processor's caches, and each call of numpy's takes ten times as long as usual.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fathom.kernels import native
from fathom.kernels.step_rows import cpu, ref


class BatchRows(NamedTuple):
    """What a batch knows of its rows.

    token_ids: [max_rows, max_len] int32. num_tokens, num_computed, num_prompt_tokens: [max_rows] int64.
    seeds, choices: [max_rows] uint64, what a row's random numbers depend on beside its length.
    block_tables: per KV group [max_rows, max_blocks] int32.
    """

    token_ids: np.ndarray
    num_tokens: np.ndarray
    num_computed: np.ndarray
    num_prompt_tokens: np.ndarray
    seeds: np.ndarray
    choices: np.ndarray
    block_tables: list[np.ndarray]


class StepArrays(NamedTuple):
    """What is to be computed, set by the caller, and what is written.

    rows, counts: [max_requests] int64, which rows of the batch, and how many tokens of each.

    complete: [max_requests] bool. input_ids, positions: [max_tokens] int64. query_start_loc: [max_requests + 1] int32.
    seq_lens: [max_requests] int32. block_tables: per KV group [max_requests, max_blocks] int32.
    slot_mappings: per KV group [max_tokens] int64.
    """

    rows: np.ndarray
    counts: np.ndarray
    complete: np.ndarray
    input_ids: np.ndarray
    positions: np.ndarray
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_tables: list[np.ndarray]
    slot_mappings: list[np.ndarray]


class StepRows(Protocol):
    """The three operations; the package's docstring has the rules."""

    def flatten(self, num_reqs: int) -> int: ...

    def uniforms(self, rows: list[int]) -> list[float]: ...

    def append(self, num_reqs: int, token_ids: list[int]) -> None: ...


def make_step_rows(batch: BatchRows, step: StepArrays, block_size: int) -> StepRows:
    """The native ones, if they are here; both give the same."""
    return (ref if native.cpu is None else cpu).StepRows(batch, step, block_size)
