"""Logits processors for the tests of this folder; they do what a request's extra_args ask for."""

from __future__ import annotations

from typing import Any

import torch

from fathom import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, SamplingParams


class Force(AdapterLogitsProcessor):
    """extra_args={"force": ids}: the answer begins with these tokens, whatever the model says."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        forced = (params.extra_args or {}).get("force")
        if forced is None:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(forced):
                logits[forced[len(output_ids)]] = 1e9
            return logits

        return force


class Fail(AdapterLogitsProcessor):
    """extra_args={"fail_at": n}: the request's processor raises at its n-th token; "new": it cannot be made."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if (params.extra_args or {}).get("fail_at") == "validate":
            raise ValueError("I refuse")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        fail_at = (params.extra_args or {}).get("fail_at")
        if fail_at is None:
            return None
        if fail_at == "new":
            raise RuntimeError("no processor for you")

        def fail(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) == fail_at:
                raise ZeroDivisionError(f"at token {fail_at}")
            return logits

        return fail


class Explode(LogitsProcessor):
    """extra_args={"explode": "apply" or "update"}: a fault of the whole batch while such a request is in it."""

    def __init__(self, context: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._fuse: str | None = None

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        fuses = (
            [(params.extra_args or {}).get("explode") for _, params, _, _ in batch_update.added] if batch_update else []
        )
        self._fuse = next((fuse for fuse in fuses if fuse), None)
        if self._fuse == "update":
            raise RuntimeError("lost track of the rows")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._fuse == "apply":
            raise RuntimeError("the batch is on fire")
        return logits


class OnlyEven(LogitsProcessor):
    """No token with an odd id, in any row, whatever a request asks for."""

    def __init__(self, context: Any, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[:, 1::2] = -torch.inf
        return logits
