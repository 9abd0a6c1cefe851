"""A fence around custom logits processors: whatever their code does, only requests fail, never the engine."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.batch_update import BatchUpdate
from fathom.worker.sample.interface import AdapterLogitsProcessor, LogitsProcessor, describe
from fathom.worker.sample.rows import RowStates


class GuardedProcessor:
    """Runs a custom processor and turns its failures into errors of rows.

    validate_params raises    that request fails, and the processor never hears of it
    a callable raises         that request fails (AdapterLogitsProcessor)
    apply raises              the step's requests fail; likewise if its result has not the logits' shape
    update_state raises       all requests in the batch fail: the processor may have lost track of any of them
    """

    reads_output = True

    def __init__(self, processor: LogitsProcessor) -> None:
        self._processor = processor
        self._name = type(processor).__name__
        self._refused: RowStates[str] = RowStates()
        self._update_error: str | None = None
        self._apply_error: str | None = None

    @property
    def in_use(self) -> bool:
        """Always: only the processor knows which rows it serves."""
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Forward the update, except for requests that the processor refuses: their rows are empty to it."""
        if batch_update is not None:
            batch_update = self._without_refused(batch_update)
        try:
            self._processor.update_state(batch_update)
        except Exception as error:
            self._update_error = f"logits processor {self._name} failed in update_state: {describe(error)}"

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply the processor; if that fails, return the logits as they are and keep the error."""
        try:
            result = self._processor.apply(logits)
            if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
                shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
                raise ValueError(f"apply must return logits of shape {tuple(logits.shape)}, got {shape}")
        except Exception as error:
            self._apply_error = f"logits processor {self._name} failed: {describe(error)}"
            return logits
        return result.to(logits.dtype)

    def take_errors(self, active: np.ndarray) -> dict[int, str]:
        """Errors by row since the last call.

        Args:
            active: [num_rows] bool. Errors of other rows are dropped, except that a failed update_state is an
                error of every row: once they have all left, the processor starts afresh.
        """
        update_error, apply_error = self._update_error, self._apply_error
        self._update_error = self._apply_error = None
        if update_error is not None:
            return dict.fromkeys(range(len(active)), update_error)
        errors = dict(self._refused.items())
        if isinstance(self._processor, AdapterLogitsProcessor):
            errors |= self._processor.take_row_errors()
        if apply_error is not None:
            errors |= dict.fromkeys(np.flatnonzero(active).tolist(), apply_error)
        return {row: message for row, message in errors.items() if active[row]}

    def _without_refused(self, batch_update: BatchUpdate) -> BatchUpdate:
        refusals = [self._refusal(params) for _, params, _, _ in batch_update.added]
        # `update` asks for the added rows' states one by one, in their order.
        states = iter(refusals)
        self._refused.update(batch_update, lambda *_: next(states))
        if not any(refusals):
            return batch_update
        refused = [entry[0] for entry, refusal in zip(batch_update.added, refusals, strict=True) if refusal]
        accepted = [entry for entry, refusal in zip(batch_update.added, refusals, strict=True) if not refusal]
        return dataclasses.replace(batch_update, removed=[*batch_update.removed, *refused], added=accepted)

    def _refusal(self, params: SamplingParams) -> str | None:
        try:
            self._processor.validate_params(params)
        except Exception as error:
            return f"logits processor {self._name} refuses the request: {describe(error)}"
        return None
