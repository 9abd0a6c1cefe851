"""Request: the scheduler's form of a request. Tokens, one cursor, and the hashes of its full blocks."""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np

from fathom.core.kv_cache.held_blocks import HeldBlocks
from fathom.sampling_params import RequestOutputKind, SamplingParams
from fathom.wire.messages import EngineCoreRequest, FinishReason

ATTENDED = -1
"""In place of the number of a step: the request does not coast."""
ARRIVAL_BITS = 48
"""Of `Request.order`."""


class RequestStatus(IntEnum):
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


class Request:
    """One request as the scheduler sees it.

    There is no prefill and no decode, only a cursor, `num_computed_tokens`, that runs after the request's tokens: a
    new request is a whole prompt behind, a request that generates is one token behind. Among the tokens that it runs
    after are `num_awaited_tokens` whose values are not known yet, since the steps that sample them are in flight.

    While it coasts (see scheduler/in_flight.py) its cursor and tokens are those of the step before `coasts_from`, the
    first that it coasts through; it is looked at in step `coasts_until` at the latest.

    Args:
        arrival: how many came before it.
        priority: 0 for all if the order of service is that of arrival.

    Attributes:
        order: its place in the order of service, lowest first: priority, then arrival, in one number, since two
            numbers in a tuple are three objects, which every comparison would fetch from memory.
        held: its blocks, the KV manager's.
    """

    __slots__ = (
        "arrival",
        "block_hashes",
        "choice",
        "coasts_from",
        "coasts_until",
        "column",
        "end_token_ids",
        "extra_key",
        "held",
        "is_watched",
        "max_num_tokens",
        "num_awaited_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "order",
        "params",
        "prompt_logprobs_sent",
        "request_id",
        "scheduled_time",
        "seed",
        "settled_until",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        source: EngineCoreRequest,
        prompt: np.ndarray,
        params: SamplingParams,
        arrival: int,
        priority: int,
        max_model_len: int,
    ) -> None:
        self.request_id = source.request_id
        self.params = params
        self.seed = source.seed
        self.choice = source.choice
        self.arrival = arrival
        self.order = priority << ARRIVAL_BITS | arrival
        self.extra_key = extra_key(source.cache_salt, source.lora_name)
        self.token_ids = array("i", prompt.astype(np.int32, copy=False).tobytes())
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_awaited_tokens = 0
        self.coasts_from = ATTENDED
        self.coasts_until = ATTENDED
        self.column = 0  # while it coasts, of its tokens
        self.held = HeldBlocks()
        self.settled_until = 0  # up to which token the KV manager has nothing to do for it
        self.num_cached_tokens = -1  # -1: not admitted yet
        self.num_preemptions = 0
        self.scheduled_time = 0.0
        self.max_num_tokens = min(self.num_prompt_tokens + (params.max_tokens or max_model_len), max_model_len)
        eos_token_ids = () if params.ignore_eos else params.eos_token_ids
        self.end_token_ids = frozenset((*eos_token_ids, *(params.stop_token_ids or ())))
        self.block_hashes: list[bytes] = []
        self.prompt_logprobs_sent = params.prompt_logprobs is None
        # A stop string is found by the caller, in the text of the tokens that it has.
        self.is_watched = params.output_kind is not RequestOutputKind.FINAL_ONLY or bool(params.stop_strings)
        self.status = RequestStatus.WAITING

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_missing(self) -> int:
        """Tokens that exist or are awaited and are not computed: 1 while it generates, more for a prompt."""
        return len(self.token_ids) + self.num_awaited_tokens - self.num_computed_tokens

    def ends_by_length(self) -> bool:
        """Whether the tokens that exist or are awaited are all that it may have, so that nothing is left to compute."""
        return len(self.token_ids) + self.num_awaited_tokens >= self.max_num_tokens

    def append(self, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Add a sampled token; returns (finish reason, stop token id) or (None, None)."""
        self.token_ids.append(token_id)
        num_tokens = len(self.token_ids)
        if token_id in self.end_token_ids:
            params = self.params
            if num_tokens - self.num_prompt_tokens >= params.min_tokens:
                is_eos = not params.ignore_eos and token_id in params.eos_token_ids
                return FinishReason.STOP, None if is_eos else token_id
        if num_tokens >= self.max_num_tokens:
            return FinishReason.LENGTH, None
        return None, None


def extra_key(cache_salt: str | None, lora_name: str | None) -> bytes:
    """What keeps equal tokens of different tenants or adapters apart. Tagged, so that a salt "x" is not a LoRA "x"."""
    parts = []
    if cache_salt is not None:
        parts.append(b"salt:" + cache_salt.encode())
    if lora_name is not None:
        parts.append(b"lora:" + lora_name.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
