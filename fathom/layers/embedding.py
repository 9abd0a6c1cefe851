"""The two ends of a model: token ids to vectors, and vectors to logits. Tied models share one matrix.

Among several ranks each holds the rows of some tokens. An id is looked up by the rank that has it and is zero
elsewhere, and the sum is everybody's; logits are gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from fathom.dist.shares import Cut, even_cut
from fathom.layers.linear import Linear
from fathom.quant.packed import PANEL

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext
    from fathom.layers.linear import LinearMethod


class VocabMatrix(Linear):
    """A matrix [vocab_size, hidden_size], of which a rank holds the rows of its tokens: whole panels of them."""

    def __init__(self, vocab_size: int, hidden_size: int, build: BuildContext):
        group = build.tensor
        cuts = [even_cut(vocab_size, rank, group.size, PANEL) for rank in range(group.size)]
        super().__init__(hidden_size, cuts[group.rank].size, build)
        self._group = group
        self._cuts = cuts
        self._cut = cuts[group.rank]

    def choose_method(self, build: BuildContext) -> LinearMethod:
        return build.vocab_method or build.linear_method

    def row_cut(self, part: str | None) -> Cut:
        return self._cut

    def look_up(self, input_ids: torch.Tensor, factor: float) -> torch.Tensor:
        """ids [num_tokens] int64 -> their rows [num_tokens, hidden_size], times the factor."""
        if self._cut.is_whole:
            return self.method.look_up(self, input_ids, factor)
        own_ids = input_ids - self._cut.start
        elsewhere = (own_ids < 0) | (own_ids >= self._cut.size)
        rows = self.method.look_up(self, own_ids.masked_fill(elsewhere, 0), factor)
        return self._group.all_reduce(rows.masked_fill_(elsewhere[:, None], 0.0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size] in float32."""
        own = self.method.multiply(self, hidden).float()
        if self._cut.is_whole:
            return own
        width = max(cut.size for cut in self._cuts)
        gathered = self._group.all_gather(F.pad(own, (0, width - self._cut.size)))
        return torch.cat([part[:, : cut.size] for part, cut in zip(gathered, self._cuts, strict=True)], dim=1)


class TokenEmbedding(VocabMatrix):
    """ids [num_tokens] int64 -> [num_tokens, hidden_size], times ``factor``.

    A matrix like those of linear layers, since a tied head multiplies by it; what differs is the way in.
    """

    def __init__(self, vocab_size: int, hidden_size: int, build: BuildContext, *, factor: float = 1.0):
        super().__init__(vocab_size, hidden_size, build)
        self.factor = factor

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.look_up(input_ids, self.factor)


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
        self.matrix = VocabMatrix(vocab_size, hidden_size, build) if tied_to is None else tied_to
        self.softcap = softcap

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.matrix.logits(hidden)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
