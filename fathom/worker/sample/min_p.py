"""min_p: drops tokens that are less likely than min_p times the most likely one."""

from __future__ import annotations

import numpy as np
import torch

from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowValues
from fathom.worker.sample.slices import row_slices


class MinP(LogitsProcessor):
    """Masks logits below (row's best logit + log min_p): the rule for probabilities, without a softmax."""

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._vocab_size = context.vocab_size
        self._device = device
        self._min_p = RowValues(context.max_num_seqs, np.float32)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._log_min_p = torch.empty(0)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        min_p = self._min_p.update(batch_update, lambda params: params.min_p)
        rows = np.flatnonzero(min_p)
        self._rows = torch.from_numpy(rows).to(self._device)
        self._log_min_p = torch.from_numpy(np.log(min_p[rows])).to(self._device).unsqueeze(1)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for piece in row_slices((len(self._rows), self._vocab_size), self._device):
            rows = self._rows[piece]
            using = logits[rows]
            threshold = using.amax(dim=-1, keepdim=True) + self._log_min_p[piece]
            logits[rows] = using.masked_fill_(using < threshold, -torch.inf)
        return logits
