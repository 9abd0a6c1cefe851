"""Building schedulers and requests for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from fathom.config import EngineConfig
from fathom.core.kv_cache.groups import group_layers
from fathom.core.scheduler.prefill_room import StepSize
from fathom.core.scheduler.scheduler import Scheduler
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.sampling_params import SamplingParams
from fathom.wire.messages import AddRequests, EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest


def kv_config(num_blocks: int, block_size: int = 4, windows: tuple[int | None, ...] = (None,)) -> KVCacheConfig:
    groups = group_layers([LayerKVSpec(1, 8, "float32", window) for window in windows])
    return KVCacheConfig(num_blocks, block_size, max(len(group.layers) for group in groups), groups, 0)


def make_scheduler(
    kv: KVCacheConfig, max_model_len: int = 64, step_size: StepSize | None = None, **options: Any
) -> Scheduler:
    defaults = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_long_partial_prefills": 1,
        "block_size": kv.block_size,
    }
    return Scheduler(EngineConfig.from_options(**(defaults | options)), kv, max_model_len, step_size)


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    **params: Any,
) -> AddRequests:
    return AddRequests(
        prompts=[np.array(prompt, np.int32)],
        params=[SamplingParams(temperature=0.0, max_tokens=max_tokens, **params)],
        requests=[EngineCoreRequest(request_id, 0, 0, seed=0, priority=priority, cache_salt=cache_salt)],
    )


def every_output(step: EngineCoreOutputs) -> list[EngineCoreOutput]:
    """A step's outputs, and those that tell of nothing but tokens in the same form."""
    return [*step.outputs, *(EngineCoreOutput(request_id, tokens) for request_id, tokens in step.tokens.items())]
