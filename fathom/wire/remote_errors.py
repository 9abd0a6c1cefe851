"""Errors as data: how one that was raised in another process is raised again in this one."""

from __future__ import annotations

import traceback

from fathom.errors import EngineStartError, FathomError, error_by_name
from fathom.wire.messages import RemoteError


def to_remote_error(error: BaseException) -> RemoteError:
    """An exception as data that can cross the process boundary."""
    return RemoteError(
        kind=type(error).__name__,
        message=_as_utf8(str(error)),
        parameter=error.parameter if isinstance(error, FathomError) else None,
        traceback=_as_utf8("".join(traceback.format_exception(error))),
    )


def _as_utf8(text: str) -> str:
    """A text that can be encoded: a file's name that is no UTF-8 has lone surrogates in Python."""
    return text.encode(errors="backslashreplace").decode()


def from_remote_error(error: RemoteError, where: str, *, unknown: type[FathomError] = FathomError) -> FathomError:
    """The error of the other side: of its own class if that is one of Fathom's, with its traceback as a note.

    Args:
        where: the other side, in the note.
        unknown: the class of an error that is not one of Fathom's; the message then names its own.
    """
    kind = error_by_name(error.kind)
    message = error.message
    if kind is EngineStartError and error.kind != EngineStartError.__name__:
        message = f"{error.kind}: {error.message}"
        kind = unknown
    found = kind(message, parameter=error.parameter)
    if error.traceback:
        found.add_note(f"raised in {where}:\n{error.traceback}")
    return found
