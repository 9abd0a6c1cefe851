"""Which parsers a chat template gets. The templates are the telling lines of the models' own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fathom.entrypoints.server.parsed import Parsed, ToolCall
from fathom.entrypoints.server.parsing import make_parser
from fathom.entrypoints.server.reasoning import REASONING_TAGS, reasoning_tags_of
from fathom.entrypoints.server.tools import TOOL_DIALECTS, tool_dialect_of
from fathom.frontend.chat_template import render_chat
from fathom.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.frontend import tiny_tokenizers
from tests.server.test_parsing import HERMES_CALL, TOOLS, F

QWEN_3 = """\
{%- if tools %}{{- "<|im_start|>system\\n# Tools\\n\\n<tools>" }}{% for tool in tools %}{{- tool | tojson }}{% endfor %}
{{- "</tools>\\n\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>" }}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- for tool_call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
        {%- if tool_call.function.arguments is string %}{{- tool_call.function.arguments }}
        {%- else %}{{- tool_call.function.arguments | tojson }}{%- endif %}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
DEEPSEEK_R1 = """\
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] %}
{%- for tool in message['tool_calls'] %}
{{- '<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' }}
{{- tool['function']['name'] }}
{{- '\\n```json\\n' + tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
{%- set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}
"""
TEMPLATES = {
    "qwen3": (QWEN_3, "hermes", "qwen3"),
    "deepseek_r1": (DEEPSEEK_R1, "deepseek_v3", "qwen3"),
    "qwen3_coder": (
        "{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + args_name + '>\\n' }}",
        "qwen3_coder",
        None,
    ),
    "llama 3.1": (
        """{{- 'Use the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
        {{- "<|python_tag|>" + tool_call.name + ".call(" }}""",
        "llama3_json",
        None,
    ),
    "llama 3.2": (
        """{{- 'Use the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}""",
        "llama3_json",
        None,
    ),
    "llama 4": ("- Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]", "pythonic", None),
    "mistral": (
        '{{- "[TOOL_CALLS] [" }}{%- for tool_call in tool_calls %}{{ tool_call.function|tojson }}',
        "mistral",
        None,
    ),
    "magistral": (
        "[THINK]{{ thinking }}[/THINK]{{ '[TOOL_CALLS]' + name + '[ARGS]' }}",
        "mistral",
        "mistral",
    ),
    "granite 3.2": (
        "Write your thoughts after 'Here is my thought process:' {{- '<|tool_call|>' + calls | tojson }}",
        "granite",
        "granite",
    ),
    "functiongemma": ("{{- '<start_function_call>call:' + f['name'] + '{' }} <start_of_turn>", "functiongemma", None),
    "gemma 3": ("{{ '<start_of_turn>' + role + '\\n' }}{{ message['content'] | trim }}<end_of_turn>", "gemma3", None),
    "gemma 4": ("{{- '<|tool_call>call:' + f['name'] }} {{- '<|channel>thought\\n<channel|>' }}", "gemma4", "gemma4"),
    "glm 4.6": (
        "<tool_call>{{ tc.name }}<arg_key>{{ k }}</arg_key>\n<arg_value></think>",
        "glm45",
        "qwen3",
    ),
    "kimi k2": ("<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi_k2", None),
    "olmo 3": ("respond with calls within <function_calls></function_calls> XML tags", "olmo3", None),
    "seed": ("'<seed:tool_call>' '<seed:think>' <function=example> <parameter=a>", "seed_oss", "seed_oss"),
    "chatml": ("{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}", None, None),
    "gpt-oss": ("<|start|>assistant<|channel|>analysis<|message|>", None, None),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_templates(model):
    template, dialect, tags = TEMPLATES[model]
    assert tool_dialect_of(template) == dialect
    assert reasoning_tags_of(template) == tags


def test_a_cached_model_of_its_own_template():
    from fathom.weights.catalogue import CATALOGUE
    from fathom.weights.download import pull

    tokenizer = load_tokenizer(pull(CATALOGUE["qwen2.5-coder-0.5b"], show_progress=False), "gguf")
    assert isinstance(tokenizer.chat_template, str)
    assert tool_dialect_of(tokenizer.chat_template) == "hermes"
    assert reasoning_tags_of(tokenizer.chat_template) is None
    call = {"id": "c1", "type": "function", "function": {"name": F[0], "arguments": F[1]}}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = render_chat(tokenizer, history, tools=TOOLS, add_generation_prompt=False)
    # What the template renders, its own parser reads.
    written = text.rpartition("<|im_start|>assistant")[2].removesuffix("<|im_end|>\n")
    assert make_parser(None, None, tokenizer.chat_template, TOOLS).parse(written, True).tool_calls == (ToolCall(*F),)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizers.byte_level()


@pytest.mark.parametrize("template", [QWEN_3, DEEPSEEK_R1])
@pytest.mark.parametrize("arguments", [F[1], {"a": 1, "b": "x"}])
def test_what_a_template_renders_its_parser_reads(tokenizer, template, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call, call]}]
    options = {"chat_template": template, "add_generation_prompt": False}
    before = render_chat(tokenizer, history[:1], **options)
    written = render_chat(tokenizer, history, **options).removeprefix(before).replace("<｜Assistant｜>", "")
    written = (
        written.removeprefix("<|im_start|>assistant").replace("<|im_end|>\n", "").replace("<｜end▁of▁sentence｜>", "")
    )
    assert make_parser(None, None, template, TOOLS).parse(written, True) == Parsed("", "", (ToolCall(*F),) * 2)


