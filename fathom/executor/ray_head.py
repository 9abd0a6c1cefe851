"""Which Ray an engine uses; and a Ray of its own, which ends together with it.

A cluster that runs already is used: the one that RAY_ADDRESS names, or that `ray start` has begun on this machine. If
there is none, Ray is started here. Its processes end with the program that has started them, but some take minutes if
that was killed. So they are started from a process of ours, in a session of their own, and the whole session is killed
when the engine's end of a socket closes. Who talks to them shows a token, which only our processes know.

Ray reads its settings when it is first imported, so this module must come before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from setproctitle import setproctitle

from fathom.errors import ConfigError, EngineStartError
from fathom.executor.bell import Bell, wait_for_parent_s_end
from fathom.processes import spawn

_LISTENS_S = 5.0
_START_S = 120.0
_END_S = 2.0


def find_or_start_ray() -> tuple[str, RayHead | None]:
    """The address of a Ray that runs, and the head if it had to be started.

    Raises:
        ConfigError: RAY_ADDRESS names none, or Ray has been imported before.
        EngineStartError: Ray does not start.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address:
        if not _is_there(address):
            raise ConfigError(
                f"distributed_executor_backend=ray, but nobody listens at RAY_ADDRESS={address}.",
                parameter="distributed_executor_backend",
                value="ray",
                hint="Start Ray there, or unset RAY_ADDRESS to have one started here.",
            )
        return address, None
    begun = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # by `ray start`
    if begun.exists():
        address = begun.read_text().strip()
        if _is_there(address):  # it may have ended without saying so
            return address, None
    if "ray" in sys.modules:
        raise ConfigError(
            "distributed_executor_backend=ray in a process that has imported Ray and is not connected to it.",
            parameter="distributed_executor_backend",
            value="ray",
            hint="Call ray.init() first, or leave multiprocess=True.",
        )
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    head = RayHead()
    return head.address(), head


def _is_there(address: str) -> bool:
    """Whether somebody listens at host:port, which Ray takes minutes to find out; true of other kinds of addresses."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS_S).close()
    except OSError:
        return False
    return True


class RayHead:
    """The process, as the engine sees it."""

    def __init__(self) -> None:
        self._end, there = socket.socketpair()
        try:
            self._process = spawn("fathom.executor.ray_head", [str(there.fileno())], [there.fileno()])
        finally:
            there.close()

    def address(self) -> str:
        """Wait until Ray is there: its host and port.

        Raises:
            EngineStartError: it does not start.
        """
        self._end.settimeout(_START_S)
        with contextlib.suppress(OSError):
            address = self._end.recv(256).decode()
            if address:
                return address
        self.shutdown()
        raise EngineStartError("Ray does not start on this machine; its logs are in /tmp/ray/session_latest/logs.")

    def shutdown(self) -> None:
        """End it and all of Ray."""
        self._end.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            _kill_session(self._process.pid)
            self._process.wait()


def main(arguments: list[str]) -> None:
    """The process's entry point: the descriptor of a socket, told Ray's address, and closed to end it all."""
    os.setsid()
    setproctitle("fathom::RayHead")
    engine = socket.socket(fileno=int(arguments[0]))
    bell = Bell(engine)
    threading.Thread(target=_end_with_engine, args=(bell,), name="engine-watch", daemon=True).start()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # a worker is no less important than the rest of the machine
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    engine.send(ray.get_runtime_context().gcs_address.encode())
    threading.Event().wait()


def _end_with_engine(bell: Bell) -> None:
    wait_for_parent_s_end(bell)
    _kill_session(os.getpid())


def _kill_session(leader: int) -> None:
    """Kill every process of a session, its leader last."""
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if process.pid != leader and os.getsid(process.pid) == leader:
                process.kill()
    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process(leader).kill()
