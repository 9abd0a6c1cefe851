"""Tool calls, dialect by dialect: what a whole output says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fathom.entrypoints.server.parsed import ContentDelta, Parsed, ReasoningDelta, ToolCall, ToolCallDelta
from fathom.entrypoints.server.parsing import make_parser
from fathom.entrypoints.server.tools import TOOL_DIALECTS
from fathom.errors import ConfigError


def tool(name: str, **types: Any) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "…", "parameters": parameters}}


TOOLS = [
    tool("f", a="number", b="string"),
    tool("get_weather", city="string", days="integer"),
    tool("get_weather_at", place={"type": "object"}),
    tool("write", path="string", content="string", lines=["integer", "null"], tags="array", on="boolean"),
    tool("now"),
]


def parse(dialect: str, text: str, *, finished: bool = True, **options: Any) -> Parsed:
    return make_parser(dialect, "none", None, TOOLS, **options).parse(text, finished)


def says(content: str, *calls: tuple[str, str]) -> Parsed:
    return Parsed("", content, tuple(ToolCall(*call) for call in calls))


HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "x"}}\n</tool_call>'
F = ("f", '{"a": 1, "b": "x"}')
WEATHER = ("get_weather", '{"city": "Paris", "days": 3}')

OUTPUTS = [
    # --- JSON with markup ---
    ("hermes", HERMES_CALL, says("", F)),
    ("hermes", f"Let me see.\n{HERMES_CALL}", says("Let me see.", F)),
    ("hermes", f" A \n{HERMES_CALL}\n{HERMES_CALL}\n B ", says(" A \n\n\n B", F, F)),
    ("hermes", f"{HERMES_CALL}\n\nDone.", says("Done.", F)),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', says("", ("f", '{"a": 1}'))),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', says("", ("now", "{}"))),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', says("", ("now", "{}"))),
    ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', says("", ("now", "{}"))),
    (
        "hermes",
        '<tool_call>{"id": [1, {"x": 2}], "name": "now", "arguments": {}, "why": "…"}</tool_call>',
        says("", ("now", "{}")),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', says("", ("f", '{"a": 1}'))),
    ("hermes", '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', says("", ("f", '{"a": 1}'))),
    # what models leave out, or write too often
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', says("", ("f", '{"a": 1}'))),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', says("", ("f", '{"a": 1}'))),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', says("", ("f", '{"a": 1}'))),
    ("hermes", '<tool_call>{"name": "now"}\n{"name": "now"}\n</tool_call>', says("", ("now", "{}"), ("now", "{}"))),
    ("hermes", '<tool_call>[{"name": "now"}, {"name": "now"}]</tool_call>!', says("!", ("now", "{}"), ("now", "{}"))),
    ("hermes", '<tool_call>{"name": "now"}<tool_call>{"name": "now"}', says("", ("now", "{}"), ("now", "{}"))),
    # what a 0.5B Qwen2.5-Coder writes, recorded
    ("hermes", '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}', says("", WEATHER)),
    (
        "hermes",
        '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}\n```',
        says("", ("get_weather", '{\n    "city": "Paris"\n  }')),
    ),
    (
        "hermes",
        '```json\n{"name": "hello", "arguments": {"list": ["hello", "world"]}}\n```',
        says('```json\n{"name": "hello", "arguments": {"list": ["hello", "world"]}}\n```'),
    ),
    ("hermes", '<tools>\n{"name": "now", "arguments": {}}\n</tools>', says("", ("now", "{}"))),
    # --- Llama ---
    ("llama3_json", '{"name": "f", "parameters": {"a": 1, "b": "x"}}', says("", F)),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1, "b": "x"}}', says("", F)),
    ("llama3_json", '{"type": "function", "function": "f", "parameters": {"a": 1, "b": "x"}}', says("", F)),
    (
        "llama3_json",
        '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
        says("", ("now", "{}"), ("now", "{}")),
    ),
    (
        "llama3_json",
        '[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]',
        says("", ("now", "{}"), ("now", "{}")),
    ),
    ("llama3_json", 'Sure: {"name": "now", "parameters": {}}', says("Sure:", ("now", "{}"))),
    ("llama4_json", '<|python_tag|>{"name": "now", "parameters": {}}', says("", ("now", "{}"))),
    # --- Mistral ---
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "now", "arguments": {}}]',
        says("", F, ("now", "{}")),
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abc123def"}]', says("", ("now", "{}"))),
    ("mistral", '[TOOL_CALLS]{"name": "now", "arguments": {}}', says("", ("now", "{}"))),
    (
        "mistral",
        'Hm.[TOOL_CALLS]f[ARGS]{"a": 1, "b": "x"}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}',
        says("Hm.", F, ("now", "{}")),
    ),
    ("mistral", '[TOOL_CALLS]f{"a": 1, "b": "x"}', says("", F)),
    # --- Granite ---
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "b": "x"}}]', says("", F)),
    ("granite", '<tool_call>[{"name": "f", "arguments": {"a": 1, "b": "x"}}]', says("", F)),
    # --- DeepSeek ---
    (
        "deepseek_v3",
        "Hm. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1, "b": "x"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        says("Hm.", F, ("now", "{}")),
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1, "b": "x"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        says("", F, ("now", "{}")),
    ),
    # --- Python ---
    ("pythonic", '[f(a=1, b="x"), now()]', says("", F, ("now", "{}"))),
    ("pythonic", "See [1] and [f(a=1, b='x')] there", says("See [1] and  there", F)),
    ("pythonic", "[f(1, b='x')]", says("", F)),
    ("llama4_pythonic", '<|python_start|>[f(a=1, b="x")]<|python_end|>', says("", F)),
    ("olmo3", '<function_calls>\nf(a=1, b="x")\nnow()\n</function_calls>', says("", F, ("now", "{}"))),
    # --- Qwen3-Coder ---
    (
        "qwen3_coder",
        "Right.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        says("Right.", WEATHER),
    ),
    ("qwen3_coder", "<function=now>\n</function>\n</tool_call>", says("", ("now", "{}"))),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n"
        "</function>\n</seed:tool_call>",
        says("", WEATHER),
    ),
    # --- GLM, Kimi, and lists behind a word ---
    (
        "glm45",
        "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        says("", WEATHER, ("now", "{}")),
    ),
    (
        "kimi_k2",
        "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1, "b": "x"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        says("Hm.", F, ("now", "{}")),
    ),
    ("jamba", '<tool_calls>[\n{"name": "f", "arguments": {"a": 1, "b": "x"}}\n]</tool_calls>', says("", F)),
    ("phi4_mini_json", 'functools[{"name": "f", "arguments": {"a": 1, "b": "x"}}]', says("", F)),
    ("phi4_mini_json", '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "b": "x"}}]<|/tool_call|>', says("", F)),
    # --- Gemma ---
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        says("", WEATHER, ("now", "{}")),
    ),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>', says("", WEATHER)),
    ("gemma3", '```tool_code\nget_weather(city="Paris", days=3)\n```', says("", WEATHER)),
    ("gemma3", '```tool_code\nprint(get_weather("Paris", 3))\nnow()\n```', says("", WEATHER, ("now", "{}"))),
    ("gemma3", '```tool_code\n{"name": "f", "parameters": {"a": 1, "b": "x"}}\n```', says("", F)),
    ("gemma3", '```json\n[{"name": "f", "parameters": {"a": 1, "b": "x"}}]\n```', says("", F)),
    ("gemma3", '[get_weather(city="Paris", days=3)]', says("", WEATHER)),
]


@pytest.mark.parametrize(("dialect", "text", "expected"), OUTPUTS)
def test_outputs(dialect, text, expected):
    assert parse(dialect, text) == expected
    for call in expected.tool_calls:
        json.loads(call.arguments)


NO_CALLS = [
    ("hermes", ""),
    ("hermes", " \n "),
    ("hermes", "Hello \n"),
    ("hermes", "<tool_call>"),
    ("hermes", "a <tool_ca"),
    ("hermes", "<tool_call>not json</tool_call> "),
    ("hermes", '<tool_call>{"name": f}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "Paris"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f"'),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": "<tool_call>"}, "name": "unknown"}</tool_call>'),
    ("hermes", '{"name": "Alice", "age": 3}'),
    ("hermes", '{"name": "now"}'),
    ("hermes", '{"users": [{"name": "f"}]}'),
    ("hermes", "```json\n[1, 2]\n```\n"),
    ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
    ("mistral", "[TOOL_CALLS]get_weather_now[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]f no arguments"),
    ("mistral", "[TOOL_CALLS]f" + "x" * 200),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n{}\n```"),
    ("pythonic", "[f(a=1"),
    ("pythonic", "[f(a=x)]"),
    ("pythonic", "[f(__import__('os').system('x'))]"),
    ("pythonic", "[f(**{'a': 1})]"),
    ("pythonic", "[f(a=1e999)]"),
    ("pythonic", "[f(a=1, a=2, 3)]"),
    ("pythonic", "[f(1, 2, 3)]"),
    ("pythonic", "[f(a=" + "[" * 5000 + "]" * 5000 + ")]"),
    ("pythonic", "[1, 2, f]"),
    ("qwen3_coder", "<tool_call>\n<function=other>\n</function>\n</tool_call>"),
    ("functiongemma", "<start_function_call>call:f{a:1"),
    ("functiongemma", "<start_function_call>call:f{a:1}}<end_function_call>"),
    ("functiongemma", "<start_function_call>call:other{}<end_function_call>"),
    ("gemma3", "```python\nprint('hello')\n```"),
    ("glm45", "<tool_call>get_weather_now<arg_key>"),
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("gemma3", "```tool_code\nother(a=1)\n```"),
]


@pytest.mark.parametrize(("dialect", "text"), NO_CALLS)
def test_what_is_no_call_is_content_to_the_letter(dialect, text):
    assert parse(dialect, text) == says(text)


def test_a_call_behind_a_broken_one_is_found():
    assert parse("hermes", f"<tool_call>oh {HERMES_CALL}") == says("<tool_call>oh", F)


@pytest.mark.parametrize(
    ("dialect", "text", "arguments"),
    [
        # The first slip comes after the call has begun: as the model wrote it, without the markup's end.
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {"b": "a "quoted" word"}}\n</tool_call>',
            '{"b": "a "quoted" word"}',
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>', "{a: 1}"),
        ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1,}}]</tool_call>', '{"a": 1,}'),
        ("hermes", '{"name": "f", "arguments": {"a": True}}', '{"a": True}'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 01}', '{"a": 01}'),
        # Cut off: what there is.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"b": "x', '{"b": "x'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', '{"a": 1'),
        ("qwen3_coder", "<tool_call><function=f><parameter=b>\nx\n", '{"b": "x\n'.replace("\n", "\\n")),
        ("qwen3_coder", "<tool_call><function=f><parameter=b>\nx\n</parameter>\n</fun", '{"b": "x"'),
    ],
)
def test_malformed_arguments(dialect, text, arguments):
    assert [call.arguments for call in parse(dialect, text).tool_calls] == [arguments]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"b": "né 日本 😀 \\u00e9 \\ud83d\\ude00"}', {"b": "né 日本 😀 é 😀"}),
        ('{"b": "}{][ \\"</tool_call>\\" \\\\"}', {"b": '}{][ "</tool_call>" \\'}),
        (
            '{"b": {"c": [{}, [], {"d": [[1.5e-3, -2, true, false, null]]}]}, "e": {}}',
            {"b": {"c": [{}, [], {"d": [[1.5e-3, -2, True, False, None]]}]}, "e": {}},
        ),
        ('{"a": 9007199254740993, "a": 2}', {"a": 2}),
        ('{"b": "one\n\ttwo"}', {"b": "one\n\ttwo"}),
        (r'{"b": "\d+ it\'s \_"}', {"b": r"\d+ it's \_"}),
        ('{ "b"\n:\t"x" , "a" : 1 }', {"a": 1, "b": "x"}),
        ('{"b": ' + "[" * 5000 + "]" * 5000 + "}", None),
    ],
)
@pytest.mark.parametrize(
    "form", ['<tool_call>{"name": "f", "arguments": %s}</tool_call>', '{"arguments": %s, "name": "f"}']
)
def test_json_arguments(form, arguments, value):
    (call,) = parse("hermes", form.replace("%s", arguments)).tool_calls
    if value is not None:
        assert json.loads(call.arguments) == value


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("b='it\\'s', a=-1.5", {"b": "it's", "a": -1.5}),
        ("b=\"a)]}, '\", a=(1, [2, {'k': None}], True)", {"b": "a)]}, '", "a": [1, [2, {"k": None}], True]}),
        ("a=true, b=null", {"a": True, "b": None}),
        ('b="""one\ntwo "quoted" """', {"b": 'one\ntwo "quoted" '}),
        ("b='one\ntwo', a=''", {"b": "one\ntwo", "a": ""}),
        (r"b='\d+\n\'', a=r'\d'", {"b": "\\d+\n'", "a": r"\d"}),
        ("b='é 日本 \\ud83d'", {"b": "é 日本 \ufffd"}),
        (" b = 'x' , ", {"b": "x"}),
        ("b='a' 'b'", {"b": "ab"}),
    ],
)
def test_python_arguments(source, value, recwarn):
    (call,) = parse("pythonic", f"[f({source})]").tool_calls
    assert json.loads(call.arguments) == value
    assert not recwarn.list


def test_xml_arguments_follow_the_schema():
    values = {
        "path": "3",
        "content": 'if "a" < b:\n    <x>\n',
        "lines": "3",
        "tags": "['a', True]",
        "on": "True",
        "new": "5",
    }
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    (call,) = parse("qwen3_coder", f"<tool_call>\n<function=write>\n{text}</function>\n</tool_call>").tool_calls
    assert json.loads(call.arguments) == {**values, "lines": 3, "tags": ["a", True], "on": True}
    (call,) = parse("qwen3_coder", "<function=write><parameter=lines>null</parameter></function>").tool_calls
    assert json.loads(call.arguments) == {"lines": None}
    (call,) = parse("qwen3_coder", "<function=write><parameter=lines>1e999</parameter></function>").tool_calls
    assert json.loads(call.arguments) == {"lines": "1e999"}


def test_gemma_arguments():
    source = (
        '{b:<escape>a, "}" <escape>,a:[1,{k:<escape>v<escape>}],n:-1.5,t:true,z:null,q:"x\\n",w:bare word,"key":{}}'
    )
    (call,) = parse("functiongemma", f"<start_function_call>call:f{source}<end_function_call>").tool_calls
    assert json.loads(call.arguments) == {
        "b": 'a, "}" ', "a": [1, {"k": "v"}], "n": -1.5, "t": True, "z": None, "q": "x\n", "w": "bare word", "key": {},
    }  # fmt: skip


# --- streaming ---


def test_arguments_are_streamed_as_they_come():
    stream = make_parser("hermes", None, None, TOOLS).stream()
    text = 'I see.\n<tool_call>{"name": "f", "arguments": {"b": "one two"}}</tool_call>'
    deltas = [stream.feed(char) for char in text] + [stream.feed("", finished=True)]
    assert "".join(delta.content for delta in deltas) == "I see."
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert (calls[0].index, calls[0].name) == (0, "f")
    assert [call.arguments for call in calls] == list('{"b": "one two"}')
    assert {call.name for call in calls[1:]} == {None}


def test_content_waits_only_for_what_may_be_markup():
    stream = make_parser("hermes", None, None, TOOLS).stream()
    assert [stream.feed(piece).content for piece in ("a <", "b", " <tool", "s", "mith", '{"na', 'me": "x', '"')] == [
        "a", " <b", "", "", " <toolsmith", "", "", '{"name": "x"',
    ]  # fmt: skip


def test_xml_strings_are_streamed_as_they_come():
    stream = make_parser("qwen3_coder", None, None, TOOLS).stream()
    stream.feed("<tool_call>\n<function=write>\n<parameter=content>\nfirst ")
    (more,) = stream.feed('"line"\nsecond').tool_calls
    assert more.arguments == '\\"line\\"\\nsecond'


# --- what the request says ---


def test_without_tools_nothing_is_looked_for():
    for tools in (None, []):
        parser = make_parser("hermes", None, None, tools)
        assert parser.parse(HERMES_CALL + " \n", True) == says(HERMES_CALL + " \n")
        assert not parser.markup


def test_without_parallel_calls_the_first_is_kept():
    assert parse("hermes", f"A {HERMES_CALL} B {HERMES_CALL}", parallel_tool_calls=False) == says("A  B", F)


def test_a_delta_keeps_the_order_of_the_text():
    stream = make_parser("hermes", "qwen3", None, TOOLS).stream()
    delta = stream.feed(f"<think>a</think>b {HERMES_CALL}\nc", True)
    assert delta.parts == (
        ReasoningDelta("a"), ContentDelta("b"), ToolCallDelta(0, *F), ContentDelta(" \nc"),
    )  # fmt: skip


# --- choosing ---


@pytest.mark.parametrize("parameter", ["tool_parser", "reasoning_parser"])
def test_unknown_names(parameter):
    names = {"tool_parser": None, "reasoning_parser": None}
    with pytest.raises(ConfigError, match=r"There is no .* parser 'hermess'. Choose one of: none, .*mistral") as caught:
        make_parser(**{**names, parameter: "hermess"}, chat_template=None)
    assert caught.value.parameter == parameter
    with pytest.raises(ConfigError, match="harmony"):
        make_parser(**{**names, parameter: "openai_gptoss"}, chat_template=None)


def test_markup_names_what_must_not_be_skipped():
    assert make_parser("hermes", None, None, TOOLS).markup == {
        "<tool_call>", "</tool_call>", "<tools>", "</tools>", "```json", "```",
    }  # fmt: skip
    assert make_parser("mistral", "mistral", None, TOOLS).markup == {
        "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]",
    }  # fmt: skip


def test_no_opening_hides_another():
    for dialect in TOOL_DIALECTS.values():
        words = dialect._openings.words
        assert not [(a, b) for a in words for b in words if a != b and a.startswith(b)]
