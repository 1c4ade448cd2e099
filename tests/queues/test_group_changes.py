"""Changes and states of acking groups as bytes: they are part of the format, and of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.commitlog.format.header import Kind, read_header
from mirrorlog.errors import BadBatch
from mirrorlog.queues.changes import (
    Change,
    GroupDeleted,
    GroupReset,
    RecordsLeased,
    Returned,
    Settled,
    Watermark,
    decode_changes,
    encode_change,
    encode_changes,
)
from mirrorlog.queues.checkpoint_states import (
    GroupState,
    LeasesState,
    LedgerChunk,
    State,
    VerdictsState,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "format.md"

CHANGES: list[tuple[Change, bytes]] = [
    (
        Settled(group="", ranges=[0, 2, 5, 7]),
        b"\x83\xa4type\xa7Settled\xa5group\xa0\xa6ranges\x94\x00\x02\x05\x07",
    ),
    (
        Settled(group="g", ranges=[0, 2], why="dead"),
        b"\x84\xa4type\xa7Settled\xa5group\xa1g\xa6ranges\x92\x00\x02\xa3why\xa4dead",
    ),
    (Returned(group="", ranges=[5, 6]), b"\x83\xa4type\xa8Returned\xa5group\xa0\xa6ranges\x92\x05\x06"),
    (
        Returned(group="", ranges=[5, 6], delay_ms=1000, counted=True),
        b"\x85\xa4type\xa8Returned\xa5group\xa0\xa6ranges\x92\x05\x06\xa8delay_ms\xcd\x03\xe8\xa7counted\xc3",
    ),
    (
        Watermark(group="", queue_offset=4096),
        b"\x83\xa4type\xa9Watermark\xa5group\xa0\xacqueue_offset\xcd\x10\x00",
    ),
    (
        RecordsLeased(group="", lease=7, holder="x", ranges=[8, 9], lease_ms=30_000),
        b"\x86\xa4type\xa6Leased\xa5group\xa0\xa5lease\x07\xa6holder\xa1x\xa6ranges\x92\x08\x09\xa8lease_ms\xcd\x75\x30",
    ),
    (
        GroupReset(group="g", queue_offset=300),
        b"\x83\xa4type\xaaGroupReset\xa5group\xa1g\xacqueue_offset\xcd\x01\x2c",
    ),
    (
        GroupReset(group="g", queue_offset=0, void=5 << 32),
        b"\x84\xa4type\xaaGroupReset\xa5group\xa1g\xacqueue_offset\x00\xa4void\xcf\0\0\0\5\0\0\0\0",
    ),
    (GroupDeleted(group="g"), b"\x82\xa4type\xacGroupDeleted\xa5group\xa1g"),
]

GROUP_BEFORE = GroupState(queue_id=1, group="", floor=2, watermark=4096, void=7)
GROUP = GroupState(queue_id=1, group="", floor=2, watermark=4096, void=7, known_from=1)
WHOLE = LedgerChunk(queue_id=1, group="", first=4096, next=12_288)
PART = LedgerChunk(
    queue_id=1,
    group="",
    first=0,
    next=1024,
    settled=b"\x63" + bytes(127),
    attempts=b"\1" + bytes(1023),
    parked=[(7, 8, 1000, 640)],
    leased=[(8, 9, 7)],
)
VERDICTS = VerdictsState(queue_id=1, group="", first=2, next=4096, known_from=1, dead=[1, 2, 4, 1])
LEASES = LeasesState(queue_id=1, group="", leases={7: ("x", 30_000, 800)})
STATES: list[tuple[State, bytes]] = [
    (GROUP, bytes.fromhex("97 a1 41 01 a0 02 cd 10 00 07 01")),
    (VERDICTS, bytes.fromhex("97 a1 56 01 a0 02 cd 10 00 01 94 01 02 04 01")),
    (WHOLE, bytes.fromhex("99 a1 43 01 a0 cd 10 00 cd 30 00 c4 00 c4 00 90 90")),
    (
        PART,
        bytes.fromhex("99 a1 43 01 a0 00 cd 04 00 c4 80 63")
        + bytes(127)
        + bytes.fromhex("c5 04 00 01")
        + bytes(1023)
        + bytes.fromhex("91 94 07 08 cd 03 e8 cd 02 80 91 93 08 09 07"),
    ),
    (LEASES, bytes.fromhex("94 a1 53 01 a0 81 07 93 a1 78 cd 75 30 cd 03 20")),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=lambda each: type(each).__name__)
def test_the_bytes_of_a_change(change: Change, said: bytes) -> None:
    """Encode one of each by hand, and read it back; it stands in a batch of its queue."""
    batch = encode_change(change, queue_id=3)
    assert said in batch
    assert decode_changes(batch) == [change]
    assert (read_header(batch).kind, read_header(batch).queue_id) == (Kind.QUEUE_STATE, 3)


def test_several_changes_are_one_batch() -> None:
    """In their order."""
    changes = [change for change, _ in CHANGES]
    batch = encode_changes(changes, queue_id=3)
    assert decode_changes(batch) == changes
    assert (read_header(batch).kind, read_header(batch).queue_id) == (Kind.QUEUE_STATE, 3)


@pytest.mark.parametrize(("state", "said"), STATES, ids=lambda each: type(each).__name__)
def test_the_bytes_of_a_state(state: State, said: bytes) -> None:
    """Encode one of each by hand, and read it back."""
    assert encode_state(state) == said
    assert decode_checkpoint(encode_checkpoint([said])) == [state]


def test_the_bytes_of_a_state_of_software_before_are_read() -> None:
    """A group that says nothing of how far back it is known what died."""
    assert decode_checkpoint(encode_checkpoint([bytes.fromhex("96 a1 41 01 a0 02 cd 10 00 07")])) == [GROUP_BEFORE]
    assert GROUP_BEFORE.known_from == -1


def test_the_format_page_shows_the_real_bytes() -> None:
    """Goal: the examples of docs/reference/format.md are true."""
    text = " ".join(PAGE.read_text().split())
    for state in (GROUP, WHOLE, VERDICTS, LEASES):
        assert encode_state(state).hex(" ") in text
    assert CHANGES[0][1].hex(" ") in text


@pytest.mark.parametrize(
    "value",
    [b"\x91\xa1A", b"\x95\xa1A\x01\xa0\x02\xa0", b"\x99\xa1C\x01\xa0\x00\x01\x01\x01\x90\x90", b"\x92\xa1S\x01"],
)
def test_states_that_do_not_fit_are_a_bad_batch(value: bytes) -> None:
    """Too short, or with items of another type."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_checkpoint(encode_checkpoint([value]))
