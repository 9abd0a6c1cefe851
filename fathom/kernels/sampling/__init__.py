"""Choosing a token for each row of logits: the best one, or one that is drawn.

    best_tokens(logits, rows) -> [n] int64, where the logits are
    draw_tokens(logits, rows, settings, uniforms) -> [n] int64, where the logits are
    truncate(logits, rows, settings)    in place: what draw_tokens draws from

    choice = make_choice(rows, is_random, settings, vocab_size, device)    for as long as rows and settings stay:
    choice.launch(logits, uniforms) -> [n] int64, where the logits are     drawn where is_random holds, else the best
    and, of an EagerChoice, as the native kernels have it,
    choice.choose(logits, uniforms) -> the same, as a list
    choice.choose_and_score(logits, uniforms, scored, k, normalised) -> the list, and a LogprobsArrays

        logits    [..., vocab_size] float32
        rows      [n] int64, the rows of the logits that are meant; the others are not looked at
        uniforms  [n] float64 in [0, 1), a multiple of 2**-53: the number that a row's token is drawn with; a choice
                  gets a list of them, for the random rows
        scored    [m] int64, ascending, which of the n chosen tokens are scored, as by kernels/token_logprobs

On a GPU all of them return before the work is done.

The settings act in this order:

    temperature  divides the logits
    min_p        drops logits below (the row's best + log min_p): the rule for probabilities, without a softmax
    top_k        keeps the k best tokens, and those that tie with the k-th
    top_p        keeps, of what is left (renormalised), the smallest set of best tokens whose probability reaches
                 top_p, and at least one; among equal tokens the lower ids come first

The drawn token is the first, in the order of ids, at which the cumulative probability exceeds uniform * total, hence
never one of probability zero. NO_TOKEN stands for a row with NaN or +inf, or all of it -inf. A row's token depends on
its logits, settings and number alone; drawing from what truncate has left, without settings, gives the same token.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from fathom.kernels.choice import implementation, implementation_on
from fathom.kernels.sampling.settings import NO_TOKEN, DrawSettings
from fathom.step import LogprobsArrays

__all__ = ["NO_TOKEN", "Choice", "DrawSettings", "EagerChoice", "best_tokens", "draw_tokens", "make_choice", "truncate"]


class Choice(Protocol):
    """How the tokens of some rows are chosen."""

    def launch(self, logits: torch.Tensor, uniforms: list[float]) -> torch.Tensor: ...


@runtime_checkable
class EagerChoice(Choice, Protocol):
    """One that has its tokens on the host at once, and a row's scores while the row's logits are near."""

    def choose(self, logits: torch.Tensor, uniforms: list[float]) -> list[int]: ...

    def choose_and_score(
        self, logits: torch.Tensor, uniforms: list[float], scored: np.ndarray, k: int, normalised: bool
    ) -> tuple[list[int], LogprobsArrays]: ...


def make_choice(
    rows: np.ndarray, is_random: np.ndarray, settings: DrawSettings, vocab_size: int, device: torch.device
) -> Choice:
    """A choice for contiguous logits on this device. is_random: [n] bool."""
    return implementation_on(__name__, device).Choice(rows, is_random, settings, vocab_size)


def best_tokens(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """The token with the largest logit, the first of equal ones."""
    return implementation(__name__, logits).best_tokens(logits, rows)


def draw_tokens(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings, uniforms: np.ndarray) -> torch.Tensor:
    """A token of the truncated distribution; the logits stay as they are."""
    return implementation(__name__, logits).draw_tokens(logits, rows, settings, uniforms)


def truncate(logits: torch.Tensor, rows: np.ndarray, settings: DrawSettings) -> None:
    """Scale the rows and make what is cut off -inf, in place."""
    implementation(__name__, logits).truncate(logits, rows, settings)