@pytest.mark.parametrize(
    ("template", "options", "output", "expected"),
    [
        (QWEN_3, {}, "<think>\nHm.\n</think>\n\nHello", ("Hm.", "Hello")),
        (QWEN_3, {}, "Hello", ("", "Hello")),
        (QWEN_3, {"enable_thinking": False}, "Hello", ("", "Hello")),
        (DEEPSEEK_R1, {}, "Hm.\n</think>\n\nHello", ("Hm.", "Hello")),
        (DEEPSEEK_R1, {}, "<think>\nHm.\n</think>\n\nHello", ("Hm.", "Hello")),
        (DEEPSEEK_R1, {}, "Hm. Not done", ("Hm. Not done", "")),
    ],
)
def test_the_prompt_shows_whether_reasoning_has_begun(tokenizer, template, options, output, expected):
    user = [{"role": "user", "content": "What does <think> mean?"}]
    prompt = render_chat(tokenizer, user, chat_template=template, chat_template_kwargs=options)
    parsed = make_parser(None, None, template, prompt=prompt).parse(output, True)
    assert (parsed.reasoning, parsed.content) == expected


def test_overrides():
    for tool_parser, calls in ((None, 1), ("none", 0), ("mistral", 0), ("llama3_json", 1)):
        parser = make_parser(tool_parser, None, QWEN_3, TOOLS)
        assert len(parser.parse(HERMES_CALL, True).tool_calls) == calls, tool_parser
    output = "[THINK]a[/THINK]b"
    assert make_parser(None, None, QWEN_3).parse(output, True) == Parsed("", output)
    assert make_parser(None, "mistral", QWEN_3).parse(output, True) == Parsed("a", "b")
    assert make_parser(None, "none", QWEN_3).parse("<think>a</think>b", True) == Parsed("", "<think>a</think>b")


def test_every_dialect_that_a_template_can_show_exists():
    assert {dialect for _, dialect, _ in TEMPLATES.values() if dialect} <= TOOL_DIALECTS.keys()


def test_the_page_lists_the_parsers():
    page = (Path(__file__).resolve().parents[2] / "docs" / "tool-calls-and-reasoning.md").read_text(encoding="utf-8")
    tools, reasoning = page.split("## Reasoning parsers")
    for text, names in ((tools, TOOL_DIALECTS), (reasoning.split("| The output")[0], REASONING_TAGS)):
        cells = [row.split(" | ")[0] for row in text.splitlines() if row.startswith("| `")]
        assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == names.keys()
