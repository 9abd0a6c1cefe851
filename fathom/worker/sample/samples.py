"""Samples: the tokens of one step as the device has them, and what the host makes of them once they are there.

sampler.launch(...)  ->  Samples   tensors of the device's; on a GPU their values are not there yet
    samples.copied(copy)           the same tensors on the host; a copy may be under way
    samples.output()  ->  SamplerOutput    tokens, logprobs and errors, when it is done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fathom.kernels.sampling import NO_TOKEN
from fathom.kernels.token_logprobs import TokenScores
from fathom.step import LogprobsArrays

NOT_FINITE = (
    "the model's logits are not finite (NaN or infinity): its weights are damaged, or dtype is too narrow "
    "for them; try dtype='float32'"
)
NOTHING_LEFT = (
    "no token is left to sample: allowed_token_ids, bad_words, min_tokens and custom logits processors "
    "exclude them all, or a custom one made NaN or infinity"
)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What one call produced.

    token_ids: n, of the rows that were asked for; NO_TOKEN (-1) for those that failed.
    logprobs: one entry per row of `logprobs_rows`, as wide as the widest request of them; None without any.
    logprobs_rows: batch rows in the order of `logprobs`.
    errors: batch row -> why it failed.
    """

    token_ids: list[int]
    logprobs: LogprobsArrays | None
    logprobs_rows: list[int]
    errors: dict[int, str]


@dataclass(frozen=True, slots=True)
class Samples:
    """What has been sampled for some rows.

    rows: [n], the batch's. token_ids: [n] int64, NO_TOKEN for rows without one.
    errors: batch row -> why it failed, as far as the host knows already.
    not_finite: [n] bool, rows whose logits were not finite before anything was done to them; None if nothing was.
    scored, scores: which of the n want logprobs, and theirs; None for none.
    """

    rows: np.ndarray
    token_ids: torch.Tensor
    errors: dict[int, str]
    not_finite: torch.Tensor | None = None
    scored: np.ndarray | None = None
    scores: TokenScores | None = None

    def copied(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> Samples:
        """The same with copies of the tensors."""
        return replace(
            self,
            token_ids=copy(self.token_ids),
            not_finite=None if self.not_finite is None else copy(self.not_finite),
            scores=None if self.scores is None else self.scores.copied(copy),
        )

    def output(self) -> SamplerOutput:
        """What came of it; the tensors are on the host."""
        token_ids, errors = self.token_ids.numpy(), self._all_errors()
        alive = np.ones(len(self.rows), np.bool_)
        if errors:
            alive = ~np.isin(self.rows, list(errors))
            token_ids = np.where(alive, token_ids, NO_TOKEN)
        if self.scored is None or self.scores is None or not alive[self.scored].any():
            return SamplerOutput(token_ids.tolist(), None, [], errors)
        arrays, has_token = self.scores.arrays(), alive[self.scored]
        if not has_token.all():
            arrays = arrays.take(has_token)
        return SamplerOutput(token_ids.tolist(), arrays, self.rows[self.scored[has_token]].tolist(), errors)

    def _all_errors(self) -> dict[int, str]:
        """Of a row's reasons the first one to have come up."""
        untouched = self.not_finite is None
        failed = self.rows[self.token_ids.numpy() == NO_TOKEN]
        without_token = dict.fromkeys(failed.tolist(), NOT_FINITE if untouched else NOTHING_LEFT)
        if self.not_finite is None:
            return without_token | self.errors
        damaged = dict.fromkeys(self.rows[self.not_finite.numpy()].tolist(), NOT_FINITE)
        return without_token | self.errors | damaged
