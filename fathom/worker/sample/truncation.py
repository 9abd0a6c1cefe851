"""temperature, min_p, top_k and top_p: per row what its token is drawn from, as numbers for fathom/kernels/sampling."""

from __future__ import annotations

import numpy as np

from fathom.kernels.sampling import DrawSettings
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessorContext
from fathom.worker.sample.rows import RowValues


class Truncation:
    """Follows the rows of the batch.

    is_random: [num_rows] bool, the rows whose token is drawn and not the best one.
    settings: of all rows. Those of a greedy row leave it as it is: SamplingParams sees to that.
    """

    def __init__(self, context: LogitsProcessorContext) -> None:
        self._vocab_size = context.vocab_size
        self._temperature = RowValues(context.max_num_seqs, np.float32)
        self._min_p = RowValues(context.max_num_seqs, np.float32)
        self._top_k = RowValues(context.max_num_seqs, np.int64)
        self._top_p = RowValues(context.max_num_seqs, np.float64)
        self.is_random = np.zeros(0, np.bool_)
        self.settings = DrawSettings.neutral(0, context.vocab_size)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """As LogitsProcessor.update_state."""
        if batch_update is None:
            return
        temperature = self._temperature.update(
            batch_update, lambda params: 0.0 if params.is_greedy else params.temperature
        )
        min_p = self._min_p.update(batch_update, lambda params: params.min_p)
        self.is_random = temperature > 0
        with np.errstate(divide="ignore"):  # min_p 0 is -inf: none
            self.settings = DrawSettings(
                temperature=np.where(self.is_random, temperature, np.float32(1.0)),
                log_min_p=np.log(min_p),
                top_k=self._top_k.update(batch_update, self._effective_k),
                top_p=self._top_p.update(batch_update, lambda params: params.top_p),
            )

    def _effective_k(self, params: SamplingParams) -> int:
        return min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
