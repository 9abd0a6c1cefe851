"""A worker made of dictionaries: it remembers what every KV slot holds and checks that every read finds it.

A slot's content is its KV group and the hash of the whole prefix up to its token, so reading a stale, foreign or
unwritten slot is caught at once. The token that a row "samples" is a function of its prefix: the same request
gives the same answer however it is scheduled, which `expected_answer` computes by itself. Rows and whole steps can be
made to fail; what they leave in their slots is then right for nobody.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from fathom.kv_cache_spec import KVCacheConfig
from fathom.step import ModelRunnerOutput, SchedulerOutput

VOCAB = 7
GARBAGE = -1  # what no prefix hashes to in practice


def extend(prefix_hash: int, token: int) -> int:
    return hash((prefix_hash, token))


def next_token(prefix_hash: int) -> int:
    return (prefix_hash >> 7) % VOCAB


def expected_answer(prompt: list[int], num_tokens: int) -> list[int]:
    prefix = 0
    for token in prompt:
        prefix = extend(prefix, token)
    answer = []
    for _ in range(num_tokens):
        answer.append(next_token(prefix))
        prefix = extend(prefix, answer[-1])
    return answer


@dataclass
class Row:
    tokens: list[int]
    num_computed: int
    tables: list[list[int]]
    hashes: list[int] = field(default_factory=list)
    failed: bool = False

    def hash_at(self, position: int) -> int:
        while len(self.hashes) <= position:
            before = self.hashes[-1] if self.hashes else 0
            self.hashes.append(extend(before, self.tokens[len(self.hashes)]))
        return self.hashes[position]


class SimulatedWorker:
    def __init__(self, config: KVCacheConfig) -> None:
        self.block_size = config.block_size
        self.windows = [group.window for group in config.groups]
        self.rows: dict[str, Row] = {}
        self.slots: dict[tuple[int, int], tuple[int, int]] = {}

    def execute(self, step: SchedulerOutput, failing: Container[str] = ()) -> ModelRunnerOutput:
        """Run a step; the rows of `failing` get an error in place of their token."""
        self._apply(step)
        # As in a forward pass, all new keys and values are written before anything is read.
        for request_id, count in step.num_scheduled_tokens.items():
            self._write(self.rows[request_id], count)
        sampled, errors = {}, {}
        for request_id, count in step.num_scheduled_tokens.items():
            row = self.rows[request_id]
            if not row.failed:
                self._check_reads(row, count)
            row.num_computed += count
            if row.failed or row.num_computed < len(row.tokens):
                continue
            if request_id in failing:
                row.failed = True
                errors[request_id] = "failed"
            else:
                sampled[request_id] = next_token(row.hash_at(len(row.tokens) - 1))
                row.tokens.append(sampled[request_id])
        return ModelRunnerOutput(sampled_token_ids=sampled, errors=errors)

    def fail(self, step: SchedulerOutput, *, reached: bool) -> None:
        """Fail in a step, or run one on top of a failed one: before its differences are applied, or after."""
        if reached:
            for new in step.new_requests:  # the step that was to drop such a row may have failed before
                self.rows.pop(new.request_id, None)
            self._apply(step)
        for request_id, count in step.num_scheduled_tokens.items():
            if request_id in self.rows:
                self.rows[request_id].failed = True
                self._write(self.rows[request_id], count)

    def _apply(self, step: SchedulerOutput) -> None:
        for request_id in step.finished_request_ids:
            self.rows.pop(request_id, None)
        for new in step.new_requests:
            assert new.request_id not in self.rows
            tables = [list(table) for table in new.block_ids]
            self.rows[new.request_id] = Row(new.token_ids.tolist(), new.num_computed_tokens, tables)
        for request_id, blocks in step.new_block_ids.items():
            if request_id in self.rows:  # it is not, on top of a failed step
                for table, more in zip(self.rows[request_id].tables, blocks, strict=True):
                    table += more

    def _write(self, row: Row, count: int) -> None:
        for position in range(row.num_computed, row.num_computed + count):
            for group, table in enumerate(row.tables):
                if row.failed and position // self.block_size >= len(table):
                    continue
                block = table[position // self.block_size]
                assert block != 0, "a new token would be written to the null block"
                content = GARBAGE if row.failed else row.hash_at(position)
                self.slots[block, position % self.block_size] = (group, content)

    def _check_reads(self, row: Row, count: int) -> None:
        last = row.num_computed + count - 1
        for group, (table, window) in enumerate(zip(row.tables, self.windows, strict=True)):
            first = 0 if window is None else max(0, row.num_computed - window + 1)
            for position in range(first, last + 1):
                found = self.slots.get((table[position // self.block_size], position % self.block_size))
                assert found == (group, row.hash_at(position)), f"position {position} of group {group} is wrong"


class FirstStage:
    """A worker that samples nothing: it has a request's tokens from its admission and from what steps tell of them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def execute(self, step: SchedulerOutput) -> dict[str, list[int]]:
        """Run a step; the tokens that it computes, by request."""
        for request_id, (position, token) in step.sampled_tokens.items():
            if request_id in self.rows:
                self.rows[request_id].tokens[position:] = [token]
        for request_id in step.finished_request_ids:
            self.rows.pop(request_id, None)
        for new in step.new_requests:
            self.rows[new.request_id] = Row(new.token_ids.tolist(), new.num_computed_tokens, [])
        computed = {}
        for request_id, count in step.num_scheduled_tokens.items():
            row = self.rows.get(request_id)
            if row is not None:  # it is not, on top of a failed step
                computed[request_id] = row.tokens[row.num_computed : row.num_computed + count]
                row.num_computed += count
        return computed
