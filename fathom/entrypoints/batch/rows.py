"""A batch's rows, as OpenAI has them: {custom_id, method, url, body} in; {id, custom_id, response, error} out."""

from __future__ import annotations

import json
import uuid
from typing import Any, Literal

import msgspec

from fathom.entrypoints.server.errors import ApiError, bad_request, decoding_error
from fathom.entrypoints.server.protocol.common import ErrorBody, ErrorInfo

URLS = ("/v1/chat/completions", "/v1/completions")
REFUSED_URLS = ("/v1/embeddings", "/v1/score", "/v1/rerank")
"""Known to other engines' batches; the application says why it cannot answer them."""


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One request."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"


class RowResponse(msgspec.Struct):
    """What the application answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class AnsweredRow(msgspec.Struct):
    """One row of the output. custom_id is None if the input has none that can be read.

    response: None if the row was no request. error: None if it was answered.
    """

    id: str
    custom_id: str | None
    response: RowResponse | None
    error: ErrorInfo | None


class Usage(msgspec.Struct):
    """The part of an answer's usage that is added up."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Identity(msgspec.Struct):
    custom_id: Any = None


class _Code(msgspec.Struct):
    code: str | None = None


class _AnswerIdentity(msgspec.Struct):
    custom_id: str | None
    error: _Code | None


class _Stream(msgspec.Struct):
    stream: bool | None = None


class _Answer(msgspec.Struct):
    usage: Usage = msgspec.field(default_factory=Usage)


DUPLICATE = "duplicate_custom_id"
"""The error's code of a row whose custom_id an earlier one has."""


def identity_of(line: bytes) -> str | None:
    """The custom_id of an input row, even if the rest of it is wrong; None if it has none."""
    try:
        custom_id = msgspec.json.decode(line, type=_Identity).custom_id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _loose_identity_of(line)
    return custom_id if isinstance(custom_id, str) else None


def _loose_identity_of(line: bytes) -> str | None:
    """The same by Python's own reader, which takes what the row will be refused for, such as half a surrogate pair."""
    try:
        row = json.loads(line)
        custom_id = row.get("custom_id") if isinstance(row, dict) else None
        return custom_id if isinstance(custom_id, str) and custom_id.encode() else None
    except (ValueError, RecursionError):
        return None


def answer_identity_of(line: bytes) -> tuple[str | None, bool]:
    """(custom_id, whether it was refused as a duplicate) of an output row.

    Raises:
        msgspec.DecodeError: it is none.
    """
    row = msgspec.json.decode(line, type=_AnswerIdentity)
    return row.custom_id, row.error is not None and row.error.code == DUPLICATE


def read_row(line: bytes, number: int) -> Row:
    """Line `number` as a request.

    Raises:
        ApiError: it is none.
    """
    try:
        row = msgspec.json.decode(line, type=Row)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise decoding_error(error, Row, f"Line {number}") from None
    if row.url not in URLS + REFUSED_URLS:
        raise ApiError(404, f"url is {row.url!r}; a batch asks {' or '.join(URLS)}.", param="url", code="unknown_url")
    if _streams(row.body):
        raise bad_request("stream is for answers that somebody watches; leave it out of a batch.", "stream")
    return row


def _streams(body: msgspec.Raw) -> bool:
    try:
        return bool(msgspec.json.decode(body, type=_Stream).stream)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False  # the application will say what is wrong


def refused_row(custom_id: str | None, error: ApiError) -> AnsweredRow:
    """A row that was not asked."""
    return AnsweredRow(f"batch_req_{uuid.uuid4().hex}", custom_id, None, error.body.error)


def answered_row(custom_id: str, status: int, request_id: str, body: bytes) -> AnsweredRow:
    """A row that was asked, whatever came of it."""
    response = RowResponse(status, request_id, msgspec.Raw(body))
    error = None if status == 200 else msgspec.json.decode(body, type=ErrorBody).error
    return AnsweredRow(f"batch_req_{uuid.uuid4().hex}", custom_id, response, error)


def usage_of(row: AnsweredRow) -> Usage:
    """The tokens that a row took."""
    if row.response is None or row.error is not None:
        return Usage()
    return msgspec.json.decode(row.response.body, type=_Answer).usage
