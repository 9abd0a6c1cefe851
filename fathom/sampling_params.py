"""SamplingParams: what a caller may ask of one generation, and the check of each field.

Names, defaults and rules are vLLM's, so that scripts written for it run unchanged. All checks that need no
model happen on construction, in the caller's process; those that need the vocabulary or the context length
happen in the InputProcessor, before the request reaches the engine.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from numbers import Real
from operator import index
from typing import Any

import msgspec

from fathom.compat.sampling_fields import drop_neutral_fields
from fathom.errors import ValidationError

logger = logging.getLogger(__name__)

GREEDY_EPSILON = 1e-5
MIN_TEMPERATURE = 1e-2
MAX_TEMPERATURE = 2.0
MIN_REPETITION_PENALTY = 1e-6  # a logit divided by less may not be finite
MAX_N = 16_384
MAX_STOP_STRINGS = 1024
MAX_LOGIT_BIAS = 100.0


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class _WithFieldsOfVllm(msgspec.StructMeta):
    """Answers for fields that the struct lacks, which scripts for vLLM may set."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """A SamplingParams; what vLLM can and Fathom cannot is refused by name."""
        try:
            return super().__call__(*args, **fields)
        except TypeError:
            ours = drop_neutral_fields(fields, cls.__struct_fields__)
            if len(ours) == len(fields):
                raise
        return super().__call__(*args, **ours)


class SamplingParams(msgspec.Struct, metaclass=_WithFieldsOfVllm, omit_defaults=True):
    """Sampling parameters of one request.

    Args:
        n: number of answers to the one prompt.
        presence_penalty, frequency_penalty: in [-2, 2]; count generated tokens only.
        repetition_penalty: at least 1e-6, counts prompt and generated tokens; > 1 discourages.
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
        logits_processors: names of the loaded ones that this request gets; None: all of them, []: none.

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
    logits_processors: list[str] | None = None

    # Filled in by the InputProcessor, which knows the model and the tokenizer.
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []

    def __post_init__(self) -> None:
        self._normalise()
        self._check_types()
        self._check_numbers()
        self._settle_temperature()
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
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if self.prompt_logprobs is not None:
            # Every prompt position needs its logits, so none may be taken from the prefix cache.
            self.skip_reading_prefix_cache = True

    def _check_types(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, getattr(self, name), "must be True or False")
        if self.skip_reading_prefix_cache not in (None, False, True):
            raise _invalid("skip_reading_prefix_cache", self.skip_reading_prefix_cache, "must be True, False or None")
        if self.extra_args is not None and not isinstance(self.extra_args, dict):
            raise _invalid("extra_args", self.extra_args, "must be a dictionary")
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise _invalid("output_kind", self.output_kind, "must be a RequestOutputKind") from None

    def _check_numbers(self) -> None:
        self.n = _integer("n", self.n, 1, MAX_N)
        self.presence_penalty = _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = _number(
            "repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, math.inf
        )
        self.temperature = _number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        self.top_p = _number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        self.top_k = _integer("top_k", self.top_k, -1, None, hint="Use 0 or -1 to consider all tokens.")
        self.min_p = _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            self.seed = _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            self.max_tokens = _integer("max_tokens", self.max_tokens, 1, None, hint="None means as many as fit.")
        self.min_tokens = _integer("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"must be at most max_tokens={self.max_tokens}")
        if self.logprobs is not None:
            self.logprobs = _integer("logprobs", self.logprobs, -1, None, hint=_ALL_LOGPROBS)
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = _integer("prompt_logprobs", self.prompt_logprobs, -1, None, hint=_ALL_LOGPROBS)

    def _settle_temperature(self) -> None:
        if self.is_greedy:
            if self.n > 1:
                raise _invalid("n", self.n, "must be 1 when using greedy sampling")
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            logger.warning("temperature %s is below %s and was raised to it", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE
        if self.top_k == -1:
            self.top_k = 0

    def _check_stops(self) -> None:
        if self.stop is not None:
            self.stop = _texts("stop", self.stop)
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise _invalid("stop", len(self.stop_strings), f"may hold at most {MAX_STOP_STRINGS} strings")
        if self.stop_strings and not self.detokenize:
            raise _invalid("stop", self.stop, "needs detokenize=True, since stop strings are matched on text")
        if self.stop_token_ids is not None:
            self.stop_token_ids = list(dict.fromkeys(_token_ids("stop_token_ids", self.stop_token_ids)))

    def _check_lists(self) -> None:
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise _invalid("logit_bias", self.logit_bias, "must map token ids to numbers")
            self.logit_bias = {_bias_key(key): _clamped_bias(value) for key, value in self.logit_bias.items()}
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise _invalid("allowed_token_ids", [], "must not be empty; leave it out to allow every token")
        if self.bad_words is not None:
            self.bad_words = _texts("bad_words", self.bad_words)
        if self.logits_processors is not None:
            self.logits_processors = _texts("logits_processors", self.logits_processors, _ONLY_NAMES)


_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)
_ALL_LOGPROBS = "-1 means the whole vocabulary."
_ONLY_NAMES = "Hand classes to LLM(logits_processors=[...]), and what they need for a request to extra_args."


def _invalid(name: str, value: object, rule: str, hint: str | None = None) -> ValidationError:
    return ValidationError(f"{name} {rule}, got {value!r}.", parameter=name, value=value, hint=hint)


def _integer(name: str, value: Any, low: int, high: int | None, hint: str | None = None) -> int:
    """The value as an int: whatever counts as an integer, numpy's too, but no bool."""
    if isinstance(value, bool):
        raise _invalid(name, value, "must be an integer")
    try:
        number = index(value)
    except TypeError:
        raise _invalid(name, value, "must be an integer") from None
    if number < low or (high is not None and number > high):
        bounds = f"must be at least {low}" if high is None else f"must be in [{low}, {high}]"
        raise _invalid(name, number, bounds, hint)
    return number


def _number(name: str, value: Any, low: float, high: float, low_open: bool = False) -> float:
    """The value as a float: any real number, numpy's too, but no bool."""
    try:
        is_number = isinstance(value, (float, int, Real)) and not isinstance(value, bool)  # Real is slow to ask
        number = float(value) if is_number else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(name, value, "must be a finite number")
    if number < low or number > high or (low_open and number == low):
        bracket = "(" if low_open else "["
        closing = "inf)" if math.isinf(high) else f"{high:g}]"
        raise _invalid(name, number, f"must be in {bracket}{low:g}, {closing}")
    return number


def _items(name: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _invalid(name, value, f"must be a list of {what}")
    return list(value)


def _texts(name: str, value: Any, hint: str | None = None) -> list[str]:
    """A copy of a list of strings, none of them empty."""
    texts = _items(name, value, "strings")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise _invalid(name, text, "must hold non-empty strings", hint)
    return texts


def _token_ids(name: str, value: Any) -> list[int]:
    return [_integer(name, token_id, 0, None) for token_id in _items(name, value, "token ids")]


def _bias_key(key: Any) -> int:
    """A token id, also as the string that it becomes as a key of JSON."""
    if isinstance(key, str) and key.strip().isdecimal():
        with suppress(ValueError):  # it has more digits than Python reads
            key = int(key)
    return _integer("logit_bias", key, 0, None)


def _clamped_bias(value: Any) -> float:
    return max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, _number("logit_bias", value, -math.inf, math.inf)))
