"""Answers do not depend on how many tokens came at once: any cut of the outputs folds to the same answer.

Outputs are made up here, since a real engine cuts them as time has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.entrypoints.server.assembly.chat import ChatAssembler, ChatOptions, fold_chat
from fathom.entrypoints.server.assembly.common import Envelope
from fathom.entrypoints.server.assembly.completion import CompletionAssembler, CompletionOptions, fold_completion
from fathom.entrypoints.server.assembly.logprobs import TokenNames
from fathom.entrypoints.server.parsing import make_parser
from fathom.entrypoints.server.protocol.chat import ChatCompletion
from fathom.entrypoints.server.protocol.completion import Completion
from fathom.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from fathom.step import LogprobsArrays

ENVELOPE = Envelope("id", 1, "model", "print", include_usage=True)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALLS = CALL + CALL.replace('"a": 1', "")
TEXTS = [
    "",
    "Hello, world.",
    f"Let me see.\n{CALLS}",
    CALLS,
    "<tool_call> {",
    "<think>Hm, so.</think>The sea.",
    CALLS[:40],
]
NAMES = TokenNames(None, as_ids=True)


def positions(token_ids: Sequence[int]) -> PositionLogprobs:
    found = PositionLogprobs(None)
    for token_id in token_ids:
        logprobs = np.array([[-1.5, -0.5, -float("inf")]])
        found.append(LogprobsArrays.joined([(np.array([[token_id, 9, 8]]), logprobs, np.array([2]))]), 0)
    return found


def outputs(text: str, cuts: list[int], index: int = 0, reason: str = "stop") -> list[RequestOutput]:
    """The text as deltas, cut where `cuts` says; a token a character, and a last one without text."""
    bounds = [0, *sorted({min(cut, len(text)) for cut in cuts} - {0}), len(text) + 1]
    made = []
    for start, end in itertools.pairwise(bounds):
        ids = list(range(start, end))
        last = end > len(text)
        answer = CompletionOutput(
            index, text[start:end], ids, logprobs=positions(ids), finish_reason=reason if last else None
        )
        made.append(RequestOutput("r", None, [1, 2, 3], [answer], finished=last, num_cached_tokens=2))
    return made


class Letters:
    """Ids to text, as `outputs` numbers them: id i is the i-th character, and the last one shows nothing."""

    def __init__(self, text: str) -> None:
        self._text = text

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(self._text[token_id : token_id + 1] for token_id in token_ids)

    def finish(self) -> str:
        return ""


def chat(parts: list[RequestOutput], n: int = 1, prefix: str = "", prompt: str = "") -> ChatCompletion:
    parser = make_parser("hermes", "deepseek_r1", None, TOOLS, prompt=prompt)
    text = "".join(answer.text for part in parts for answer in part.outputs if answer.index == 0)
    options = ChatOptions(
        n=n,
        parser=parser,
        pieces=lambda: Letters(text),
        prefix=prefix,
        named=bool(prefix),
        names=NAMES,
        top_logprobs=1,
        token_ids=True,
    )
    assembler = ChatAssembler(ENVELOPE, options, 3)
    chunks = [chunk for part in parts for chunk in assembler.step(0, part)]
    return fold_chat([*chunks, *assembler.end()])


def completion(parts: list[RequestOutput], echo: bool) -> Completion:
    options = CompletionOptions(n=1, echo=echo, names=NAMES, top_logprobs=1, token_ids=True)
    assembler = CompletionAssembler(ENVELOPE, options, ["prompt"], [3])
    chunks = [chunk for part in parts for chunk in assembler.step(0, part)]
    return fold_completion([*chunks, *assembler.end()])


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 120)), st.sampled_from(["stop", "length"]))
@settings(max_examples=150, deadline=None)
def test_any_cut_gives_the_same_chat_answer(text: str, cuts: list[int], reason: str) -> None:
    assert chat(outputs(text, cuts, reason=reason)) == chat(outputs(text, [], reason=reason))


@given(st.text(max_size=30), st.lists(st.integers(0, 30)), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_cut_gives_the_same_completion(text: str, cuts: list[int], echo: bool) -> None:
    whole = completion(outputs(text, []), echo)
    assert completion(outputs(text, cuts), echo) == whole
    assert whole.choices[0].text == ("prompt" if echo else "") + text


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        (CALLS, "stop", "tool_calls"),
        (CALLS[:60], "length", "length"),
        (CALLS[:60], "stop", "tool_calls"),
        ("Hello", "stop", "stop"),
        ("Hello", "length", "length"),
        (CALLS, "abort", "abort"),
    ],
)
def test_the_reason_of_an_answer_with_calls(text: str, reason: str, expected: str) -> None:
    """C58."""
    assert chat(outputs(text, list(range(80)), reason=reason)).choices[0].finish_reason == expected


def test_a_call_that_the_prompt_has_begun_is_whole_and_ends_with_stop() -> None:
    prefix = '<tool_call>\n{"name": "f", "arguments":'
    rest = ' {"a": 1}}\n</tool_call>'
    for cuts in ([], list(range(30))):
        (choice,) = chat(outputs(rest, cuts), prefix=prefix).choices
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("f", '{"a": 1}')
        assert (choice.message.content, choice.finish_reason) == (None, "stop")


def test_calls_of_several_answers_have_ids_of_their_own() -> None:
    both = outputs(CALLS, [10, 50]) + outputs(CALLS, [30], index=1)
    answer = chat(both, n=2)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or ()]
    assert len(ids) == len(set(ids)) == 4


@pytest.mark.parametrize("cuts", [[], [1], list(range(80)), [9, 12, 20]], ids=["whole", "two", "single", "some"])
@pytest.mark.parametrize(
    ("text", "prompt", "count"),
    [
        ("<think>Hm, so.</think>The sea.", "", 7),
        (" \n<think>\nHm.\n</think>\n\nThe sea.", "", 5),
        ("Hm.</think>The sea.", "<think>\n", 3),
        ("<think>Hm.</think>The sea.", "<think>", 3),  # the tag twice
        ("<think>Hm", "", 3),  # cut off: all, the last one without text too
        ("Hm. </th", "<think>", 9),
        ("<thi", "<think>", 5),
        ("<thi", "", 0),
        ("The <think>sea</think>.", "", 0),
        ("</think>The sea.", "<think>", 0),
        ("", "<think>", 1),
        ("", "", 0),
    ],
)
def test_tokens_between_the_tags_are_reasoning(text: str, prompt: str, count: int, cuts: list[int]) -> None:
    usage = chat(outputs(text, cuts), prompt=prompt).usage
    assert usage.completion_tokens == len(text) + 1
    assert usage.completion_tokens_details.reasoning_tokens == count


def test_reasoning_of_several_answers_is_added_up() -> None:
    text = "<think>Hm</think>!"
    answer = chat(outputs(text, [3]) + outputs(text, [8, 9], index=1), n=2)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4


def test_usage_counts_the_prompt_once_and_minus_infinity_is_a_number() -> None:
    answer = chat(outputs("abc", [1]))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 4, 7)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    logprobs = completion(outputs("abc", []), echo=False).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs[1] == {"token_id:9": -0.5, "token_id:1": -1.5}
    wide = CompletionAssembler(ENVELOPE, CompletionOptions(n=1, names=NAMES, top_logprobs=-1), ["p"], [3])
    (chunk,) = wide.step(0, outputs("", [])[0])
    assert chunk.choices[0].logprobs is not None
    assert chunk.choices[0].logprobs.top_logprobs[0] == {"token_id:9": -0.5, "token_id:0": -1.5, "token_id:8": -9999.0}
