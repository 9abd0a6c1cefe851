"""The two ends of a model: token ids to vectors, and vectors to logits. Tied models share one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.layers.linear import Linear

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext


class TokenEmbedding(Linear):
    """weight [vocab_size, hidden_size]; ids [num_tokens] int64 -> [num_tokens, hidden_size], times ``factor``.

    A matrix like those of linear layers, since a tied head multiplies by it; what differs is the way in.
    """

    def __init__(self, vocab_size: int, hidden_size: int, build: BuildContext, *, factor: float = 1.0):
        super().__init__(hidden_size, vocab_size, build)
        self.factor = factor

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.method.look_up(self, input_ids, self.factor)


class LMHead(nn.Module):
    """Logits [num_rows, vocab_size] in float32, soft-capped if the model says so.

    ``tied_to`` is the embedding whose matrix the head shares, or None for one of its own.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        build: BuildContext,
        *,
        tied_to: TokenEmbedding | None,
        softcap: float | None,
    ):
        super().__init__()
        self.matrix = Linear(hidden_size, vocab_size, build) if tied_to is None else tied_to
        self.softcap = softcap

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.matrix.method.multiply(self.matrix, hidden).float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
