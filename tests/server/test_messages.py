"""/v1/messages through Anthropic's client: text, tools, thinking, events, errors, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.client.processes import PATIENCE_S, comes_true
from tests.server.processes import Server
from tests.server.test_load import LONG, idle, stream

USER: list[Any] = [{"role": "user", "content": "The sea"}]
GREEDY: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "extra_body": {"temperature": 0}}
RAW: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]


def client(server: Server, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=PATIENCE_S)


def shown(message: Any) -> dict[str, Any]:
    """What two answers to the same request share."""
    found = message.model_dump(exclude_none=True)
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in found["content"]]
    usage = found["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return {
        "content": blocks,
        "stop": (found.get("stop_reason"), found.get("stop_sequence")),
        "usage": (prompt, usage["output_tokens"], usage["output_tokens_details"]),
    }


def whole_and_streamed(server: Server, **body: Any) -> Any:
    """The whole answer, after a look that the client's fold of the stream is the same."""
    whole = client(server).messages.create(**body)
    with client(server).messages.stream(**body) as stream:
        final = stream.get_final_message()
    assert shown(final) == shown(whole)
    return whole


def test_text_is_what_chat_gives(server: Server) -> None:
    answer = whole_and_streamed(server, messages=USER, system="Be brief.", **GREEDY)
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    chat = server.post("/v1/chat/completions", messages=messages, **RAW).json()
    assert [block.text for block in answer.content] == [chat["choices"][0]["message"]["content"]]
    assert (answer.role, answer.stop_reason, answer.usage.output_tokens) == ("assistant", "max_tokens", 8)
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "The sea", "cache_control": {"type": "ephemeral"}}]}
    ]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    again = client(server).messages.create(messages=blocks, system=system, **GREEDY)  # type: ignore[arg-type]
    assert again.content == answer.content
    assert again.usage.input_tokens + (again.usage.cache_read_input_tokens or 0) == chat["usage"]["prompt_tokens"]
    assert again.usage.cache_read_input_tokens


