"""What is asked: request number N of a seed is always the same, whatever came before it.

Every endpoint that generates, streamed and whole, with all that makes a difference to how a request is kept: several
prompts and answers, logprobs, stop strings, masks, penalties, tools, shared beginnings, salts, priorities, deadlines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

LEAVING_SHARE, INVALID_SHARE = 0.2, 0.1
ENDLESS_TOKENS = 1500
"""Of an answer whose client goes away: more than it could get before anybody notices."""
CONTEXT = 2048
MAX_BODY_BYTES = 100_000
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}Call one of {{ tools | tojson }} within <tool_call>.\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For every model, so that all take tools and roles."""

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
Left = Literal["queue", "prefill", "decode"]
_TEXT = "the sea is wide and a fathom deep so ships go slow or sink while gulls look on from rocks near land"
_WORDS = _TEXT.split()
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass(frozen=True)
class Asked:
    """One request.

    content: of the body; None: a GET. answers: how many it asks for. streamed: whether the answer comes as events.
    left: when its client goes away; None: it waits for the end. valid: whether it is to be answered, not refused.
    patience: number of events, or if none come seconds, that a client waits before it goes away.
    """

    number: int
    path: str
    content: bytes | None
    answers: int
    streamed: bool
    left: Left | None
    valid: bool
    patience: float


class Workload:
    """Requests by number.

    Args:
        first_staying: from this number on, nobody goes away.
    """

    def __init__(self, seed: int, first_staying: int) -> None:
        self._seed = seed
        self._first_staying = first_staying

    def __getitem__(self, number: int) -> Asked:
        chance = Random(f"{self._seed}/{number}")
        kind = chance.random()
        if kind < INVALID_SHARE:
            return _invalid(chance, number)
        left: Left | None = None
        if kind < INVALID_SHARE + LEAVING_SHARE and number < self._first_staying:
            left = chance.choice(["queue", "prefill", "decode"])
        path = chance.choices([COMPLETIONS, CHAT, RESPONSES, MESSAGES], [4, 3, 2, 2])[0]
        body = _BODIES[path](chance, number)
        streamed = chance.random() < 0.5 or left == "prefill"
        if left is not None:
            _go_on_for_long(chance, path, body, left)
        if streamed:
            body["stream"] = True
            if path in (COMPLETIONS, CHAT):
                body["stream_options"] = {"include_usage": True, "continuous_usage_stats": chance.random() < 0.3}
        if number >= self._first_staying:
            body.pop("timeout", None)  # whether it ended in the queue, where nothing is counted, could not be seen
        answers = _num_prompts(body) * body.get("n", 1)
        patience = chance.randint(1, 8) if left == "decode" and streamed else chance.uniform(0.02, 0.4)
        return Asked(number, path, json.dumps(body).encode(), answers, streamed, left, True, patience)


def _num_prompts(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1


def _go_on_for_long(chance: Random, path: str, body: dict[str, Any], left: Left) -> None:
    """Make it unlikely that the answer ends by itself before its client has gone."""
    body[_LIMITS[path]] = ENDLESS_TOKENS
    for name in ("stop", "stop_sequences", "min_tokens", "timeout", "tool_choice"):
        body.pop(name, None)
    if path == MESSAGES:  # which has no ignore_eos
        body["temperature"] = 0
    else:
        body["ignore_eos"] = True
    if left == "prefill":
        text = _text(chance, 400)
        if path == COMPLETIONS:
            body["prompt"] = text
        elif path == RESPONSES:
            body["input"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]


# ---------------------------------------------------------------- valid bodies


def _text(chance: Random, num_words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=num_words))


def _prompt(chance: Random) -> str:
    """A third begins with one of four texts, of which all but the first time are found in the cache."""
    own = _text(chance, chance.choice([1, 3, 10, 30, 60]))
    if chance.random() < 1 / 3:
        return _text(Random(chance.randrange(4)), 60) + " " + own
    return own


def _maybe(chance: Random, body: dict[str, Any], share: float, make: Callable[[], dict[str, Any]]) -> None:
    if chance.random() < share:
        body |= make()


