"""The streamed answer and the whole one are the same, over a grid of parameters: C22 of the list of complaints.

Chunks are put together here by the few lines that any client has, and compared field by field.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.server.processes import Server

PROMPT = "The sea is wide"
MESSAGES = [{"role": "user", "content": PROMPT}]
SAMPLING = [
    {"temperature": 0},
    {"temperature": 1.0, "n": 3},
    {"temperature": 0.9, "top_p": 0.8, "presence_penalty": 1.0, "frequency_penalty": 0.5},
]
ENDS: list[dict[str, Any]] = [
    {},
    {"stop": ["e", "zz"]},
    {"stop": "a", "include_stop_str_in_output": True},
    {"min_tokens": 9},
]
SHOWN: list[dict[str, Any]] = [{}, {"return_token_ids": True}, {"skip_special_tokens": False, "ignore_eos": True}]
COMPLETION: list[dict[str, Any]] = [
    {},
    {"echo": True},
    {"logprobs": 0},
    {"logprobs": 2, "echo": True},
    {"prompt": [PROMPT, [5, 6, 7]], "logprobs": 1},
    {"max_tokens": 1, "min_tokens": 0},
]
CHAT: list[dict[str, Any]] = [
    {},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"prompt_logprobs": 1},
    {"max_tokens": 1, "min_tokens": 0},
]


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with server.http.stream("POST", path, json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def joined(chunks: list[dict[str, Any]], content: str) -> dict[int, dict[str, Any]]:
    """By choice: every list and the content added up, of all else the last value."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            merged = choices.setdefault(choice["index"], {})
            fields = choice | choice.pop("delta", {})
            for name, value in fields.items():
                merged[name] = _plus(merged.get(name), value, name == content)
    return choices


def _plus(before: Any, value: Any, is_content: bool) -> Any:
    if value is None or before is None:
        return value if before is None else before
    if isinstance(value, list) or is_content:
        return before + value
    if isinstance(value, dict):
        return {name: _plus(before[name], value[name], False) for name in value}
    return value


def rounded(value: Any) -> Any:
    """With logprobs to four digits: a product's last bits depend on how many rows a step has."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


@pytest.mark.parametrize("own", COMPLETION, ids=str)
def test_completions(server: Server, own: dict[str, Any]) -> None:
    for parts in itertools.product(SAMPLING, ENDS, SHOWN):
        body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "seed": 5}
        for part in (*parts, own):
            body |= part
        whole = server.post("/v1/completions", **body).json()
        chunks = streamed(server, "/v1/completions", body)
        usage = chunks.pop()
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
        choices = joined(chunks, "text")
        assert rounded([choices[index] for index in sorted(choices)]) == rounded(whole["choices"]), body


@pytest.mark.parametrize("own", CHAT, ids=str)
def test_chat(server: Server, own: dict[str, Any]) -> None:
    for parts in itertools.product(SAMPLING, ENDS, SHOWN):
        body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 5}
        for part in (*parts, own):
            body |= part
        whole = server.post("/v1/chat/completions", **body).json()
        chunks = streamed(server, "/v1/chat/completions", body)
        usage = chunks.pop()
        assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        choices = joined(chunks, "content")
        for choice in whole["choices"]:
            got, message = choices[choice["index"]], choice.pop("message")
            assert rounded({name: got[name] for name in choice}) == rounded(choice), body
            assert (got["role"], got["content"]) == (message["role"], message["content"])
        for field in ("prompt_logprobs", "prompt_token_ids"):
            assert rounded(whole.get(field)) == rounded(chunks[0].get(field))
