"""What stands in RocketMQ's commit log is found in a stream of its bytes, however it is cut."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.errors import BadBatch
from mirrorlog.rocketmq.records import BODY_BYTES_MAX, RecordKind, RecordWalker, RocketRecord
from tests.rocketmq.written import blank, log, record

START = 4_096
PROPERTIES = {"KEYS": "k1 k2", "TAGS": "blue", "UNIQ_KEY": "0A00", "ü": "wert=1"}


def walked(content: bytes, start: int = START, cuts: Iterable[int] = ()) -> list[RocketRecord]:
    walker, found, at = RecordWalker(start), [], 0
    for cut in [*sorted(cuts), len(content)]:
        found += walker.feed(content[at:cut])
        at = max(at, cut)
    return found


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("closing_mark", [False, True])
def test_every_field_is_read(v2: bool, closing_mark: bool) -> None:
    """In both formats, with a mark behind the last property as 5.x writes it, and without as 4.9."""
    content = record(START, b"value", properties=PROPERTIES, v2=v2, closing_mark=closing_mark, topic="orders")
    (found,) = walked(content)
    assert found == RocketRecord(
        physical_offset=START,
        next_offset=START + len(content),
        topic="orders",
        queue_id=3,
        queue_offset=7,
        flag=11,
        born_ms=1_700_000_000_123,
        born_host="10.0.0.1:10911",
        store_ms=1_700_000_000_456,
        store_host="10.0.0.2:10911",
        times_consumed_again=2,
        prepared_offset=0,
        system_flag=0,
        properties=PROPERTIES,
        body=b"value",
    )
    assert (found.keys, found.tag, found.kind) == ("k1 k2", "blue", RecordKind.PLAIN)


def test_a_topic_of_more_than_127_bytes_needs_the_second_format() -> None:
    (found,) = walked(record(START, topic="t" * 300, v2=True))
    assert found.topic == "t" * 300


@pytest.mark.parametrize(("born", "stored"), [("::1", "10.0.0.2"), ("10.0.0.1", "fd00::2"), ("fd00::1", "fd00::2")])
def test_hosts_may_be_of_ipv6_each(born: str, stored: str) -> None:
    (found,) = walked(record(START, born=born, stored=stored))
    told = [f"[{each}]:10911" if ":" in each else f"{each}:10911" for each in (born, stored)]
    assert [found.born_host, found.store_host] == told


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 900), max_size=8))
def test_records_are_the_same_however_their_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    """Also between any two bytes of a head."""
    content = log(bodies, START)
    found = walked(content, cuts=[cut for cut in cuts if cut <= len(content)])
    assert [each.body for each in found] == bodies
    assert [each.physical_offset for each in found] == [START, *(each.next_offset for each in found)][: len(found)]


def test_bytes_come_one_by_one() -> None:
    content = log([b"a", b"", b"c"]) + blank(300) + log([b"d"], len(log([b"a", b"", b"c"])) + 300)
    assert [each.body for each in walked(content, 0, range(len(content)))] == [b"a", b"", b"c", b"d"]


@given(st.lists(st.integers(0, 700), max_size=6))
def test_what_is_left_of_a_file_is_passed(cuts: list[int]) -> None:
    """It is not kept in memory, and where it ends the next record is looked for."""
    first = record(START, b"first")
    second = record(START + len(first) + 200, b"second")
    content = first + blank(200) + second
    walker, at = RecordWalker(START), 0
    found = []
    for cut in [*sorted(cut for cut in cuts if cut <= len(content)), len(content)]:
        found += walker.feed(content[at:cut])
        at = cut
        assert walker.received == START + at
        assert walker.offset in {START, START + len(first), START + len(content)} or (
            START + len(first) < walker.offset <= START + len(first) + 200
        )
    assert [each.body for each in found] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("bits", "pack"),
    [
        (0x1, zlib.compress),
        (0x1 | 0x300, zlib.compress),
        (0x1 | 0x100, lz4.frame.compress),
        (0x1 | 0x200, zstandard.ZstdCompressor().compress),
    ],
)
def test_bodies_are_opened(bits: int, pack: Callable[[bytes], bytes]) -> None:
    """4.9's by zlib without a word, 5.x's by any of three; and none becomes larger than is allowed."""
    body = b"x" * 10_000
    content = record(START, pack(body), system_flag=bits)
    (found,) = walked(content)
    assert found.body == body
    with pytest.raises(BadBatch, match=f"opens to more than {BODY_BYTES_MAX} bytes"):
        walked(record(START, pack(bytes(BODY_BYTES_MAX + 1)), system_flag=bits))
    with pytest.raises(BadBatch, match="cannot be opened"):
        walked(record(START, b"no such thing at all", system_flag=bits))


@pytest.mark.parametrize(
    ("topic", "flag", "kind"),
    [
        ("orders", 0x8, RecordKind.PLAIN),  # what was committed, written once more
        ("orders", 0x80, RecordKind.INNER_BATCH),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0x4, RecordKind.HALF),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0, RecordKind.HALF),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, RecordKind.VERDICT),
        ("SCHEDULE_TOPIC_XXXX", 0, RecordKind.DELAYED),
        ("rmq_sys_wheel_timer", 0, RecordKind.DELAYED),
    ],
)
def test_a_record_is_named_for_what_it_is(topic: str, flag: int, kind: RecordKind) -> None:
    (found,) = walked(record(START, topic=topic, system_flag=flag))
    assert found.kind is kind


def longer_topic(content: bytes) -> bytes:
    at = content.index(b"\x01T\x00")
    return content[:at] + b"\x7f" + content[at + 1 :]


@pytest.mark.parametrize(
    ("garbled", "said"),
    [
        (record(0)[:4] + b"\xda\xa3\x20\xaa" + record(0)[8:], "magic number 0xdaa320aa at physical offset 4096"),
        (record(START, crc=1), "body of the record at physical offset 4096 does not match its CRC-32"),
        (record(START, physical=5), "at physical offset 4096 says that it stands at 5"),
        ((90).to_bytes(4, "big") + record(START)[4:90], "a record of 90 bytes at physical offset 4096"),
        (b"\x7f\xff\xff\xff" + record(START)[4:], "a record of 2147483647 bytes at physical offset 4096"),
        (longer_topic(record(START)), "a part of the record at physical offset 4096 has 127 bytes"),
        ((96).to_bytes(4, "big") + record(START, b"")[4:] + bytes(4), "has 96 bytes, and its parts have 92"),
        (b"\x00\x00\x00\x07\xcb\xd4\x31\x94", "a blank of 7 bytes at physical offset 4096"),
        (record(START, topic="T").replace(b"\x01T\x00", b"\x01\xff\x00"), "at physical offset 4096 is cut or garbled"),
    ],
)
def test_what_is_no_record_is_said_with_its_offset(garbled: bytes, said: str) -> None:
    """And nothing of it is given, though what stands before it is passed."""
    good = record(START - 200, b"x" * (200 - len(record(0, b""))))
    walker = RecordWalker(START - 200)
    found: list[RocketRecord] = []
    with pytest.raises(BadBatch, match=said):
        found.extend(each for each in walker.feed(good + garbled))
    assert walker.offset == START


def assert_records_or_error(content: bytes) -> None:
    """By no other error than the one that names the place."""
    reason = ""
    try:
        walked(content)
    except BadBatch as error:
        reason = error.message
    assert not reason or "physical offset" in reason


@given(st.binary(max_size=400))
def test_any_bytes_are_records_or_an_error(content: bytes) -> None:
    assert_records_or_error(content)


@given(st.integers(4, 120), st.integers(0, 255))
def test_a_record_with_a_byte_changed_is_read_or_refused(at: int, byte: int) -> None:
    content = bytearray(record(START, b"0123456789", properties=PROPERTIES))
    content[at] = byte
    assert_records_or_error(bytes(content))
