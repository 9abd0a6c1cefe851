"""The events of a streamed answer of /v1/responses. sequence_number: 0, 1, 2 ..."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from fathom.entrypoints.server.protocol.responses import OutputItem, OutputText, ReasoningText, ResponseAnswer


class ResponseEvent(msgspec.Struct, kw_only=True):
    """response.created, in_progress, completed, incomplete, failed: the answer so far."""

    type: str
    sequence_number: int
    response: ResponseAnswer


class ItemEvent(msgspec.Struct, kw_only=True):
    """response.output_item.added and done."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, kw_only=True):
    """response.content_part.added and done. An item has one part."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class TextEvent(msgspec.Struct, kw_only=True):
    """What is new of an item's text or arguments, and at the end, all of it. Each type has its fields of these."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
