"""Choosing tokens in plain torch.

A full sort of the vocabulary costs as much as a small model's whole step, and the head is nearly always short. So
rows with top_p look at their best 256 tokens first; only a row whose cut is not among those tries 4096, and only then
all. The sizes do not depend on the batch, so neither does the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fathom.kernels.sampling.settings import NO_TOKEN, DrawSettings
from fathom.kernels.slices import row_slices

_HEAD_SIZES = (256, 4096)


def best_tokens(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    chosen = _take(logits, rows)
    best = chosen.max(dim=-1)
    return best.indices.masked_fill_(~torch.isfinite(best.values), NO_TOKEN)


def draw_tokens(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    numbers = torch.from_numpy(uniforms).to(logits.device)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    # Made for the first slice and used again for the others: fresh memory would cost more than the sums.
    probs, cumulative = logits.new_empty(0), logits.new_empty(0, dtype=torch.float64)
    for piece in row_slices((len(rows), logits.shape[1]), logits.device):
        truncated = _truncated(logits[torch.from_numpy(rows[piece]).to(logits.device)], settings.of(piece))
        torch.softmax(truncated, dim=-1, out=probs.resize_(0))
        torch.cumsum(probs, dim=-1, dtype=torch.float64, out=cumulative.resize_(0))
        tokens[piece] = _invert(cumulative, numbers[piece])
    return tokens


def truncate(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings) -> None:
    """See the package's docstring for shapes and rules."""
    for piece in row_slices((len(rows), logits.shape[1]), logits.device):
        where = torch.from_numpy(rows[piece]).to(logits.device)
        logits[where] = _truncated(logits[where], settings.of(piece))


class Choice:
    """See the package's docstring."""

    def __init__(self, rows: np.ndarray, is_random: np.ndarray, settings: DrawSettings, vocab_size: int) -> None:
        self._rows = rows
        self._best, self._drawn = np.flatnonzero(~is_random), np.flatnonzero(is_random)
        self._settings = settings.of(self._drawn)

    def launch(self, logits: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        """A token for each row, [n] int64."""
        token_ids = torch.empty(len(self._rows), dtype=torch.int64, device=logits.device)
        if self._best.size:
            token_ids[torch.from_numpy(self._best).to(logits.device)] = best_tokens(logits, self._rows[self._best])
        if self._drawn.size:
            drawn = draw_tokens(logits, self._rows[self._drawn], self._settings, np.array(uniforms))
            token_ids[torch.from_numpy(self._drawn).to(logits.device)] = drawn
        return token_ids


def _truncated(logits: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """[rows, vocab_size], in place, by settings of the same rows."""
    device, vocab_size = logits.device, logits.shape[1]
    logits /= torch.from_numpy(settings.temperature).to(device).unsqueeze(1)
    if not np.isneginf(settings.log_min_p).all():
        threshold = logits.amax(dim=-1) + torch.from_numpy(settings.log_min_p).to(device)
        logits.masked_fill_(logits < threshold.unsqueeze(1), -torch.inf)
    top_k, top_p = torch.from_numpy(settings.top_k).to(device), torch.from_numpy(settings.top_p).to(device)
    with_p = np.flatnonzero(settings.top_p < 1.0)
    only_k = np.flatnonzero((settings.top_k < vocab_size) & (settings.top_p == 1.0))
    if only_k.size:
        where = torch.from_numpy(only_k).to(device)
        logits[where] = keep_top_k(logits[where], top_k[where])
    if with_p.size:
        where = torch.from_numpy(with_p).to(device)
        logits[where] = keep_top_k_top_p(logits[where], top_k[where], top_p[where])
    return logits


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


def _invert(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    total = cumulative[:, -1]
    # A float64 below 1 is at most 1 - 2**-53, so the product stays below the total even after rounding.
    target = uniforms * total
    tokens = torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)
    return tokens.masked_fill_(~torch.isfinite(total), NO_TOKEN)


def _take(matrix: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Some rows of a matrix, uncopied if that is all of them."""
    if len(rows) == matrix.shape[0]:
        return matrix
    return matrix[torch.from_numpy(rows).to(matrix.device)]
