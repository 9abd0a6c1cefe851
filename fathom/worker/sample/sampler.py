"""The sampler: one list of logits processors, then a choice of token per row.

The order, and why:

     1. raw scores       of rows that want logprobs, if the mode is raw: nothing has touched the logits yet
     2. allowed_token_ids, bad_words, min_tokens    masks come first: nothing later revives a masked token
     3. logit_bias       the caller's own wish, which custom processors and penalties are to see
     4. custom           those that may change which token is the best
     5. penalties        look at a logit's sign and size, so all additions come before and all scaling after
     6. best token       greedy rows take it; nothing below changes which one it is
     7. temperature      before truncation, which is to act on the distribution that is drawn from
     8. min_p            measured against the best token, whatever top_k and top_p cut off
     9. custom           those that never change which token is the best
    10. top_k, top_p     last, since they renormalise what everybody else has left
    11. draw             with one uniform number per row
    12. processed scores if that is the mode: of what 11 has drawn from

While every row is greedy, 7 to 11 are skipped. No stage mixes rows, so a row's token does not depend on what
else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fathom.params import SamplingParams
from fathom.step import LogprobsArrays
from fathom.worker.sample import logprobs
from fathom.worker.sample.allowed_token_ids import AllowedTokenIds
from fathom.worker.sample.bad_words import BadWords
from fathom.worker.sample.draw import NO_TOKEN, draw
from fathom.worker.sample.guard import GuardedProcessor
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.logit_bias import LogitBias
from fathom.worker.sample.min_p import MinP
from fathom.worker.sample.min_tokens import MinTokens
from fathom.worker.sample.penalties import Penalties
from fathom.worker.sample.rows import RowValues
from fathom.worker.sample.temperature import Temperature
from fathom.worker.sample.top_k_top_p import TopKTopP

_NO_LOGPROBS = -1

_NOT_FINITE = (
    "the model's logits are not finite (NaN or infinity): its weights are damaged, or dtype is too narrow "
    "for them; try dtype='float32'"
)
_NOTHING_LEFT = (
    "no token is left to sample: allowed_token_ids, bad_words, min_tokens and custom logits processors "
    "exclude them all, or a custom one made NaN or infinity"
)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What one call produced.

    token_ids: [num_rows] int64; NO_TOKEN (-1) for rows that are inactive or failed.
    logprobs: one entry per row of `logprobs_rows`, as wide as the widest request of them; None without any.
    logprobs_rows: batch rows in the order of `logprobs`.
    errors: row -> why it failed.
    """

    token_ids: np.ndarray
    logprobs: LogprobsArrays | None
    logprobs_rows: list[int]
    errors: dict[int, str]


