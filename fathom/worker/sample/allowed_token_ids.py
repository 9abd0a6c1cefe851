"""allowed_token_ids: only these tokens may be sampled."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.gpu import to_device
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.cells import LogitCells
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowStates


class AllowedTokenIds(LogitsProcessor):
    """Masks every token of a row but the allowed ones.

    It sets the allowed logits aside, masks the whole row and puts them back, so that no mask is kept.
    """

    reads_output = False

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._allowed: RowStates[list[int]] = RowStates()
        self._rows: torch.Tensor | None = None
        self._cells: LogitCells | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    @property
    def in_use(self) -> bool:
        return self._cells is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None or not self._allowed.update(batch_update, _allowed_token_ids):
            return
        self._cells = LogitCells.of(self._allowed.items(), self._device)
        self._rows = to_device(np.array([row for row, _ in self._allowed.items()], np.int64), self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._cells is None or self._rows is None:
            return logits
        kept = self._cells.gather(logits)
        logits.index_fill_(0, self._rows, -torch.inf)
        return self._cells.put(logits, kept)


def _allowed_token_ids(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> list[int] | None:
    return params.allowed_token_ids
