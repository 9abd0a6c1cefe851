"""The two ends of a model: token ids to vectors, and vectors to logits. Tied models share one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext


class TokenEmbedding(nn.Module):
    """weight [vocab_size, hidden_size]; ids [num_tokens] int64 -> [num_tokens, hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int, build: BuildContext):
        super().__init__()
        self.weight = build.empty(vocab_size, hidden_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, self.weight)


class LMHead(nn.Module):
    """Logits [num_rows, vocab_size] in float32, soft-capped if the model says so.

    ``tied_to`` is the embedding whose weight the head shares, or None for a weight of its own.
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
        self.weight = build.empty(vocab_size, hidden_size) if tied_to is None else tied_to.weight
        self.softcap = softcap

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = F.linear(hidden, self.weight).float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
