"""Control operations, as a caller sees them. Each is one line over client.call; core/control.py receives it.

The same methods serve the blocking and the asyncio engine: what they return is the result there, and an
awaitable of it here.
"""

from __future__ import annotations

from typing import Any

from fathom.client.base import AsyncEngineCoreClient, EngineCoreClient


class ControlMixin:
    """Needs `engine_core`, a client."""

    engine_core: EngineCoreClient | AsyncEngineCoreClient

    def reset_prefix_cache(self) -> Any:
        """Forget all cached prefixes."""
        return self.engine_core.call("reset_prefix_cache")

    def get_stats(self) -> Any:
        """The scheduler's numbers, see wire.messages.SchedulerStats, as a dictionary."""
        return self.engine_core.call("get_stats")

    def start_profile(self, folder: str = "fathom-profile") -> Any:
        """Record every step with torch's profiler until stop_profile, which writes the trace to `folder`."""
        return self.engine_core.call("start_profile", folder)

    def is_profiling(self) -> Any:
        """Whether steps are being recorded."""
        return self.engine_core.call("is_profiling")

    def stop_profile(self) -> Any:
        """Stop recording; the trace files, one for each worker."""
        return self.engine_core.call("stop_profile")

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> Any:
        """Call a method of every worker by name; their results, which must be plain data, in a list."""
        return self.engine_core.call("collective_rpc", method, list(args))
