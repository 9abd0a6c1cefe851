"""top_k and top_p: truncate a row's distribution to its head.

    top_k   keeps the k best tokens, and those that tie with the k-th
    top_p   keeps, of what top_k left (renormalised), the smallest set of best tokens whose probability
            reaches top_p, and at least one; among equal tokens the lower ids come first

A full sort of the vocabulary costs as much as a small model's whole step, and the head is nearly always
short. So rows with top_p look at their best 256 tokens first; only a row whose cut is not among those tries
4096, and only then all. The sizes do not depend on the batch, so neither does the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fathom.params import SamplingParams
from fathom.worker.sample.interface import BatchUpdate, LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.rows import RowValues
from fathom.worker.sample.slices import row_slices

_HEAD_SIZES = (256, 4096)


class TopKTopP(LogitsProcessor):
    """Masks what top_k and top_p cut off; rows that use neither stay as they are."""

    def __init__(self, context: LogitsProcessorContext, device: torch.device, is_pin_memory: bool) -> None:
        self._vocab_size = context.vocab_size
        self._device = device
        self._top_k = RowValues(context.max_num_seqs, np.int64)
        self._top_p = RowValues(context.max_num_seqs, np.float64)
        self._k_rows = self._p_rows = torch.empty(0, dtype=torch.int64)
        self._k_only = self._k_with_p = self._p = torch.empty(0)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        top_k = self._top_k.update(batch_update, self._effective_k)
        top_p = self._top_p.update(batch_update, lambda params: params.top_p)
        k_rows = np.flatnonzero((top_k < self._vocab_size) & (top_p == 1.0))
        p_rows = np.flatnonzero(top_p < 1.0)
        self._k_rows, self._k_only = self._to_device(k_rows), self._to_device(top_k[k_rows])
        self._p_rows, self._k_with_p = self._to_device(p_rows), self._to_device(top_k[p_rows])
        self._p = self._to_device(top_p[p_rows])

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for piece in row_slices((len(self._k_rows), self._vocab_size), self._device):
            rows = self._k_rows[piece]
            logits[rows] = keep_top_k(logits[rows], self._k_only[piece])
        for piece in row_slices((len(self._p_rows), self._vocab_size), self._device):
            rows = self._p_rows[piece]
            logits[rows] = keep_top_k_top_p(logits[rows], self._k_with_p[piece], self._p[piece])
        return logits

    def _effective_k(self, params: SamplingParams) -> int:
        return min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def keep_top_k(logits: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Mask, in place, what is less than a row's k-th best.

    Args:
        logits: [rows, vocab_size].
        k: [rows] int64 in [1, vocab_size].
    """
    best = logits.topk(int(k.max()), dim=-1).values
    threshold = best.gather(1, (k - 1).unsqueeze(1))
    return logits.masked_fill_(logits < threshold, -torch.inf)


def keep_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, head_sizes: tuple[int, ...] = _HEAD_SIZES
) -> torch.Tensor:
    """Mask, in place, what top_k and then top_p cut off.

    Args:
        logits: [rows, vocab_size], each row with a finite entry.
        k: [rows] int64 in [1, vocab_size]; vocab_size means no top_k.
        p: [rows] float64 in (0, 1].
        head_sizes: how many of the best tokens to look at, one attempt after the other, before all of them.
    """
    vocab_size = logits.shape[1]
    head_size = min(head_sizes[0], vocab_size) if head_sizes else vocab_size
    head = logits.topk(head_size, dim=-1)
    head_probs = logits.softmax(dim=-1).gather(1, head.indices)
    cut = _cut(head.values, head_probs, k, p, vocab_size)

    logits.masked_fill_(logits < cut.threshold.unsqueeze(1), -torch.inf)
    for row in cut.splits_tie.nonzero().squeeze(1).tolist():
        _drop_tied(logits[row], cut.threshold[row], int(cut.num_kept[row]))
    unknown = (~cut.is_known).nonzero().squeeze(1)
    if unknown.numel():
        logits[unknown] = keep_top_k_top_p(logits[unknown], k[unknown], p[unknown], head_sizes[1:])
    return logits


class _Cut(NamedTuple):
    """Where to cut some rows.

    is_known: [rows] bool, whether the head was long enough to tell.
    num_kept: [rows] int64, how many tokens to keep.
    threshold: [rows], the logit of the last of them; -inf if not known.
    splits_tie: [rows] bool, whether a token that is not to be kept has just that logit, too.
    """

    is_known: torch.Tensor
    num_kept: torch.Tensor
    threshold: torch.Tensor
    splits_tie: torch.Tensor


def _cut(head: torch.Tensor, head_probs: torch.Tensor, k: torch.Tensor, p: torch.Tensor, vocab_size: int) -> _Cut:
    """Find the cut in the rows' best logits, descending, and their probabilities: [rows, head_size]."""
    head_size = head.shape[1]
    kth = head.gather(1, (k.clamp(max=head_size) - 1).unsqueeze(1))
    in_top_k = head >= kth
    # Ties with the k-th best may go on behind the head, unless something smaller is in sight.
    sees_top_k = (k < head_size) & (head[:, -1:] < kth).squeeze(1)
    if head_size == vocab_size:
        sees_top_k.fill_(True)

    probs = head_probs.to(torch.float64) * in_top_k
    cumulative = probs.cumsum(dim=-1)
    total = torch.where(sees_top_k, cumulative[:, -1], 1.0)
    kept = in_top_k & (cumulative - probs < (p * total).unsqueeze(1))
    kept[:, 0] = True
    num_kept = kept.sum(dim=-1)
    threshold = head.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1)
    following = head.gather(1, num_kept.clamp(max=head_size - 1).unsqueeze(1)).squeeze(1)

    is_known = sees_top_k | (k == vocab_size) & (num_kept < head_size)
    return _Cut(
        is_known,
        num_kept,
        threshold.masked_fill(~is_known, -torch.inf),
        is_known & (num_kept < head_size) & (following == threshold),
    )


def _drop_tied(logits: torch.Tensor, threshold: torch.Tensor, num_kept: int) -> None:
    """Mask the last of one row's tokens that equal the threshold, so that `num_kept` tokens remain."""
    tied = (logits == threshold).nonzero().squeeze(1)
    num_above = int((logits > threshold).sum())
    logits[tied[num_kept - num_above :]] = -torch.inf
