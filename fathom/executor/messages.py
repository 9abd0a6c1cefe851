"""What passes between an executor and workers in other processes: calls, and replies to them.

The calls of every step and of the boot are structs of their own, so that what they carry is typed; any other method
of a worker is called with plain data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.step import ModelRunnerOutput, PrefillTimes, SchedulerOutput
from fathom.wire.messages import EngineSetup, RemoteError

EVERYBODY = -1
"""In place of the rank that is to reply."""


class StartWorker(msgspec.Struct, tag="start"):
    """The first call: load the model."""

    setup: EngineSetup


class InitializeFromConfig(msgspec.Struct, tag="initialize_from_config"):
    kv_cache: KVCacheConfig
    max_model_len: int


class ExecuteModel(msgspec.Struct, tag="execute_model"):
    step: SchedulerOutput


class CallMethod(msgspec.Struct, tag="call"):
    method: str
    args: list[Any]


class WorkerCall(msgspec.Struct, array_like=True):
    """One call, for every worker. Calls are numbered from 1; reply_from is a rank or EVERYBODY.

    A worker that is not to reply does so only if the call has failed.
    """

    number: int
    reply_from: int
    call: StartWorker | InitializeFromConfig | ExecuteModel | CallMethod


class Result(msgspec.Struct, tag="result"):
    """What a method returned that has no type of its own: plain data."""

    value: Any = None


class Tokens(msgspec.Struct, tag="tokens"):
    output: ModelRunnerOutput


class KVSpecs(msgspec.Struct, tag="kv_specs"):
    specs: list[LayerKVSpec]


class Timed(msgspec.Struct, tag="timed"):
    times: PrefillTimes


class Failed(msgspec.Struct, tag="failed"):
    """The call has raised; the worker waits to be told to go on, since the others may not have come as far."""

    error: RemoteError


class WorkerReply(msgspec.Struct, array_like=True):
    number: int
    outcome: Result | Tokens | KVSpecs | Timed | Failed


def as_call(method: str, args: list[Any]) -> InitializeFromConfig | ExecuteModel | CallMethod:
    """The message that calls a worker's method."""
    if method == "execute_model":
        return ExecuteModel(*args)
    if method == "initialize_from_config":
        return InitializeFromConfig(*args)
    return CallMethod(method, args)


def as_outcome(result: Any) -> Result | Tokens | KVSpecs | Timed:
    """The message that brings back what a method has returned."""
    if isinstance(result, ModelRunnerOutput):
        return Tokens(result)
    if isinstance(result, list) and result and isinstance(result[0], LayerKVSpec):
        return KVSpecs(result)
    if isinstance(result, PrefillTimes):
        return Timed(result)
    return Result(result)


def result_of(outcome: Result | Tokens | KVSpecs | Timed) -> Any:
    """What the method has returned."""
    if isinstance(outcome, Tokens):
        return outcome.output
    if isinstance(outcome, KVSpecs):
        return outcome.specs
    if isinstance(outcome, Timed):
        return outcome.times
    return outcome.value
