"""TokenScores: what the kernels find, in one tensor, so that one copy takes it to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fathom.step import LogprobsArrays


class TokenScores(NamedTuple):
    """Scores of n rows.

    packed: [n * (2 * width + 1)] int32: the rows' token ids, [n, width]; the bits of their scores, [n, width] float32;
    the targets' ranks, [n]. As in LogprobsArrays.
    width: 1 + k, the target first.
    """

    packed: torch.Tensor
    width: int

    @classmethod
    def empty(cls, num_rows: int, k: int, device: torch.device) -> TokenScores:
        """Room for them, not yet written."""
        return cls(torch.empty(num_rows * (2 * k + 3), dtype=torch.int32, device=device), 1 + k)

    @property
    def num_rows(self) -> int:
        return self.packed.numel() // (2 * self.width + 1)

    def views(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(token ids, scores, ranks), to be written."""
        shape = (self.num_rows, self.width)
        cells = self.num_rows * self.width
        token_ids, scores, ranks = self.packed.split([cells, cells, self.num_rows])
        return token_ids.view(shape), scores.view(torch.float32).view(shape), ranks

    def copied(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> TokenScores:
        """The same, in a copy of the tensor."""
        return TokenScores(copy(self.packed), self.width)

    def arrays(self) -> LogprobsArrays:
        """As the host's arrays; if they are still the device's, this waits for them."""
        return LogprobsArrays(self.packed.cpu().numpy(), self.width)
