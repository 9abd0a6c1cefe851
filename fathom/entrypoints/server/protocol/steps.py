"""/engine/steps: what the engine is, how it stands, and what its last steps were."""

from __future__ import annotations

import msgspec


class EngineLimits(msgspec.Struct, kw_only=True):
    """What the engine is; it does not change. num_blocks: of the KV cache, each of block_size tokens."""

    model: str
    version: str
    num_blocks: int
    block_size: int
    kv_cache_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


class EngineState(msgspec.Struct, kw_only=True):
    """How the engine stands; counters count from its start.

    blocks_used: held by requests. blocks_cached: free, but with a prefix that can be found again. prefix_queries,
    prefix_hits: tokens looked up in the prefix cache and found there.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int


class StepRecord(msgspec.Struct, kw_only=True):
    """One step. number: counts from the server's start. time: seconds since 1970 at its end.

    annotation: the batch in words, as in logs and profiles. context_*: prefill. generation_*: decode. prefix_hits:
    tokens that requests admitted in this step found in the cache. state: after the step.
    """

    number: int
    time: float
    annotation: str
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    schedule_ms: float
    model_ms: float
    update_ms: float
    prefix_hits: int
    preemptions: int
    state: EngineState


class StepsAnswer(msgspec.Struct, kw_only=True):
    """The answer of /engine/steps, and each event of its stream.

    engine: null in all events but the first. state: now. steps: those that are new, oldest first. skipped: steps that
    are no longer kept and were not sent.
    """

    engine: EngineLimits | None
    state: EngineState
    steps: list[StepRecord]
    skipped: int = 0
