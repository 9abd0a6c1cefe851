"""Prompts: what a request holds -> token ids, with long texts tokenised and rendered off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.protocol.chat import ChatCompletionRequest, ChatMessage, Tool
from fathom.entrypoints.server.protocol.completion import MAX_PROMPTS, CompletionRequest
from fathom.entrypoints.server.protocol.other import TokenizeRequest
from fathom.entrypoints.server.serving import Serving
from fathom.errors import ContextLengthError
from fathom.frontend.async_engine import LONG_TEXT
from fathom.frontend.chat_template import render_chat

T = TypeVar("T")


@dataclass(frozen=True)
class ServedPrompt:
    """A prompt, tokenised. text: None if it came as token ids."""

    text: str | None
    token_ids: list[int]


async def off_loop_if(long: bool, work: Callable[[], T]) -> T:
    """The work's result; work that takes long is done in another thread, so that others' tokens do not wait."""
    return await asyncio.to_thread(work) if long else work()


async def completion_prompts(serving: Serving, request: CompletionRequest) -> list[ServedPrompt]:
    """The prompts of a completion request.

    Raises:
        ApiError, ValidationError: no prompts, too many, or a mixture of tokens and texts that is neither.
    """
    given = _as_list(request.prompt)
    texts = [item for item in given if isinstance(item, str)]
    encoded: list[list[int]] = []
    if texts:
        tokenizer = serving.need_tokenizer("prompt")

        def encode() -> list[list[int]]:
            if request.truncate_prompt_tokens is None:
                for text in texts:
                    _check_may_fit(serving, text, "prompt")
            return tokenizer.encode_batch(texts, request.add_special_tokens)

        encoded = await off_loop_if(sum(map(len, texts)) > LONG_TEXT, encode)
    next_ids = iter(encoded)
    return [ServedPrompt(item, next(next_ids)) if isinstance(item, str) else ServedPrompt(None, item) for item in given]


def _as_list(prompt: str | list[Any]) -> list[Any]:
    """Every form of a prompt as a list of texts and lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt is empty; it needs at least one token.", "prompt")
    are_ids = {issubclass(kind, int) for kind in set(map(type, prompt))}
    if are_ids == {True}:
        return [prompt]
    if True in are_ids:
        raise bad_request("prompt mixes token ids with texts or lists.", "prompt")
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"prompt holds {len(prompt)} prompts; {MAX_PROMPTS} are the most in one request.", "prompt")
    return prompt


async def chat_prompt(
    serving: Serving,
    request: ChatCompletionRequest | TokenizeRequest,
    tools: list[Tool] | None,
    opening: Callable[[str], str] | None = None,
    *,
    must_fit: bool = False,
) -> ServedPrompt:
    """The prompt of a conversation, by the request's chat template, the server's or the model's.

    Args:
        tools: those that the template is to show.
        opening: from the rendered text to what follows it.
        must_fit: refuse what is longer than the context, if that can be seen before it is tokenised.

    Raises:
        ApiError, ValidationError: messages that are no conversation, or that the template refuses.
    """
    tokenizer = serving.need_tokenizer("messages")
    if request.chat_template is not None and not serving.settings.trust_request_chat_template:
        raise bad_request(
            "chat_template is refused: the server was not started with --trust-request-chat-template.",
            "chat_template",
            "unsupported_parameter",
        )
    assert request.messages is not None
    template = request.chat_template or serving.template
    variables = {**serving.template_variables, **(request.chat_template_kwargs or {})}
    if isinstance(request, ChatCompletionRequest) and request.reasoning_effort is not None:
        _need_variable(serving, template, "reasoning_effort")
        variables["reasoning_effort"] = request.reasoning_effort
    if tools:
        _need_variable(serving, template, "tools")
    messages = _messages(request.messages, knows_developer="developer" in template_source(serving, template))

    def render() -> ServedPrompt:
        text = render_chat(
            tokenizer,
            messages,
            chat_template=template,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=[msgspec.to_builtins(tool) for tool in tools] if tools else None,
            documents=request.documents if isinstance(request, ChatCompletionRequest) else None,
            chat_template_kwargs=variables,
        )
        text += opening(text) if opening else ""
        if must_fit:
            _check_may_fit(serving, text, "messages")
        return ServedPrompt(text, tokenizer.encode(text, add_special_tokens=bool(request.add_special_tokens)))

    return await off_loop_if(_num_characters(messages) > LONG_TEXT or bool(tools), render)


def _check_may_fit(serving: Serving, text: str, parameter: str) -> None:
    """Refuse a text that cannot be short enough, without the seconds that it would take to say how long it is."""
    context = serving.engine.input_processor.max_model_len
    if len(text) <= context:
        return
    most = serving.need_tokenizer(parameter).most_characters(context)
    if len(text) > most:
        raise ContextLengthError(
            f"the prompt has {len(text)} characters, and the {context} tokens of the context cannot spell more than "
            f"{most}.",
            parameter=parameter,
            value=len(text),
            hint="Shorten it, or raise max_model_len if the model allows.",
        )


def template_source(serving: Serving, template: str | None) -> str:
    """The text of the template in use; of a model's several, all of them."""
    own = serving.need_tokenizer("messages").chat_template
    if template is not None:
        return own.get(template, template) if isinstance(own, dict) else template
    return "".join(own.values()) if isinstance(own, dict) else own or ""


def _need_variable(serving: Serving, template: str | None, name: str) -> None:
    """Refuse what the chat template would not read."""
    if name not in template_source(serving, template):
        raise bad_request(
            f"{name} is not supported: the model's chat template does not read it.", name, "unsupported_parameter"
        )


def _messages(messages: list[ChatMessage], *, knows_developer: bool) -> list[dict[str, Any]]:
    """Messages for the template. A developer's word is the system's where the template does not know the role."""
    plain = []
    for message in messages:
        converted = msgspec.to_builtins(message)
        if message.role == "developer" and not knows_developer:
            converted["role"] = "system"
        plain.append(converted)
    return plain


def _num_characters(messages: list[dict[str, Any]]) -> int:
    return sum(len(str(message.get("content", ""))) for message in messages)


def truncate(token_ids: list[int], keep: int | None, side: str, room: int) -> list[int]:
    """truncate_prompt_tokens. room: what -1 stands for."""
    if keep is None:
        return token_ids
    keep = room if keep == -1 else keep
    if len(token_ids) <= keep:
        return token_ids
    if keep == 0:
        return []
    return token_ids[-keep:] if side == "left" else token_ids[:keep]