def _common(chance: Random, number: int) -> dict[str, Any]:
    """Fields of OpenAI's three endpoints, vLLM's extensions among them."""
    body: dict[str, Any] = {"temperature": chance.choice([0, 0, 0.7, 1.0, 1.5])}
    _maybe(chance, body, 0.3, lambda: {"top_p": 0.9, "top_k": chance.choice([1, 5, 50]), "min_p": 0.05})
    _maybe(chance, body, 0.2, lambda: {"seed": number})
    _maybe(chance, body, 0.2, lambda: {"stop": chance.sample(["e", "th", "zq", "\n", " a"], 2)})
    _maybe(chance, body, 0.1, lambda: {"repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.2})
    _maybe(chance, body, 0.1, lambda: {"logit_bias": {str(chance.randrange(300)): chance.uniform(-5, 5)}})
    _maybe(chance, body, 0.1, lambda: {"bad_words": [chance.choice(_WORDS), "the sea"]})
    _maybe(chance, body, 0.05, lambda: {"allowed_token_ids": list(range(10, 300))})
    _maybe(chance, body, 0.1, lambda: {"cache_salt": f"tenant-{number}"})
    _maybe(chance, body, 0.1, lambda: {"request_id": f"mine-{number}", "user": f"user-{number}"})
    _maybe(chance, body, 0.2, lambda: {"priority": chance.choice([-1, 1])})
    _maybe(chance, body, 0.1, lambda: {"ignore_eos": True})
    _maybe(chance, body, 0.03, lambda: {"timeout": 0.05})
    return body


def _completion(chance: Random, number: int) -> dict[str, Any]:
    body = {"prompt": _prompt(chance), "max_tokens": chance.randint(1, 48)} | _common(chance, number)
    _maybe(chance, body, 0.1, lambda: {"prompt": [_prompt(chance) for _ in range(3)]})
    _maybe(chance, body, 0.1, lambda: {"prompt": [chance.randrange(5, 300) for _ in range(40)]})
    _maybe(chance, body, 0.2, lambda: {"n": chance.choice([2, 3]), "temperature": 1.0})
    _maybe(chance, body, 0.2, lambda: {"logprobs": chance.choice([0, 2, 20])})
    _maybe(chance, body, 0.1, lambda: {"prompt_logprobs": 1})
    _maybe(chance, body, 0.1, lambda: {"echo": True})
    _maybe(chance, body, 0.1, lambda: {"min_tokens": 1, "return_token_ids": True})
    return body


def _conversation(chance: Random) -> list[dict[str, Any]]:
    """Messages of one to three turns."""
    turns = [{"role": role, "content": _prompt(chance)} for role in ("user", "assistant") * chance.randint(0, 2)]
    return [*turns, {"role": "user", "content": _prompt(chance)}]


def _chat(chance: Random, number: int) -> dict[str, Any]:
    body = {"messages": _conversation(chance), "max_tokens": chance.randint(1, 48)} | _common(chance, number)
    function = {"name": "weather", "description": "Of a city.", "parameters": _SCHEMA}
    _maybe(chance, body, 0.3, lambda: {"tools": [{"type": "function", "function": function}]})
    if "tools" in body:
        _maybe(chance, body, 0.5, lambda: {"tool_choice": chance.choice(["auto", "required", "none"])})
    _maybe(chance, body, 0.2, lambda: {"n": chance.choice([2, 3]), "temperature": 1.0})
    _maybe(chance, body, 0.2, lambda: {"logprobs": True, "top_logprobs": 3})
    _maybe(chance, body, 0.1, lambda: {"explain": True})
    return body


def _response(chance: Random, number: int) -> dict[str, Any]:
    body = {"input": _prompt(chance), "max_output_tokens": chance.randint(1, 48)} | _common(chance, number)
    _maybe(chance, body, 0.5, lambda: {"input": _conversation(chance), "instructions": "Be brief."})
    _maybe(chance, body, 0.3, lambda: {"tools": [{"type": "function", "name": "weather", "parameters": _SCHEMA}]})
    return body


def _message(chance: Random, number: int) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": _conversation(chance), "max_tokens": chance.randint(1, 48)}
    body["temperature"] = chance.choice([0, 0.7, 1.0])
    _maybe(chance, body, 0.3, lambda: {"system": "Be brief."})
    _maybe(chance, body, 0.3, lambda: {"tools": [{"name": "weather", "input_schema": _SCHEMA}]})
    _maybe(chance, body, 0.2, lambda: {"stop_sequences": ["e", "zq"]})
    return body


_BODIES: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    COMPLETIONS: _completion,
    CHAT: _chat,
    RESPONSES: _response,
    MESSAGES: _message,
}
_LIMITS = {COMPLETIONS: "max_tokens", CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


# ---------------------------------------------------------------- invalid ones


def _invalid(chance: Random, number: int) -> Asked:
    path = chance.choice([COMPLETIONS, CHAT, RESPONSES, MESSAGES])
    body = _BODIES[path](chance, number)
    content: bytes | None
    match chance.randrange(8):
        case 0:
            content = json.dumps(body).encode()[: chance.randint(0, 30)]
        case 1:
            content = json.dumps(body | {f"unknown_{number}": 1}).encode()
        case 2:
            content = json.dumps(body | {"temperature": chance.choice([-1, "hot", 1e400])}).encode()
        case 3:
            content = json.dumps(body | {"model": f"no-such-model-{number}"}).encode()
        case 4:
            content = json.dumps(body | {_LIMITS[path]: -3}).encode()
        case 5:
            content = b"\xff\xfe" + json.dumps(body).encode()
        case 6:
            path, content = f"{path}/{number}", b"{}"
        case _:
            content = b" " * (MAX_BODY_BYTES + 1)
    return Asked(number, path, content, 0, False, None, False, 0.0)
