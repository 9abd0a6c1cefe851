"""build_add_message: a batch of requests as one message, with every prompt and every set of parameters once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fathom.frontend.input_processor import ProcessedRequest
from fathom.sampling_params import SamplingParams
from fathom.wire.messages import AddRequests, EngineCoreRequest


def build_add_message(requests: Sequence[ProcessedRequest], engine_ids: Sequence[list[str]]) -> AddRequests:
    """One AddRequests for all.

    Args:
        requests: checked requests.
        engine_ids: for each, the ids of the engine's requests, one for each answer (see parallel_sampling).
    """
    prompts: list[np.ndarray] = []
    params: list[SamplingParams] = []
    params_index: dict[int, int] = {}
    engine_requests = []
    for request, ids in zip(requests, engine_ids, strict=True):
        index = params_index.get(id(request.params))
        if index is None:
            index = params_index[id(request.params)] = len(params)
            params.append(request.params)
        prompts.append(np.array(request.prompt_token_ids, np.int32))
        engine_requests += [
            EngineCoreRequest(
                request_id=engine_id,
                prompt=len(prompts) - 1,
                params=index,
                seed=request.seed,
                choice=choice,
                priority=request.priority,
                cache_salt=request.cache_salt,
            )
            for choice, engine_id in enumerate(ids)
        ]
    return AddRequests(prompts, params, engine_requests)
