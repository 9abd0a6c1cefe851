"""min_tokens: no token that ends the answer before this many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fathom.sampling_params import SamplingParams
from fathom.worker.sample.cells import LogitCells
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowStates


@dataclass(frozen=True, slots=True)
class _Minimum:
    """A request that is to go on until its (live) output has `min_tokens` tokens."""

    min_tokens: int
    output_ids: list[int]
    stop_ids: list[int]

    @property
    def is_reached(self) -> bool:
        return len(self.output_ids) >= self.min_tokens


class MinTokens(LogitsProcessor):
    """Masks end-of-sequence and stop tokens of the rows that are still below their minimum."""

    reads_output = False

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._vocab_size = context.vocab_size
        self._device = device
        self._below: RowStates[_Minimum] = RowStates()
        self._cells: LogitCells | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    @property
    def in_use(self) -> bool:
        return self._cells is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None and self._below.update(batch_update, self._minimum):
            self._build_cells()

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        reached = [row for row, minimum in self._below.items() if minimum.is_reached]
        if reached:
            for row in reached:
                self._below.discard(row)
            self._build_cells()
        return logits if self._cells is None else self._cells.mask(logits)

    def _build_cells(self) -> None:
        self._cells = LogitCells.of(((row, minimum.stop_ids) for row, minimum in self._below.items()), self._device)

    def _minimum(self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> _Minimum | None:
        if params.min_tokens <= len(output_ids):
            return None
        # A checkpoint may name an end-of-sequence id that its vocabulary does not have.
        stop_ids = sorted(id for id in params.all_stop_token_ids if id < self._vocab_size)
        return _Minimum(params.min_tokens, output_ids, stop_ids) if stop_ids else None
