"""A producer's options: whatever is wrong is refused when it is given, by the name that the user wrote."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.client.options import (
    ProducerOptions,
    check_timeout,
    parse_compression,
    parse_durability,
    parse_level,
    parse_server,
)
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import Durability, Level

USUAL: dict[str, Any] = {
    "batch_bytes": 1,
    "linger_ms": 0,
    "window_bytes": 1,
    "max_in_flight": 1,
    "delivery_timeout_ms": 1,
}


def check_numbers(**numbers: Any) -> None:
    ProducerOptions(level=Level.ALL, durability=Durability.MEMORY, **numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 33},
        {"batch_bytes": 0},
        {"window_bytes": 2**63},
        {"linger_ms": -1},
        {"linger_ms": 10**18},
        {"delivery_timeout_ms": 0},
        {"delivery_timeout_ms": 2**32},
        *[{name: value} for name in USUAL for value in (None, "5", 1.5, float("inf"), True)],
    ],
    ids=str,
)
def test_a_number_out_of_range_or_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    """Else it would fail much later, where nobody waits; by one option at a time."""
    ((name, value),) = wrong.items()
    with pytest.raises(BadRequest, match=name) as caught:
        check_numbers(**{**USUAL, **wrong})
    assert str(value) in str(caught.value)


def test_the_largest_and_smallest_numbers_are_taken() -> None:
    """The limits themselves are allowed; by both ends of each."""
    check_numbers(**USUAL)
    check_numbers(
        batch_bytes=2**63 - 1,
        linger_ms=2**32 - 1,
        window_bytes=2**63 - 1,
        max_in_flight=32,
        delivery_timeout_ms=2**32 - 1,
    )


@pytest.mark.parametrize("value", [0, -1, 2**32, None, "5", 1.5])
def test_a_wrong_timeout_is_refused(value: Any) -> None:
    """By values that a frame or a timer would not take."""
    with pytest.raises(BadRequest, match="connect_timeout_ms"):
        check_timeout("connect_timeout_ms", value)


@pytest.mark.parametrize("value", [None, 5, b"lz4", "", "gzip", ["none"]])
def test_a_wrong_name_is_refused(value: Any) -> None:
    """Of another type, or none of those there are."""
    with pytest.raises(BadRequest, match="durability"):
        parse_durability(value)
    with pytest.raises(BadRequest, match="compression"):
        parse_compression(value)


def test_names_are_taken_in_any_case() -> None:
    """By one of each."""
    assert parse_durability("Disk") is Durability.DISK
    assert parse_compression("LZ4") is Codec.LZ4


@pytest.mark.parametrize("value", [None, 2.0, True, b"all", [], "most", -1, 254, 255, 10**30])
def test_a_wrong_level_is_refused(value: Any) -> None:
    """Also the numbers that stand for names on the wire."""
    with pytest.raises(BadRequest, match="confirm"):
        parse_level(value)


@pytest.mark.parametrize("server", ["a:1", "127.0.0.1:65535", "[::1]:7401", "n-1.example.org:80", "bücher.example:1"])
def test_an_address_is_taken(server: str) -> None:
    """By names and numbers of each kind."""
    assert parse_server(server) == server


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (["a:1"], "of its own"),
        (("a:1", "b:1"), "of its own"),
        (None, "of its own"),
        (b"a:1", "of its own"),
        ("a:1,b:2", "of its own"),
        ("a:1 b:2", "of its own"),
        ("", "host:port"),
        ("a", "host:port"),
        (":1", "host:port"),
        ("a:", "host:port"),
        ("a:65536", "host:port"),
        ("a:0", "port"),
        ("a:²", "host:port"),
        ("a:" + "1" * 5000, "host:port"),
        ("a b:1", "of its own"),
        ("a\0:1", "host name"),
        ("a..b:1", "host name"),
        ("x" * 64 + ":1", "host name"),
        ("x." * 200 + "y:1", "host name"),
        ("\ud800:1", "host name"),
    ],
)
def test_what_is_no_address_is_refused(server: Any, says: str) -> None:
    """It would fail below, with an error of the resolver's; by lists, several in one, and names that cannot be."""
    with pytest.raises(BadRequest, match=says):
        parse_server(server)
