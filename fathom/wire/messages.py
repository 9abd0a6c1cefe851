"""Every message that crosses the process boundary, as msgspec structs.

caller -> engine:  StartEngine (once), then AddRequests | AbortRequests | UtilityCall | FrontGone
engine -> caller:  EngineHello, EngineReady or EngineFailed (once each), then EngineCoreOutputs | UtilityReply, and an
                   EngineFailed if it ends on an error
front  -> engine:  AddRequests | AbortRequests | UtilityCall
engine -> front:   EngineCoreOutputs | UtilityReply

A front is one of several processes that share the engine of their caller; see core/fronts.py.

In-process, the same structs are handed over as they are.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from fathom.config import EngineConfig
from fathom.model_config.values import CheckpointFormat, ModelConfig
from fathom.sampling_params import SamplingParams
from fathom.step import LogprobsArrays


class FinishReason(IntEnum):
    """Why a request ended; `str()` gives the OpenAI word."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class EngineSetup(msgspec.Struct):
    """What an engine is built from: the resolved config, the model's shape and where its files are."""

    config: EngineConfig
    model_config: ModelConfig
    model_path: str
    model_format: CheckpointFormat


class EngineCoreRequest(msgspec.Struct, array_like=True, gc=False):
    """One request. `prompt` and `params` are indices into the tables of the AddRequests that carries it.

    seed and choice key the request's random numbers; n answers to one prompt share the seed and differ in choice.
    """

    request_id: str
    prompt: int
    params: int
    seed: int
    choice: int = 0
    priority: int = 0
    cache_salt: str | None = None
    lora_name: str | None = None


class AddRequests(msgspec.Struct, tag="add"):
    """A batch of requests; a prompt ([n] int32) or params shared by several is in its table once."""

    prompts: list[np.ndarray]
    params: list[SamplingParams]
    requests: list[EngineCoreRequest]

    def __post_init__(self) -> None:
        """Runs on decoding too, so that a message that the engine takes in is one that it can serve."""
        for prompt in self.prompts:
            if prompt.ndim != 1 or prompt.dtype != np.int32:
                raise ValueError(f"a prompt of type {prompt.dtype} and shape {prompt.shape}")
        for request in self.requests:
            if not (0 <= request.prompt < len(self.prompts) and 0 <= request.params < len(self.params)):
                raise ValueError(f"request {request.request_id!r} refers to a prompt or params that are not there")


class AbortRequests(msgspec.Struct, tag="abort"):
    """Drop these requests, wherever they are; unknown and finished ids are ignored."""

    request_ids: list[str]


class UtilityCall(msgspec.Struct, tag="utility"):
    """A control operation by name; answered by a UtilityReply with the same call_id."""

    call_id: int
    method: str
    args: list[Any]


class StartEngine(msgspec.Struct, tag="start"):
    """The first message to a new engine process.

    spawn_time: the caller's time.time() when it was spawned. fronts: whether requests come from fronts.
    """

    setup: EngineSetup
    spawn_time: float
    fronts: bool = False


class FrontGone(msgspec.Struct, tag="front_gone"):
    """The process of a front has ended; its requests are to be dropped. identity: its socket's."""

    identity: bytes


FromFront = AddRequests | AbortRequests | UtilityCall
ToEngine = StartEngine | FromFront | FrontGone


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """What a step, or several, gave one request.

    logprobs_row: where this request's rows in the step's LogprobsArrays begin, one for each new token; -1: it has none.
    num_cached_tokens: prompt tokens taken from the prefix cache. scheduled_time: time.time() of first admission.
    error: set with FinishReason.ERROR.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    logprobs_row: int = -1
    prompt_logprobs: LogprobsArrays | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    scheduled_time: float = 0.0
    error: str | None = None


class SchedulerStats(msgspec.Struct, array_like=True, gc=False):
    """The scheduler's state after a step; counters count from the engine's start.

    kv_cache_usage: share of blocks in use, 0 to 1. prefix_cache_queries, prefix_cache_hits: in tokens.
    num_blocks: of the KV cache, without the null block; of those, num_blocks_used are held by requests, and
    num_blocks_cached are free but hold a prefix that can be found again.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_steps: int
    num_blocks: int = 0
    num_blocks_used: int = 0
    num_blocks_cached: int = 0


class StepStats(msgspec.Struct, array_like=True, gc=False):
    """What one step was: the requests and tokens of its batch that are prefill (context) and decode (generation).

    prefix_hits: tokens that requests admitted in it found in the cache. end_time: time.time() at its end.
    schedule_s, model_s, update_s: seconds of choosing the batch, of running the model and sampling, and of taking in
    the result. With async scheduling the first and the last of another step's go on during the model's.
    """

    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    prefix_hits: int
    end_time: float
    schedule_s: float
    model_s: float
    update_s: float


class EngineCoreOutputs(msgspec.Struct, tag="outputs"):
    """What one step gave all of its requests, or several steps that nobody waited for (see core/outbox.py).

    A request is in `outputs` or in `tokens`: request id -> its new tokens, where all else that an output tells is as
    the last one told.
    logprobs: rows of the outputs that asked; see EngineCoreOutput.logprobs_row.
    stats, step: where the scheduler stands and what the step was; None with disable_log_stats, or if no step was run.
    urgent: whether somebody may be waiting for any of this (see core/outbox.py).
    """

    outputs: list[EngineCoreOutput]
    logprobs: LogprobsArrays | None = None
    stats: SchedulerStats | None = None
    step: StepStats | None = None
    urgent: bool = True
    tokens: dict[str, list[int]] = {}


class RemoteError(msgspec.Struct):
    """An error raised on the other side; `kind` is its class's name in fathom.errors, or any other name."""

    kind: str
    message: str
    parameter: str | None = None
    traceback: str = ""


class UtilityReply(msgspec.Struct, tag="reply"):
    """The answer to a UtilityCall: a result or an error."""

    call_id: int
    result: Any = None
    error: RemoteError | None = None


class EngineHello(msgspec.Struct, tag="hello"):
    """An engine process has connected and waits for StartEngine."""

    pid: int


class EngineReady(msgspec.Struct, tag="ready"):
    """The engine is up. Holds what only it could know.

    max_model_len: the configured one, or less if the KV cache could not hold it. max_num_batched_tokens: the
    configured one, or less by itl_target_ms. phases: (name, seconds) of the boot, in order; they add up to the whole.
    """

    max_model_len: int
    max_num_batched_tokens: int
    num_kv_blocks: int
    block_size: int
    kv_cache_bytes: int
    phases: list[tuple[str, float]] = []


class EngineFailed(msgspec.Struct, tag="failed"):
    """The engine could not start, or cannot go on."""

    error: RemoteError


FromEngine = EngineHello | EngineReady | EngineFailed | EngineCoreOutputs | UtilityReply
FromRunningEngine = EngineCoreOutputs | UtilityReply | EngineFailed
