"""Ports for nodes are free, different, and stay theirs while the node is down."""

import socket

import pytest

from mirrorlog.errors import PortTaken
from mirrorlog.testing import ports


def bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((ports.HOST, port))
    return listener


def test_ports_differ_and_can_be_bound() -> None:
    """Goal: every port is usable at once. Method: bind all of them together."""
    found = ports.free_ports(12)
    assert len(set(found)) == 12
    for listener in [bind(port) for port in found]:
        listener.close()


def test_ports_that_are_wished_for_are_given_where_they_are_free() -> None:
    """Goal: what a page names is there. One of three is taken: another one stands in its place."""
    wished = ports.free_ports(3)
    with bind(wished[1]):
        found = ports.free_ports(4, rather=wished)
    assert (found[0], found[2], len(set(found))) == (wished[0], wished[2], 4)
    assert found[1] not in wished


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    """Goal: no outgoing connection takes a dead node's port. Method: compare with the kernel's range."""
    assert max(ports.free_ports(12)) < ports._ephemeral_begin()


def test_a_taken_port_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what somebody has bound is never given out. Method: of two candidates hold the first."""
    held, free = ports.free_ports(2)
    choices = iter([held, free])
    monkeypatch.setattr(ports.random, "choice", lambda _: next(choices))
    with bind(held):
        assert ports.free_ports(1) == [free]


def test_no_free_port_is_an_error_and_no_endless_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the search ends. Method: the only candidate is held."""
    holder = bind(0)
    monkeypatch.setattr(ports.random, "choice", lambda _: holder.getsockname()[1])
    with holder, pytest.raises(PortTaken, match="1 free ports"):
        ports.free_ports(1)
