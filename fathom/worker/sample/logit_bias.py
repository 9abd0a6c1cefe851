"""logit_bias: a number added to single tokens' logits."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.gpu import to_device
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.cells import LogitCells
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowStates


class LogitBias(LogitsProcessor):
    """Adds each row's biases. A token that a mask has excluded stays excluded, whatever its bias."""

    reads_output = False

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._biases: RowStates[dict[int, float]] = RowStates()
        self._cells: LogitCells | None = None
        self._values = torch.empty(0)

    def is_argmax_invariant(self) -> bool:
        return False

    @property
    def in_use(self) -> bool:
        return self._cells is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None or not self._biases.update(batch_update, _logit_bias):
            return
        self._cells = LogitCells.of(self._biases.items(), self._device)
        values = [value for _, bias in self._biases.items() for value in bias.values()]
        self._values = to_device(np.array(values, np.float32), self._device)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._cells is None:
            return logits
        return self._cells.put(logits, self._cells.gather(logits) + self._values)


def _logit_bias(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> dict[int, float] | None:
    return params.logit_bias or None
