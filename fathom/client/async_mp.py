"""AsyncMPClient: a client on asyncio that owns the engine's process."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fathom.client.async_link import AsyncLinkClient
from fathom.client.launch import LAST_WORDS_MS, EngineProcess
from fathom.errors import EngineDeadError
from fathom.wire.messages import EngineFailed, EngineReady, EngineSetup, FrontGone

_BOOT_POLL_S = 0.01
_ALIVE_CHECK_S = 0.5  # where there is no pidfd


class AsyncMPClient(AsyncLinkClient):
    """Talks to an EngineProcess that has been launched; owns it from now on.

    Once the engine is ready, the loop also calls back when its process ends.
    """

    def __init__(self, engine: EngineProcess) -> None:
        super().__init__(engine)
        self._engine = engine

    async def start(self, setup: EngineSetup, timeout_s: float, *, fronts: bool = False) -> None:
        """Tell the engine what to build; errors as in `wait_ready`. fronts: its requests will come from others."""
        self._engine.set_deadline(timeout_s)
        await self._boot_message()
        self._engine.start(setup, fronts)

    async def wait_ready(self) -> EngineReady:
        ready = await self._boot_message()
        assert isinstance(ready, EngineReady)
        self._watch()
        return ready

    def start_blocking(self, setup: EngineSetup, timeout_s: float) -> None:
        """`start` for who cannot await: nothing else of the loop runs meanwhile."""
        self._engine.set_deadline(timeout_s)
        self._engine.wait_boot_message()
        self._engine.start(setup)

    def wait_ready_blocking(self) -> EngineReady:
        """`wait_ready` for who cannot await."""
        ready = self._engine.wait_boot_message()
        assert isinstance(ready, EngineReady)
        self._watch()
        return ready

    def _send(self, message: Any) -> None:
        try:
            super()._send(message)
        except EngineDeadError:
            self._read_to_the_end()  # perhaps it has said why
            raise self._engine.death() from None

    def _take_last_words(self, message: EngineFailed) -> None:
        self._engine.last_words = message.error

    def front_gone(self, identity: bytes) -> None:
        """Tell the engine that the process of a front has ended."""
        self._engine.send(FrontGone(identity))

    def _watch(self) -> None:
        super()._watch()
        if self._engine.pidfd is not None:
            self._loop.add_reader(self._engine.pidfd, self._check_alive)
        else:
            self._loop.call_later(_ALIVE_CHECK_S, self._check_alive)

    def _unwatch(self) -> None:
        if self._watching and self._engine.pidfd is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._engine.pidfd)
        super()._unwatch()

    def _check_alive(self) -> None:
        if not self._watching:
            return
        if self._engine.process.poll() is not None:
            self._read_to_the_end()
            self._fail(self._engine.death())
        elif self._engine.pidfd is None:
            self._loop.call_later(_ALIVE_CHECK_S, self._check_alive)

    def _read_to_the_end(self) -> None:
        """Take in all that the ended process has sent."""
        self._read(math.inf)
        if self._engine.owes_last_words() and self._engine.output.poll(LAST_WORDS_MS):
            self._read(math.inf)

    async def _boot_message(self) -> Any:
        """The next message of the boot, without blocking the loop and without a thread that would use the sockets."""
        while (message := self._engine.boot_message()) is None:
            await asyncio.sleep(_BOOT_POLL_S)
        return message
