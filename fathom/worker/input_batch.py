"""InputBatch: the worker's persistent rows, one for each request, and the step's differences applied to them.

Rows 0 .. num_rows-1 are occupied. A request keeps its row from step to step; when one leaves, a new request or
the last row takes its place. Each of these changes is also told to the logits processors, as a BatchUpdate.
"""

from __future__ import annotations

import numpy as np

from fathom.kernels.sampling import NO_TOKEN
from fathom.kernels.step_rows import BatchRows
from fathom.kv_cache_spec import KVCacheConfig
from fathom.sampling_params import SamplingParams
from fathom.step import NewRequestData, SchedulerOutput
from fathom.worker.sample.batch_update import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest

UNKNOWN_TOKEN = -1
"""In a live list of output tokens, one that is still on its way from the device."""


def slot_marker(slots: np.ndarray) -> np.ndarray:
    """What stands among a row's tokens in place of one that only the device knows: below every token id."""
    return -1 - slots


class InputBatch:
    """Rows of requests as arrays, so that a step's inputs are made by indexing, not by loops.

    token_ids: [rows, max_model_len + 1] int32, prompt and generated tokens; the last may be one token too many to be
    computed. num_tokens, num_prompt_tokens, num_computed_tokens: [rows] int64. seeds, choices: [rows] uint64.
    block_tables: per KV group [rows, max_blocks] int32.
    slots: [rows] int64, all different, which of the device's places has the row's last token where the host does not
    know it (worker/last_tokens.py); it moves with the row.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, kv_cache: KVCacheConfig) -> None:
        max_blocks = -(-max_model_len // kv_cache.block_size)
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self.seeds = np.zeros(max_num_seqs, np.uint64)
        self.choices = np.zeros(max_num_seqs, np.uint64)
        self.block_tables = [np.zeros((max_num_seqs, max_blocks), np.int32) for _ in kv_cache.groups]
        self.num_blocks = [np.zeros(max_num_seqs, np.int64) for _ in kv_cache.groups]
        self.slots = np.arange(max_num_seqs)
        self.request_ids: list[str] = []
        self.params: list[SamplingParams] = []
        self.output_ids: list[list[int]] = []
        self.row_of: dict[str, int] = {}
        self._arrays: list[np.ndarray] = [
            self.token_ids,
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_computed_tokens,
            self.seeds,
            self.choices,
            *self.block_tables,
            *self.num_blocks,
        ]

    @property
    def arrays(self) -> BatchRows:
        """What a step's inputs are made of, and where its tokens go."""
        return BatchRows(
            self.token_ids,
            self.num_tokens,
            self.num_computed_tokens,
            self.num_prompt_tokens,
            self.seeds,
            self.choices,
            self.block_tables,
        )

    @property
    def num_rows(self) -> int:
        return len(self.request_ids)

    def apply(self, step: SchedulerOutput) -> BatchUpdate | None:
        """Drop, add and move rows as the step says and extend block tables; None if no row changed places."""
        for request_id, new_blocks in step.new_block_ids.items():
            self._append_blocks(self.row_of[request_id], new_blocks)
        if not step.finished_request_ids and not step.new_requests:
            return None
        # A request that enters again has left, even if the step that was to say so failed before it came here.
        leaving = (*step.finished_request_ids, *(request.request_id for request in step.new_requests))
        holes = sorted((self.row_of.pop(key) for key in leaving if key in self.row_of), reverse=True)
        if not holes and not step.new_requests:
            return None
        added: list[AddedRequest] = []
        for request in step.new_requests:
            row = holes.pop() if holes else self._append_row()
            added.append(self._fill_row(row, request))
        removed = list(holes)
        moved = self._close_holes(set(holes))
        return BatchUpdate(batch_size=self.num_rows, removed=removed, added=added, moved=moved)

    def note_tokens(self, rows: list[int], token_ids: list[int]) -> dict[str, int]:
        """Tell the processors' live lists what `arrays` have been told; returns request id -> its new token.

        token_ids: one for each of the rows, NO_TOKEN for one that failed.
        """
        sampled = {}
        for row, token_id in zip(rows, token_ids, strict=True):
            if token_id != NO_TOKEN:
                self.output_ids[row].append(token_id)
                sampled[self.request_ids[row]] = token_id
        return sampled

    def expect_tokens(self, rows: list[int]) -> None:
        """Append a token that the host does not know yet to each row: a number that leads the device to it.

        To the processors' live lists it is UNKNOWN_TOKEN, until they are told.
        """
        self.token_ids[rows, self.num_tokens[rows]] = slot_marker(self.slots[rows])
        self.num_tokens[rows] += 1
        for row in rows:
            self.output_ids[row].append(UNKNOWN_TOKEN)

    def set_tokens(self, tokens: dict[str, tuple[int, int]]) -> None:
        """Take tokens that another rank has sampled: request id -> (place in the sequence, token).

        To be told of one twice, or of one whose row is gone, does no harm.
        """
        for request_id, (position, token_id) in tokens.items():
            row = self.row_of.get(request_id)
            if row is not None and position < self.token_ids.shape[1]:
                self.token_ids[row, position] = token_id
                self.num_tokens[row] = position + 1

    def _append_row(self) -> int:
        self.request_ids.append("")
        self.params.append(SamplingParams())
        self.output_ids.append([])
        return self.num_rows - 1

    def _fill_row(self, row: int, request: NewRequestData) -> AddedRequest:
        num_tokens, num_prompt = len(request.token_ids), request.num_prompt_tokens
        self.token_ids[row, :num_tokens] = request.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = num_prompt
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.seeds[row] = request.seed % 2**64
        self.choices[row] = request.choice
        for blocks in self.num_blocks:
            blocks[row] = 0
        self._append_blocks(row, request.block_ids)
        self.request_ids[row] = request.request_id
        self.params[row] = request.sampling_params
        self.output_ids[row] = request.token_ids[num_prompt:].tolist()
        self.row_of[request.request_id] = row
        return row, request.sampling_params, request.token_ids[:num_prompt].tolist(), self.output_ids[row]

    def _append_blocks(self, row: int, new_blocks: tuple[list[int], ...]) -> None:
        for table, count, blocks in zip(self.block_tables, self.num_blocks, new_blocks, strict=True):
            begin = int(count[row])
            table[row, begin : begin + len(blocks)] = blocks
            count[row] += len(blocks)

    def _close_holes(self, holes: set[int]) -> list[MovedRequest]:
        """Move the last rows into the holes, so that the occupied rows are the first ones."""
        moved: list[MovedRequest] = []
        while holes:
            last = self.num_rows - 1
            if last in holes:
                holes.remove(last)
            else:
                hole = min(holes)
                holes.remove(hole)
                self._move_row(last, hole)
                moved.append((last, hole, MoveDirectionality.UNIDIRECTIONAL))
            self.request_ids.pop()
            self.params.pop()
            self.output_ids.pop()
        return moved

    def _move_row(self, source: int, target: int) -> None:
        for array in self._arrays:
            array[target] = array[source]
        self.slots[[source, target]] = self.slots[[target, source]]
        self.request_ids[target] = self.request_ids[source]
        self.params[target] = self.params[source]
        self.output_ids[target] = self.output_ids[source]
        self.row_of[self.request_ids[target]] = target
