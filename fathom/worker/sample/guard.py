"""A fence around custom logits processors: one touches the requests that are for it, and only requests fail by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch

from fathom.kernels.gpu import to_device
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.batch_update import BatchUpdate
from fathom.worker.sample.interface import AdapterLogitsProcessor, LogitsProcessor, describe
from fathom.worker.sample.rows import RowStates


class GuardedProcessor:
    """Runs a custom processor for the requests that it is for, and turns its failures into errors of their rows.

    A request that names its processors, and not this one, is an empty row to it, with logits as of any other row: what
    the processor makes of them is undone.

    validate_params raises    that request fails, and the processor never hears of it
    a callable raises         that request fails (AdapterLogitsProcessor)
    apply raises              the step's requests fail; likewise if its result has not the logits' shape
    update_state raises       all requests in the batch fail: the processor may have lost track of any of them

    Args:
        processor: the instance.
        known_as: what requests may call it.
    """

    reads_output = True

    def __init__(self, processor: LogitsProcessor, known_as: Iterable[str]) -> None:
        self._processor = processor
        self._known_as = frozenset(known_as)
        self._name = type(processor).__name__
        self._refused: RowStates[str] = RowStates()
        self._left_alone: RowStates[bool] = RowStates()
        self._num_rows = 0
        self._update_error: str | None = None
        self._apply_error: str | None = None

    def is_argmax_invariant(self) -> bool:
        """As the processor says."""
        return self._processor.is_argmax_invariant()

    @property
    def in_use(self) -> bool:
        """Whether any row is for it; which of those it has something to do for, only the processor knows."""
        return len(self._left_alone) < self._num_rows

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Forward the update, except for requests that are not for the processor or that it refuses."""
        if batch_update is not None:
            self._num_rows = batch_update.batch_size
            batch_update = self._without_others(batch_update)
        try:
            self._processor.update_state(batch_update)
        except Exception as error:
            self._update_error = f"logits processor {self._name} failed in update_state: {describe(error)}"

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply the processor; if that fails, return the logits as they are and keep the error."""
        left_alone = to_device(np.array([*self._left_alone.rows()], np.int64), logits.device)
        kept = logits[left_alone] if len(left_alone) else None
        result = self._applied(logits)
        if kept is not None:
            result = result.contiguous()
            result[left_alone] = kept
        return result

    def take_errors(self, active: np.ndarray) -> dict[int, str]:
        """Errors by row since the last call; a row that is not for the processor has none.

        Args:
            active: [num_rows] bool. Errors of other rows are dropped, except that a failed update_state is an
                error of every row: once they have all left, the processor starts afresh.
        """
        update_error, apply_error = self._update_error, self._apply_error
        self._update_error = self._apply_error = None
        errors = dict(self._refused.items())
        if isinstance(self._processor, AdapterLogitsProcessor):
            errors |= self._processor.take_row_errors()
        if apply_error is not None:
            errors |= dict.fromkeys(np.flatnonzero(active).tolist(), apply_error)
        errors = {row: message for row, message in errors.items() if active[row]}
        if update_error is not None:
            errors = dict.fromkeys(range(len(active)), update_error)
        for row in self._left_alone.rows():
            errors.pop(row, None)
        return errors

    def _applied(self, logits: torch.Tensor) -> torch.Tensor:
        try:
            result = self._processor.apply(logits)
            if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
                shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
                raise ValueError(f"apply must return logits of shape {tuple(logits.shape)}, got {shape}")
        except Exception as error:
            self._apply_error = f"logits processor {self._name} failed: {describe(error)}"
            return logits
        return result.to(logits.dtype)

    def _without_others(self, batch_update: BatchUpdate) -> BatchUpdate:
        left_alone = [not self._is_for(params) for _, params, _, _ in batch_update.added]
        refusals = [
            None if alone else self._refusal(params)
            for alone, (_, params, _, _) in zip(left_alone, batch_update.added, strict=True)
        ]
        # `update` asks for the added rows' states one by one, in their order.
        alone_states, refused_states = iter(left_alone), iter(refusals)
        self._left_alone.update(batch_update, lambda *_: next(alone_states) or None)
        self._refused.update(batch_update, lambda *_: next(refused_states))
        if not any(left_alone) and not any(refusals):
            return batch_update
        removed, added = list(batch_update.removed), []
        for entry, alone, refusal in zip(batch_update.added, left_alone, refusals, strict=True):
            if alone or refusal:
                removed.append(entry[0])
            else:
                added.append(entry)
        return dataclasses.replace(batch_update, removed=removed, added=added)

    def _is_for(self, params: SamplingParams) -> bool:
        return params.logits_processors is None or not self._known_as.isdisjoint(params.logits_processors)

    def _refusal(self, params: SamplingParams) -> str | None:
        try:
            self._processor.validate_params(params)
        except Exception as error:
            return f"logits processor {self._name} refuses the request: {describe(error)}"
        return None
