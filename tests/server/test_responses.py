"""/v1/responses through OpenAI's client: text, tools, reasoning, events, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.processes import Server

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 8}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
QUESTION = "What is the weather in Paris? Use the tool."


def without_ids(value: Any) -> Any:
    """What two answers to the same request share."""
    if isinstance(value, dict):
        names = ("id", "call_id", "created_at", "cached_tokens")
        return {name: without_ids(item) for name, item in value.items() if name not in names}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def streamed(server: Server, **body: Any) -> list[Any]:
    return list(server.client().responses.create(stream=True, **body))


def folded(events: list[Any]) -> list[dict[str, Any]]:
    """The items, put together from their deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(items)
            items.append({"type": event.item.type, "text": ""})
            if event.item.type == "function_call":
                items[-1] |= {"name": event.item.name, "call_id": event.item.call_id}
        elif event.type.endswith(".delta"):
            items[event.output_index]["text"] += event.delta
    return items


def told(output: list[Any]) -> list[dict[str, Any]]:
    """The items of a whole answer in the form that `folded` gives."""
    found = []
    for item in output:
        if item.type == "function_call":
            found.append({"type": item.type, "text": item.arguments, "name": item.name, "call_id": item.call_id})
        else:
            found.append({"type": item.type, "text": item.content[0].text})
    return found


def test_text_is_what_chat_gives_whole_and_streamed(server: Server) -> None:
    answer = server.client().responses.create(input="The sea", instructions="Be brief.", **GREEDY)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The sea"}]
    chat = server.client().chat.completions.create(messages=messages, model="tiny", temperature=0, max_tokens=8)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (8, chat.usage.total_tokens)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert (answer.object, answer.store, answer.instructions) == ("response", False, "Be brief.")  # type: ignore[attr-defined]
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "The sea"}]},
    ]
    again = server.client().responses.create(input=items, **GREEDY)  # type: ignore[call-overload]
    assert again.output_text == answer.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_the_order_of_events(server: Server) -> None:
    events = streamed(server, input="The sea", **GREEDY)
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert {event.item_id for event in events[3:-2]} == {last.output[0].id}
    assert folded(events) == told(last.output) == [{"type": "message", "text": events[-4].text}]
    assert (events[0].response.output, events[0].response.status, events[0].response.id) == ([], "in_progress", last.id)
    whole = server.client().responses.create(input="The sea", **GREEDY)
    assert without_ids(whole.model_dump()) == without_ids(last.model_dump())
    body = {"input": "The sea", "stream": True, **GREEDY}
    with server.http.stream("POST", "/v1/responses", json=body) as response:
        text = response.read().decode()
    assert text.startswith("event: response.created\ndata: {")
    assert "[DONE]" not in text


def test_an_answer_that_ends_by_itself_is_completed(server: Server) -> None:
    text = server.client().responses.create(input="The sea", **GREEDY).output_text
    body: dict[str, Any] = {**GREEDY, "extra_body": {"stop": text[3:5]}, "input": "The sea"}
    assert server.client().responses.create(**body).status == "completed"
    with server.client().responses.stream(**body) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output[0].status == "completed"  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "get_weather"}], ids=str)
