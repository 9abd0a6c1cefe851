"""Executor: one worker or many, behind the same few methods. Everything follows from collective_rpc."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.step import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Runs each step on every worker. All methods raise what a worker raised."""

    @abstractmethod
    def collective_rpc(self, method: str, args: list[Any] | None = None) -> list[Any]:
        """Call `method(*args)` on every worker; returns their results, rank 0 first."""

    @abstractmethod
    def shutdown(self) -> None:
        """Let the workers go; the last call."""

    def get_kv_cache_specs(self) -> list[LayerKVSpec]:
        """What each attention layer of the model stores, in order of the layers."""
        return self._first("get_kv_cache_specs")  # type: ignore[no-any-return]

    def determine_available_memory(self) -> int:
        """Bytes that the KV cache may take, on the worker that has the least."""
        return min(int(available) for available in self.collective_rpc("determine_available_memory"))

    def initialize_from_config(self, kv_cache_config: KVCacheConfig, max_model_len: int) -> None:
        """Allocate the KV cache and the batch's buffers."""
        self.collective_rpc("initialize_from_config", [kv_cache_config, max_model_len])

    def warm_up(self) -> None:
        """Run the model once, so that the first request does not pay for what is set up lazily."""
        self.collective_rpc("warm_up")

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Launch the forward pass; its logits stay with the workers until sample_tokens."""
        self.collective_rpc("execute_model", [scheduler_output])

    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample from the logits of the last execute_model."""
        return self._first("sample_tokens")  # type: ignore[no-any-return]

    def _first(self, method: str) -> Any:
        return self.collective_rpc(method)[0]
