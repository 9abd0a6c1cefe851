"""Sampling parameters that leave nothing to sample, found before a request is sent.

What is known beforehand: which tokens are allowed at all, which are bad words by themselves, and which end an answer
and are therefore masked below min_tokens. Bad words of several tokens depend on the answer, logits processors on
anything; what those exclude shows when it happens, and ends that request with an error.
"""

from __future__ import annotations

from fathom.errors import ValidationError
from fathom.sampling_params import SamplingParams


def check_something_is_left(params: SamplingParams, vocab_size: int) -> None:
    """Check parameters that the model's end-of-sequence ids and the tokens of bad words have been filled into.

    Raises:
        ValidationError: no first token is possible; names the fields that exclude them together.
    """
    allowed = None if params.allowed_token_ids is None else set(params.allowed_token_ids)
    bad = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    ends = params.all_stop_token_ids if params.min_tokens else set()
    if allowed is None:
        if len(bad) + len(ends) < vocab_size:
            return
        allowed = set(range(vocab_size))
    if allowed - bad - ends:
        return
    reasons = []
    if allowed & bad:
        reasons.append(f"bad_words exclude {_some(allowed & bad)}")
    if allowed & ends - bad:
        reasons.append(f"min_tokens={params.min_tokens} excludes {_some(allowed & ends - bad)}, which end the answer")
    parameter = "allowed_token_ids"
    if params.allowed_token_ids is None:
        parameter = "min_tokens" if ends else "bad_words"
    given = "every token" if params.allowed_token_ids is None else f"allowed_token_ids={_some(allowed)}"
    raise ValidationError(
        f"no token can be sampled: of {given}, {' and '.join(reasons)}.",
        parameter=parameter,
        value=getattr(params, parameter),
        hint="Allow at least one other token, or leave out one of these fields.",
    )


def _some(token_ids: set[int]) -> str:
    """A few of the ids, and how many there are if that is not all."""
    first = sorted(token_ids)[:5]
    return str(first) if len(token_ids) == len(first) else f"{str(first)[:-1]}, ... {len(token_ids)} ids]"
