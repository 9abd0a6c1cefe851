"""/v1/chat/completions through OpenAI's client: conversations, streams, logprobs, tools."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from fathom import LLM, SamplingParams
from tests.server.forced import ids_of, says
from tests.server.processes import Server

USER: list[Any] = [{"role": "user", "content": "Why is the sea salt?"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}


def test_smollm2_answers_as_offline(smollm2: Server, smollm2_path: Any) -> None:
    """The main path with the default model: greedy text, whole and streamed, sync and async."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, *USER]
    options: dict[str, Any] = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16}
    with LLM(str(smollm2_path), multiprocess=False, show_progress=False) as llm:
        (expected,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
    client = smollm2.client()
    answer = client.chat.completions.create(**options)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", expected.outputs[0].text)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    streamed = client.chat.completions.create(stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == message.content

    async def many() -> list[str]:
        async with smollm2.async_client() as async_client:
            answers = await asyncio.gather(*[async_client.chat.completions.create(**options) for _ in range(4)])
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(many()) == [message.content] * 4


def test_a_stream_has_a_role_then_content_then_a_reason_then_done(server: Server) -> None:
    """C61, C62: framing, and where the usage is."""
    body = {"messages": USER, "stream": True, "stream_options": {"include_usage": True}, **GREEDY}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    chunks = list(server.client().chat.completions.create(**body))  # type: ignore[call-overload]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    first, *middle, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].delta.model_dump(exclude_none=True) == {}
    assert all(chunk.choices[0].finish_reason is None and chunk.choices[0].delta.content for chunk in middle)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    whole = server.post("/v1/chat/completions", messages=USER, **GREEDY).json()
    assert (usage.choices, usage.usage.completion_tokens) == ([], whole["usage"]["completion_tokens"])
    assert usage.usage.prompt_tokens == whole["usage"]["prompt_tokens"]


def test_usage_in_every_chunk_if_asked(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": USER, "stream": True, "stream_options": options, **GREEDY}
    chunks = list(server.client().chat.completions.create(**body))  # type: ignore[call-overload]
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_logprobs_are_the_model_s_whatever_the_temperature(server: Server) -> None:
    """C27, C29: raw logprobs by default; the top ones in order; bytes of each token."""
    found = []
    for temperature in (0, 0.5, 1.5):
        body = GREEDY | {"temperature": temperature, "logit_bias": {"40": 100}, "max_tokens": 2}
        answer = server.post("/v1/chat/completions", messages=USER, logprobs=True, top_logprobs=3, **body).json()
        entries = answer["choices"][0]["logprobs"]["content"]
        found.append([entry["logprob"] for entry in entries])
        for entry in entries:
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
            assert len(values) == 3
            assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
            assert math.fsum(map(math.exp, values)) <= 1
    assert found[0] == found[1] == found[2]


def test_conversations_are_rendered_by_the_template(server: Server) -> None:
    def prompt(*messages: Any, **fields: Any) -> str:
        return str(server.post("/tokenize", messages=list(messages), **fields).json()["prompt"])

    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    assert prompt({"role": "user", "content": parts}) == "user: Hello\nthere\nassistant: "
    assert prompt({"role": "developer", "content": "Be brief."}, *USER).startswith("system: Be brief.\n")
    assert prompt(*USER, add_generation_prompt=False) == "user: Why is the sea salt?\n"
    begun = [*USER, {"role": "assistant", "content": "Because rivers"}]
    ends = prompt(*begun, add_generation_prompt=False, continue_final_message=True)
    assert ends.endswith("assistant: Because rivers")


def test_the_final_message_is_carried_on_and_echoed(server: Server) -> None:
    begun = [*USER, {"role": "assistant", "content": "Because rivers"}]
    fields = {"add_generation_prompt": False, "continue_final_message": True, **GREEDY}
    plain = server.post("/v1/chat/completions", messages=begun, **fields).json()["choices"][0]["message"]["content"]
    echoed = server.post("/v1/chat/completions", messages=begun, echo=True, **fields).json()
    assert echoed["choices"][0]["message"]["content"] == "Because rivers" + plain


def test_several_answers_and_the_rest_of_the_context(server: Server) -> None:
    answer = server.post("/v1/chat/completions", messages=USER, n=3, temperature=1, seed=1, max_completion_tokens=5)
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3
    free = server.post("/v1/chat/completions", messages=USER, temperature=0, stop_token_ids=list(range(512)))
    assert free.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Only one question, please.') }}", "Only one question, please."),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{% for %}", "line 1"),
    ],
)
def test_a_template_that_refuses_says_so(server: Server, guarded: Server, template: str, words: str) -> None:
    """C47. A request's own template is taken only by a server that trusts it."""
    body = {"messages": USER, "chat_template": template, "max_tokens": 1}
    answer = guarded.post("/v1/chat/completions", **body)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True)
    refused = server.post("/v1/chat/completions", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")


F: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def test_a_named_function_is_called_whatever_the_model_thinks(guarded: Server) -> None:
    """C59: this model writes at random, so that it is a call is the server's doing."""
    body = {"messages": USER, "tools": [F], "tool_choice": NAMED, "max_tokens": 6, "temperature": 0}
    answer = guarded.post("/v1/chat/completions", **body).json()["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "f")
    assert (answer["message"]["content"], answer["finish_reason"]) == (None, "length")
    pieces: list[Any] = []
    for chunk in guarded.client("one").chat.completions.create(model=model_of(guarded), stream=True, **body):  # type: ignore[call-overload]
        pieces += chunk.choices[0].delta.tool_calls or []
    assert [piece.function.name for piece in pieces] == ["f"] + [None] * (len(pieces) - 1)
    assert "".join(piece.function.arguments for piece in pieces) == call["function"]["arguments"]


def test_tools_are_shown_unless_they_may_not_be_called(guarded: Server) -> None:
    def prompt_tokens(**fields: Any) -> int:
        answer = guarded.post("/v1/chat/completions", messages=USER, max_tokens=1, temperature=0, **fields)
        return int(answer.json()["usage"]["prompt_tokens"])

    alone = prompt_tokens()
    assert prompt_tokens(tools=[F]) == prompt_tokens(tools=[F], tool_choice="auto") > alone
    assert prompt_tokens(tools=[F], tool_choice="none") == alone
    assert prompt_tokens(tools=[F], tool_choice="required") > prompt_tokens(tools=[F])
    for bad in ({"tool_choice": NAMED}, {"tools": [F], "tool_choice": {"function": {"name": "g"}}}):
        answer = guarded.post("/v1/chat/completions", messages=USER, max_tokens=1, **bad)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


def model_of(server: Server) -> str:
    return str(server.http.get("/v1/models").json()["data"][0]["id"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"priority": 1}, "priority"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    """C51, C59: never accepted and ignored."""
    answer = server.post("/v1/chat/completions", messages=USER, **(GREEDY | fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_habits_of_clients_do_no_harm(server: Server) -> None:
    """Neutral values, and an answer's message sent back with the history as it came."""
    first = server.client().chat.completions.create(messages=USER, **GREEDY).choices[0].message
    neutral = {"response_format": {"type": "text"}, "store": False, "service_tier": "auto", "tools": None, "n": None}
    history = [*USER, first.model_dump(), {"role": "user", "content": "Go on."}]
    answer = server.post("/v1/chat/completions", messages=history, user="me", metadata={"a": "b"}, **neutral, **GREEDY)
    assert answer.status_code == 200, answer.text


def test_usage_says_how_many_tokens_were_reasoning(thinker: Server, server: Server) -> None:
    """The prompt has opened the reasoning; the count is of ids, and the same streamed as in one piece."""
    thought = ids_of(thinker, "Salt, é. ")
    body = {"messages": USER, **says(thinker, [*thought, *ids_of(thinker, "</think> Rivers.")])}
    answer = thinker.post("/v1/chat/completions", **body).json()
    assert answer["choices"][0]["message"]["content"] == "Rivers."
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = thinker.post("/v1/chat/completions", **body, **options).text.split("\n\n")
    usage = json.loads(lines[-3].removeprefix("data: "))["usage"]
    assert usage["completion_tokens_details"] == answer["usage"]["completion_tokens_details"]
    off = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 4}
    without = thinker.post("/v1/chat/completions", messages=USER, **off).json()
    assert without["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    plain = server.post("/v1/chat/completions", messages=USER, max_tokens=1).json()
    assert "completion_tokens_details" not in plain["usage"]
