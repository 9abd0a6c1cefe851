"""Incremental detokenisation against the decode of the whole, and stop strings against a plain search."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.frontend.detokenizer import IncrementalDetokenizer, NoDetokenizer
from fathom.frontend.stop_strings import StopStringMatcher
from fathom.frontend.tokenizer import Tokenizer
from fathom.sampling_params import SamplingParams
from tests.frontend import tiny_tokenizers

TOKENIZERS = {
    "byte_level": tiny_tokenizers.byte_level(),
    "byte_fallback": tiny_tokenizers.byte_fallback(),
    "byte_fallback_strip": tiny_tokenizers.byte_fallback(strip=True),
    "metaspace": tiny_tokenizers.metaspace(),
    "windowed_bytes": tiny_tokenizers.windowed_bytes(),
    "windowed_fallback": tiny_tokenizers.windowed_fallback(),
}
CASES = ["삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ e\u0301", "A 世aéb", "  two  spaces\n\n", " x"]

kinds = st.sampled_from(sorted(TOKENIZERS))
snippets = st.one_of(st.sampled_from(CASES), st.text(alphabet="ab 世é👩\u200d\n", max_size=8))


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Tokenizer, list[int], list[list[int]]]:
    """A tokenizer, ids (of real text and at random, some outside the vocabulary), and a split of them."""
    tokenizer = TOKENIZERS[draw(kinds)]
    any_id = st.integers(0, tokenizer.vocab_size + 3)
    ids: list[int] = []
    for part in draw(st.lists(st.one_of(snippets, st.lists(any_id, max_size=6)), max_size=6)):
        ids += tokenizer.encode(part, add_special_tokens=False) if isinstance(part, str) else part
    return tokenizer, ids, draw(splits(ids))


def splits(ids: list[int]) -> st.SearchStrategy[list[list[int]]]:
    cuts = st.lists(st.integers(0, len(ids)), max_size=len(ids)).map(sorted)
    return cuts.map(lambda at: [ids[a:b] for a, b in zip([0, *at], [*at, len(ids)], strict=True)])


def run(
    tokenizer: Tokenizer, pieces: Sequence[list[int]], params: SamplingParams, prompt: Sequence[int] = ()
) -> tuple[list[str], str | None, IncrementalDetokenizer]:
    """Deltas, the stop string, and the detokenizer after the last update."""
    detokenizer = IncrementalDetokenizer.create(tokenizer, params, prompt)
    assert isinstance(detokenizer, IncrementalDetokenizer)
    deltas, stop = [], None
    for index, piece in enumerate(pieces):
        stop = detokenizer.update(piece, finished=index == len(pieces) - 1)
        deltas.append(detokenizer.take_delta())
        assert detokenizer.text == "".join(deltas)
        if stop is not None:
            break
    return deltas, stop, detokenizer


@settings(max_examples=600, deadline=None)
@given(outputs(), st.booleans())
def test_deltas_add_up_to_the_full_decode(output, skip_special_tokens):
    tokenizer, ids, pieces = output
    params = SamplingParams(max_tokens=None, skip_special_tokens=skip_special_tokens)
    deltas, stop, _ = run(tokenizer, pieces, params)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    assert stop is None


@settings(max_examples=300, deadline=None)
@given(outputs(), st.sampled_from(["The capital of", "x", " ", ""]))
def test_text_is_what_the_output_adds_to_the_prompt(output, prompt_text):
    tokenizer, ids, pieces = output
    prompt = tokenizer.encode(prompt_text)
    deltas, _, _ = run(tokenizer, pieces, SamplingParams(max_tokens=None), prompt)
    assert tokenizer.decode(prompt) + "".join(deltas) == tokenizer.decode(prompt + ids)


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_long_outputs_are_exact_too(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(" ".join([*CASES, *tiny_tokenizers.CORPUS] * 8), add_special_tokens=False)
    assert len(ids) > 1000
    deltas, _, _ = run(tokenizer, [[token_id] for token_id in ids], SamplingParams(max_tokens=None))
    assert "".join(deltas) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "windowed_bytes", "windowed_fallback"])
@pytest.mark.parametrize("text", CASES)
def test_no_broken_character_is_shown(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas, _, _ = run(tokenizer, [[token_id] for token_id in ids], SamplingParams(max_tokens=None))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_an_incomplete_character_is_shown_at_the_end_only():
    tokenizer = TOKENIZERS["byte_level"]
    first_byte = tokenizer.token_to_id("ð")
    detokenizer = IncrementalDetokenizer.create(tokenizer, SamplingParams(), [])
    detokenizer.update([first_byte])
    assert detokenizer.take_delta() == ""
    detokenizer.update([], finished=True)
    assert detokenizer.take_delta() == "\ufffd"


def test_an_invalid_byte_run_is_shown_as_the_library_shows_it():
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = [tokenizer.token_to_id(token) for token in ("<0xC3>", "<0xA9>", "<0xFF>", "a")]
    deltas, _, _ = run(tokenizer, [[token_id] for token_id in ids], SamplingParams())
    assert deltas == ["", "", "", "\ufffd\ufffd\ufffda"]


def test_the_first_space_of_a_completion_is_kept():
    tokenizer = TOKENIZERS["byte_fallback_strip"]
    ids = tokenizer.encode("The capital", add_special_tokens=False)
    prompt = tokenizer.encode("The")
    assert tokenizer.decode(ids) == "The capital"
    assert "".join(run(tokenizer, [ids], SamplingParams(), prompt)[0]) == " The capital"
    assert "".join(run(tokenizer, [ids], SamplingParams(), [tokenizer.bos_token_id])[0]) == "The capital"


def test_special_tokens():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("one<|im_start|>two<tool>é世</s>", add_special_tokens=False)
    shown, _, _ = run(tokenizer, [ids], SamplingParams(skip_special_tokens=False))
    hidden, _, _ = run(tokenizer, [ids], SamplingParams())
    assert "".join(shown) == "one<|im_start|>two<tool>é世</s>"
    assert "".join(hidden) == "onetwo<tool>é世"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", [None, ["xyz"]])
def test_the_stop_token_that_ended_the_answer(include, stop):
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("one two", add_special_tokens=False)
    params = SamplingParams(include_stop_str_in_output=include, stop=stop)
    detokenizer = IncrementalDetokenizer.create(tokenizer, params, [])
    assert detokenizer.update(ids, stop_terminated=True) is None
    assert detokenizer.text == tokenizer.decode(ids if include else ids[:-1])
    assert detokenizer.num_tokens == len(ids)


def test_detokenize_off():
    params = SamplingParams(detokenize=False)
    detokenizer = IncrementalDetokenizer.create(TOKENIZERS["byte_level"], params, [])
    assert isinstance(detokenizer, NoDetokenizer)
    assert detokenizer.update([1, 2, 3], finished=True) is None
    assert (detokenizer.text, detokenizer.take_delta(), detokenizer.num_tokens) == ("", "", 3)


# --- stop strings ---


def first_match(text: str, stops: Sequence[str], first_end: int = 1) -> tuple[int, str] | None:
    """By plain search: (end, stop string) of the match that ends first; of two with one end, the longer."""
    for end in range(first_end, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return end, max(matches, key=len)
    return None


@settings(max_examples=500, deadline=None)
@given(
    outputs(),
    st.lists(st.text(alphabet="ab 世é\n", min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
)
def test_stop_strings_against_a_plain_search(output, stops, include):
    tokenizer, ids, pieces = output
    params = SamplingParams(max_tokens=None, stop=stops, include_stop_str_in_output=include)
    deltas, found, detokenizer = run(tokenizer, pieces, params)
    text = tokenizer.decode(ids)
    expected = first_match(text, stops)
    if expected is None:
        assert (found, "".join(deltas), detokenizer.num_tokens) == (None, text, len(ids))
        return
    end, stop = expected
    assert found == stop
    assert "".join(deltas) == text[: end if include else end - len(stop)]
    again = run(tokenizer, [[token_id] for token_id in ids], params)
    assert again[2].num_tokens == detokenizer.num_tokens


stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5)


@settings(max_examples=500, deadline=None)
@given(st.text("ab", max_size=30), stop_lists, st.integers(0, 30))
def test_matcher_against_a_plain_search(text, stops, let_pass):
    matcher = StopStringMatcher(stops)
    beginnings = {stop[:size] for stop in stops for size in range(len(stop))}
    expected = first_match(text, stops, let_pass + 1)
    for end, char in enumerate(text, start=1):
        match = matcher.advance(char, report=end > let_pass)
        if match is not None:
            assert expected == (end, match[0])
            return
        read = text[:end]
        assert matcher.num_pending == max(len(start) for start in beginnings if read.endswith(start))
    assert expected is None


def stop_run(text: str, **options: object) -> tuple[list[str], str | None, IncrementalDetokenizer]:
    tokenizer = TOKENIZERS["byte_level"]
    ids = [tokenizer.token_to_id(char.replace(" ", "Ġ")) for char in text]
    return run(tokenizer, [[token_id] for token_id in ids], SamplingParams(max_tokens=None, **options))


def test_no_part_of_a_stop_string_is_shown_before_it_matches():
    deltas, stop, _ = stop_run("A B C DEFGHIJ K", stop=["DEFGHIJ"])
    assert (deltas, stop) == ([*"A B C ", "", "", "", "", "", "", ""], "DEFGHIJ")


def test_held_back_text_is_released_when_it_cannot_match_any_more():
    deltas, stop, _ = stop_run("xDEFyDEF", stop=["DEFGHIJ"])
    assert (deltas, stop) == (["x", "", "", "", "DEFy", "", "", "DEF"], None)


@pytest.mark.parametrize(("include", "text"), [(False, "Hello "), (True, "Hello wor")])
def test_a_stop_string_ends_inside_a_token(include, text):
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("Hello world", add_special_tokens=False)
    params = SamplingParams(stop="wor", include_stop_str_in_output=include)
    deltas, stop, detokenizer = run(tokenizer, [ids], params)
    assert ("".join(deltas), stop) == (text, "wor")
    assert tokenizer.decode(ids[: detokenizer.num_tokens]).startswith("Hello wor")


def test_of_several_stop_strings_the_first_to_be_complete_wins():
    deltas, stop, detokenizer = stop_run("one two three", stop=["three", "two", "two three"])
    assert ("".join(deltas), stop, detokenizer.num_tokens) == ("one ", "two", len("one two"))
    assert stop_run("xabc", stop=["c", "bc", "abcd"])[1] == "bc"


def test_min_tokens_lets_earlier_matches_pass():
    deltas, stop, detokenizer = stop_run("abXabXab", stop=["ab"], min_tokens=4)
    assert ("".join(deltas), stop, detokenizer.num_tokens) == ("abX", "ab", 5)
    assert stop_run("abXab", stop=["ab"], min_tokens=5)[0][-1] == "ab"


def test_a_stop_string_in_text_that_was_held_to_the_end():
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = [tokenizer.token_to_id(token) for token in ("a", "<0xC3>", "<0xA9>")]
    deltas, stop, _ = run(tokenizer, [[token_id] for token_id in ids], SamplingParams(stop="é"))
    assert (deltas, stop) == (["a", "", ""], "é")