def test_the_order_of_events(server: Server) -> None:
    with server.http.stream("POST", "/v1/messages", json={"messages": USER, "stream": True, **RAW}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = response.read().decode()
    pairs = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in pairs]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert names == [event["type"] for event in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert events[0]["message"]["content"] == []
    assert events[-2]["usage"]["output_tokens"] == 8


def test_reasons_to_stop(server: Server, thinker: Server) -> None:
    text = whole_and_streamed(server, messages=USER, **GREEDY).content[0].text
    stop = text[3:5]
    stopped = whole_and_streamed(server, messages=USER, stop_sequences=["never there", stop], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == text[: text.index(stop)]
    long = [{"role": "user", "content": "sea " * 600}]
    room = 4096 - client(thinker).messages.count_tokens(model="tiny", messages=long).input_tokens  # type: ignore[arg-type]
    full = client(thinker).messages.create(messages=long, **GREEDY | {"max_tokens": room + 1})  # type: ignore[arg-type]
    assert full.stop_reason in ("model_context_window_exceeded", "end_turn")
    late = {"messages": USER, **RAW, "max_tokens": 4000}
    answer = server.http.post("/v1/messages", json=late, headers={"X-Request-Timeout": "0.2"}).json()
    assert answer["stop_reason"] in ("pause_turn", "end_turn")


def test_the_last_message_of_the_assistant_is_carried_on(server: Server) -> None:
    begun = [*USER, {"role": "assistant", "content": "is wide"}]
    answer = client(server).messages.create(messages=begun, **GREEDY)
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    chat = server.post("/v1/chat/completions", messages=begun, **fields, **RAW).json()
    assert answer.content[0].text == chat["choices"][0]["message"]["content"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=str
)
def test_a_tool_is_called_and_its_result_read(coder: Server, choice: Any) -> None:
    body: dict[str, Any] = {"model": "coder", "max_tokens": 60, "tools": [WEATHER], "extra_body": {"temperature": 0}}
    answer = whole_and_streamed(coder, messages=QUESTION, tool_choice=choice, **body)
    (call,) = answer.content
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny, 22 degrees"}]}
    history = [
        *QUESTION,
        {"role": "assistant", "content": answer.model_dump()["content"]},
        {"role": "user", "content": [result]},
    ]
    final = client(coder).messages.create(messages=history, **body | {"tool_choice": {"type": "none"}})
    assert "22" in final.content[0].text  # type: ignore[union-attr]


def test_a_call_that_is_cut_off_keeps_its_text(coder: Server) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    body = {"model": "coder", "messages": QUESTION, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 3}
    answer = coder.post("/v1/messages", temperature=0, **body).json()
    assert answer["content"][0]["input"] == {"INVALID_JSON": '{ "city":'}
    assert answer["stop_reason"] == "max_tokens"


def test_thinking(thinker: Server) -> None:
    answer = whole_and_streamed(thinker, messages=USER, **GREEDY)
    assert [block.type for block in answer.content] == ["thinking"]
    assert 0 < answer.usage.output_tokens_details.thinking_tokens <= 8
    on = client(thinker).messages.create(messages=USER, thinking={"type": "enabled", "budget_tokens": 1024}, **GREEDY)
    assert on.content == answer.content
    off = client(thinker).messages.create(messages=USER, thinking={"type": "disabled"}, **GREEDY)
    assert [block.type for block in off.content] == ["text"]
    history = [*USER, {"role": "assistant", "content": answer.model_dump()["content"]}, *USER]
    assert client(thinker).messages.create(messages=history, **GREEDY).content


def test_blocks_become_messages(thinker: Server) -> None:
    blocks: list[Any] = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "theirs"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "no such city", "is_error": True},
                {"type": "text", "text": "And"},
                {"type": "text", "text": "now?"},
            ],
        },
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "Error: no such city", "name": "get_weather", "tool_call_id": "c1"},
        {"role": "user", "content": "And\nnow?"},
    ]
    tool = {"type": "function", "function": {"name": "get_weather", "description": WEATHER["description"]}}
    tool["function"]["parameters"] = WEATHER["input_schema"]  # type: ignore[index]
    expected = thinker.post("/tokenize", messages=messages, tools=[tool]).json()
    fields: dict[str, Any] = {"model": "tiny", "messages": blocks, "system": "Be brief.", "tools": [WEATHER]}
    assert client(thinker).messages.count_tokens(**fields).input_tokens == expected["count"]
    usage = client(thinker).messages.create(max_tokens=1, **fields).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == expected["count"]
    again = thinker.post("/v1/completions", prompt=expected["tokens"], max_tokens=1).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == expected["count"] // 16 * 16


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": "y"}
CALL = {"type": "tool_use", "id": "x", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "messages[0].content[0]"),
        ({"messages": [*USER, {"role": "assistant", "content": [CALL]}]}, "tool_result must follow"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tools": [WEATHER | {"strict": True}]}, "tools[0].strict"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"effort": "high"}}, "reasoning_effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(server: Server, fields: dict[str, Any], words: str) -> None:
    answer = server.post("/v1/messages", **{"messages": USER, **RAW, **fields})
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in body["error"]["message"]


def test_thinking_that_cannot_be_turned_off(server: Server) -> None:
    """The plain template knows no reasoning, so there is nothing to turn off, nor on."""
    for kind in ({"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}):
        assert server.post("/v1/messages", messages=USER, thinking=kind, **RAW).status_code == 200


def test_errors_raise_the_client_s_classes(server: Server, guarded: Server, thinker: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client(server).messages.create(messages=USER, **GREEDY | {"model": "other"})
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.AuthenticationError):
        client(guarded, "three").messages.count_tokens(messages=USER, model="x")
    model = guarded.http.get("/v1/models").json()["data"][0]["id"]
    assert client(guarded, "one").messages.count_tokens(messages=USER, model=model).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client(thinker).messages.create(messages=[{"role": "user", "content": "sea " * 5000}], **GREEDY)
    assert server.http.get("/v1/messages").json()["type"] == "error"


def test_an_answer_begins_in_the_queue_and_ends_with_its_client(guarded: Server) -> None:
    """The one place is taken; the second stream says at once that it has been heard, and leaves no trace."""
    body = {"messages": USER, "max_tokens": 8, "stream": True}
    with stream(guarded, **LONG):
        with guarded.http.stream("POST", "/v1/messages", json=body) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: message_start"
            assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 2)
        assert comes_true(lambda: guarded.http.get("/load").json()["server_load"] == 1)
    assert comes_true(lambda: idle(guarded))
    assert "Traceback" not in guarded.log.read_text()


def test_habits_of_coding_tools_do_no_harm(server: Server) -> None:
    """What they send with every request."""
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    body = {"metadata": {"user_id": "me"}, "context_management": keep, "thinking": {"type": "adaptive"}, "tools": []}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2025-01-01"}
    answer = server.http.post("/v1/messages?beta=true", json={"messages": USER, **body, **RAW}, headers=headers)
    assert answer.status_code == 200, answer.text
