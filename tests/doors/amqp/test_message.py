"""The header of a record that came by AMQP: its bytes, what reads them, and messages made of records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from mirrorlog.client.amqp import AMQP, Properties, closed, of_record, opened, packed, scanned, without_header
from mirrorlog.client.properties import properties_in
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes
from mirrorlog.doors.amqp.codec import PublishMethod
from mirrorlog.doors.amqp.errors import AmqpError
from mirrorlog.doors.amqp.message import incoming, outgoing
from mirrorlog.errors import BadInput

GOLDEN = bytes.fromhex(
    "0106657863683131be000a746578742f706c61696e0000001301616c00000000000000050162530000000178020301310130"
)
"""Format 1: exchange `exch11`, content type, a table of a number and a text, mode 2, priority 3, correlation id, reply
to. Nothing here may change: logs have such."""

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)  # as pamqp writes them
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20) | FLOATS
VALUES = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=10), PLAIN, max_size=3)
TABLES = st.dictionaries(st.text(max_size=20), VALUES, max_size=4)


def by_pamqp(**given: object) -> bytes:
    """Properties as a client of AMQP writes them."""
    return header.ContentHeader(0, 0, commands.Basic.Properties(**given)).marshal()[12:]  # type: ignore[arg-type]


def test_the_header_is_read_as_it_was_written_once() -> None:
    """Goal: a promise. Method: golden bytes, by all who read them."""
    found = of_record([("other", b"x"), (AMQP, GOLDEN)])
    assert found is not None
    exchange, properties = found
    assert exchange == "exch11"
    assert properties.content_type == "text/plain"
    assert properties.headers == {"a": 5, "b": "x"}
    assert (properties.delivery_mode, properties.priority) == (2, 3)
    assert (properties.correlation_id, properties.reply_to) == ("1", "0")
    assert properties_in([(AMQP, GOLDEN)]).content_type == "text/plain"
    assert packed(b"exch11", GOLDEN[8:]) == GOLDEN
    route, out = outgoing([(AMQP, GOLDEN)], b"key", b"queue", NO_ATTRIBUTES)
    assert (route, out) == (b"\x06exch11\x03key", GOLDEN[8:])


@settings(max_examples=40)
@given(TABLES, st.integers(0, 255), st.text(min_size=1, max_size=40))
def test_properties_are_opened_as_others_write_them(table: dict[str, object], priority: int, text: str) -> None:
    """Goal: any client's. Method: pamqp writes them, with every type of a table."""
    written = by_pamqp(headers=table, priority=priority, message_id=text, timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    found = opened(written)
    assert found.headers == table
    assert (found.priority, found.message_id) == (priority, text)
    assert found.timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert opened(closed(found)) == found
    assert scanned(written).priority == priority


def test_tables_have_every_type() -> None:
    """Goal: what pamqp's tables have besides. Method: bytes, decimals, times, a nested list."""
    table = {"b": bytearray(b"\xff"), "d": Decimal("1.25"), "t": datetime(2020, 1, 1, tzinfo=UTC), "l": [[1, {"x": 2}]]}
    found = opened(by_pamqp(headers=table)).headers
    assert found == {**table, "b": b"\xff"}


@pytest.mark.parametrize("data", [b"", b"\0", b"\x80\0", b"\0\1", b"\x20\0\0\0\0\x05", b"\x80\0\x05abc", b"\0\0x"])
def test_what_is_no_property_list_is_refused(data: bytes) -> None:
    """Goal: nothing is stored that breaks who reads it. Method: cut, unknown flags, more than there is."""
    with pytest.raises(BadInput):
        scanned(data)
    with pytest.raises(AmqpError) as failure:
        incoming(PublishMethod("", "q", False, False), data, b"", "u")
    assert failure.value.code == 502


@settings(max_examples=40)
@given(TABLES, st.sampled_from(["BCC", "a"]))
def test_a_header_is_taken_out_and_all_else_stays(table: dict[str, object], name: str) -> None:
    """Goal: BCC, byte by byte. Method: any table with it and without."""
    with_it = by_pamqp(headers={**table, name: ["x"]}, content_type="t", app_id="app")
    rest = {key: value for key, value in table.items() if key != name}
    assert opened(without_header(with_it, name)) == opened(with_it)._replace(headers=rest)
    assert without_header(by_pamqp(headers=rest), name) == by_pamqp(headers=rest)


def test_what_is_asked_of_queues_is_read() -> None:
    """Goal: expiration, priority, keys, the user. Method: each, and what is wrong with it."""
    method = PublishMethod("e", "k", True, False)
    found = incoming(method, by_pamqp(expiration="1500", priority=7, headers={"CC": ["a", "k"]}), b"x", "u")
    assert (found.ttl_ms, found.priority, found.keys) == (1500, 7, ("k", "a"))
    assert found.attributes == Attributes(7, 1500)
    for wrong, words in (
        ({"expiration": "soon"}, "invalid expiration"),
        ({"user_id": "other"}, "authenticated user was 'u'"),
        ({"headers": {"CC": "a"}}, "expected an array of strings"),
    ):
        with pytest.raises(AmqpError, match=words) as failure:
            incoming(method, by_pamqp(**wrong), b"x", "u")
        assert failure.value.code == 406


def test_a_native_record_leaves_with_what_it_has() -> None:
    """Goal: one queue, two protocols. Method: properties by name, a header, binary and text, a priority."""
    headers = [("amqp.content_type", b"text/x"), ("h", b"1"), ("b", b"\xff"), ("n", None)]
    route, out = outgoing(headers, None, b"queue", Attributes(4))
    assert route == b"\0\x05queue"
    expected = Properties(
        content_type="text/x", headers={"h": "1", "b": b"\xff", "n": None}, delivery_mode=2, priority=4
    )
    assert opened(out) == expected


def test_a_dead_letter_has_its_deaths_as_tables() -> None:
    """Goal: x-death as RabbitMQ has it. Method: a record as the forwarder writes it."""
    deaths = [{"queue": "q", "reason": "expired", "count": 2, "time": 1_700_000_000_000, "exchange": "",
               "routing-keys": ["k"]}]  # fmt: skip
    came = packed(b"first", by_pamqp(expiration="100", headers={"a": 1}))
    headers = [("x-death", json.dumps(deaths).encode()), ("x-first-death-queue", b"q"),
               ("x-first-death-exchange", b""), (AMQP, came)]  # fmt: skip
    found = opened(outgoing(headers, b"k", b"dead", NO_ATTRIBUTES)[1])
    assert found.expiration is None
    assert found.headers is not None
    (death,) = found.headers["x-death"]
    assert (death["exchange"], death["original-expiration"], death["count"]) == ("first", "100", 2)
    assert death["time"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (found.headers["a"], found.headers["x-first-death-exchange"]) == (1, "first")