def test_a_tool_is_called_and_its_result_read(coder: Server, choice: Any) -> None:
    body: dict[str, Any] = {"model": "coder", "temperature": 0, "max_output_tokens": 60, "tools": [WEATHER]}
    body |= {"tool_choice": choice}
    answer = coder.client().responses.create(input=QUESTION, **body)
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}
    assert len(call.call_id) == 9
    assert call.call_id.isalnum()
    events = streamed(coder, input=QUESTION, **body)
    assert without_ids(events[-1].response.model_dump()) == without_ids(answer.model_dump())
    assert folded(events) == told(events[-1].response.output)
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert (done.name, done.arguments) == (call.name, call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 22 degrees"}
    history = [{"role": "user", "content": QUESTION}, call.model_dump(exclude_none=True), result]
    final = coder.client().responses.create(input=history, **(body | {"tool_choice": "none"}))
    assert "22" in final.output_text


def test_reasoning_is_an_item_of_its_own(thinker: Server) -> None:
    answer = thinker.client().responses.create(input="The sea", **GREEDY)
    (item,) = answer.output
    assert (item.type, item.status) == ("reasoning", "incomplete")
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens <= 8
    events = streamed(thinker, input="The sea", **GREEDY)
    assert "response.reasoning_text.delta" in {event.type for event in events}
    assert folded(events) == told(answer.output)
    assert without_ids(events[-1].response.model_dump()) == without_ids(answer.model_dump())
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    (item,) = thinker.client().responses.create(input="The sea", extra_body=off, **GREEDY).output
    assert item.type == "message"


def test_a_forced_call_does_not_end_up_in_reasoning(thinker: Server) -> None:
    """The template has opened a block, in which a call would be none."""
    choice = {"type": "function", "name": "get_weather"}
    braces = thinker.post("/tokenize", prompt="{", add_special_tokens=False).json()["tokens"]
    body: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "extra_body": {"allowed_token_ids": braces}}
    answer = thinker.client().responses.create(input="The sea", **body, **GREEDY)
    assert [(item.type, item.name) for item in answer.output] == [("function_call", "get_weather")]  # type: ignore[union-attr]


def test_items_become_messages(thinker: Server) -> None:
    """What the model wrote in a row is one message: reasoning, text and calls."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for name in ("c1", "c2")
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "name": "get_weather", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "name": "get_weather", "tool_call_id": "c2", "content": "sun"},
    ]
    prompt = thinker.post("/tokenize", messages=messages).json()
    assert "assistant: hm|Let me see. call get_weather c1 call get_weather c2" in prompt["prompt"]
    usage = thinker.client().responses.create(input=items, **GREEDY).usage  # type: ignore[call-overload]
    assert usage.input_tokens == prompt["count"]
    assert usage.input_tokens_details.cached_tokens == 0
    again = thinker.client().chat.completions.create(messages=messages, model="tiny", max_tokens=1)  # type: ignore[arg-type]
    assert again.usage.prompt_tokens_details.cached_tokens == prompt["count"] // 16 * 16  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER | {"strict": True}]}, "tools[0].strict"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]}]},
            "input[0].output[0]",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "phase": "commentary"}]}, "input[0].phase"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/responses", **{"input": "Hi", **GREEDY, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_habits_of_clients_do_no_harm(server: Server) -> None:
    neutral = {
        "store": False, "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}}, "tools": [],
        "parallel_tool_calls": True, "truncation": "disabled", "reasoning": {"summary": "auto"}, "metadata": {"a": "b"},
        "prompt_cache_key": "me", "service_tier": "auto",
    }  # fmt: skip
    first = server.client().responses.create(input="Hi", **GREEDY)
    history = [{"role": "user", "content": "Hi"}, *first.model_dump()["output"], {"role": "user", "content": "Go on."}]
    answer = server.post("/v1/responses", input=history, **neutral, **GREEDY)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"] == {"a": "b"}


def test_a_stream_that_is_cut_off_says_so(server: Server) -> None:
    body = GREEDY | {"max_output_tokens": 10**9}
    events = streamed(server, input="Hi", extra_body={"timeout": 0.2, "ignore_eos": True}, **body)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "deadline"


def test_what_means_nothing_is_told_from_what_looks_alike(server: Server) -> None:
    """Found by benchmarks/fuzz.py: to Python, false is 0."""
    statuses = [
        server.post("/v1/responses", input="A", max_output_tokens=1, top_logprobs=value).status_code
        for value in (0, False, None)
    ]
    assert statuses == [200, 400, 200]


def test_the_document_knows_streams_and_refusals(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    answer = document["paths"]["/v1/responses"]["post"]["responses"]["200"]
    assert set(answer["content"]) == {"application/json", "text/event-stream"}
    assert document["components"]["schemas"]["ResponsesRequest"]["properties"]["background"]["enum"] == [None, False]
