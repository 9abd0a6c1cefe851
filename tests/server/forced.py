"""A logits processor under which a model says exactly what the request tells it.

What surrounds the model (detokenisation, stops, parsers, usage, events) is tested without asking what it would say.
"""

from __future__ import annotations

from typing import Any

import torch

from fathom import AdapterLogitsProcessor, SamplingParams
from fathom.worker.sample.interface import RequestLogitsProcessor
from tests.server.processes import Server

FORCED = "tests.server.forced:Forced"
FAVOURED = "tests.server.forced:Favoured"


class Forced(AdapterLogitsProcessor):
    """vllm_xargs {"forced": ids}: the answer's tokens, one after the other; then the model is free."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        forced = (params.extra_args or {}).get("forced")
        if not forced:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(forced):
                kept = forced[len(output_ids)]
                logits[:kept] = -torch.inf
                logits[kept + 1 :] = -torch.inf
            return logits

        return force


class Favoured(AdapterLogitsProcessor):
    """vllm_xargs {"favoured": id}: every token of the answer, unless it is masked."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        favoured = (params.extra_args or {}).get("favoured")
        if favoured is None:
            return None

        def favour(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits[favoured] += 1e6
            return logits

        return favour


def ids_of(server: Server, text: str) -> list[int]:
    """The tokens of a text alone."""
    answer = server.post("/tokenize", prompt=text, add_special_tokens=False)
    return list(answer.json()["tokens"])


def says(server: Server, said: str | list[int], **fields: Any) -> dict[str, Any]:
    """Fields of a request whose answer is `said`; with max_tokens to its end, unless the fields have it."""
    ids = ids_of(server, said) if isinstance(said, str) else said
    return {"max_tokens": len(ids), "temperature": 0, "ignore_eos": True, "vllm_xargs": {"forced": ids}} | fields
