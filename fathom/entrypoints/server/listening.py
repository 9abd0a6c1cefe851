"""The port, or unix socket: taken before anything is started, and listened at once there is something to say."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fathom.entrypoints.server.settings import ServerSettings
from fathom.errors import ConfigError

logger = logging.getLogger(__name__)

BACKLOG = 4096
_LONGEST_NAME = 107
"""Of a unix socket, in bytes."""


@contextmanager
def claimed(settings: ServerSettings) -> Iterator[None]:
    """Keep other servers of Fathom off the port while this one starts.

    Sockets that do not listen yet do not keep each other off a port, so of two servers that start at once both would
    have it until one of them listens. On Linux a name of the network's namespace does; it ends with its process.

    Raises:
        ConfigError: another server has it.
    """
    where = f"{settings.host} {settings.port}" if settings.uds is None else os.path.realpath(settings.uds)
    with socket.socket(socket.AF_UNIX) as claim:
        if (settings.port or settings.uds is not None) and sys.platform == "linux":
            try:
                claim.bind(f"\0fathom {where}"[:_LONGEST_NAME])
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _in_use(settings.port if settings.uds is None else settings.uds) from None
                raise
        yield


@contextmanager
def bound(settings: ServerSettings) -> Iterator[socket.socket]:
    """A socket at the server's address; afterwards it is closed, and the file of a unix socket gone.

    Raises:
        ConfigError: the address is not to be had.
    """
    if settings.uds is None:
        with bind(settings) as listener:
            yield listener
        return
    with _bind_unix(settings.uds) as listener:
        try:
            yield listener
        finally:
            Path(settings.uds).unlink(missing_ok=True)


def _bind_unix(path: str) -> socket.socket:
    """A unix socket. What a server has left there that was killed is taken away."""
    if _is_stale(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(path) from None
        raise ConfigError(f"cannot make the unix socket {path}: {error}.", parameter="uds", value=path) from None
    return listener


def _is_stale(path: str) -> bool:
    """Whether there is a socket, and nobody listens."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def bind(settings: ServerSettings) -> socket.socket:
    """A socket at the server's address. It listens once there is something to say.

    Raises:
        ConfigError: the address is not to be had.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{settings.host} is no address of this machine: {error}.", parameter="host") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(settings.port) from None
        raise ConfigError(f"cannot listen at {where}: {error.strerror}.", parameter="host", value=where) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect.

    Raises:
        ConfigError: another server has begun to listen there meanwhile.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            name = listener.getsockname()
            raise _in_use(name if isinstance(name, str) else name[1]) from None
        raise


def _in_use(port: int | str) -> ConfigError:
    """port: or a unix socket's path."""
    if isinstance(port, str):
        return ConfigError(
            f"{port} is in use.", parameter="uds", value=port, hint="Stop what uses it, or name another."
        )
    return ConfigError(
        f"port {port} is in use.",
        parameter="port",
        value=port,
        hint="Stop what uses it, or choose another with --port; 0 picks a free one.",
    )


def bind_many(settings: ServerSettings, count: int) -> list[socket.socket]:
    """Sockets at the same address, over which the kernel spreads connections.

    Each has its own queue of connections, so that a burst does not go to whichever process wakes first. A queue lives
    as long as its socket is open anywhere: whoever holds them all can give one to a new process.

    Raises:
        ConfigError: the address is not to be had.
    """
    with bind(settings) as probe:  # without SO_REUSEPORT, which would let us in beside another server
        family, kind, protocol, address = probe.family, probe.type, probe.proto, probe.getsockname()
    listeners = []
    for _ in range(count):
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listeners.append(listener)
    return listeners


def say_ready(settings: ServerSettings, names: list[str], listener: socket.socket) -> None:
    """The line that tells people, and whoever started the server, where it is."""
    if settings.uds is not None:
        print(f"fathom: serving {', '.join(names)} at unix:{settings.uds}", flush=True)
        return
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.ssl_certfile is None else "https"
    print(f"fathom: serving {', '.join(names)} at {scheme}://{host}:{port}", flush=True)
    if host not in ("127.0.0.1", "[::1]") and not settings.keys:
        logger.warning("anybody who reaches %s:%d may use this server: no --api-key is set", host, port)
