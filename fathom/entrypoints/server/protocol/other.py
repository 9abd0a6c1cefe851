"""Requests and answers of the smaller endpoints: models, tokens, operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from fathom.entrypoints.server.protocol.chat import ChatMessage, Tool
from fathom.entrypoints.server.protocol.fields import Doc, ModelName


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of /v1/models. root: where the model was loaded from."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "fathom"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[Any] = []


class ModelList(msgspec.Struct, kw_only=True):
    """The answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /tokenize: a prompt, or messages for the chat template."""

    model: Annotated[ModelName | None, Doc(description="A name of /v1/models.")] = None
    prompt: Annotated[str | None, Doc(description="A text.")] = None
    messages: Annotated[
        Annotated[list[ChatMessage], Doc(max_length=16_384)] | None, Doc(description="A conversation, as for chat.")
    ] = None
    add_special_tokens: Annotated[
        bool | None, Doc(description="Add a BOS and the like; default: with prompt yes, with messages no.")
    ] = None
    return_token_strs: Annotated[bool | None, Doc(description="Add the vocabulary's spelling of each token.")] = None
    add_generation_prompt: Annotated[bool, Doc(description="End with the start of an answer.")] = True
    continue_final_message: Annotated[bool, Doc(description="Carry the final message on.")] = False
    chat_template: Annotated[
        str | None, Doc(description="A Jinja template; only with --trust-request-chat-template.")
    ] = None
    chat_template_kwargs: Annotated[
        Annotated[dict[str, Any], Doc(max_length=64)] | None, Doc(description="Further variables of the chat template.")
    ] = None
    tools: Annotated[
        Annotated[list[Tool], Doc(max_length=128)] | None, Doc(description="Functions for the chat template.")
    ] = None


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    """The answer of /tokenize. prompt: the rendered text, if messages were given."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    prompt: str | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[int], Doc(description="Token ids.", max_length=1_000_000)]
    model: Annotated[ModelName | None, Doc(description="A name of /v1/models.")] = None


class DetokenizeAnswer(msgspec.Struct):
    """The answer of /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """The answer of /tokenizer_info: special tokens as they are spelled, and the template that renders chats."""

    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None
    vocab_size: int
    model_max_length: int


class LoadAnswer(msgspec.Struct, kw_only=True):
    """The answer of /load. server_load: requests under way."""

    server_load: int
    num_running: int
    num_waiting: int
    kv_cache_usage: float


class VersionAnswer(msgspec.Struct):
    """The answer of /version."""

    version: str


class StatusAnswer(msgspec.Struct):
    """The answer of an operation that worked. files: what it wrote."""

    status: str
    files: list[str] | UnsetType = UNSET
