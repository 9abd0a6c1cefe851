"""ControlOperations: the receiving end of control operations. The sending end is frontend/control.py."""

from __future__ import annotations

from typing import Any

import msgspec

from fathom.core.scheduler.scheduler import Scheduler
from fathom.errors import EngineDeadError, ValidationError
from fathom.executor.base import Executor
from fathom.wire.codec import Encoder, Frame
from fathom.wire.messages import UtilityCall, UtilityReply
from fathom.wire.remote_errors import to_remote_error


class ControlOperations:
    """What a caller may ask of a running engine, by name. Public methods are the operations."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor

    def call(self, message: UtilityCall) -> UtilityReply:
        """Run one operation; an error is the reply, unless it is the engine's end.

        Raises:
            EngineDeadError: a worker is gone.
        """
        try:
            return UtilityReply(message.call_id, result=self._find(message.method)(*message.args))
        except EngineDeadError:
            raise
        except Exception as error:
            return UtilityReply(message.call_id, error=to_remote_error(error))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; running requests are not disturbed."""
        self._scheduler.kv_cache.reset_prefix_cache()
        return True

    def get_stats(self) -> dict[str, Any]:
        """SchedulerStats as a dictionary, since a reply's result has no type that would bring the names back."""
        return msgspec.structs.asdict(self._scheduler.stats())

    def start_profile(self, folder: str) -> None:
        """Record every step with torch's profiler until stop_profile writes the trace to `folder`."""
        self._executor.collective_rpc("start_profile", [folder])

    def is_profiling(self) -> bool:
        """Whether steps are being recorded."""
        return any(self._executor.collective_rpc("is_profiling"))

    def stop_profile(self) -> list[str]:
        """Stop recording; returns the trace files, one for each worker that was recording."""
        return [path for path in self._executor.collective_rpc("stop_profile") if path is not None]

    def collective_rpc(self, method: str, args: list[Any]) -> list[Any]:
        """Call a method of every worker; what they return must be plain data."""
        return self._executor.collective_rpc(method, args)

    def check_invariants(self) -> bool:
        """Check the books of scheduler and KV cache; for tests of a live engine."""
        self._scheduler.check_invariants()
        return True

    def _find(self, name: str) -> Any:
        operation = None if name.startswith("_") or name == "call" else getattr(self, name, None)
        if operation is None:
            known = sorted(n for n in dir(self) if not n.startswith("_") and n != "call")
            raise ValidationError(
                f"unknown control operation {name!r}; there are {', '.join(known)}.",
                parameter="method",
                value=name,
            )
        return operation


def encode_reply(encoder: Encoder, reply: UtilityReply) -> list[Frame]:
    """A reply as frames; one that cannot be sent becomes the error that says so."""
    try:
        return encoder.encode(reply)
    except Exception as error:  # a worker's method returned what is not plain data
        return encoder.encode(UtilityReply(reply.call_id, error=to_remote_error(error)))
