"""Typed events do not depend on how many tokens came at once, and add up to the whole answer.

Outputs are made up here, since a real engine cuts them as time has it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.entrypoints.server.assembly.blocks import BlockReader
from fathom.entrypoints.server.assembly.messages import MessagesAssembler
from fathom.entrypoints.server.assembly.reasoning_tokens import reasoning_tokens
from fathom.entrypoints.server.assembly.responses import ResponsesAssembler, fold_responses
from fathom.entrypoints.server.errors import ApiError
from fathom.entrypoints.server.parsing import make_parser
from fathom.entrypoints.server.protocol.responses import ReasoningOptions, ResponseAnswer
from fathom.entrypoints.server.typed_events import signs_of_life
from fathom.outputs import RequestOutput
from tests.server.test_assembly import CALLS, ENVELOPE, TEXTS, TOOLS, Letters, outputs

ONE_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
MIXED = [*TEXTS, f"<think>\nHm.\n</think>\n\nA {ONE_CALL}\nB\n{CALLS} C ", f"<think>a</think>{ONE_CALL}", ONE_CALL[:50]]
ANSWER = ResponseAnswer(
    id="resp_1", created_at=1, model="m", status="in_progress", output=[], instructions=None, max_output_tokens=None,
    temperature=1, top_p=1, tools=[], tool_choice="auto", parallel_tool_calls=True, reasoning=ReasoningOptions(),
    text={}, metadata={}, user=None, prompt_cache_key=None,
)  # fmt: skip


def reader() -> BlockReader:
    return BlockReader(make_parser("hermes", "qwen3", None, TOOLS), "")


def responses(text: str) -> ResponsesAssembler:
    count = reasoning_tokens(make_parser("hermes", "qwen3", None, TOOLS), lambda: Letters(text))
    return ResponsesAssembler(ENVELOPE, ANSWER, reader(), 3, count)


def messages() -> MessagesAssembler:
    return MessagesAssembler(ENVELOPE, 1000, reader(), 3, len)


def events_of(assembler: Any, parts: list[RequestOutput]) -> list[Any]:
    """The events, as a client reads them: each as it was when it was sent."""
    found = [*assembler.begin()]
    for part in parts:
        found += msgspec.to_builtins(assembler.step(0, part))
    return [*msgspec.to_builtins(found), *msgspec.to_builtins(assembler.end())]


@given(st.sampled_from(MIXED), st.lists(st.integers(0, 200)), st.sampled_from(["stop", "length", "abort"]))
@settings(max_examples=150, deadline=None)
def test_a_response_is_its_events_however_they_are_cut(text: str, cuts: list[int], reason: str) -> None:
    parts = outputs(text, cuts, reason=reason)
    events = events_of(responses(text), parts)
    whole = msgspec.to_builtins(fold_responses(responses_events(text, outputs(text, [], reason=reason))))
    assert events[-1]["response"] == whole
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"] | {"text": ""})
        elif kind.endswith(".delta"):
            items[event["output_index"]]["text"] += event["delta"]
        elif kind == "output_item.done":
            done = event["item"]
            assert done == whole["output"][event["output_index"]]
            given = done["arguments"] if done["type"] == "function_call" else done["content"][0]["text"]
            assert items[event["output_index"]]["text"] == given
    assert len(items) == len(whole["output"])


def responses_events(text: str, parts: list[RequestOutput]) -> list[Any]:
    assembler = responses(text)
    return [event for part in parts for event in assembler.step(0, part)] + assembler.end()


@given(st.sampled_from(MIXED), st.lists(st.integers(0, 200)), st.sampled_from(["stop", "length", "abort"]))
@settings(max_examples=150, deadline=None)
def test_a_message_is_its_events_however_they_are_cut(text: str, cuts: list[int], reason: str) -> None:
    assembler, parts = messages(), outputs(text, [], reason=reason)
    whole = assembler.fold([event for part in parts for event in assembler.step(0, part)] + assembler.end())
    events = events_of(messages(), outputs(text, cuts, reason=reason))
    fields = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    opened = False
    for event in events:
        if event["type"] == "content_block_start":
            assert (event["index"], opened) == (len(blocks), False)
            opened = True
            blocks.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            texts[-1] += event["delta"][fields[blocks[-1]["type"]]]
        elif event["type"] == "content_block_stop":
            opened = False
    for block, piece in zip(blocks, texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = (
                msgspec.json.decode(piece or "{}") if piece.endswith("}") or not piece else {"INVALID_JSON": piece}
            )
        else:
            block[block["type"]] = piece
    assert blocks == msgspec.to_builtins(whole.content)
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert (end["delta"]["stop_reason"], end["usage"]) == (whole.stop_reason, msgspec.to_builtins(whole.usage))


def test_blocks_have_the_order_of_the_text() -> None:
    answer = fold_responses(responses_events(MIXED[-3], outputs(MIXED[-3], [])))
    kinds = [item["type"] for item in msgspec.to_builtins(answer.output)]
    assert kinds == ["reasoning", "message", "function_call", "message", "function_call", "function_call", "message"]
    texts = [item["content"][0]["text"] for item in msgspec.to_builtins(answer.output) if "content" in item]
    assert texts == ["Hm.", "A", "B", "C"]
    assert len({item["call_id"] for item in msgspec.to_builtins(answer.output) if "call_id" in item}) == 3
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == 5  # with the ends of lines around it


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Hello", "stop", "end_turn"),
        ("Hello", "length", "model_context_window_exceeded"),
        ("Hello", "abort", "pause_turn"),
        (CALLS, "stop", "tool_use"),
    ],
)
def test_the_reason_why_a_message_ended(text: str, reason: str, expected: str) -> None:
    (end,) = [
        event for event in events_of(messages(), outputs(text, [], reason=reason)) if event["type"] == "message_delta"
    ]
    assert end["delta"] == {"stop_reason": expected, "stop_sequence": None}


def test_signs_of_life_come_until_there_is_an_output() -> None:
    async def main() -> list[bytes]:
        awaited = asyncio.get_running_loop().create_future()
        found = []
        async for sign in signs_of_life(awaited, b"ping", 0.001):
            found.append(sign)
            if len(found) == 3:
                awaited.set_result(None)
        return found

    assert asyncio.run(main()) == [b"ping"] * 3


def test_an_answer_that_fails_says_so_with_what_there_was() -> None:
    error = ApiError(503, "The engine is gone.", code="engine_dead")
    assembler = responses("")
    assembler.begin()
    assembler.step(0, outputs("Hello, world.", [5])[0])
    name, data = assembler.failed(error).decode().strip().split("\n")
    found = msgspec.json.decode(data.removeprefix("data: "))
    assert name == "event: response.failed"
    assert found["response"]["error"] == {"code": "engine_dead", "message": "The engine is gone."}
    assert found["response"]["output"][0]["content"][0]["text"] == "Hello"
    assert messages().failed(error) == (
        b'event: error\ndata: {"error":{"type":"overloaded_error","message":"The engine is gone."},"type":"error"}\n\n'
    )
