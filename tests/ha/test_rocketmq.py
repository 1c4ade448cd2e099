"""A slave's side of RocketMQ's HA protocol, in both dialects."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.config import HaSettings
from mirrorlog.errors import MirrorlogError, PositionLost, ProtocolError, StalledFrame
from mirrorlog.ha.actions import Close, Connect, Send
from mirrorlog.ha.rocketmq import FRAME_BYTES_MAX, Action, Dialect, FollowState, ReceivedBytes, RocketFollower

SETTINGS = HaSettings()
HEARTBEAT_S = SETTINGS.send_heartbeat_interval_ms / 1000
HOUSEKEEPING_S = SETTINGS.housekeeping_interval_ms / 1000
START = 4_096
RETRY_S = SETTINGS.reconnect_interval_ms / 1000


def follower(position: int | None = 100, dialect: Dialect = Dialect.CLASSIC, epoch: int = 0) -> RocketFollower:
    """One whose connection stands, and who has asked."""
    made = RocketFollower(position=position, settings=SETTINGS, now=0.0, dialect=dialect, epoch=epoch)
    assert made.tick(0.0) == [Connect()]
    made.connected(0.0)
    return made


def sent(actions: Iterable[Action]) -> list[bytes]:
    return [b"".join(each.parts) for each in actions if isinstance(each, Send)]


def head(offset: int, size: int) -> bytes:
    return struct.pack(">qi", offset, size)


def report(offset: int) -> bytes:
    return struct.pack(">q", offset)


def test_it_asks_at_once_and_acknowledges_what_is_confirmed_alone() -> None:
    """What was received is not: SEND_OK of a SYNC_MASTER means what is reported."""
    made = RocketFollower(position=100, settings=SETTINGS, now=0.0)
    assert made.tick(0.0) == [Connect()]
    assert sent(made.connected(0.0)) == [report(100)]
    assert list(made.received(head(100, 3) + b"abc" + head(103, 2) + b"de", 1.0)) == [
        ReceivedBytes(100, 0, b"abc"),
        ReceivedBytes(103, 0, b"de"),
    ]
    assert sent(made.confirmed(104, 1.5)) == [report(104)]
    assert sent(made.confirmed(104, 1.6)) == []
    assert sent(made.confirmed(102, 1.7)) == []
    assert made.position == 104


def test_without_a_position_it_takes_what_it_is_given() -> None:
    """It asks with 0, which a classic master answers from its last file on."""
    made = follower(None)
    assert sent(made.tick(HEARTBEAT_S)) == [report(0)]
    assert list(made.received(head(3 << 30, 0), 6.0)) == []
    assert list(made.received(head(3 << 30, 1) + b"a", 6.0)) == [ReceivedBytes(3 << 30, 0, b"a")]
    assert made.position == 3 << 30
    with pytest.raises(ProtocolError, match=f"offset 7 where {(3 << 30) + 1} follows"):
        list(made.received(head(7, 1) + b"a", 6.0))


def test_the_first_byte_of_a_classic_log_is_put_in_front() -> None:
    """Nobody can ask for it: 0 means the last file."""
    made = RocketFollower(position=0, settings=SETTINGS, now=0.0)
    made.tick(0.0)
    assert sent(made.connected(0.0)) == [report(1)]
    assert list(made.received(head(1, 0) + head(1, 2) + b"bc" + head(3, 1) + b"d", 1.0)) == [
        ReceivedBytes(0, 0, b"\x00bc"),
        ReceivedBytes(3, 0, b"d"),
    ]
    assert sent(made.confirmed(4, 1.0)) == [report(4)]


@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_frames_are_the_same_however_their_bytes_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    """Heartbeats among them, which are empty."""
    made, content, at = follower(START), b"", START
    for part in parts:
        content += head(at, len(part)) + part
        at += len(part)
    found, begin = b"", 0
    for cut in [*sorted(cut for cut in cuts if cut <= len(content)), len(content)]:
        for each in made.received(content[begin:cut], 1.0):
            assert isinstance(each, ReceivedBytes)
            assert each.offset == START + len(found)
            found += each.content
        begin = cut
    assert found == b"".join(parts)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (head(101, 1), "offset 101 where 100 follows"),
        (head(99, 0), "offset 99 where 100 follows"),
        (head(100, -1), "size -1"),
        (head(100, FRAME_BYTES_MAX + 1), f"size {FRAME_BYTES_MAX + 1}"),
        (head(-5, 0), "offset -5"),
        (b"HTTP/1.1 400 Bad Request", "no HA port"),
    ],
)
def test_a_gap_and_foreign_bytes_are_refused(content: bytes, said: str) -> None:
    made = follower(100)
    with pytest.raises(ProtocolError, match=said):
        list(made.received(content, 1.0))
    assert made.position == 100


def test_both_sides_say_that_they_live() -> None:
    made = follower()
    assert made.tick(HEARTBEAT_S - 0.1) == []
    assert sent(made.tick(HEARTBEAT_S)) == [report(100)]
    assert made.tick(HEARTBEAT_S + 0.1) == []
    (closing,) = made.tick(HOUSEKEEPING_S)
    assert isinstance(closing, Close)
    assert isinstance(closing.error, StalledFrame)
    made = follower()
    list(made.received(head(100, 0), HOUSEKEEPING_S - 1))
    assert not any(isinstance(each, Close) for each in made.tick(HOUSEKEEPING_S))
    assert made.last_data == 0.0


def test_it_comes_back_and_asks_from_what_is_confirmed() -> None:
    """A frame of which half had come is forgotten with its connection."""
    made = follower()
    list(made.received(head(100, 9) + b"123", 1.0))
    error = MirrorlogError("gone")
    made.disconnected(1.0, error)
    assert made.confirmed(105, 1.1) == []  # of what came before
    assert (made.state, made.last_error) == (FollowState.WAITING, error)
    assert made.tick(1.0 + RETRY_S - 0.01) == []
    assert made.tick(1.0 + RETRY_S) == [Connect()]
    assert sent(made.connected(2.0)) == [report(105)]
    assert list(made.received(head(105, 1) + b"x", 2.0)) == [ReceivedBytes(105, 0, b"x")]


def test_who_was_stopped_connects_no_more() -> None:
    made = follower()
    made.stop()
    made.disconnected(1.0)
    assert made.tick(60.0) == []
    assert made.connected(61.0) == [Close()]


# --- under a controller ---

LEARNER = bytes.fromhex("00000001 0000 0001 ffffffffffffffff")


def greeted(end: int, *epochs: tuple[int, int], last: int | None = None) -> bytes:
    entries = b"".join(struct.pack(">iq", *entry) for entry in epochs)
    last = epochs[-1][0] if last is None and epochs else last or 0
    return struct.pack(">iiqi", 1, len(entries), end, last) + entries


def stated(offset: int, content: bytes, epoch: int) -> bytes:
    return struct.pack(">iiqiqq", 2, len(content), offset, epoch, 0, 0) + content


def asked(offset: int) -> bytes:
    return struct.pack(">iq", 2, offset)


def test_under_a_controller_it_greets_as_a_learner_and_hears_of_epochs() -> None:
    """The bytes are those that were seen of a broker 5.5.0. A learner is no candidate, and counts for no confirm."""
    made = RocketFollower(position=0, settings=SETTINGS, now=0.0, dialect=Dialect.CONTROLLER)
    made.tick(0.0)
    assert sent(made.connected(0.0)) == [LEARNER]
    welcome = bytes.fromhex("00000001 0000000c 000000000003d8ba 00000001 00000001 0000000000000000")
    for byte in welcome[:-1]:
        assert list(made.received(bytes([byte]), 1.0)) == []
    assert sent(made.received(welcome[-1:], 1.0)) == [asked(0)]
    assert made.master_end == 0x3D8BA
    assert list(made.received(stated(0, b"", 1) + stated(0, b"ab", 1) + stated(2, b"c", 2), 1.0)) == [
        ReceivedBytes(0, 1, b"ab"),
        ReceivedBytes(2, 2, b"c"),
    ]
    assert sent(made.confirmed(3, 1.0)) == [asked(3)]


@pytest.mark.parametrize(
    ("position", "epoch", "until"),
    [
        (500, 3, None),  # where the epoch goes on
        (400, 2, None),  # at its very end
        (401, 2, 400),  # behind what the broker gives it
        (901, 3, 900),  # behind its end
        (50, 4, 0),  # of an epoch that the broker never had
        (401, 0, None),  # it is not known of which: nothing can be told
    ],
)
def test_a_broker_that_lost_what_is_stored_here_is_found_out(position: int, epoch: int, until: int | None) -> None:
    """Goal: what it confirmed and lost is not passed in silence. Method: its epochs 1 to 3 end at 200, 400 and 900."""
    made = follower(position, Dialect.CONTROLLER, epoch)
    welcome = greeted(900, (1, 0), (2, 200), (3, 400))
    if until is None:
        assert sent(made.received(welcome, 1.0)) == [asked(position)]
        return
    with pytest.raises(PositionLost, match=f"go on with --from {until}"):
        list(made.received(welcome, 1.0))


@pytest.mark.parametrize(
    "content",
    [
        head(100, 5) + bytes(30),  # a classic master
        greeted(900, (2, 0), (1, 200)),
        greeted(900, (1, 0), last=2),
        struct.pack(">iiqi", 1, 12 * 1001, 0, 1),
        struct.pack(">iiqi", 1, 13, 0, 1),
        greeted(900, (1, 0)) + struct.pack(">iiqiqq", 3, 0, 100, 1, 0, 0),
    ],
)
def test_what_is_no_greeting_of_a_controlled_broker_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(follower(100, Dialect.CONTROLLER).received(content, 1.0))


@given(st.sampled_from(Dialect), st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(dialect: Dialect, content: bytes) -> None:
    with contextlib.suppress(ProtocolError, PositionLost):
        list(follower(100, dialect).received(content, 1.0))
