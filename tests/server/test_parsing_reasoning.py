"""Reasoning: what each pattern of tags says, and reasoning before calls."""

from __future__ import annotations

import pytest

from fathom.entrypoints.server.parsed import Parsed, ToolCall
from fathom.entrypoints.server.parsing import closed_reasoning, make_parser
from tests.server.test_parsing import HERMES_CALL, TOOLS, F

OPENED = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"

PATTERNS = [
    ("qwen3", "", "<think>a b</think>c", "a b", "c"),
    ("qwen3", "", "\n<think>\n a \n\n b\n</think>\n\n c \n", "a \n\n b", "c \n"),
    ("qwen3", "", "<think></think>c", "", "c"),
    ("qwen3", "", "<think>\n\n</think>\n\nc", "", "c"),
    ("qwen3", "", "<think>a", "a", ""),
    ("qwen3", "", "<think>a</thin", "a</thin", ""),
    ("qwen3", "", "<think>a</think>", "a", ""),
    ("qwen3", "", "<think>a<think>b</think>c", "a<think>b", "c"),
    ("qwen3", "", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ("qwen3", "", " c ", "", " c "),
    ("qwen3", "", "<thi", "", "<thi"),
    ("qwen3", "", "c <think>a</think>", "", "c <think>a</think>"),
    ("qwen3", "", "a</think>c", "", "a</think>c"),
    ("qwen3", OPENED, "a</think>\n\nc", "a", "c"),
    ("qwen3", OPENED, "<think>\na</think>c", "a", "c"),
    ("qwen3", OPENED, "</think>c", "", "c"),
    ("qwen3", OPENED, "a", "a", ""),
    ("qwen3", OPENED, "", "", ""),
    ("qwen3", CLOSED, "c", "", "c"),
    ("qwen3", "<|user|>Why <think>?<|assistant|>", "c", "", "c"),
    ("deepseek_r1", OPENED, "a</think>c", "a", "c"),
    ("mistral", "", "[THINK]a[/THINK]c", "a", "c"),
    ("granite", "", "Here is my thought process: a\n\nHere is my response: c", "a", "c"),
    ("granite", "", "Here's my thought process:\na\nHere's my response:\nc", "a", "c"),
    ("granite", "", "Here is my answer", "", "Here is my answer"),
    ("gemma4", "", "<|channel>thought\na\n<channel|>c", "a", "c"),
    ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "c", "", "c"),
]


@pytest.mark.parametrize(("name", "prompt", "output", "reasoning", "content"), PATTERNS)
def test_patterns(name, prompt, output, reasoning, content):
    parser = make_parser(None, name, None, prompt=prompt)
    assert parser.parse(output, True) == Parsed(reasoning, content)


def test_reasoning_then_calls():
    parser = make_parser("hermes", "qwen3", None, TOOLS)
    output = f"<think>\nI may call <tool_call> here: {HERMES_CALL}\n</think>\n\nLet me see.\n{HERMES_CALL}"
    assert parser.parse(output, True) == Parsed(
        f"I may call <tool_call> here: {HERMES_CALL}", "Let me see.", (ToolCall(*F),)
    )


def test_a_block_that_the_prompt_has_opened_can_be_closed():
    assert closed_reasoning("qwen3", None, OPENED) == "\n</think>\n\n"
    assert closed_reasoning("mistral", None, "[THINK]") == "\n[/THINK]\n\n"
    assert closed_reasoning("qwen3", None, "assistant\n") == closed_reasoning(None, "", OPENED) == ""
    parser = make_parser("hermes", "qwen3", None, TOOLS, prompt=OPENED + closed_reasoning("qwen3", None, OPENED))
    assert parser.parse(HERMES_CALL, True) == Parsed("", "", (ToolCall(*F),))


def test_reasoning_is_streamed_but_for_what_may_be_its_end():
    stream = make_parser(None, "qwen3", None).stream()
    pieces = ["<th", "ink>\n", "a", " b", "\n", "c </", "x", "\n</think", ">", "\n", "\nd", " "]
    assert [(delta.reasoning, delta.content) for delta in map(stream.feed, pieces)] == [
        ("", ""), ("", ""), ("a", ""), (" b", ""), ("", ""), ("\nc", ""), (" </x", ""), ("", ""), ("", ""), ("", ""),
        ("", "d"), ("", " "),
    ]  # fmt: skip
