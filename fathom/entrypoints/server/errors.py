"""Errors as clients know them, with their status, also in a stream: OpenAI's {"error": {message, type, param, code}}.

Under /v1/messages they are Anthropic's {"type": "error", "error": {type, message}}.
"""

from __future__ import annotations

import logging
import re

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from fathom.entrypoints.server.choices import choices_at
from fathom.entrypoints.server.protocol.common import AnthropicError, AnthropicErrorBody, ErrorBody, ErrorInfo
from fathom.entrypoints.server.tracing import trace_of
from fathom.errors import (
    ClientError,
    ContextLengthError,
    EngineDeadError,
    RequestFailedError,
)

logger = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
ANTHROPIC_PATH = "/v1/messages"


class ApiError(Exception):
    """An answer that is not 2xx.

    Args:
        status: of HTTP.
        message: what is wrong and, if there is one, the way out.
        param: the field at fault.
        code: a word for programs.
        retry_after: seconds after which it may work.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ):
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(ErrorInfo(message, _TYPES.get(status, "server_error"), param, code))
        self.retry_after = retry_after

    def encode(self) -> bytes:
        """The body as JSON, in OpenAI's form."""
        return msgspec.json.encode(self.body)

    def encode_for_anthropic(self) -> bytes:
        """The body as JSON, in Anthropic's form."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return msgspec.json.encode(AnthropicErrorBody(AnthropicError(kind, self.body.error.message)))

    def response(self, path: str) -> Response:
        """The whole answer, in the form of the API that the path belongs to."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        body = self.encode_for_anthropic() if path.startswith(ANTHROPIC_PATH) else self.encode()
        return Response(body, self.status, headers, media_type="application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def shutting_down() -> ApiError:
    """A 503 for what comes after the signal to stop."""
    return ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)


def to_api_error(error: BaseException, request_id: str = "") -> ApiError:
    """Any exception as an answer. One that nobody expected is logged, and its words stay here."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return bad_request(str(error), error.parameter, "context_length_exceeded")
    if isinstance(error, ClientError):
        return bad_request(str(error), error.parameter, "invalid_value")
    if isinstance(error, EngineDeadError):
        return ApiError(503, f"The engine is gone: {error}.", code="engine_dead")
    if isinstance(error, RequestFailedError):
        return ApiError(500, str(error), code="request_failed")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail, code=_CODES.get(error.status_code))
    logger.error("request %s failed on an error of the server", request_id, exc_info=error)
    return ApiError(500, "The server made a mistake; its log says more.", code="internal_error")


def failure_of(scope: Scope, error: BaseException) -> ApiError:
    """An exception as what a request is answered, as a whole or within its stream; its trace is told."""
    failed = to_api_error(error, scope.get("fathom.request_id", ""))
    if (trace := trace_of(scope)) is not None:
        trace.failed(failed)
    return failed


_CODES = {404: "unknown_url", 405: "method_not_allowed"}
_PLACE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_FIELD = re.compile(r"field `([^`]*)`")


def decoding_error(error: Exception, kind: type, whole: str = "The body", within: str = "") -> ApiError:
    """What msgspec says about a body, or what `whole` calls it, as a 400 that names the field.

    Args:
        kind: what it was to be.
        within: the field that was decoded, if it was not the whole body.
    """
    if not isinstance(error, msgspec.ValidationError):
        if isinstance(error, RecursionError):
            return bad_request(f"{whole} is nested too deeply.", code="invalid_json")
        return bad_request(f"{whole} is not valid JSON: {error}.", code="invalid_json")
    words = str(error)
    place = _PLACE.search(words)
    where = ".".join(name for name in (within, place[1] if place else "") if name)
    words = _PLACE.sub("", words)
    if field := _FIELD.search(words):
        where = f"{where}.{field[1]}" if where else field[1]
    if "unknown field" in words:
        return bad_request(f"{where} is not a field of this request.", where, "unknown_parameter")
    if "missing required field" in words:
        return bad_request(f"{where} is missing.", where, "missing_required_parameter")
    if words.startswith("Invalid") and place and (choices := choices_at(kind, place[1])):
        words += f"; it may be {', '.join(choices)}"
    return bad_request(f"{where or whole}: {words[:1].lower()}{words[1:]}.", where or None, "invalid_type")
