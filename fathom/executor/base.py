"""Executor: one worker or many, behind the same few methods. Everything follows from `submit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from fathom.errors import ValidationError
from fathom.kv_cache_spec import KVCacheConfig, LayerKVSpec
from fathom.step import PrefillTimes, SchedulerOutput


class Reply(Protocol):
    """What a call will have returned: a Future, or as much of one as is needed."""

    def result(self) -> list[Any]:
        """Wait for the workers' results, rank 0 first; raises what a worker raised."""


class Executor(ABC):
    """Runs calls on every worker, one after another in the order in which they were submitted."""

    @abstractmethod
    def submit(self, method: str, args: list[Any] | None = None, at_once: bool = False) -> Reply:
        """Call `method(*args)` on every worker, without waiting if workers run on their own.

        at_once: nothing is under way, and the caller has nothing to do until this has run, so that a worker of this
            process may as well run on the caller's thread. Others run where they always do.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Let the workers go; the last call."""

    def descriptors(self) -> list[int]:
        """Become readable when `check` has something to look at, while nothing else is waited for."""
        return []

    def check(self) -> None:  # noqa: B027 - most executors' workers cannot end on their own
        """Look after the workers.

        Raises:
            EngineDeadError: one of them has ended.
        """

    def collective_rpc(self, method: str, args: list[Any] | None = None) -> list[Any]:
        """Call `method(*args)` on every worker and wait; returns their results, raises what a worker raised."""
        return self.submit(method, args).result()

    def get_kv_cache_specs(self) -> list[LayerKVSpec]:
        """What each attention layer of the model stores, in order of the layers."""
        return self.collective_rpc("get_kv_cache_specs")[0]  # type: ignore[no-any-return]

    def determine_available_memory(self) -> int:
        """Bytes that the KV cache may take, on the worker that has the least."""
        return min(int(available) for available in self.collective_rpc("determine_available_memory"))

    def initialize_from_config(self, kv_cache_config: KVCacheConfig, max_model_len: int) -> None:
        """Allocate the KV cache and the batch's buffers."""
        self.collective_rpc("initialize_from_config", [kv_cache_config, max_model_len])

    def warm_up(self) -> None:
        """Run the model once, so that the first request does not pay for what is set up lazily."""
        self.collective_rpc("warm_up")

    def capture_model(self) -> bool:
        """Capture the steps that are to be CUDA graphs; whether there are any."""
        return any(self.collective_rpc("capture_model"))

    def provide_blocks(self, first: int, end: int) -> bool:
        """Have memory for these KV blocks before they are first used; whether any worker has a use for that."""
        return any(self.collective_rpc("provide_blocks", [first, end]))

    def time_prefill(self) -> PrefillTimes:
        """What a prompt's tokens cost, on the slowest worker."""
        times: list[PrefillTimes] = self.collective_rpc("time_prefill")
        return max(times, key=lambda worker: worker.token_s)

    def execute_model(self, scheduler_output: SchedulerOutput, at_once: bool = False) -> Reply:
        """Launch the forward pass; its logits stay with the workers until sample_tokens."""
        return self.submit("execute_model", [scheduler_output], at_once)

    def sample_tokens(self, at_once: bool = False) -> Reply:
        """Sample from the logits of the last execute_model; rank 0's result is a ModelRunnerOutput.

        From a worker in this process it may be a PendingOutput: the step is launched, and is to be waited for.
        A call of its own, since what restricts the choice of tokens may be known later than what the forward needs.
        """
        return self.submit("sample_tokens", at_once=at_once)


def public_method(worker: Any, name: str) -> Callable[..., Any]:
    """A method that may be called by name.

    Raises:
        ValidationError: the worker has none of this name.
    """
    method: Callable[..., Any] | None = None if name.startswith("_") else getattr(worker, name, None)
    if method is None:
        raise ValidationError(f"the worker has no method {name!r}.", parameter="method", value=name)
    return method
