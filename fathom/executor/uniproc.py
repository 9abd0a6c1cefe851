"""UniprocExecutor: one worker in the engine's own process."""

from __future__ import annotations

from typing import Any

from fathom.errors import ValidationError
from fathom.executor.base import Executor
from fathom.hardware import limit_openmp_spinning
from fathom.wire.messages import EngineSetup


class UniprocExecutor(Executor):
    """Loads the model on construction."""

    def __init__(self, setup: EngineSetup) -> None:
        limit_openmp_spinning()
        from fathom.worker.worker import Worker  # torch starts here

        self._worker = Worker(setup)

    def collective_rpc(self, method: str, args: list[Any] | None = None) -> list[Any]:
        function = getattr(self._worker, method, None)
        if function is None or method.startswith("_"):
            raise ValidationError(f"the worker has no method {method!r}.", parameter="method", value=method)
        return [function(*(args or ()))]

    def shutdown(self) -> None:
        self._worker.shutdown()
