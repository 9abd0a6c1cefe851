"""SamplingParams: what a caller may ask of one generation, and the check of each field.

Names, defaults and rules are vLLM's, so that scripts written for it run unchanged. All checks that need no
model happen on construction, in the caller's process; those that need the vocabulary or the context length
happen in the InputProcessor, before the request reaches the engine.
"""

from __future__ import annotations

import logging
import math
from enum import IntEnum
from typing import Any

import msgspec

from fathom.errors import ValidationError

logger = logging.getLogger(__name__)

GREEDY_EPSILON = 1e-5
MIN_TEMPERATURE = 1e-2
MAX_TEMPERATURE = 2.0
MAX_N = 16_384
MAX_STOP_STRINGS = 1024


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, omit_defaults=True):
    """Sampling parameters of one request.

    Args:
        n: number of answers to the one prompt.
        presence_penalty, frequency_penalty: in [-2, 2]; count generated tokens only.
        repetition_penalty: > 0, counts prompt and generated tokens; > 1 discourages.
        temperature: 0 means greedy; values in (0, 0.01) are raised to 0.01 with a warning.
        top_p, top_k, min_p: truncation of the distribution; 1.0, 0 (or -1) and 0.0 switch them off.
        seed: makes this request's tokens reproducible whatever else is in the batch.
        stop, stop_token_ids: end the answer; the stop string is cut off unless include_stop_str_in_output.
        ignore_eos: go on past the end-of-sequence token.
        max_tokens: most tokens to generate; None means as many as fit.
        min_tokens: no end-of-sequence, stop id or stop string before this many tokens.
        logprobs, prompt_logprobs: number of top entries per position; 0 means the chosen token only, -1 the
            whole vocabulary.
        detokenize: False skips text altogether.
        logit_bias: token id -> value in [-100, 100] added to its logit.
        allowed_token_ids: only these may be sampled.
        bad_words: words that may not be generated.
        extra_args: free dictionary for custom logits processors.

    Raises:
        ValidationError: a ValueError that names the field, the value and the rule.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict[str, Any] | None = None

    # Filled in by the InputProcessor, which knows the model and the tokenizer.
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_stops()
        self._check_lists()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list; empty if there is none."""
        return self.stop if isinstance(self.stop, list) else []

    @property
    def all_stop_token_ids(self) -> set[int]:
        """The ids that min_tokens suppresses: end-of-sequence (unless ignored) and stop ids."""
        stops = set(self.stop_token_ids or ())
        return stops if self.ignore_eos else stops | set(self.eos_token_ids)

    def clone(self) -> SamplingParams:
        """A copy whose own fields can be changed; contained values are shared and never mutated."""
        return msgspec.structs.replace(self)

    def _normalise(self) -> None:
        if self.seed == -1:
            self.seed = None
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        elif self.stop is not None:
            self.stop = list(self.stop)
        if self.stop_token_ids is not None:
            self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids))
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if self.prompt_logprobs is not None:
            # Every prompt position needs its logits, so none may be taken from the prefix cache.
            self.skip_reading_prefix_cache = True

    def _check_numbers(self) -> None:
        _require_int("n", self.n, 1, MAX_N)
        _require_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_float("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True)
        _require_float("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _require_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _require_int("top_k", self.top_k, -1, None, hint="Use 0 or -1 to consider all tokens.")
        _require_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _require_int("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1, None)
        _require_int("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"must be at most max_tokens={self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _require_int(name, value, -1, None, hint="-1 means the whole vocabulary.")
        self._settle_temperature()

    def _settle_temperature(self) -> None:
        if self.is_greedy:
            if self.n > 1:
                raise _invalid(
                    "n",
                    self.n,
                    "must be 1 when using greedy sampling",
                    f"n must be 1 when using greedy sampling, got {self.n}.",
                )
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            logger.warning("temperature %s is below %s and was raised to it", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE
        if self.top_k == -1:
            self.top_k = 0

    def _check_stops(self) -> None:
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise _invalid("stop", stop, "must hold non-empty strings")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise _invalid("stop", len(self.stop_strings), f"may hold at most {MAX_STOP_STRINGS} strings")
        if self.stop_strings and not self.detokenize:
            raise _invalid("stop", self.stop, "needs detokenize=True, since stop strings are matched on text")
        for token_id in self.stop_token_ids or ():
            _require_int("stop_token_ids", token_id, 0, None)

    def _check_lists(self) -> None:
        if self.logit_bias is not None:
            self.logit_bias = {
                _token_id("logit_bias", key): _clamp_bias(value) for key, value in self.logit_bias.items()
            }
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise _invalid("allowed_token_ids", [], "must not be empty; leave it out to allow every token")
            for token_id in self.allowed_token_ids:
                _require_int("allowed_token_ids", token_id, 0, None)
        for word in self.bad_words or ():
            if not isinstance(word, str) or not word:
                raise _invalid("bad_words", word, "must hold non-empty strings")


def _invalid(name: str, value: object, rule: str, message: str | None = None) -> ValidationError:
    return ValidationError(message or f"{name} {rule}, got {value!r}.", parameter=name, value=value)


def _require_int(name: str, value: object, low: int, high: int | None, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(name, value, "must be an integer")
    if value < low or (high is not None and value > high):
        bounds = f"must be at least {low}" if high is None else f"must be in [{low}, {high}]"
        raise ValidationError(f"{name} {bounds}, got {value}.", parameter=name, value=value, hint=hint or None)


def _require_float(name: str, value: object, low: float, high: float, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(name, value, "must be a finite number")
    if value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        closing = "inf)" if math.isinf(high) else f"{high:g}]"
        raise _invalid(name, value, f"must be in {bracket}{low:g}, {closing}")


def _token_id(name: str, key: object) -> int:
    try:
        token_id = int(key)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise _invalid(name, key, "must map token ids to numbers") from None
    _require_int(name, token_id, 0, None)
    return int(token_id)


def _clamp_bias(value: object) -> float:
    _require_float("logit_bias", value, -math.inf, math.inf)
    return max(-100.0, min(100.0, float(value)))  # type: ignore[arg-type]
