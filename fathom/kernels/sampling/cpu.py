"""Choosing tokens by the native kernels, without a sort."""

from __future__ import annotations

import numpy as np
import torch

from fathom.kernels.native import cpu
from fathom.kernels.sampling.settings import DrawSettings
from fathom.step import LogprobsArrays


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
        self._num_rows = len(rows)
        self._scored: np.ndarray | None = None
        self._places = np.empty(0, np.int64)  # of each row among the scored ones, -1 for none
        self._places_address = 0
        self._logits: torch.Tensor | None = None
        self._logits_address = 0

    def launch(self, logits: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        """A token for each row, [n] int64."""
        return torch.tensor(self.choose(logits, uniforms), dtype=torch.int64)

    def choose(self, logits: torch.Tensor, uniforms: list[float]) -> list[int]:
        """A token for each row."""
        return self._native.choose(self._address_of(logits), uniforms)  # type: ignore[no-any-return]

    def choose_and_score(
        self, logits: torch.Tensor, uniforms: list[float], scored: np.ndarray, k: int, normalised: bool
    ) -> tuple[list[int], LogprobsArrays]:
        """A token for each row, and the scores of some of them, found while a row's logits are near."""
        if self._scored is not scored:  # the same in step after step
            self._scored = scored
            self._places = np.full(self._num_rows, -1, np.int64)
            self._places[scored] = np.arange(len(scored))
            self._places_address = _address(self._places)
        scores = LogprobsArrays.empty(len(scored), k)
        address, bytes_of_cells = scores.packed.ctypes.data, len(scored) * scores.width * 4
        token_ids = self._native.choose_and_score(
            self._address_of(logits), uniforms, self._places_address,
            address, address + bytes_of_cells, address + 2 * bytes_of_cells, k, normalised,
        )  # fmt: skip
        return token_ids, scores

    def _address_of(self, logits: torch.Tensor) -> int:
        if self._logits is not logits:  # steps that are replayed leave them in the same tensor
            assert logits.is_contiguous()
            self._logits, self._logits_address = logits, logits.data_ptr()
        return self._logits_address


def _address(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
