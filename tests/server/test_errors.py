"""Whatever is wrong with a request is said in OpenAI's form with its status, and OpenAI's client raises its class."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.processes import Server

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "The sea", "max_tokens": 2}
USER = [{"role": "user", "content": "Hi"}]


def checked(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer with this status."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    return error


BODIES = [
    b'{"messages":',
    b"",
    b"[]",
    b"null",
    b'"text"',
    b'{"prompt": "\xff"}',
    b'\xef\xbb\xbf{"prompt": "a"}',
    b'{"prompt": "x \\ud83d y"}',
    b'{"prompt": "\\udcf0"}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a"} {}',
    b"[" * 100_000,
    b'{"prompt": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:30].decode(errors="replace"))
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"]
)
def test_bodies_that_are_not_json_of_the_right_kind(server: Server, path: str, body: bytes) -> None:
    """C43, C44. With and without a content type."""
    checked(server.http.post(path, content=body), 400)
    checked(server.http.post(path, content=body, headers={"Content-Type": "application/json"}), 400)


def test_pairs_of_surrogates_and_control_characters_are_text(server: Server) -> None:
    body = b'{"prompt": "\\ud83d\\ude00 \\u0000 \\u0001", "max_tokens": 1, "echo": true}'
    answer = server.http.post("/v1/completions", content=body)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"].startswith("\U0001f600 \0 \1")


COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": 999_999}, "temperature"),
    ({"temperature": "NaN"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0.01}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"n": 129}, "n"),
    ({"best_of": 129}, "best_of"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -2}, "logprobs"),
    ({"prompt_logprobs": 10**6}, "prompt_logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 4097}, "stop"),
    ({"stop": ["a", "a" * 4097]}, "stop[1]"),
    ({"bad_words": ["a" * 257]}, "bad_words[0]"),
    ({"bad_words": ["a"] * 1025}, "bad_words"),
    ({"model": "a" * 513}, "model"),
    ({"user": "a" * 513}, "user"),
    ({"request_id": "a" * 129}, "request_id"),
    ({"vllm_xargs": {str(i): 1 for i in range(65)}}, "vllm_xargs"),
    ({"stop_token_ids": [5] * 1025}, "stop_token_ids"),
    ({"allowed_token_ids": [5] * 65_537}, "allowed_token_ids"),
    ({"stop_token_ids": [999_999_999], "min_tokens": 1}, "stop_token_ids"),
    ({"stop_token_ids": [-5]}, "stop_token_ids"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),  # more digits than Python reads
    ({"logit_bias": {f"{i % 500:0{3 + i // 500}}": 1 for i in range(1025)}}, "logit_bias"),  # too many, all good
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1, "max_tokens": 2}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 129}, "cache_salt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1], 2]}, "prompt"),
    ({"prompt": [-1]}, "prompt_token_ids"),
    ({"prompt": [512]}, "prompt_token_ids"),
    ({"prompt": [[10**30]]}, "prompt_token_ids"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"suffix": "end"}, "suffix"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"guided_regex": "a*"}, "guided_regex"),
    ({"timeout": 0}, "timeout"),
    ({"request_id": "two words"}, "request_id"),
    ({"no_such_field": 1}, "no_such_field"),
    ({"stream_options": {"no_such_field": 1}, "stream": True}, "stream_options.no_such_field"),
]


@pytest.mark.parametrize(("fields", "param"), COMPLETION_FIELDS, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_field_is_a_400_that_names_it(server: Server, fields: dict[str, Any], param: str, stream: bool) -> None:
    """C14, C23, C25, C26, C41; also with stream, before its first event."""
    error = checked(server.post("/v1/completions", **({"stream": stream} | GOOD | fields)), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        ([], "messages"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "alien", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([*USER, {"role": "assistant", "audio": {"id": "a"}}], "messages[1].audio"),
        ([*USER, {"role": "user", "contents": "x"}], "messages[1].contents"),
    ],
)
def test_bad_messages(server: Server, messages: Any, param: str) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        assert checked(server.post(path, messages=messages), 400)["param"] == param


def test_a_word_that_is_none_of_a_field_s_is_told_which_are(server: Server) -> None:
    error = checked(server.post("/v1/chat/completions", messages=[{"role": "alien", "content": "x"}]), 400)
    roles = "'assistant', 'developer', 'function', 'system', 'tool', 'user'"
    assert error["message"] == f"messages[0].role: invalid enum value 'alien'; it may be {roles}."
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    answer = server.post("/v1/messages", messages=image, max_tokens=1)
    assert answer.status_code == 400
    blocks = "'text', 'tool_use', 'tool_result', 'thinking'"
    words = f"messages[0].content[0].type: invalid value 'image'; it may be {blocks}."
    assert answer.json()["error"]["message"] == words


def test_an_empty_body_is_said_to_be_empty(server: Server) -> None:
    error = checked(server.http.post("/v1/completions"), 400)
    assert (error["code"], error["message"]) == ("invalid_json", "The body is empty; it must be a JSON object.")


def test_tokens(server: Server) -> None:
    ids = server.post("/tokenize", prompt="The sea", return_token_strs=True).json()
    assert (ids["count"], len(ids["token_strs"])) == (len(ids["tokens"]), len(ids["tokens"]))
    assert server.post("/detokenize", tokens=ids["tokens"]).json()["prompt"].endswith("The sea")
    for tokens in ([-1], [10**6], ["a"], [10**30]):
        assert checked(server.post("/detokenize", tokens=tokens), 400)["param"].startswith("tokens")
    checked(server.post("/tokenize"), 400)
    checked(server.post("/tokenize", prompt="a", messages=USER), 400)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_paths_and_methods_that_are_not_there(server: Server, method: str) -> None:
    error = checked(server.http.request(method, "/v1/nothing"), 404)
    assert error["code"] == "unknown_url"
    assert "no /v1/nothing here" in error["message"]
    if method != "POST":
        assert checked(server.http.request(method, "/v1/completions"), 405)["code"] == "method_not_allowed"


def test_models(server: Server, client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, client.models.retrieve("tiny").id) == ("tiny", "tiny")
    assert checked(server.http.get("/v1/models/other"), 404)["code"] == "model_not_found"
    assert checked(server.post("/v1/completions", **(GOOD | {"model": "other"})), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/score", "/v1/score", "/rerank", "/v1/rerank", "/pooling", "/classify"]
)
def test_what_a_generating_model_cannot(server: Server, path: str) -> None:
    assert "generates text" in checked(server.post(path, input="a"), 501)["message"]


def test_admin_routes_are_off(server: Server) -> None:
    for path in ("/reset_prefix_cache", "/start_profile", "/stop_profile"):
        checked(server.post(path), 404)


def test_openai_s_client_raises_its_classes(client: openai.OpenAI, guarded: Server) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        guarded.client("wrong").models.list()
    with pytest.raises(openai.APIStatusError) as large:
        guarded.client("one").completions.create(model="tiny", prompt="a" * 200_000)
    assert large.value.status_code == 413


def test_the_openapi_document_describes_the_requests(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["ChatCompletionRequest"]["additionalProperties"] is False
    assert "messages" in schemas["ChatCompletionRequest"]["required"]
    described = json.dumps(document["paths"]["/v1/completions"]["post"]["requestBody"])
    assert "CompletionRequest" in described
