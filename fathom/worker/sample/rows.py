"""Per-row state that follows the rows of the batch: one value per row, or something for a few rows.

Both containers replay a BatchUpdate; its docstring defines what each entry means.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, KeysView
from typing import Generic, TypeVar

import numpy as np

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.batch_update import BatchUpdate, MoveDirectionality

State = TypeVar("State")


class RowStates(Generic[State]):
    """A state of any kind for those rows that need one; the others cost nothing."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> ItemsView[int, State]:
        """(row, state) pairs in no particular order."""
        return self._states.items()

    def rows(self) -> KeysView[int]:
        """The rows that have a state."""
        return self._states.keys()

    def update(
        self,
        batch_update: BatchUpdate,
        new_state: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
    ) -> bool:
        """Replay a batch update.

        Args:
            new_state: makes an added row's state from (params, prompt_ids, output_ids), or None if the row
                needs none. Called once per added row, in their order.

        Returns:
            Whether any row's state may have changed.
        """
        states = self._states
        changed = bool(states)
        for row in batch_update.removed:
            states.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            states.pop(row, None)
            state = new_state(params, prompt_ids, output_ids)
            if state is not None:
                states[row] = state
        if states:
            self._move(batch_update)
        return changed or bool(states)

    def discard(self, row: int) -> None:
        """Forget a row's state, if it has one."""
        self._states.pop(row, None)

    def _move(self, batch_update: BatchUpdate) -> None:
        states = self._states
        for source, target, direction in batch_update.moved:
            moving, displaced = states.pop(source, None), states.pop(target, None)
            if moving is not None:
                states[target] = moving
            if displaced is not None and direction is MoveDirectionality.SWAP:
                states[source] = displaced


class RowValues:
    """One number per row, preallocated for every row that a batch can have.

    A row that has left keeps its number; nothing reads it until the row is added again.

    Args:
        max_rows: most rows of a batch.
        dtype: numpy dtype of the numbers.
    """

    def __init__(self, max_rows: int, dtype: type[np.generic]) -> None:
        self._values = np.zeros(max_rows, dtype)

    def update(self, batch_update: BatchUpdate, value: Callable[[SamplingParams], float]) -> np.ndarray:
        """Replay a batch update and return the numbers of the batch's rows: [batch_size], a view."""
        values = self._values
        for row, params, _, _ in batch_update.added:
            values[row] = value(params)
        for source, target, direction in batch_update.moved:
            displaced = values[target]
            values[target] = values[source]
            if direction is MoveDirectionality.SWAP:
                values[source] = displaced
        return values[: batch_update.batch_size]
