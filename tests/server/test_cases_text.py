"""Known cases of text: characters of several tokens, stop strings, special tokens, and where tokens begin.

The model is made to say the text (see forced.py). tests/cases.md lists all cases with their tests.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.server.forced import ids_of, says
from tests.server.processes import Server
from tests.server.test_differential import joined, streamed

EMOJI = "삼겹살 ď 👩‍👩‍👧‍👦 🇨🇭 日本語 ﷽ e\u0301"
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}


def pieces(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    """The text of each chunk of a stream."""
    chunks = streamed(server, path, body)[:-1]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices]


def whole(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The choice of an answer in one piece, its text under "text"."""
    answer = server.post(path, **body).json()
    (choice,) = answer["choices"]
    return {"text": choice.get("text", choice.get("message", {}).get("content")), "usage": answer["usage"], **choice}


def random_texts() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices("世界日本語aéb 👩🇨ďxy \n", k=20)) for _ in range(3)]


@pytest.mark.parametrize("path", PATHS)
def test_c01_c02_no_character_is_cut_or_sent_twice(smollm2: Server, path: str) -> None:
    for text in (EMOJI, "A 世aéb", *random_texts()):
        body = PATHS[path] | says(smollm2, text)
        parts = pieces(smollm2, path, body)
        assert "".join(parts) == whole(smollm2, path, body)["text"] == text
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("skip", [True, False])
def test_c04_special_tokens_show_only_if_asked_for_and_always_count(smollm2: Server, skip: bool) -> None:
    said = [*ids_of(smollm2, "Hello"), *ids_of(smollm2, "<|im_start|>"), *ids_of(smollm2, "there")]
    assert len(said) == 3
    for path, own in PATHS.items():
        body = own | says(smollm2, said, skip_special_tokens=skip)
        answer = whole(smollm2, path, body)
        assert answer["text"] == ("Hellothere" if skip else "Hello<|im_start|>there")
        assert "".join(pieces(smollm2, path, body)) == answer["text"]
        assert answer["usage"]["completion_tokens"] == 3


STOPS: list[tuple[str, list[str], str, str]] = [
    ("A B C DEFGHIJ K", ["DEFGHIJ"], "A B C ", "DEFGHIJ"),  # C07
    ("Hello world!", ["wor"], "Hello ", "wor"),  # C08: inside a token
    ("Hello world!", ["lo wo"], "Hel", "lo wo"),
    ("one two three", ["three", "two", "two three"], "one ", "two"),  # C10
    ("aaab 日本語!", ["ab 日本"], "aa", "ab 日本"),
]


@pytest.mark.parametrize(("said", "stop", "expected", "reason"), STOPS, ids=[said for said, *_ in STOPS])
@pytest.mark.parametrize("path", PATHS)
def test_c07_c08_c10_stop_strings(
    smollm2: Server, path: str, said: str, stop: list[str], expected: str, reason: str
) -> None:
    for included in (False, True):
        body = PATHS[path] | says(smollm2, said, stop=stop, include_stop_str_in_output=included)
        answer = whole(smollm2, path, body)
        assert answer["text"] == expected + (reason if included else "")
        assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", reason)
        so_far = list(itertools.accumulate(pieces(smollm2, path, body)))
        assert so_far[-1] == answer["text"]
        assert all(answer["text"].startswith(text) for text in so_far)


def test_c07_what_was_held_back_comes_when_it_cannot_be_a_stop_string(smollm2: Server) -> None:
    body = PATHS["/v1/completions"] | says(smollm2, "A B C DEF", stop=["DEFGHIJ"])
    assert "".join(pieces(smollm2, "/v1/completions", body)) == "A B C DEF"
    assert whole(smollm2, "/v1/completions", body)["finish_reason"] == "length"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_c11_a_stop_string_in_a_call_loses_no_content(guarded: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    body |= says(guarded, f"Hello {CALL}", stop=['{"name'])
    answer = whole(guarded, "/v1/chat/completions", body)
    assert answer["text"].startswith("Hello ")
    assert (answer["finish_reason"], answer["message"]["tool_calls"]) == ("stop", None)
    assert "".join(pieces(guarded, "/v1/chat/completions", body)) == answer["text"]


def test_c11_a_call_that_a_stop_string_cuts_off_is_not_one_to_run(guarded: Server) -> None:
    for stop, reason in (("1}", "stop"), ("</tool_call>", "tool_calls"), (" tail", "tool_calls")):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
        body |= says(guarded, f"{CALL} tail", stop=stop)
        answer = whole(guarded, "/v1/chat/completions", body)
        assert (answer["finish_reason"], answer["stop_reason"]) == (reason, stop)
        (parts,) = joined(streamed(guarded, "/v1/chat/completions", body)[:-1], "content").values()
        assert parts["finish_reason"] == reason


def test_c58_an_answer_cut_anywhere_in_a_call_has_the_same_reason_streamed_or_not(guarded: Server) -> None:
    ids = ids_of(guarded, CALL)
    for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
        for length in range(1, len(ids) + 1, 5):
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
            body |= {"tool_choice": choice} | says(guarded, ids, max_tokens=length)
            answer = whole(guarded, "/v1/chat/completions", body)
            assert answer["finish_reason"] == "length"
            (parts,) = joined(streamed(guarded, "/v1/chat/completions", body)[:-1], "content").values()
            assert parts["finish_reason"] == "length"
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    body |= says(guarded, [*ids, 1], ignore_eos=False)  # 1: its end-of-sequence token
    complete = whole(guarded, "/v1/chat/completions", body)
    assert complete["finish_reason"] == "tool_calls"
    assert complete["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_c31_c32_offsets_are_places_in_the_text(smollm2: Server, echo: bool, as_ids: bool) -> None:
    """Also of parts of characters, of special tokens that the text leaves out, and of tokens written as ids."""
    said = [*ids_of(smollm2, "日本 👩"), *ids_of(smollm2, "<|im_start|>"), *ids_of(smollm2, " é end")]
    prompt = "The 猫 sat"
    body = {"prompt": prompt, "echo": echo, "logprobs": 1, "return_tokens_as_token_ids": as_ids}
    body |= says(smollm2, said)
    choice = whole(smollm2, "/v1/completions", body)
    text, logprobs = choice["text"], choice["logprobs"]
    assert text == (prompt if echo else "") + "日本 👩 é end"
    tokens = [*ids_of(smollm2, prompt), *said] if echo else said
    spelled = [smollm2.post("/detokenize", tokens=[token]).json()["prompt"] for token in tokens]
    assert logprobs["tokens"] == ([f"token_id:{token}" for token in tokens] if as_ids else spelled)
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset in zip(spelled, offsets, strict=True):
        assert "\ufffd" in token or token == "<|im_start|>" or text.startswith(token, offset), (token, offset)
    chunks = streamed(smollm2, "/v1/completions", body)[:-1]
    assert joined(chunks, "text")[0]["logprobs"]["text_offset"] == offsets
