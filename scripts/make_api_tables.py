"""Write the tables of docs/api.md and docs/serve.md from the server's code; with --check, only say if they are stale.

python scripts/make_api_tables.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from fathom.entrypoints.server.app import ADMIN_ROUTES, ROUTES
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest, ChatMessage, FunctionDefinition
from fathom.entrypoints.server.protocol.common import EngineRequest, GenerationRequest, StreamOptions
from fathom.entrypoints.server.protocol.completion import CompletionRequest
from fathom.entrypoints.server.protocol.fields import FieldInfo, fields_of
from fathom.entrypoints.server.protocol.messages import (
    CountTokensRequest,
    MessagesRequest,
    Metadata,
    OutputConfig,
    TextContent,
    Thinking,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from fathom.entrypoints.server.protocol.other import DetokenizeRequest, TokenizeRequest
from fathom.entrypoints.server.protocol.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    MessageItem,
    ReasoningItem,
    ReasoningOptions,
    ResponsesRequest,
    TextOptions,
)
from fathom.entrypoints.server.settings import iter_settings
from fathom.frontend.metrics import PrometheusObserver

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- tables: written by scripts/make_api_tables.py -->\n"
END = "<!-- end of tables -->\n"

REQUESTS: list[tuple[str, Any]] = [
    ("`/v1/completions`, `/v1/chat/completions` and `/v1/responses`", EngineRequest),
    ("Both `/v1/completions` and `/v1/chat/completions`", GenerationRequest),
    ("`/v1/completions` only", CompletionRequest),
    ("`/v1/chat/completions` only", ChatCompletionRequest),
    ("`messages`", ChatMessage),
    ("`tools`: `function`", FunctionDefinition),
    ("`stream_options`", StreamOptions),
    ("`/v1/responses` only", ResponsesRequest),
    ("`input`: message", MessageItem),
    ("`input`: function_call", FunctionCallItem),
    ("`input`: function_call_output", FunctionCallOutputItem),
    ("`input`: reasoning", ReasoningItem),
    ("`tools` of `/v1/responses`", FunctionTool),
    ("`reasoning`", ReasoningOptions),
    ("`text`", TextOptions),
    ("Both `/v1/messages` and `/v1/messages/count_tokens`", CountTokensRequest),
    ("`/v1/messages` only", MessagesRequest),
    ("`messages` and `system` of `/v1/messages`: text", TextContent),
    ("`messages` of `/v1/messages`: thinking", ThinkingBlock),
    ("`messages` of `/v1/messages`: tool_use", ToolUseBlock),
    ("`messages` of `/v1/messages`: tool_result", ToolResultBlock),
    ("`tools` of `/v1/messages`", ToolDefinition),
    ("`tool_choice` of `/v1/messages`", ToolChoice),
    ("`thinking`", Thinking),
    ("`output_config`", OutputConfig),
    ("`metadata` of `/v1/messages`", Metadata),
    ("`/tokenize`", TokenizeRequest),
    ("`/detokenize`", DetokenizeRequest),
]


def api_tables() -> str:
    """Endpoints, then the fields of each request: honoured ones, then refused ones."""
    return "\n".join([_endpoints(), *(_request(title, kind) for title, kind in REQUESTS)])


def setting_table() -> str:
    """The server's options."""
    rows = [
        f"| `--{name.replace('_', '-')}` | {_type_words(kind)} | `{default!r}` | {help_line} |\n"
        for name, kind, default, help_line in iter_settings()
    ]
    return "| Flag | Type | Default | |\n|---|---|---|---|\n" + "".join(rows)


def serve_tables() -> str:
    """The server's options and its metrics."""
    return f"{setting_table()}\n### Metrics\n\n{metric_table()}"


def metric_table() -> str:
    """Every metric of our own; counters end with _total when they are scraped."""
    rows = [
        f"| `{metric.name}` | {metric.type} | {metric.documentation} |\n"
        for metric in PrometheusObserver("model").registry.collect()
        if metric.name.startswith("fathom:")
    ]
    return "| Name | | |\n|---|---|---|\n" + "".join(rows)


PAGES: dict[str, Callable[[], str]] = {"api.md": api_tables, "serve.md": serve_tables}


def with_tables(page: str, tables: str) -> str:
    """The page with what stands between the markers written anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables}\n{END}{tail}"


def _endpoints() -> str:
    lines = ["### Endpoints", "", "| | | |", "|---|---|---|"]
    for method, path, handler in (*ROUTES, *ADMIN_ROUTES):
        words = (handler.__doc__ or "").splitlines()[0]
        if (method, path, handler) in ADMIN_ROUTES:
            words += " Only with `--enable-admin`."
        lines.append(f"| {method} | `{path.replace(':path', '')}` | {words} |")
    return "\n".join(lines) + "\n"


def _request(title: str, kind: Any) -> str:
    shared = {name for base in kind.__bases__ for name in getattr(base, "__struct_fields__", ())}
    own = [field for field in fields_of(kind) if field.name not in shared]
    honoured = [field for field in own if field.refusal is None]
    refused = [field for field in own if field.refusal is not None]
    text = f"### {title}\n"
    if honoured:
        text += "\n| Field | Type | Default | |\n|---|---|---|---|\n"
    text += "".join(
        f"| `{field.name}` | {_type_words(field.kind)} | {_default(field)} | {_escaped(field.description)} |\n"
        for field in honoured
    )
    if refused:
        text += "\n| Refused with 400 | |\n|---|---|\n"
        text += "".join(f"| `{field.name}` | {_escaped(field.description)} |\n" for field in refused)
    return text


def _default(field: FieldInfo) -> str:
    return "required" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"


def _type_words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, *metas = get_args(kind)
        return _type_words(plain) + "".join(_limits(meta) for meta in metas)
    if origin in (Union, UnionType):
        return " or ".join(_type_words(item) for item in get_args(kind) if item is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{choice!r}`" for choice in get_args(kind))
    if origin in (list, tuple):
        return f"list of {_type_words(get_args(kind)[0])}"
    if origin is dict or kind is dict:
        return "object"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "object"
    return "any" if kind is Any else str(kind.__name__)


_LIMITS = {"gt": "> {}", "ge": "≥ {}", "le": "≤ {}", "min_length": "at least {} long", "max_length": "at most {} long"}


def _limits(meta: msgspec.Meta) -> str:
    found = [words.format(getattr(meta, name)) for name, words in _LIMITS.items() if getattr(meta, name) is not None]
    return f" ({', '.join(found)})" if found else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check return 1 if one would change."""
    stale = []
    for name, tables in PAGES.items():
        page = (DOCS / name).read_text(encoding="utf-8")
        fresh = with_tables(page, tables())
        if page != fresh:
            stale.append(name)
            if arguments != ["--check"]:
                (DOCS / name).write_text(fresh, encoding="utf-8")
    if arguments == ["--check"] and stale:
        print(f"stale: {', '.join(stale)}; run python scripts/make_api_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
