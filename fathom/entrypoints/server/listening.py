"""The port: taken before anything is started, and listened at once there is something to say."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fathom.entrypoints.server.settings import ServerSettings
from fathom.errors import ConfigError

logger = logging.getLogger(__name__)

BACKLOG = 4096


@contextmanager
def claimed(settings: ServerSettings) -> Iterator[None]:
    """Keep other servers of Fathom off the port while this one starts.

    Sockets that do not listen yet do not keep each other off a port, so of two servers that start at once both would
    have it until one of them listens. On Linux a name of the network's namespace does; it ends with its process.

    Raises:
        ConfigError: another server has it.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        if settings.port and sys.platform == "linux":
            try:
                claim.bind(f"\0fathom {settings.host} {settings.port}")
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _in_use(settings.port) from None
                raise
        yield


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
            raise _in_use(listener.getsockname()[1]) from None
        raise


def _in_use(port: int) -> ConfigError:
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
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(f"fathom: serving {', '.join(names)} at http://{host}:{port}", flush=True)
    if host not in ("127.0.0.1", "[::1]") and not settings.keys:
        logger.warning("anybody who reaches %s:%d may use this server: no --api-key is set", host, port)
