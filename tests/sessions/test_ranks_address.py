"""The way from one host to another: found without a name that resolves, and without a packet."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from detscope.errors import MachineError
from detscope.sessions.ranks.launch import RouteEnd, find_route, gloo_interface


@pytest.mark.parametrize("rendezvous", ["127.0.0.1:29500", "127.0.0.1", "localhost:0"])
def test_the_way_to_this_host_is_its_loopback(rendezvous: str) -> None:
    way = find_route(rendezvous)
    assert way.address in ("127.0.0.1", "::1")
    assert way.interface is not None and way.interface.startswith("lo")


def test_a_host_that_nobody_knows_is_one_line_with_a_hint() -> None:
    with pytest.raises(MachineError, match=r"no way from this host to nowhere\.invalid") as refused:
        find_route("nowhere.invalid:29500")
    assert "node 0" in refused.value.hint


def test_ranks_talk_by_that_interface_unless_the_user_chose_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with gloo_interface(RouteEnd("10.0.0.7", "eth7")):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    with gloo_interface(RouteEnd("10.0.0.7", "eth7")):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def own_address() -> str:
    """An address of this host that others could reach, if it has one."""
    for ends in psutil.net_if_addrs().values():
        for end in ends:
            if end.family == socket.AF_INET and not end.address.startswith("127."):
                return str(end.address)
    pytest.skip("this host has a loopback only")


def test_the_first_launcher_on_the_host_of_the_meeting_place_opens_it_and_the_next_does_not() -> None:
    address = own_address()
    for _ in range(20):  # others on this host may be given a port that was just left
        with socket.socket() as first:
            first.bind((address, 0))
            port = first.getsockname()[1]
            first.listen()
            assert find_route(f"{address}:{port}").hosts is False
        way = find_route(f"{address}:{port}")
        assert way.address == address
        if way.hosts:
            break
    assert way.hosts is True
    assert find_route("127.0.0.1:29500").hosts is None
