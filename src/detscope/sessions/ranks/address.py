"""How this host is reached from the others: the address and interface on its way to the meeting place.

torchrun and gloo ask for the host's own name instead, which in containers and fresh machines often
resolves to nothing, or to the loopback that no other host reaches.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from detscope.errors import MachineError

_ANY_PORT = 29400  # no packet is sent


@dataclass(frozen=True)
class RouteEnd:
    """This host's end of the way to another."""

    address: str
    interface: str | None  # None: the system does not tell
    hosts: bool | None = None  # whether this launcher opens the meeting place; None: torchrun finds out


def find_route(rendezvous: str) -> RouteEnd:
    """The way from here to HOST[:PORT]; nothing is sent."""
    host, separator, port = rendezvous.rpartition(":")
    if not separator:
        host, port = rendezvous, ""
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port) if port.isdigit() else _ANY_PORT, type=socket.SOCK_DGRAM
        )
        family, kind, protocol, _, there = found[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.connect(there)
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise MachineError(
            f"no way from this host to {host}: {error.strerror or error}",
            "--rendezvous wants a name or address of node 0 that every node reaches",
        ) from error
    return RouteEnd(address, _interface_of(address), _hosts(address, str(there[0]), int(there[1])))


def _hosts(here: str, there: str, port: int) -> bool | None:
    """On its host the first launcher opens the meeting place; on a loopback torchrun knows that itself."""
    if here != there:
        return False
    if ipaddress.ip_address(here).is_loopback:
        return None
    with closing(socket.socket(socket.AF_INET6 if ":" in here else socket.AF_INET)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((here, port))
        except OSError:
            return False
    return True


def _interface_of(address: str) -> str | None:
    import psutil

    for name, ends in psutil.net_if_addrs().items():
        if any(end.address.partition("%")[0] == address for end in ends):
            return name
    return None


@contextmanager
def gloo_interface(way: RouteEnd | None) -> Iterator[None]:
    """Ranks that are started now talk by this interface, unless the user has chosen one."""
    if way is None or way.interface is None or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = way.interface
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
