"""The sampler: one list of logits processors, then a choice of token per row.

The order, and why:

     1. raw scores       are of the model's logits: where a later stage will change them, they are kept
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

A stage that no row uses is skipped, and so are 7 to 11 while every row is greedy. Where nothing stands between them, 7,
8, 10 and 11 are one kernel, which leaves the logits as they are. No stage mixes rows, so a row's token does not depend
on what else is in the batch.

`launch` leaves the tokens where the logits are: on a GPU it waits for nothing. `forward` brings them to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fathom.kernels.gpu import to_device
from fathom.kernels.sampling import NO_TOKEN, Choice, DrawSettings, EagerChoice, best_tokens, make_choice, truncate
from fathom.kernels.token_logprobs import TokenScores, token_logprobs
from fathom.sampling_params import SamplingParams
from fathom.worker.sample.allowed_token_ids import AllowedTokenIds
from fathom.worker.sample.bad_words import BadWords
from fathom.worker.sample.guard import GuardedProcessor
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessorContext
from fathom.worker.sample.logit_bias import LogitBias
from fathom.worker.sample.logprobs import LogprobsMode, is_normalised, is_processed
from fathom.worker.sample.min_tokens import MinTokens
from fathom.worker.sample.penalties import Penalties
from fathom.worker.sample.rows import RowValues
from fathom.worker.sample.samples import SamplerOutput, Samples
from fathom.worker.sample.truncation import Truncation

_NO_LOGPROBS = -1


class Stage(Protocol):
    """A logits processor of the list.

    in_use: whether any row has use for it; if not, `apply` is not called.
    reads_output: whether it looks at the values of a request's output tokens, and not only at their number.
    """

    reads_output: bool

    @property
    def in_use(self) -> bool: ...

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...

    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...


class Sampler:
    """Samples a token for rows of the persistent batch.

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
        logprobs_mode: LogprobsMode = "raw_logprobs",
        custom_processors: Sequence[GuardedProcessor] = (),
    ) -> None:
        self._vocab_size = context.vocab_size
        self._device = device
        self._scores_processed = is_processed(logprobs_mode)
        self._scores_normalised = is_normalised(logprobs_mode)
        self._num_logprobs = RowValues(context.max_num_seqs, np.int64)
        self._row_num_logprobs = np.zeros(0, np.int64)
        self._wishes: _Wishes | None = None
        keeps_best = [processor.is_argmax_invariant() for processor in custom_processors]
        may_change_best = [p for p, keeps in zip(custom_processors, keeps_best, strict=True) if not keeps]
        keep_best = [p for p, keeps in zip(custom_processors, keeps_best, strict=True) if keeps]
        self._guarded = [*may_change_best, *keep_best]
        self._before_argmax: list[Stage] = [
            *(family(context, device, False) for family in (AllowedTokenIds, BadWords, MinTokens, LogitBias)),
            *may_change_best,
            Penalties(context, device, False),
        ]
        self._truncation = Truncation(context)
        self._before_top_k: list[Stage] = [*keep_best]

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the batch's rows; called once before each `forward` or `launch`, with None if nothing changed."""
        if batch_update is None:
            for guarded in self._guarded:  # Fathom's own have nothing to do then
                guarded.update_state(None)
            return
        self._wishes = None
        for stage in (*self._before_argmax, *self._before_top_k):
            stage.update_state(batch_update)
        self._truncation.update_state(batch_update)
        self._row_num_logprobs = self._num_logprobs.update(batch_update, self._wanted_logprobs)

    @property
    def reads_output(self) -> bool:
        """Whether the next step's sampling needs the values of all tokens that the batch's rows have so far."""
        return any(stage.reads_output and stage.in_use for stage in (*self._before_argmax, *self._before_top_k))

    def forward(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> SamplerOutput:
        """Sample, and wait for the tokens.

        Args:
            logits: [n, vocab_size] float32, of the rows whose token is wanted; may be overwritten.
            rows: n, ascending, which rows of the batch those are. Not to be changed afterwards: given the same list
                again, with no update between, the sampler does not look into it.
            uniforms: batch rows -> the numbers in [0, 1) that their tokens are drawn with; asked for rows that are
                not greedy.
        """
        wishes = self._wishes
        if wishes is None or wishes.given is not rows:
            wishes = self._wishes = self._wishes_of(rows)
        numbers = uniforms(wishes.drawn) if wishes.drawn else []
        eager, scored = wishes.eager, wishes.scored
        if eager is not None and scored is None:  # as in most steps, which the stages' bookkeeping would make longer
            token_ids = eager.choose(logits, numbers)
            if NO_TOKEN not in token_ids:
                return SamplerOutput(token_ids, None, [], {})
        elif eager is not None and scored is not None and not self._scores_processed:
            token_ids, scores = eager.choose_and_score(
                logits, numbers, scored, wishes.num_scores, self._scores_normalised
            )
            if NO_TOKEN not in token_ids:
                return SamplerOutput(token_ids, scores, wishes.scored_rows, {})
        samples = self._launch_by_stages(logits, wishes, numbers, waits=True)
        return (samples if self._device.type == "cpu" else samples.copied(torch.Tensor.cpu)).output()

    @torch.inference_mode()
    def launch(
        self, logits: torch.Tensor, rows: Sequence[int], uniforms: Callable[[list[int]], list[float]]
    ) -> Samples:
        """Sample, and wait for nothing but what custom processors wait for; arguments as of `forward`."""
        wishes = self._wishes
        if wishes is None or wishes.given is not rows:
            wishes = self._wishes = self._wishes_of(rows)
        numbers = uniforms(wishes.drawn) if wishes.drawn else []
        if wishes.plain and wishes.scored is None:
            return Samples(wishes.rows, wishes.choice.launch(logits, numbers), {})
        return self._launch_by_stages(logits, wishes, numbers, waits=False)

    @torch.inference_mode()
    def _launch_by_stages(self, logits: torch.Tensor, wishes: _Wishes, numbers: list[float], waits: bool) -> Samples:
        """All that the module's docstring lists.

        Args:
            numbers: of the rows that are drawn.
            waits: whether tensors may be looked into, which saves work.
        """
        step = _Step(logits, wishes)
        scored, choice = wishes.scored, wishes.choice
        of_processed = scored is not None and self._scores_processed
        stages = [stage for stage in self._before_argmax if stage.in_use]
        late_stages = [stage for stage in self._before_top_k if stage.in_use] if wishes.drawn or of_processed else []
        scores_of = None if scored is None else _Scored(step.logits, scored)
        not_finite = None
        if stages or late_stages:
            if scored is not None and not of_processed:
                kept = step.logits[to_device(scored, step.logits.device)]
                scores_of = _Scored(kept, np.arange(len(kept)))
            not_finite = best_tokens(step.logits, step.places) == NO_TOKEN
            if not waits or not_finite.any():
                step.empty(not_finite)
            step.spread_out(len(self._row_num_logprobs))
            step.apply(stages)
        if stages or late_stages or of_processed:
            settings = self._truncate(step, wishes.settings, late_stages, of_processed)
            choice = self._make_choice(step.places, wishes.is_random, settings)

        token_ids = choice.launch(step.logits, numbers)
        if scored is not None and of_processed:
            scores_of = _Scored(step.logits, step.places[scored])
        scores = None if scores_of is None or scored is None else self._score(scores_of, wishes, scored, token_ids)
        return Samples(step.rows, token_ids, self._take_errors(step.rows), not_finite, scored, scores)

    def _wishes_of(self, given: Sequence[int]) -> _Wishes:
        rows = np.asarray(given, np.int64)
        is_random, settings = self._truncation.is_random[rows], self._truncation.settings.of(rows)
        scored = np.flatnonzero(self._row_num_logprobs[rows] != _NO_LOGPROBS)
        places = np.arange(len(rows))
        choice = self._make_choice(places, is_random, settings)
        plain = not any(stage.in_use for stage in (*self._before_argmax, *self._before_top_k))
        return _Wishes(
            given=given,
            rows=rows,
            places=places,
            is_random=is_random,
            drawn=rows[is_random].tolist(),
            scored=scored if scored.size else None,
            scored_rows=rows[scored].tolist(),
            num_scores=int(self._row_num_logprobs[rows[scored]].max(initial=0)),
            settings=settings,
            choice=choice,
            plain=plain,
            eager=choice if plain and isinstance(choice, EagerChoice) else None,
        )

    def _make_choice(self, places: np.ndarray, is_random: np.ndarray, settings: DrawSettings) -> Choice:
        return make_choice(places, is_random, settings, self._vocab_size, self._device)

    def _truncate(
        self, step: _Step, settings: DrawSettings, late_stages: Sequence[Stage], of_processed: bool
    ) -> DrawSettings:
        """Truncate as far as somebody is to see the logits in between; returns the settings that are left to apply."""
        neutral = DrawSettings.neutral(len(step.rows), self._vocab_size)
        if late_stages:
            truncate(step.logits, step.places, settings._replace(top_k=neutral.top_k, top_p=neutral.top_p))
            step.apply(late_stages)
            settings = neutral._replace(top_k=settings.top_k, top_p=settings.top_p)
        if of_processed:
            truncate(step.logits, step.places, settings)
            settings = neutral
        return settings

    def _take_errors(self, rows: np.ndarray) -> dict[int, str]:
        """Of the rows that custom processors could not serve, the first reasons."""
        errors: dict[int, str] = {}
        if self._guarded:
            active = np.zeros(len(self._row_num_logprobs), np.bool_)
            active[rows] = True
            for guarded in self._guarded:
                errors = guarded.take_errors(active) | errors
        return errors

    def _score(self, scores_of: _Scored, wishes: _Wishes, scored: np.ndarray, token_ids: torch.Tensor) -> TokenScores:
        """The logprobs of scored rows; of a row that has no token they are never looked at."""
        chosen = token_ids if len(scored) == len(token_ids) else token_ids[to_device(scored, token_ids.device)]
        return token_logprobs(
            scores_of.logits, scores_of.places, chosen.clamp(min=0), wishes.num_scores, self._scores_normalised
        )

    def _wanted_logprobs(self, params: SamplingParams) -> int:
        if params.logprobs is None:
            return _NO_LOGPROBS
        return self._vocab_size if params.logprobs < 0 else min(params.logprobs, self._vocab_size)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the rows of a call want: the same in step after step while the batch stays as it is.

    given: the rows as the caller gave them; rows: [n], the same. places: [n], their rows in the logits.
    is_random: [n] bool; drawn: the rows where it holds. scored: [m], which of the n want logprobs; None for none.
    scored_rows: those rows of the batch; num_scores: the most best tokens that one of them wants.
    settings: of all of them. choice: of their tokens. plain: nothing stands before the choice. eager: the choice, if it
    is plain and chooses at once.
    """

    given: Sequence[int]
    rows: np.ndarray
    places: np.ndarray
    is_random: np.ndarray
    drawn: list[int]
    scored: np.ndarray | None
    scored_rows: list[int]
    num_scores: int
    settings: DrawSettings
    choice: Choice
    plain: bool
    eager: EagerChoice | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """Logits that scores are of, and in which of their rows the scored ones are."""

    logits: torch.Tensor
    places: np.ndarray


class _Step:
    """The rows of one call.

    rows: [n], the batch's. places: [n], their rows in `logits`.
    """

    def __init__(self, logits: torch.Tensor, wishes: _Wishes) -> None:
        self.logits = logits
        self.rows = wishes.rows
        self.places = wishes.places

    def empty(self, failed: torch.Tensor) -> None:
        """Make rows of `logits` hold token 0 and nothing else, which costs every stage the least. failed: [n] bool."""
        self.logits.masked_fill_(failed.unsqueeze(1), -torch.inf)
        self.logits[:, 0].masked_fill_(failed, 0.0)

    def spread_out(self, num_rows: int) -> None:
        """Make `logits` [num_rows, vocab_size], a row for each row of the batch, as processors expect it.

        Rows that were not asked for hold token 0 and nothing else.
        """
        if len(self.rows) < num_rows:
            compact = self.logits
            self.logits = compact.new_full((num_rows, compact.shape[1]), -torch.inf)
            self.logits[:, 0] = 0.0
            self.logits[to_device(self.rows, compact.device)] = compact
            self.places = self.rows

    def apply(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            self.logits = stage.apply(self.logits).contiguous()
