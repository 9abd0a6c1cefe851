"""Choosing tokens by the native kernels, without a sort."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.native import cpu
from fathom.kernels.sampling.settings import DrawSettings


def best_tokens(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    token_ids = np.empty(len(rows), np.int64)
    cpu.best_tokens(token_ids.ctypes.data, logits.data_ptr(), _address(rows), len(rows), logits.shape[1])
    return torch.from_numpy(token_ids)


def draw_tokens(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    logits = logits.contiguous()
    token_ids = np.empty(len(rows), np.int64)
    cpu.draw_tokens(
        token_ids.ctypes.data, _address(uniforms), logits.data_ptr(), _address(rows),
        *map(_address, settings), len(rows), logits.shape[1],
    )  # fmt: skip
    return torch.from_numpy(token_ids)


def truncate(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings) -> None:
    """See the package's docstring for shapes and rules; the logits are contiguous."""
    assert logits.is_contiguous()
    cpu.truncate_logits(logits.data_ptr(), _address(rows), *map(_address, settings), len(rows), logits.shape[1])


class Choice:
    """See the package's docstring."""

    def __init__(self, rows: np.ndarray, is_random: np.ndarray, settings: DrawSettings, vocab_size: int) -> None:
        arrays = (rows, is_random, *settings)
        self._native = cpu.make_choice(*map(_address, arrays), len(rows), vocab_size)
        self._logits: torch.Tensor | None = None
        self._logits_address = 0

    def launch(self, logits: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        """A token for each row, [n] int64."""
        return torch.tensor(self.choose(logits, uniforms), dtype=torch.int64)

    def choose(self, logits: torch.Tensor, uniforms: list[float]) -> list[int]:
        """A token for each row."""
        if self._logits is not logits:  # steps that are replayed leave them in the same tensor
            assert logits.is_contiguous()
            self._logits, self._logits_address = logits, logits.data_ptr()
        return self._native.choose(self._logits_address, uniforms)  # type: ignore[no-any-return]


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
