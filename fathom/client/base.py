"""EngineCoreClient: who holds the engine. The same few methods, whether it is here or in a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from fathom.errors import EngineStartError, FathomError
from fathom.wire.messages import AddRequests, EngineCoreOutputs, EngineReady, EngineSetup, RemoteError
from fathom.wire.remote_errors import from_remote_error

if TYPE_CHECKING:
    from fathom.client.launch import EngineProcess


class EngineCoreClient(ABC):
    """A blocking client. After the engine's death every method but `close` raises EngineDeadError."""

    @staticmethod
    def make_client(setup: EngineSetup, engine: EngineProcess | None, timeout_s: float) -> EngineCoreClient:
        """A SyncMPClient of a launched engine process, or, without one, an InprocClient."""
        if engine is not None:
            from fathom.client.sync_mp import SyncMPClient

            return SyncMPClient(setup, engine, timeout_s)
        from fathom.client.inproc import InprocClient

        return InprocClient(setup)

    @abstractmethod
    def wait_ready(self) -> EngineReady:
        """Block until the engine is up; raises its own error if it fails to start."""

    @abstractmethod
    def add_requests(self, message: AddRequests) -> None:
        """Hand over a batch of requests."""

    @abstractmethod
    def abort_requests(self, request_ids: list[str]) -> None:
        """Drop requests; no output comes for them after those on their way."""

    @abstractmethod
    def get_outputs(self) -> EngineCoreOutputs:
        """The next step's outputs. Blocks until there are some, so ask only while requests are unfinished."""

    @abstractmethod
    def call(self, method: str, *args: Any) -> Any:
        """Run a control operation (see core/control.py) and return its result, or raise its error."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine and free what it held. May be called twice."""


class AsyncEngineCoreClient(ABC):
    """The same contract for asyncio; `get_outputs` and `call` may be awaited by different tasks at once."""

    @abstractmethod
    async def wait_ready(self) -> EngineReady: ...

    @abstractmethod
    async def add_requests(self, message: AddRequests) -> None: ...

    @abstractmethod
    async def abort_requests(self, request_ids: list[str]) -> None: ...

    @abstractmethod
    async def get_outputs(self) -> EngineCoreOutputs: ...

    @abstractmethod
    async def call(self, method: str, *args: Any) -> Any: ...

    @abstractmethod
    def close(self) -> None: ...


def raise_remote(error: RemoteError, *, during_start: bool = False) -> NoReturn:
    """Raise an error of the other side: as its own class if that is one of Fathom's, with its traceback as a note."""
    raise from_remote_error(error, "the engine process", unknown=EngineStartError if during_start else FathomError)
