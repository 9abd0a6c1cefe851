"""Meeting: the place where the ranks of an engine find one another, and the network on which they then talk.

On one machine it is a file that all of them have inherited open (a memfd): no port is taken for it, nothing has a
name, nothing is left when they end, and the connections that they make stay on the loopback interface. On several
machines it is a port of the first rank's, and connections go through the interface that has the machine's address.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

import psutil
import torch.distributed as dist

LOOPBACK = "lo"


class Meeting(NamedTuple):
    """Where to meet.

    interface: the network interface to connect through. sums_fd: an empty file in memory that all ranks have open,
    for sums without a network; None if they share no memory.
    """

    store: dist.Store
    interface: str
    sums_fd: int | None = None


def meet_in_files(meeting_fd: int, sums_fd: int, num_workers: int) -> Meeting:
    """A meeting of processes that have inherited the same two empty files in memory."""
    return Meeting(dist.FileStore(f"/proc/self/fd/{meeting_fd}", num_workers), LOOPBACK, sums_fd)


def host_meeting(address: str, num_workers: int) -> tuple[Meeting, int]:
    """A meeting on this machine, and its port, which is free and taken at once; it is there as long as its store.

    Args:
        address: of this machine, as the others reach it.
    """
    # Not told to wait for the others: they learn of it later.
    store = dist.TCPStore(address, 0, num_workers, is_master=True, wait_for_workers=False)
    return Meeting(store, interface_of(address)), store.port


def join_meeting(host: str, port: int, num_workers: int, address: str) -> Meeting:
    """A meeting that another rank hosts.

    Args:
        address: of this machine.
    """
    return Meeting(dist.TCPStore(host, port, num_workers, is_master=False), interface_of(address))


def interface_of(address: str) -> str:
    """The name of the interface that has this address.

    Raises:
        ValueError: none has it.
    """
    wanted = ipaddress.ip_address(address)
    families = (socket.AF_INET, socket.AF_INET6)
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if entry.family in families and ipaddress.ip_address(entry.address.partition("%")[0]) == wanted:
                return name
    raise ValueError(f"no network interface of this machine has the address {address}")
