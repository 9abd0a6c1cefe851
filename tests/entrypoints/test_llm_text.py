"""The text of answers: stop strings and stop ids, special tokens, streamed pieces. The tokens are forced, so that
nothing depends on what the model would say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from fathom import LLM, RequestOutputKind, SamplingParams

BOS, EOS = 0, 1
_numbers = count()


def ids(llm: LLM, text: str) -> list[int]:
    return llm.get_tokenizer().encode(text)


def stream(llm: LLM, force: list[int], kind: RequestOutputKind, **params: Any) -> Iterator[Any]:
    """The outputs of one request, one by one, through the engine's own loop."""
    engine = llm.llm_engine
    given = SamplingParams(
        temperature=0.0, max_tokens=len(force), output_kind=kind, extra_args={"force": force}, **params
    )
    engine.add_request(f"stream-{next(_numbers)}", [5, 6], given)
    while engine.has_unfinished_requests():
        for output in engine.step():
            yield output.outputs[0]


# ---------------------------------------------------------------- stop strings (C07, C08, C10)


@pytest.mark.parametrize(
    ("text", "stop", "kept", "fired"),
    [
        ("A B C DEFGHIJ K", ["DEFGHIJ"], "A B C ", "DEFGHIJ"),
        ("one two three", ["three", "two", "two three"], "one ", "two"),
        ("one two three", "two three", "one ", "two three"),
        ("one two three", ["zzz", "yy"], "one two three", None),
        ("one two three", [], "one two three", None),
        ("say world!", ["wor"], "say ", "wor"),
        ("say world!", ["ld"], "say wor", "ld"),
        ("say world!", ["ay w"], "s", "ay w"),
        ("aaaab", ["aab"], "aa", "aab"),
        ("日本語🙂x", ["語🙂"], "日本", "語🙂"),
        ("with", ["with"], "", "with"),
        ("abcd", ["bc", "abcd"], "a", "bc"),
    ],
    ids=str,
)
def test_text_ends_before_the_first_stop_string(
    llm: LLM, answer: Callable[..., Any], text: str, stop: Any, kept: str, fired: str | None
) -> None:
    force = ids(llm, text)
    found = answer([[5, 6]], force=force, stop=stop, max_tokens=len(force))
    assert found.text == kept
    assert found.stop_reason == fired
    assert found.finish_reason == ("stop" if fired else "length")
    used = found.token_ids
    assert used == force[: len(used)]
    decode = llm.get_tokenizer().decode
    if fired:  # the token that completed the stop string is the last one, and it counts
        assert fired in decode(used)
        assert fired not in decode(used[:-1])
    with_stop = answer([[5, 6]], force=force, stop=stop, max_tokens=len(force), include_stop_str_in_output=True)
    assert with_stop.text == kept + (fired or "")
    assert with_stop.token_ids == used


@pytest.mark.parametrize("text", ["A B C DEFGHIJ K", "one DEFG", "DEF DEFGHIJ", "日本語DEFGHIJ", "DEFGHI"])
@pytest.mark.parametrize("include", [False, True])
def test_no_part_of_a_stop_string_is_streamed_before_it_is_certain(llm: LLM, text: str, include: bool) -> None:
    options: dict[str, Any] = {"stop": ["DEFGHIJ"], "include_stop_str_in_output": include, "ignore_eos": True}
    whole = list(stream(llm, ids(llm, text), RequestOutputKind.FINAL_ONLY, **options))
    assert len(whole) == 1
    deltas = list(stream(llm, ids(llm, text), RequestOutputKind.DELTA, **options))
    assert "".join(delta.text for delta in deltas) == whole[0].text
    assert [token for delta in deltas for token in delta.token_ids] == whole[0].token_ids
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (whole[0].finish_reason, whole[0].stop_reason)
    before, _, _ = text.partition("DEFGHIJ")
    assert whole[0].text == (before + "DEFGHIJ" * include if "DEFGHIJ" in text else text)
    shown = ""
    for cumulative in stream(llm, ids(llm, text), RequestOutputKind.CUMULATIVE, **options):
        assert cumulative.text.startswith(shown)
        shown = cumulative.text
        assert cumulative.finish_reason is not None or not shown.endswith("D")
    assert shown == whole[0].text


def test_held_back_text_comes_at_the_end_of_sequence(llm: LLM) -> None:
    deltas = list(stream(llm, [*ids(llm, "one DEF"), EOS], RequestOutputKind.DELTA, stop=["DEFGHIJ"]))
    assert "".join(delta.text for delta in deltas) == "one DEF"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


def test_min_tokens_holds_stop_strings_off(llm: LLM, answer: Callable[..., Any]) -> None:
    force = ids(llm, "xyxyxyxy")
    assert len(force) >= 4
    found = answer([[5]], force=force, stop="y", min_tokens=3, max_tokens=len(force))
    assert len(found.token_ids) > 3
    assert "y" in found.text  # one that was complete too early stays


