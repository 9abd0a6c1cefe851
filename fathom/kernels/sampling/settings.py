"""DrawSettings: what is drawn from, for some rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NO_TOKEN = -1


class DrawSettings(NamedTuple):
    """Per row what is drawn from, as numpy arrays [n].

    temperature: float32, above 0. log_min_p: float32, -inf for none. top_k: int64 in [1, vocab_size], vocab_size for
    none. top_p: float64 in (0, 1], 1 for none.
    """

    temperature: np.ndarray
    log_min_p: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray

    @classmethod
    def neutral(cls, num_rows: int, vocab_size: int) -> DrawSettings:
        """Settings that leave the distribution as it is."""
        return cls(
            np.ones(num_rows, np.float32),
            np.full(num_rows, -np.inf, np.float32),
            np.full(num_rows, vocab_size, np.int64),
            np.ones(num_rows, np.float64),
        )

    def of(self, rows: np.ndarray | slice) -> DrawSettings:
        """Some rows' settings."""
        return DrawSettings(*(values[rows] for values in self))
