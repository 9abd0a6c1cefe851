"""InprocClient: the engine in the caller's own process. No boundary to cross; `get_outputs` runs a step.

Supported, not for debugging only: it saves the round trip, which counts when calls are many and short. The
price is that nothing overlaps, unless steps are scheduled ahead: text is made while the model waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fathom.client.base import EngineCoreClient, raise_remote
from fathom.client.interrupts import InterruptsDeferred
from fathom.errors import EngineDeadError
from fathom.wire.messages import AbortRequests, AddRequests, EngineCoreOutputs, EngineReady, EngineSetup, UtilityCall

if TYPE_CHECKING:
    from fathom.core.engine_core import EngineCore


class InprocClient(EngineCoreClient):
    """Builds the engine in `wait_ready`, on the thread that will run its steps: OpenMP's settings are a thread's own.

    Ctrl-C takes effect between two steps. An error inside of one ends the engine, as it would end its process.
    """

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._core: EngineCore | None = None
        self._pending: deque[EngineCoreOutputs] = deque()  # outputs of a step that Ctrl-C came into

    def wait_ready(self) -> EngineReady:
        from fathom.core.engine_core import EngineCore  # the one import across the wall, and a late one

        self._core = EngineCore(self._setup)
        return self._core.ready

    def add_requests(self, message: AddRequests) -> None:
        with self._whole_operation() as core:
            core.add_requests(message)

    def abort_requests(self, request_ids: list[str]) -> None:
        with self._whole_operation() as core:
            core.abort_requests(AbortRequests(request_ids))

    def get_outputs(self) -> EngineCoreOutputs:
        if not self._pending:
            with self._whole_operation() as core:
                self._pending.append(core.step())
        return self._pending.popleft()

    def call(self, method: str, *args: Any) -> Any:
        with self._whole_operation() as core:
            reply = core.call(UtilityCall(0, method, list(args)))
        if reply.error is not None:
            raise_remote(reply.error)
        return reply.result

    def close(self) -> None:
        self._pending.clear()
        core, self._core = self._core, None
        if core is not None:
            core.close()

    @contextmanager
    def _whole_operation(self) -> Iterator[EngineCore]:
        if self._core is None:
            raise EngineDeadError("the engine was shut down")
        with InterruptsDeferred():
            try:
                yield self._core
            except BaseException:
                self.close()
                raise
