"""Tool call dialects by name, and which one a chat template speaks."""

from __future__ import annotations

from fathom.entrypoints.server.tools.dialect import Dialect
from fathom.entrypoints.server.tools.gemma_calls import GemmaCalls
from fathom.entrypoints.server.tools.json_calls import JsonCalls
from fathom.entrypoints.server.tools.named_calls import NamedCalls
from fathom.entrypoints.server.tools.python_calls import PythonCalls
from fathom.entrypoints.server.tools.xml_calls import ArgTagCalls, XmlCalls

# Small models, and coding models of any size, often leave the markup out, or put a fence where it should be.
_BARE_JSON = (JsonCalls(("```json",), "```"), JsonCalls(("{", "[")))

_HERMES = Dialect(JsonCalls(("<tool_call>",), "</tool_call>"), JsonCalls(("<tools>",), "</tools>"), *_BARE_JSON)
_LLAMA_JSON = Dialect(JsonCalls(("<|python_tag|>",)), *_BARE_JSON)
_PYTHONIC = Dialect(PythonCalls(("<|python_start|>",), "<|python_end|>"), PythonCalls(("[",)))
_QWEN_XML = Dialect(XmlCalls())
_DEEPSEEK = Dialect(
    NamedCalls(
        begin="<｜tool▁call▁begin｜>",
        prefixes=("function<｜tool▁sep｜>",),
        separators=("<｜tool▁sep｜>",),
        end="<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    )
)
_GEMMA_3 = Dialect(
    PythonCalls(("```tool_code", "```python"), "```"),
    JsonCalls(("```tool_code", "```tool_call"), "```"),
    PythonCalls(("[",)),
    *_BARE_JSON,
)

TOOL_DIALECTS: dict[str, Dialect] = {
    "hermes": _HERMES,
    "qwen3_json": _HERMES,
    "llama3_json": _LLAMA_JSON,
    "llama4_json": _LLAMA_JSON,
    "pythonic": _PYTHONIC,
    "llama4_pythonic": _PYTHONIC,
    "olmo3": Dialect(PythonCalls(("<function_calls>",), "</function_calls>")),
    "mistral": Dialect(
        JsonCalls(("[TOOL_CALLS]",)),
        NamedCalls(begin="[TOOL_CALLS]", separators=("[CALL_ID]", "[ARGS]")),
    ),
    "qwen3_coder": _QWEN_XML,
    "qwen3_xml": _QWEN_XML,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "seed_oss": Dialect(XmlCalls(("<seed:tool_call>", "</seed:tool_call>"))),
    "glm45": Dialect(ArgTagCalls()),
    "kimi_k2": Dialect(
        NamedCalls(
            begin="<|tool_call_begin|>",
            prefixes=("functions.",),
            separators=("<|tool_call_argument_begin|>",),
            end="<|tool_call_end|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        )
    ),
    "jamba": Dialect(JsonCalls(("<tool_calls>",), "</tool_calls>")),
    "phi4_mini_json": Dialect(JsonCalls(("functools", "<|tool_call|>"), "<|/tool_call|>")),
    "granite": Dialect(JsonCalls(("<|tool_call|>", "<tool_call>"), "</tool_call>")),
    "functiongemma": Dialect(GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>")),
    "gemma3": _GEMMA_3,
    "gemma4": Dialect(GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>')),
}
"""vLLM's name of a tool parser -> the dialect. "gemma3" is Fathom's own."""

# Strings that must all be in a template -> dialect. The first that fits is it, so the special stand first.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<｜tool▁calls▁begin｜>",), "deepseek_v3"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>",), "gemma4"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<arg_key>", "<arg_value>"), "glm45"),
    (("<tool_calls>",), "jamba"),
    (("<|/tool_call|>",), "phi4_mini_json"),
    (("<function_calls>",), "olmo3"),
    (("<|tool_call|>",), "granite"),
    (("<tool_call>",), "hermes"),
    (("[func_name1(",), "pythonic"),
    (("<|python_start|>",), "llama4_pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
    (("<start_of_turn>",), "gemma3"),
)


def tool_dialect_of(chat_template: str) -> str | None:
    """Name of the dialect in which a template renders tool calls; None if it shows none that is known."""
    return next((name for signs, name in _SIGNS if all(sign in chat_template for sign in signs)), None)
