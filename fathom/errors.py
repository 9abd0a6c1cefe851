"""Errors, sorted by whose fault they are.

A *client error* is something the caller can mend; it names the parameter, the value and the way out.
A *server error* is the engine's own. A server turns the first kind into HTTP 4xx, the second into 5xx.
"""

from __future__ import annotations

from typing import Any


class FathomError(Exception):
    """Root of every error that Fathom raises on purpose.

    Args:
        message: what is wrong, in one sentence.
        parameter: name of the field or argument at fault, if there is one.
        value: the value that was given.
        hint: what to do instead.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None, hint: str | None = None):
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.parameter = parameter
        self.value = value
        self.hint = hint


class ClientError(FathomError, ValueError):
    """The caller's mistake: a bad value, a prompt that is too long, an unknown option."""


class ValidationError(ClientError):
    """A request or sampling parameter is out of its range or contradicts another."""


class ContextLengthError(ValidationError):
    """The prompt (with at least one new token) does not fit in the context or in the KV cache."""


class ConfigError(ClientError):
    """An engine option is unknown, contradictory or impossible on this machine."""


class ModelNotFoundError(ClientError):
    """A model name resolves nowhere; the message lists what was tried."""


class UnsupportedModelError(ClientError):
    """The model's architecture, file type or tokenizer is one that Fathom does not know."""


class CheckpointError(ClientError):
    """A weight, tokenizer or config file is truncated, corrupt, or does not match the model."""


class InsufficientMemoryError(ClientError):
    """The device's memory does not hold weights, activations, graphs and KV cache; the message has the numbers."""


class ServerError(FathomError, RuntimeError):
    """The engine's own failure."""


class EngineStartError(ServerError):
    """The engine process failed before it was ready."""


class EngineDeadError(ServerError):
    """The engine process is gone; every pending and later call raises this."""


class RequestFailedError(ServerError):
    """One request failed inside the engine; the engine and the other requests go on."""


def error_by_name(name: str) -> type[FathomError]:
    """The class called ``name`` in this module, or EngineStartError: how an error crosses the process boundary."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, FathomError):
        return found
    return EngineStartError
