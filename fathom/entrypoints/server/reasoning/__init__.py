"""Reasoning that a model writes before its answer, between two tags.

| the output | reasoning | content |
|---|---|---|
| `<think>a</think>b` | a | b |
| `a</think>b`, after a prompt that opened the block | a | b |
| `<think>a</think>b`, after such a prompt | a | b |
| `<think></think>b`, or a prompt that closed the block | nothing | b |
| `<think>a`, and no end | a | nothing: it may have been streamed as reasoning before that was known |
| `b`, without a block | nothing | b |
| `b <think>a</think>` | nothing | all of it: a block begins an output, or is text about tags |

White space around the tags belongs to them. Whether the prompt opened the block is read from the prompt, so
that a template's switch ("enable_thinking") needs no setting here.
"""

from __future__ import annotations

from fathom.entrypoints.server.reasoning.tags import ReasoningTags

_THINK = ReasoningTags(("<think>",), ("</think>",))

REASONING_TAGS: dict[str, ReasoningTags] = {
    "deepseek_r1": _THINK,
    "deepseek_v3": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "kimi_k2": _THINK,
    "olmo3": _THINK,
    "mistral": ReasoningTags(("[THINK]",), ("[/THINK]",)),
    "granite": ReasoningTags(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    "gemma4": ReasoningTags(("<|channel>thought",), ("<channel|>",)),
    "seed_oss": ReasoningTags(("<seed:think>",), ("</seed:think>",)),
}
"""vLLM's name of a reasoning parser -> the tags."""

_SIGNS = (
    ("[THINK]", "mistral"),
    ("Here is my thought process:", "granite"),
    ("<|channel>thought", "gemma4"),
    ("<seed:think>", "seed_oss"),
    ("</think>", "qwen3"),
    ("<think>", "qwen3"),
)


def reasoning_tags_of(chat_template: str) -> str | None:
    """Name of the tags that a template knows; None if it shows none."""
    return next((name for sign, name in _SIGNS if sign in chat_template), None)
