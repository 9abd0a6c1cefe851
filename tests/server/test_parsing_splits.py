"""However an output is cut into pieces, its parse is the same: property tests over made and recorded outputs."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.entrypoints.server.parsed import Parsed
from fathom.entrypoints.server.parsing import OutputParser, make_parser
from fathom.entrypoints.server.reasoning import REASONING_TAGS
from fathom.entrypoints.server.tools import TOOL_DIALECTS
from tests.server.test_parsing import NO_CALLS, OUTPUTS, TOOLS

DIALECTS = sorted(TOOL_DIALECTS)
TAGS = sorted(REASONING_TAGS)
MARKUP = sorted({word for dialect in TOOL_DIALECTS.values() for word in dialect.markup})
TAG_MARKUP = sorted({word for tags in REASONING_TAGS.values() for word in tags.markup})
RECORDED = [text for _, text, *_ in (*OUTPUTS, *NO_CALLS) if len(text) < 1000]
SCRAPS = [
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "', '"arguments": ', '"parameters": {', '"b": "x', "\\", '\\"',
    "\\u00", "{", "}", "[", "]", "(", ")", ",", ":", '"', "'", "f", "now", "now()", "f(a=1)", "call:f", "<parameter=b>",
    "</parameter>", "<function=f>", "</function>", " ", "\n", "true", "-1.5", "é", "😀", "word", "print(", "json",
    "```", "<", "f(b='", "functions.now:0", "\x00",
]  # fmt: skip

soups = st.lists(st.sampled_from(SCRAPS + MARKUP + TAG_MARKUP) | st.text(max_size=3), max_size=25).map("".join)
texts = st.sampled_from(RECORDED) | soups | st.tuples(st.sampled_from(RECORDED), soups).map("".join)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def grows_to(before: Parsed, after: Parsed) -> bool:
    return (
        after.reasoning.startswith(before.reasoning)
        and after.content.startswith(before.content)
        and len(after.tool_calls) >= len(before.tool_calls)
        and all(
            late.name == early.name and late.arguments.startswith(early.arguments)
            for early, late in zip(before.tool_calls, after.tool_calls, strict=False)
        )
    )


def check_split(parser: OutputParser, text: str, cuts: list[int]) -> None:
    stream, folded, so_far = parser.stream(), Parsed(), ""
    for piece in pieces_of(text, cuts):
        before, so_far = folded, so_far + piece
        delta = stream.feed(piece)
        folded = before.plus(delta)
        assert folded == parser.parse(so_far, finished=False)
        assert grows_to(before, folded)
    final = folded.plus(stream.feed("", finished=True))
    assert final == parser.parse(text, finished=True)
    assert grows_to(folded, final)


@settings(max_examples=600, deadline=None)
@given(
    dialect=st.sampled_from(DIALECTS),
    tags=st.sampled_from([None, *TAGS]),
    inside=st.booleans(),
    parallel=st.booleans(),
    text=texts,
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_any_split_gives_the_same(dialect, tags, inside, parallel, text, cuts):
    prompt = next(iter(REASONING_TAGS[tags].starts)) if tags and inside else ""
    parser = make_parser(dialect, tags or "none", None, TOOLS, parallel_tool_calls=parallel, prompt=prompt)
    check_split(parser, text, cuts)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_recorded_outputs_one_character_at_a_time(dialect):
    parser = make_parser(dialect, "qwen3", None, TOOLS)
    for text in [text for name, text, *_ in (*OUTPUTS, *NO_CALLS) if name == dialect and len(text) < 1000]:
        for whole in (text, f"<think>\nI should…\n</think>\n\n{text}"):
            check_split(parser, whole, list(range(len(whole))))


@settings(max_examples=300, deadline=None)
@given(dialect=st.sampled_from(DIALECTS), text=texts)
def test_nothing_is_lost(dialect, text):
    parsed = make_parser(dialect, "none", None, TOOLS).parse(text, True)
    if not parsed.tool_calls:
        assert parsed.content == text
    assert {call.name for call in parsed.tool_calls} <= {tool["function"]["name"] for tool in TOOLS}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    arguments=st.dictionaries(st.text(), json_values, max_size=4),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_json_arguments_arrive_to_the_letter(arguments, indent, ascii_only, cuts):
    text = json.dumps(arguments, indent=indent, ensure_ascii=ascii_only)
    for dialect, output in (
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>'),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{text}"),
        (
            "deepseek_v3",
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{text}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ):
        parser = make_parser(dialect, None, None, TOOLS)
        (call,) = parser.parse(output, True).tool_calls
        assert call.arguments == text
        check_split(parser, output, cuts)


@settings(max_examples=200, deadline=None)
@given(b=st.text(), a=json_values)
def test_python_literals_arrive_as_json(a, b):
    (call,) = make_parser("pythonic", None, None, TOOLS).parse(f"[f(a={a!r}, b={b!r})]", True).tool_calls
    assert json.loads(call.arguments) == {"a": a, "b": b}


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"b": "' + "word " * 20_000 + '"}}</tool_call>'),
        ("hermes", "word " * 20_000),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"b": "a "' + "}" * 50_000),
        ("qwen3_coder", "<function=f><parameter=b>" + "word " * 20_000 + "</parameter></function>"),
        ("pythonic", "[f(b='" + "word " * 20_000 + "')]"),
        ("hermes", '{"arguments": {"b": "' + "word " * 20_000 + '"}, "name": "f"}'),
        ("hermes", "<tool_call>{" * 8_000),
    ],
)
def test_long_outputs(dialect, text):
    """100 kB, four characters at a time: linear work, so seconds are out of reach of anything but a square."""
    stream = make_parser(dialect, None, None, TOOLS).stream()
    folded: list[str] = []
    for start in range(0, len(text), 4):
        folded += [call.arguments for call in stream.feed(text[start : start + 4]).tool_calls]
    folded += [call.arguments for call in stream.feed("", finished=True).tool_calls]
    whole = make_parser(dialect, None, None, TOOLS).parse(text, True)
    assert "".join(folded) == "".join(call.arguments for call in whole.tool_calls)