class Sampler:
    """Samples a token for each row of the persistent batch.

    Args:
        context: sizes of the vocabulary and of the batch.
        device: where the logits live.
        logprobs_mode: what logprobs report, see `logprobs`.
        custom_processors: instances, applied in this order among their kind.
    """

    def __init__(
        self,
        context: LogitsProcessorContext,
        device: torch.device,
        logprobs_mode: logprobs.LogprobsMode = "raw_logprobs",
        custom_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self._vocab_size = context.vocab_size
        self._mode = logprobs_mode
        self._num_logprobs = RowValues(context.max_num_seqs, np.int64)
        self._row_num_logprobs = np.zeros(0, np.int64)
        self._temperature = Temperature(context, device, False)

        def built_in(*families: type[LogitsProcessor]) -> list[LogitsProcessor]:
            return [family(context, device, False) for family in families]

        keep_best = [GuardedProcessor(p) for p in custom_processors if p.is_argmax_invariant()]
        may_change_best = [GuardedProcessor(p) for p in custom_processors if not p.is_argmax_invariant()]
        self._guarded = [*may_change_best, *keep_best]
        self._before_argmax: list[LogitsProcessor | GuardedProcessor] = [
            *built_in(AllowedTokenIds, BadWords, MinTokens, LogitBias),
            *may_change_best,
            *built_in(Penalties),
        ]
        self._after_argmax: list[LogitsProcessor | GuardedProcessor] = [
            self._temperature,
            *built_in(MinP),
            *keep_best,
            *built_in(TopKTopP),
        ]

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch's rows; to be called once before each `forward`, with None if nothing changed."""
        for stage in (*self._before_argmax, *self._after_argmax):
            stage.update_state(batch_update)
        if batch_update is not None:
            self._row_num_logprobs = self._num_logprobs.update(batch_update, self._wanted_logprobs)

    def forward(self, logits: torch.Tensor, uniforms: np.ndarray, active: np.ndarray | None = None) -> SamplerOutput:
        """Sample.

        Args:
            logits: [num_rows, vocab_size], one row per row of the batch; overwritten if float32.
            uniforms: [num_rows] float64 in [0, 1), the number that each row's token is drawn with.
            active: [num_rows] bool, rows whose token is wanted; the others may hold anything. None means all.
        """
        rows = _Rows(logits.shape[0], active)
        logits = self._clear_unused(logits.to(torch.float32), rows)
        scored = np.flatnonzero(rows.alive & (self._row_num_logprobs != _NO_LOGPROBS))
        scores_processed = scored.size > 0 and self._mode.startswith("processed")
        scores = None
        if scored.size and not scores_processed:
            scores = logprobs.scores(_take(logits, scored), self._mode)

        logits = self._apply(self._before_argmax, logits, rows)
        rows.fail(~_has_finite_best(logits), _NOTHING_LEFT)
        token_ids = logits.argmax(dim=-1)

        drawn = np.flatnonzero(rows.alive & self._temperature.is_random)
        if drawn.size or scores_processed:
            logits = self._apply(self._after_argmax, logits, rows)
        if drawn.size:
            token_ids[torch.from_numpy(drawn).to(logits.device)] = draw(_take(logits, drawn), uniforms[drawn])
        if scores_processed:
            scores = logprobs.scores(_take(logits, scored), self._mode)

        tokens = token_ids.cpu().numpy()
        rows.fail(tokens == NO_TOKEN, _NOTHING_LEFT)
        tokens = np.where(rows.alive, tokens, NO_TOKEN)
        arrays, logprobs_rows = self._gather_logprobs(scores, scored, tokens)
        return SamplerOutput(tokens, arrays, logprobs_rows, rows.errors)

    @staticmethod
    def _clear_unused(logits: torch.Tensor, rows: _Rows) -> torch.Tensor:
        """Fail rows whose logits are not finite; overwrite, in place, them and the inactive rows.

        What is put there, token 0 and nothing else, costs every stage the least.
        """
        rows.fail(~_has_finite_best(logits), _NOT_FINITE)
        if not rows.alive.all():
            unused = torch.from_numpy(~rows.alive).to(logits.device)
            logits[unused] = -torch.inf
            logits[unused, 0] = 0.0
        return logits

    def _apply(
        self, stages: Sequence[LogitsProcessor | GuardedProcessor], logits: torch.Tensor, rows: _Rows
    ) -> torch.Tensor:
        for stage in stages:
            logits = stage.apply(logits)
        for guarded in self._guarded:
            for row, message in guarded.take_errors(rows.active).items():
                rows.errors.setdefault(row, message)
                rows.alive[row] = False
        return logits

    def _gather_logprobs(
        self, scores: torch.Tensor | None, scored: np.ndarray, tokens: np.ndarray
    ) -> tuple[LogprobsArrays | None, list[int]]:
        """The scored rows' logprobs, less those rows that have failed since they were scored."""
        has_token = tokens[scored] != NO_TOKEN
        scored = scored[has_token]
        if scores is None or not scored.size:
            return None, []
        targets = torch.from_numpy(tokens[scored]).to(scores.device)
        k = int(self._row_num_logprobs[scored].max())
        return logprobs.gather(_take(scores, np.flatnonzero(has_token)), targets, k), scored.tolist()

    def _wanted_logprobs(self, params: SamplingParams) -> int:
        if params.logprobs is None:
            return _NO_LOGPROBS
        return self._vocab_size if params.logprobs < 0 else min(params.logprobs, self._vocab_size)


class _Rows:
    """Which rows of a step are wanted (active), which of those have not failed (alive), and why not."""

    def __init__(self, num_rows: int, active: np.ndarray | None) -> None:
        self.active = np.ones(num_rows, np.bool_) if active is None else active
        self.alive = self.active.copy()
        self.errors: dict[int, str] = {}

    def fail(self, failed: np.ndarray, message: str) -> None:
        """Fail the alive rows among `failed`, [num_rows] bool."""
        failed = failed & self.alive
        self.alive &= ~failed
        self.errors.update(dict.fromkeys(np.flatnonzero(failed).tolist(), message))


def _has_finite_best(logits: torch.Tensor) -> np.ndarray:
    """Whether each row's maximum is finite, [num_rows] bool: no NaN, no +inf, and not all of it -inf."""
    return torch.isfinite(logits.amax(dim=-1)).cpu().numpy()


def _take(matrix: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Some rows of a matrix, uncopied if that is all of them."""
    if rows.size == matrix.shape[0]:
        return matrix
    return matrix[torch.from_numpy(rows).to(matrix.device)]
