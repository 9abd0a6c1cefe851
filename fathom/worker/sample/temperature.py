"""temperature: divides the logits; above 1 the distribution gets flatter, below 1 sharper, 0 means greedy."""

from __future__ import annotations

import numpy as np
import torch

from fathom.params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowValues

_GREEDY = 0.0


class Temperature(LogitsProcessor):
    """Divides each row by its temperature; greedy rows stay as they are.

    is_random: [num_rows] bool, the rows whose token is drawn and not the best one.
    """

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._temperatures = RowValues(context.max_num_seqs, np.float32)
        self._divisors: torch.Tensor | None = None
        self.is_random = np.zeros(0, np.bool_)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        temperatures = self._temperatures.update(batch_update, _temperature)
        self.is_random = temperatures != _GREEDY
        divisors = np.where(self.is_random, temperatures, np.float32(1.0))
        self._divisors = None
        if (divisors != 1.0).any():
            self._divisors = torch.from_numpy(divisors).to(self._device).unsqueeze(1)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self._divisors is None else logits.div_(self._divisors)


def _temperature(params: SamplingParams) -> float:
    return _GREEDY if params.is_greedy else params.temperature
