"""SamplingParams: defaults, what is made of a value, and what is refused in which words."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from fathom import RequestOutputKind, SamplingParams
from fathom.errors import ClientError, ValidationError

# vLLM's, field by field.
DEFAULTS = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "output_kind": RequestOutputKind.CUMULATIVE,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "skip_reading_prefix_cache": None,
    "extra_args": None,
    "logits_processors": None,
}


def test_defaults() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in DEFAULTS} == DEFAULTS
    assert params.stop_strings == []


def test_a_positional_argument_is_n() -> None:
    assert SamplingParams(3).n == 3


def test_an_unknown_field_is_a_type_error_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="unknown sampling parameter 'temprature'; did you mean 'temperature'"):
        SamplingParams(temprature=1)
    with pytest.raises(ValidationError, match="n must be an integer"):
        SamplingParams(n="a", best_of=None)


def test_fields_of_vllm_are_accepted_where_they_change_nothing() -> None:
    neutral = {"best_of": None, "structured_outputs": None, "length_penalty": 1.0, "flat_logprobs": True}
    assert SamplingParams(max_tokens=3, **neutral) == SamplingParams(max_tokens=3)


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("best_of", 2, "Ask for n answers"),
        ("structured_outputs", {"choice": ["a"]}, "no structured output yet"),
        ("guided_decoding", {"choice": ["a"]}, "no structured output yet"),
        ("use_beam_search", True, "Use LLM.beam_search"),
        ("truncate_prompt_tokens", 5, "Cut the prompt yourself"),
    ],
)
def test_what_vllm_can_and_fathom_cannot_has_a_way_out(name: str, value: Any, way_out: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}=.* is not supported. .*{way_out}") as caught:
        SamplingParams(**{name: value})
    assert (caught.value.parameter, caught.value.value) == (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 1),
        ("structured_outputs", {}),
        ("guided_decoding", ""),
        ("length_penalty", 0.0),
        ("length_penalty", 2.0),
        ("early_stopping", True),
        ("logprob_token_ids", []),
        ("prompt_logprob_token_ids", [5]),
        ("prompt_logprob_start", 0),
        ("stream_interval", 0),
        ("stream_interval", 10),
        ("thinking_token_budget", 0),
        ("repetition_detection", {}),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -1),
        ("watermarking", False),
        ("routed_experts_prompt_start", 3),
        ("trace_decode_token_ids", [1]),
    ],
)
def test_what_is_falsy_or_nearly_neutral_may_ask_for_something_all_the_same(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"^{name}=.* is not supported") as caught:
        SamplingParams(**{name: value})
    assert (caught.value.parameter, caught.value.value) == (name, value)


REFUSED: list[tuple[str, Any, str]] = [
    ("n", 0, "n must be in [1, 16384], got 0."),
    ("n", -1, "n must be in [1, 16384], got -1."),
    ("n", 10**6, "n must be in [1, 16384], got 1000000."),
    ("n", 1.0, "n must be an integer, got 1.0."),
    ("n", True, "n must be an integer, got True."),
    ("n", "2", "n must be an integer, got '2'."),
    ("presence_penalty", -2.1, "presence_penalty must be in [-2, 2], got -2.1."),
    ("presence_penalty", 2.1, "presence_penalty must be in [-2, 2], got 2.1."),
    ("frequency_penalty", 3, "frequency_penalty must be in [-2, 2], got 3.0."),
    ("frequency_penalty", False, "frequency_penalty must be a finite number, got False."),
    ("repetition_penalty", 0, "repetition_penalty must be in [1e-06, inf), got 0.0."),
    ("repetition_penalty", -1, "repetition_penalty must be in [1e-06, inf), got -1.0."),
    ("repetition_penalty", 1e-300, "repetition_penalty must be in [1e-06, inf), got 1e-300."),
    ("repetition_penalty", float("inf"), "repetition_penalty must be a finite number, got inf."),
    ("temperature", -1, "temperature must be in [0, 2], got -1.0."),
    ("temperature", 999_999, "temperature must be in [0, 2], got 999999.0."),
    ("temperature", 2.0001, "temperature must be in [0, 2], got 2.0001."),
    ("temperature", float("nan"), "temperature must be a finite number, got nan."),
    ("temperature", "NaN", "temperature must be a finite number, got 'NaN'."),
    ("temperature", None, "temperature must be a finite number, got None."),
    ("temperature", 1 + 0j, "temperature must be a finite number, got (1+0j)."),
    ("temperature", True, "temperature must be a finite number, got True."),
    ("top_p", 0, "top_p must be in (0, 1], got 0.0."),
    ("top_p", -1, "top_p must be in (0, 1], got -1.0."),
    ("top_p", 1.5, "top_p must be in (0, 1], got 1.5."),
    ("top_p", float("-inf"), "top_p must be a finite number, got -inf."),
    ("top_k", 0.01, "top_k must be an integer, got 0.01."),
    ("top_k", -2, "top_k must be at least -1, got -2. Use 0 or -1 to consider all tokens."),
    ("min_p", -0.1, "min_p must be in [0, 1], got -0.1."),
    ("min_p", 2, "min_p must be in [0, 1], got 2.0."),
    ("seed", 1.5, "seed must be an integer, got 1.5."),
    ("seed", 2**64, "seed must be in [-9223372036854775808, 18446744073709551615], got 18446744073709551616."),
    ("stop", "", "stop must hold non-empty strings, got ''."),
    ("stop", [""], "stop must hold non-empty strings, got ''."),
    ("stop", ["a", None], "stop must hold non-empty strings, got None."),
    ("stop", 5, "stop must be a list of strings, got 5."),
    ("stop", b"ab", "stop must be a list of strings, got b'ab'."),
    ("stop", {"a": 1}, "stop must be a list of strings, got {'a': 1}."),
    ("stop", ["x"] * 1025, "stop may hold at most 1024 strings, got 1025."),
    ("stop_token_ids", 5, "stop_token_ids must be a list of token ids, got 5."),
    ("stop_token_ids", "5", "stop_token_ids must be a list of token ids, got '5'."),
    ("stop_token_ids", [-1], "stop_token_ids must be at least 0, got -1."),
    ("stop_token_ids", [[1]], "stop_token_ids must be an integer, got [1]."),
    ("stop_token_ids", [True], "stop_token_ids must be an integer, got True."),
    ("ignore_eos", "yes", "ignore_eos must be True or False, got 'yes'."),
    ("detokenize", 1, "detokenize must be True or False, got 1."),
    ("skip_special_tokens", None, "skip_special_tokens must be True or False, got None."),
    ("spaces_between_special_tokens", 0, "spaces_between_special_tokens must be True or False, got 0."),
    ("include_stop_str_in_output", [], "include_stop_str_in_output must be True or False, got []."),
    ("max_tokens", 0, "max_tokens must be at least 1, got 0. None means as many as fit."),
    ("max_tokens", -1, "max_tokens must be at least 1, got -1. None means as many as fit."),
    ("max_tokens", 2.0, "max_tokens must be an integer, got 2.0."),
    ("min_tokens", -1, "min_tokens must be at least 0, got -1."),
    ("min_tokens", 17, "min_tokens must be at most max_tokens=16, got 17."),
    ("logprobs", -2, "logprobs must be at least -1, got -2. -1 means the whole vocabulary."),
    ("logprobs", False, "logprobs must be an integer, got False."),
    ("prompt_logprobs", -2, "prompt_logprobs must be at least -1, got -2. -1 means the whole vocabulary."),
    ("prompt_logprobs", 1.0, "prompt_logprobs must be an integer, got 1.0."),
    ("output_kind", 7, "output_kind must be a RequestOutputKind, got 7."),
    ("output_kind", "delta", "output_kind must be a RequestOutputKind, got 'delta'."),
    ("logit_bias", [1, 2], "logit_bias must map token ids to numbers, got [1, 2]."),
    ("logit_bias", {"x": 1}, "logit_bias must be an integer, got 'x'."),
    ("logit_bias", {1.5: 1}, "logit_bias must be an integer, got 1.5."),
    ("logit_bias", {True: 1}, "logit_bias must be an integer, got True."),
    ("logit_bias", {-1: 1}, "logit_bias must be at least 0, got -1."),
    ("logit_bias", {"-1": 1}, "logit_bias must be an integer, got '-1'."),
    ("logit_bias", {1: float("nan")}, "logit_bias must be a finite number, got nan."),
    ("logit_bias", {1: "5"}, "logit_bias must be a finite number, got '5'."),
    ("logit_bias", {1: None}, "logit_bias must be a finite number, got None."),
    ("allowed_token_ids", [], "allowed_token_ids must not be empty; leave it out to allow every token, got []."),
    ("allowed_token_ids", 7, "allowed_token_ids must be a list of token ids, got 7."),
    ("allowed_token_ids", [1.0], "allowed_token_ids must be an integer, got 1.0."),
    ("allowed_token_ids", [-3], "allowed_token_ids must be at least 0, got -3."),
    ("bad_words", "word", "bad_words must be a list of strings, got 'word'."),
    ("bad_words", [""], "bad_words must hold non-empty strings, got ''."),
    ("bad_words", [3], "bad_words must hold non-empty strings, got 3."),
    ("skip_reading_prefix_cache", "no", "skip_reading_prefix_cache must be True, False or None, got 'no'."),
    ("extra_args", [1], "extra_args must be a dictionary, got [1]."),
    ("logits_processors", "Ban", "logits_processors must be a list of strings, got 'Ban'."),
    (
        "logits_processors",
        [dict],
        "logits_processors must hold non-empty strings, got <class 'dict'>. Hand classes to "
        "LLM(logits_processors=[...]), and what they need for a request to extra_args.",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=str)
def test_what_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ClientError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 16_384),
        ("temperature", 2.0),
        ("top_p", 1e-9),
        ("top_k", 10**12),
        ("min_p", 1.0),
        ("repetition_penalty", 1e6),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
        ("max_tokens", 10**9),
        ("max_tokens", None),
        ("min_tokens", 16),
        ("logprobs", -1),
        ("logprobs", 10**6),
    ],
    ids=str,
)
def test_the_ends_of_a_range_belong_to_it(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_a_number_too_large_for_a_float_is_not_finite() -> None:
    with pytest.raises(ValidationError, match="repetition_penalty must be a finite number"):
        SamplingParams(repetition_penalty=10**400)


def test_integers_count_as_numbers_and_come_out_as_floats() -> None:
    params = SamplingParams(temperature=1, top_p=1, presence_penalty=1)
    assert [type(params.temperature), type(params.top_p), type(params.presence_penalty)] == [float] * 3


def test_numpy_scalars_become_python_numbers() -> None:
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        top_k=np.int32(4),
        seed=np.uint64(2**63 + 5),
        stop_token_ids=np.array([3, 3, 4]),
        allowed_token_ids=np.array([5]),
        logit_bias={np.int64(6): np.float32(1.5)},
    )
    assert (params.n, params.temperature, params.top_k, params.seed) == (2, 0.5, 4, 2**63 + 5)
    assert (params.stop_token_ids, params.allowed_token_ids, params.logit_bias) == ([3, 4], [5], {6: 1.5})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


# ---------------------------------------------------------------- temperature


def test_greedy_allows_one_answer_only() -> None:
    with pytest.raises(ValueError, match="n must be 1 when using greedy sampling, got 2"):
        SamplingParams(n=2, temperature=0.0)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-9])
def test_greedy_switches_truncation_off(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=3, min_p=0.1)
    assert params.is_greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fathom"):
        params = SamplingParams(temperature=0.001, top_p=0.5)
    assert params.temperature == 0.01
    assert params.top_p == 0.5
    assert "temperature 0.001 is below 0.01 and was raised to it" in caplog.text
    caplog.clear()
    params.clone()
    SamplingParams(temperature=0.01)
    assert not caplog.text


def test_a_wrong_value_is_reported_before_the_temperature_is_settled() -> None:
    with pytest.raises(ValidationError, match="top_p"):
        SamplingParams(temperature=0.0, top_p=7)


# ---------------------------------------------------------------- what is made of a value


def test_minus_one_means_no_seed_and_no_top_k() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(top_k=-1).top_k == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), (("a",), ["a"]), ([], []), (None, None)],
    ids=str,
)
def test_forms_of_stop(given: Any, kept: Any) -> None:
    params = SamplingParams(stop=given)
    assert params.stop == kept
    assert params.stop_strings == (kept or [])


def test_stop_strings_need_text() -> None:
    with pytest.raises(ValidationError, match="stop needs detokenize=True"):
        SamplingParams(stop="a", detokenize=False)
    SamplingParams(stop=[], stop_token_ids=[1], detokenize=False)


def test_stop_ids_are_kept_once_in_their_order() -> None:
    assert SamplingParams(stop_token_ids=[5, 3, 5]).stop_token_ids == [5, 3]


def test_what_min_tokens_suppresses() -> None:
    params = SamplingParams(stop_token_ids=[5, 3], eos_token_ids=[1, 2])
    assert params.all_stop_token_ids == {1, 2, 3, 5}
    params.ignore_eos = True
    assert params.all_stop_token_ids == {3, 5}


def test_true_means_one_logprob() -> None:
    params = SamplingParams(logprobs=True, prompt_logprobs=True)
    assert (params.logprobs, params.prompt_logprobs) == (1, 1)


def test_prompt_logprobs_leave_the_prefix_cache_alone() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams(logprobs=0).skip_reading_prefix_cache is None


def test_logit_bias_takes_strings_as_keys_and_clamps_values() -> None:
    params = SamplingParams(logit_bias={"5": 3, 6: -1e9, 7: 1000})
    assert params.logit_bias == {5: 3.0, 6: -100.0, 7: 100.0}


def test_min_tokens_without_max_tokens_has_no_upper_bound() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).min_tokens == 1000


# ---------------------------------------------------------------- copies


def test_the_callers_lists_are_copied() -> None:
    stop, ids, words = ["a"], [1], ["w"]
    params = SamplingParams(stop=stop, stop_token_ids=ids, allowed_token_ids=ids, bad_words=words)
    stop.append("b")
    ids.append(2)
    words.append("x")
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids, params.bad_words) == (["a"], [1], [1], ["w"])


def test_a_clone_is_equal_and_its_fields_its_own() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={3: 1}, seed=4)
    clone = params.clone()
    assert clone == params
    clone.temperature = 0.7
    clone.max_tokens = None
    assert (params.temperature, params.max_tokens) == (0.5, 16)