def test_the_neighbours_of_a_stopped_request_go_on(llm: LLM) -> None:
    force = ids(llm, "one two three")
    params = [
        SamplingParams(temperature=0.0, max_tokens=40, stop=stop, extra_args={"force": force}, ignore_eos=True)
        for stop in ("two", None, "three", None)
    ]
    stopped, long, later, other = (
        output.outputs[0] for output in llm.generate([[5], [6], [7], [6]], params, use_tqdm=False)
    )
    assert (stopped.text, later.text) == ("one ", "one two ")
    assert len(long.token_ids) == 40
    assert long.token_ids == other.token_ids


def test_the_engine_drops_a_request_that_a_stop_string_ended(llm: LLM, answer: Callable[..., Any]) -> None:
    found = answer([[5]], force=ids(llm, "one two three"), stop="two", max_tokens=100, ignore_eos=True)
    assert found.text == "one "
    assert llm.get_stats()["num_running"] == 0


# ---------------------------------------------------------------- stop ids and end of sequence


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_id_ends_the_answer_and_only_its_id_is_shown(
    llm: LLM, answer: Callable[..., Any], include: bool
) -> None:
    force = ids(llm, "one two three")
    found = answer([[5]], force=force, stop_token_ids=[force[2]], include_stop_str_in_output=include)
    assert found.token_ids == force[:3]
    assert found.text == llm.get_tokenizer().decode(force[: 3 if include else 2])
    assert (found.finish_reason, found.stop_reason) == ("stop", force[2])


def test_end_of_sequence(llm: LLM, answer: Callable[..., Any]) -> None:
    force = [*ids(llm, "one"), EOS, *ids(llm, "two")]
    found = answer([[5]], force=force)
    assert (found.text, found.token_ids[-1]) == ("one", EOS)
    assert (found.finish_reason, found.stop_reason) == ("stop", None)
    ignored = answer([[5]], force=force, ignore_eos=True, max_tokens=len(force))
    assert (ignored.text, ignored.finish_reason) == ("onetwo", "length")
    assert ignored.token_ids == force


def test_an_ignored_end_of_sequence_can_still_be_a_stop_id(answer: Callable[..., Any]) -> None:
    found = answer([[5]], force=[9, EOS, 9], ignore_eos=True, stop_token_ids=[EOS])
    assert (found.token_ids, found.stop_reason) == ([9, EOS], EOS)


def test_the_last_token_allowed_may_be_the_end(answer: Callable[..., Any]) -> None:
    found = answer([[5]], force=[9, EOS], max_tokens=2)
    assert (found.token_ids, found.finish_reason) == ([9, EOS], "stop")


# ---------------------------------------------------------------- special tokens and no text (C04)


def test_special_tokens_are_left_out_unless_asked_for(llm: LLM, answer: Callable[..., Any]) -> None:
    force = [*ids(llm, "one"), BOS, *ids(llm, " two"), BOS, BOS]
    options: dict[str, Any] = {"force": force, "max_tokens": len(force)}
    assert answer([[5]], **options).text == "one two"
    shown = answer([[5]], skip_special_tokens=False, **options)
    assert shown.text == "one<s> two<s><s>" == llm.get_tokenizer().decode(force, skip_special_tokens=False)
    assert shown.token_ids == force
    apart = answer([[5]], skip_special_tokens=False, spaces_between_special_tokens=False, **options)
    assert apart.text == shown.text
    for skip in (True, False):
        deltas = stream(llm, force, RequestOutputKind.DELTA, skip_special_tokens=skip)
        assert "".join(delta.text for delta in deltas) == answer([[5]], skip_special_tokens=skip, **options).text


def test_without_detokenize_there_is_no_text(llm: LLM, answer: Callable[..., Any]) -> None:
    force = ids(llm, "one two")
    found = answer([[5]], force=force, max_tokens=len(force), detokenize=False)
    assert (found.text, found.token_ids) == ("", force)
    stopped = answer([[5]], force=force, detokenize=False, stop_token_ids=[force[1]])
    assert (stopped.token_ids, stopped.stop_reason) == (force[:2], force[1])


@pytest.mark.parametrize("text", ["삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ e\u0301", "A 世aéb"])
def test_characters_of_several_tokens_stream_whole(llm: LLM, text: str) -> None:
    force = ids(llm, text)
    deltas = [delta.text for delta in stream(llm, force, RequestOutputKind.DELTA)]
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)
    assert [output.text for output in stream(llm, force, RequestOutputKind.FINAL_ONLY)] == [text]


def test_an_incomplete_character_at_the_end_is_shown_as_broken_once(llm: LLM, answer: Callable[..., Any]) -> None:
    force = ids(llm, "日")[:-1]
    assert answer([[5]], force=force, max_tokens=len(force)).text == llm.get_tokenizer().decode(force)
