"""/tokenize, /detokenize and /tokenizer_info: what the model would see, and what tokens say."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from fathom.entrypoints.server.errors import bad_request
from fathom.entrypoints.server.http import json_response, read_request
from fathom.entrypoints.server.prompts import ServedPrompt, chat_prompt, off_loop_if
from fathom.entrypoints.server.protocol.other import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from fathom.entrypoints.server.serving import Serving
from fathom.frontend.async_engine import LONG_TEXT


async def tokenize(serving: Serving, http: Request) -> Response:
    """Token ids of a prompt, or of a conversation as the chat template renders it."""
    request = await read_request(http, TokenizeRequest, serving.settings.max_body_bytes)
    serving.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give either prompt or messages.", "prompt")
    if request.prompt is None:
        prompt = await chat_prompt(serving, request, request.tools)
    else:
        prompt = await _text_prompt(serving, request, request.prompt)
    tokenizer = serving.need_tokenizer("prompt")
    answer = TokenizeAnswer(
        count=len(prompt.token_ids),
        max_model_len=serving.engine.input_processor.max_model_len,
        tokens=prompt.token_ids,
    )
    if request.return_token_strs:
        answer.token_strs = [tokenizer.id_to_token(token_id) or "" for token_id in prompt.token_ids]
    if request.messages is not None:
        answer.prompt = prompt.text or ""
    return json_response(answer)


async def _text_prompt(serving: Serving, request: TokenizeRequest, text: str) -> ServedPrompt:
    tokenizer = serving.need_tokenizer("prompt")
    add = request.add_special_tokens is not False
    ids = await off_loop_if(len(text) > LONG_TEXT, lambda: tokenizer.encode(text, add_special_tokens=add))
    return ServedPrompt(text, ids)


async def detokenize(serving: Serving, http: Request) -> Response:
    """The text of token ids, special tokens included."""
    request = await read_request(http, DetokenizeRequest, serving.settings.max_body_bytes)
    serving.check_model(request.model)
    tokenizer, size = serving.need_tokenizer("tokens"), serving.need_tokenizer("tokens").vocab_size
    for token_id in request.tokens:
        if not 0 <= token_id < size:
            raise bad_request(f"tokens holds {token_id}, which is not in the vocabulary of {size}.", "tokens")
    ids = request.tokens
    text = await off_loop_if(len(ids) > LONG_TEXT, lambda: tokenizer.decode(ids, skip_special_tokens=False))
    return json_response(DetokenizeAnswer(text))


async def tokenizer_info(serving: Serving, http: Request) -> Response:
    """Special tokens and the chat template, for clients that tokenise by this server."""
    tokenizer = serving.need_tokenizer("tokenizer_info")
    template = serving.template or tokenizer.chat_template
    return json_response(
        TokenizerInfo(
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            unk_token=tokenizer.unk_token,
            pad_token=tokenizer.pad_token,
            chat_template=template.get("default") if isinstance(template, dict) else template,
            vocab_size=tokenizer.vocab_size,
            model_max_length=serving.engine.input_processor.max_model_len,
        )
    )
