"""The master's end of a mirror's link."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.errors import AckBeyondEnd, MirrorAhead, NotMaster, OffsetOutOfRange, ProtocolError, StalledFrame
from mirrorlog.ha.actions import Close, ReadCold, Send
from mirrorlog.ha.connection import HAConnection
from mirrorlog.wire.frames import FRAME_HEADER_SIZE, TRANSFER, FrameType
from mirrorlog.wire.messages.codec import decode
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull
from tests.ha.links import (
    Declared,
    Pair,
    ack_of,
    closes,
    connection_of,
    follow_of,
    only,
    prove,
    refusal,
    sends,
)
from tests.ha.replicas import HA, KIB, append, content, flush, frames_in, open_master, start_epoch, transfers_in

Make = Callable[..., HAConnection]
FACTS = FRAME_HEADER_SIZE + TRANSFER.size


def told(epochs: Iterable[Epoch]) -> list[EpochEntry]:
    return [EpochEntry(*each) for each in epochs]


def runs_in(parts: list[bytes | memoryview]) -> bytes:
    """The log's bytes in what was sent."""
    return b"".join(bytes(each.payload[TRANSFER.size :]) for each in frames_in(parts))


# --- Greeting and request ---------------------------------------------------------------------------------------------


@pytest.mark.story("002:699-703")
def test_nothing_is_known_of_a_mirror_before_it_has_asked(pair: Pair) -> None:
    """Make a connection and let the mirror say what it holds: no offset is requested or acked by that."""
    connection = connection_of(pair.master)
    connection.follow(follow_of(pair.mirror), 0.0)
    half = connection.read_half
    assert (half.requested, half.acked, half.flushed) == (-1, -1, -1)
    assert not connection.proven


@pytest.mark.story("002:931-941")
def test_nothing_is_pushed_before_the_mirror_has_asked(pair: Pair) -> None:
    """Append, pump and let time pass on a link that has not asked yet: no byte of the log leaves."""
    connection = connection_of(pair.master)
    assert connection.pump(0.0) == []
    connection.follow(follow_of(pair.mirror), 0.0)
    append(pair.master)
    assert connection.pump(0.1) == []
    assert connection.tick(1.0) == []


@pytest.mark.story("002:843-849")
def test_a_mirror_first_says_what_it_holds_and_learns_the_history(pair: Pair) -> None:
    """Follow: the answer has the master's epochs and end; an ack or a request before it ends the link."""
    for early in (
        lambda link: link.ack(ack_of(0, epoch=1), 0.0),
        lambda link: link.pull(Pull(log_offset=0), 0.0),
    ):
        assert isinstance(refusal(lambda step=early: step(connection_of(pair.master))), ProtocolError)
    connection = connection_of(pair.master)
    (answer,) = frames_in(sends(connection.follow(follow_of(pair.mirror), 0.0)))
    assert answer.type == FrameType.HISTORY
    told = decode(answer.payload)
    assert isinstance(told, History)
    assert (told.epoch, told.begin, told.end) == (1, 0, pair.master.log.end)
    assert [(each.epoch, each.start) for each in told.epochs] == [(1, 0)]
    assert isinstance(refusal(lambda: connection.follow(follow_of(pair.mirror), 0.0)), ProtocolError)


def check_an_empty_mirror_gets_all_history(pair: Pair, make: Make = HAConnection) -> None:
    for number in range(12):
        append(pair.master, 30 * KIB, number)
    assert len(pair.master.log._chain.segments) > 1
    connection = connection_of(pair.master, make=make, ha=HA.model_copy(update={"in_flight_bytes_max": 1 << 30}))
    connection.follow(follow_of(pair.mirror), 0.0)
    error = refusal(lambda: sends(connection.pull(Pull(log_offset=0), 0.0)))
    assert error is None, error
    assert connection.read_half.requested == 0
    assert connection.write_half.next_transfer == pair.master.log.end


@pytest.mark.story("002:945-969")
def test_an_empty_mirror_gets_all_history(pair: Pair) -> None:
    """Fill more than one segment and let an empty mirror ask: it is sent everything from the log's begin on."""
    check_an_empty_mirror_gets_all_history(pair)


@pytest.mark.story("002:971-977")
def test_a_mirror_resumes_where_it_ended(pair: Pair) -> None:
    """Let a mirror that holds the first half ask: the first byte it is sent is the one after its last."""
    append(pair.master)
    connection = connection_of(pair.master)
    pair.mirror.align(0, pair.master.log.epochs.entries)
    pair.mirror.append_run(memoryview(content(pair.master)), log_offset=0)
    append(pair.master)
    parts = sends(prove(connection, pair.mirror))
    assert transfers_in(parts)[0].log_offset == pair.mirror.log.end
    assert runs_in(parts) == content(pair.master)[pair.mirror.log.end :]


@pytest.mark.story("002:975")
@pytest.mark.parametrize("asked", [8, 10**9])
def test_a_request_that_is_not_the_common_point_is_refused(pair: Pair, asked: int) -> None:
    """Ask from elsewhere than where the histories part: the link ends and is not counted as a copy."""
    connection = connection_of(pair.master)
    connection.follow(follow_of(pair.mirror), 0.0)
    error = refusal(lambda: connection.pull(Pull(log_offset=asked), 0.0))
    assert isinstance(error, OffsetOutOfRange)
    assert not connection.proven


@pytest.mark.parametrize(
    "claim",
    [
        {"end": 10**9},
        {"end": 8, "confirmed": 10**9},
        {"end": -5},
        {"end": 10**9, "epochs": [EpochEntry(7, 0)]},
        {"end": 10**9, "epochs": []},
        {"epochs": [EpochEntry(2, 0), EpochEntry(1, 0)]},
        {"epochs": [EpochEntry(0, 0)]},
        {"epochs": [EpochEntry(2**40, 0)]},
    ],
)
def test_a_mirror_that_claims_nonsense_gets_no_link(pair: Pair, claim: dict[str, object]) -> None:
    """Claim ends and histories that cannot be: the link ends with an error, unproven."""
    facts: dict[str, object] = {"begin": 0, "end": 0, "confirmed": 0, "epochs": [EpochEntry(1, 0)]}
    message = FollowRequest(log_id="x", **{**facts, **claim})  # type: ignore[arg-type]
    connection = connection_of(pair.master)

    def handshake() -> None:
        connection.follow(message, 0.0)
        connection.pull(Pull(log_offset=message.end), 0.0)

    assert refusal(handshake) is not None
    assert not connection.proven


# --- Acks -------------------------------------------------------------------------------------------------------------


def check_only_acks_that_can_be_true_are_believed(pair: Pair, make: Make = HAConnection) -> None:
    connection = connection_of(pair.master, make=make)
    prove(connection, pair.mirror)
    end = pair.master.log.end
    connection.ack(ack_of(end, epoch=1, flushed=8), 0.0)
    for lie, kind in (
        (ack_of(end + 8, epoch=1), AckBeyondEnd),
        (ack_of(end, epoch=1, flushed=end + 8), AckBeyondEnd),
        (ack_of(end, epoch=2), ProtocolError),
        (ack_of(0, epoch=1), ProtocolError),
    ):
        error = refusal(lambda lie=lie: connection.ack(lie, 0.0))
        assert isinstance(error, kind), f"{lie} was believed"
        assert (connection.read_half.acked, connection.read_half.flushed) == (end, 8)


@pytest.mark.story("002:829-853")
def test_only_acks_that_can_be_true_are_believed(pair: Pair) -> None:
    """Ack more than was sent, more on disk than in memory, another epoch, and back: each ends the link uncounted."""
    check_only_acks_that_can_be_true_are_believed(pair)


def test_bytes_that_were_not_sent_on_this_link_cannot_be_acked(pair: Pair) -> None:
    """Append behind the window: an ack of the master's own end, which the mirror cannot have, ends the link."""
    connection = connection_of(pair.master, ha=HA.model_copy(update={"in_flight_bytes_max": 1 * KIB}))
    prove(connection, pair.mirror)
    for number in range(4):
        append(pair.master, 30 * KIB, number)
    connection.pump(0.0)
    assert connection.write_half.next_transfer < pair.master.log.end
    assert isinstance(refusal(lambda: connection.ack(ack_of(pair.master.log.end, epoch=1), 0.0)), AckBeyondEnd)


@pytest.mark.story("002:829-837")
def test_a_later_ack_covers_the_earlier_ones(pair: Pair) -> None:
    """Skip acks: the last one says all that the ones before it would have said."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    for number in range(5):
        append(pair.master, 100, number)
    connection.pump(0.0)
    connection.ack(ack_of(pair.master.log.end, epoch=1, flushed=pair.master.log.end), 1.0)
    assert (connection.read_half.acked, connection.read_half.flushed) == (pair.master.log.end, pair.master.log.end)


def test_a_link_ends_with_its_mastership(pair: Pair) -> None:
    """Open a new epoch under a link: an ack of the new epoch on the old link is refused."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    start_epoch(pair.master, "n0")
    assert isinstance(refusal(lambda: connection.ack(ack_of(0, epoch=2), 0.0)), ProtocolError)


# --- Transfer ---------------------------------------------------------------------------------------------------------


@pytest.mark.story("002:591-607")
def test_a_transfer_says_where_its_bytes_stand(pair: Pair) -> None:
    """Push one batch: its frame has its log offset and, beside it, what a mirror must know to trust it."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    before = pair.master.log.end
    append(pair.master)
    pair.master.set_confirmed(before)
    parts = sends(connection.pump(0.0))
    (facts,) = transfers_in(parts)
    assert facts == (before, before, pair.master.log.end, 1, 0)
    assert runs_in(parts) == content(pair.master)[before:]


@pytest.mark.story("002:1049-1053")
def test_each_transfer_follows_the_one_before(pair: Pair) -> None:
    """Push many batches in several turns: put together they are the log, without gap or overlap."""
    connection = connection_of(pair.master, ha=HA.model_copy(update={"in_flight_bytes_max": 1 << 30}))
    parts = sends(prove(connection, pair.mirror))
    for number in range(20):
        append(pair.master, 5 * KIB, number)
        if number % 3 == 0:
            parts += sends(connection.pump(0.0))
    parts += sends(connection.pump(0.0))
    expected = 0
    for each in frames_in(parts):
        if len(each.payload) > TRANSFER.size:
            assert TRANSFER.unpack_from(each.payload)[0] == expected
            expected += len(each.payload) - TRANSFER.size
    assert runs_in(parts) == content(pair.master)


@pytest.mark.story("002:1037-1045")
def test_a_transfer_is_capped(pair: Pair) -> None:
    """Let far more than the batch size wait: no transfer is larger, and none stays half empty without need."""
    connection = connection_of(pair.master, ha=HA.model_copy(update={"in_flight_bytes_max": 1 << 30}))
    prove(connection, pair.mirror)
    for number in range(40):
        append(pair.master, 4 * KIB, number)
    sizes = [len(each.payload) - TRANSFER.size for each in frames_in(sends(connection.pump(0.0)))]
    assert max(sizes) <= HA.transfer_batch_bytes
    assert all(size > HA.transfer_batch_bytes - 5 * KIB for size in sizes[:-1])


@pytest.mark.story("002:1047")
def test_a_transfer_holds_whole_batches_even_above_the_cap(pair: Pair) -> None:
    """Append a batch larger than the batch size of a transfer: it goes out whole, by itself."""
    ha = HA.model_copy(update={"transfer_batch_bytes": 1 * KIB})
    connection = connection_of(pair.master, ha=ha)
    prove(connection, pair.mirror)
    headers = [append(pair.master, size) for size in (100, 20 * KIB, 100)]
    frames = frames_in(sends(connection.pump(0.0)))
    assert [len(each.payload) - TRANSFER.size for each in frames] == [header.length for header in headers]


@pytest.mark.story("002:921")
def test_no_more_is_under_way_than_the_window_allows(pair: Pair) -> None:
    """Let a mirror take nothing: pushing stops at the window and goes on by what is acked."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    for number in range(20):
        append(pair.master, 16 * KIB, number)
    connection.pump(0.0)
    sent = connection.write_half.next_transfer
    assert HA.in_flight_bytes_max <= sent < HA.in_flight_bytes_max + HA.transfer_batch_bytes
    assert connection.pump(0.0) == []
    connection.ack(ack_of(sent, epoch=1), 0.0)
    connection.pump(0.0)
    assert connection.write_half.next_transfer > sent


@pytest.mark.story("002:1029-1035")
def test_nothing_is_sent_when_nothing_follows(pair: Pair) -> None:
    """Pump a link that has everything: it stays silent."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    assert connection.pump(0.0) == []


@pytest.mark.story("002:1057-1071")
def test_the_log_is_sent_from_where_it_lies(pair: Pair) -> None:
    """Push a batch: after the head goes a read-only view of the log itself, not a copy."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    append(pair.master)
    send = only(Send, connection.pump(0.0))
    head, run = send.parts
    assert len(head) == FACTS
    assert isinstance(run, memoryview)
    assert run.readonly
    assert run.obj is pair.master.log._chain.active.view.obj  # type: ignore[union-attr]


def test_what_is_no_longer_mapped_is_read_by_a_helper_first(pair: Pair) -> None:
    """Reopen a log of several segments, so that the old ones are not mapped: order holds, one read at a time."""
    for number in range(12):
        append(pair.master, 30 * KIB, number)
    pair.master.close()
    pair.master = open_master(pair.master.log.directory, pair.settings)
    connection = connection_of(pair.master, ha=HA.model_copy(update={"in_flight_bytes_max": 1 << 30}))
    actions = prove(connection, pair.mirror)
    parts: list[bytes | memoryview] = []
    rounds = 0
    while actions and isinstance(actions[-1], ReadCold):
        parts += sends(actions[:-1])
        assert connection.pump(0.0) == []
        actions = connection.cold_read(actions[-1].job.run(), 0.0)
        rounds += 1
    parts += sends(actions)
    assert rounds > 1
    assert runs_in(parts) == content(pair.master)


def test_a_cold_read_that_comes_after_the_end_of_its_link_is_dropped(pair: Pair) -> None:
    """Close the link while the helper reads: what it brings goes nowhere."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    connection.closed()
    assert connection.cold_read(b"x" * 100, 0.0) == []


# --- Silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.story("002:991-1023")
def test_a_silent_master_sends_a_heartbeat(pair: Pair) -> None:
    """Say nothing for the heartbeat interval: an empty transfer with the next offset goes out, and the clock
    starts anew with anything that is sent."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror, now=10.0)
    assert connection.tick(10.49) == []
    (heartbeat,) = frames_in(sends(connection.tick(10.5)))
    assert TRANSFER.unpack(heartbeat.payload)[0] == pair.master.log.end
    append(pair.master)
    connection.pump(10.9)
    assert connection.tick(11.39) == []
    assert len(connection.tick(11.4)) == 1


@pytest.mark.story("002:773-781")
def test_a_mirror_that_falls_silent_is_dropped(pair: Pair) -> None:
    """Hear nothing for the housekeeping interval, however much is sent meanwhile: the link ends."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror, now=10.0)
    for step in range(1, 4):
        assert not closes(connection.tick(10.0 + step / 2))
    close = only(Close, connection.tick(12.0))
    assert isinstance(close.error, StalledFrame)


@pytest.mark.story("002:825")
def test_any_ack_is_a_sign_of_life(pair: Pair) -> None:
    """Repeat the same ack: the link lives on, housekeeping counts from the last one."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    for step in range(1, 20):
        connection.ack(ack_of(0, epoch=1), step * 1.9)
        assert not closes(connection.tick(step * 1.9 + 0.01))
    assert closes(connection.tick(19 * 1.9 + 2.0))


def test_a_closed_link_does_nothing(pair: Pair) -> None:
    """Close a link: it neither pushes nor keeps house."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    connection.closed()
    append(pair.master)
    assert connection.pump(0.0) == []
    assert connection.tick(100.0) == []


# --- What is confirmed ------------------------------------------------------------------------------------------------


def test_a_mirror_is_told_what_is_confirmed_though_nothing_follows(pair: Pair) -> None:
    """Confirm without appending: one empty transfer tells it, and no second one."""
    connection = connection_of(pair.master)
    prove(connection, pair.mirror)
    pair.master.set_confirmed(pair.master.log.end)
    (facts,) = transfers_in(sends(connection.pump(0.0)))
    assert (facts.log_offset, facts.confirmed) == (pair.master.log.end, pair.master.log.end)
    assert connection.pump(0.0) == []


# --- What the mirror may not hold -------------------------------------------------------------------------------------


def test_bytes_that_this_master_wrote_and_lost_are_named_and_never_cut(pair: Pair) -> None:
    """Follow with more of this master's own epoch than it has: the range is named and the link refused."""
    end = pair.master.log.end
    message = FollowRequest(
        log_id="x", epochs=[EpochEntry(*pair.master.log.epochs.entries[0])], begin=0, end=end + 800, confirmed=0
    )
    error = refusal(lambda: connection_of(pair.master).follow(message, 0.0))
    assert isinstance(error, MirrorAhead)
    assert error.details == {"first": end, "last": end + 800}


@pytest.mark.parametrize("writer", ["n0", "n1", "n9", ""])
def test_bytes_of_a_former_epoch_are_cut(pair: Pair, writer: str) -> None:
    """Goal: who was promoted holds everything that was confirmed, so what a copy has more of former epochs goes, also
    of an epoch that the master never heard of. Follow with a tail by each writer: the history is told, not refused."""
    first, point = pair.master.log.epochs.entries[0], pair.master.log.end
    start_epoch(pair.master, "n0", 5)
    tail = Epoch(3, point, writer, "a")
    message = FollowRequest(log_id="x", epochs=told([first, tail]), begin=0, end=point + 800, confirmed=point)
    connection = connection_of(pair.master)
    (answer,) = frames_in(sends(connection.follow(message, 0.0)))
    history = decode(answer.payload)
    assert isinstance(history, History)
    assert history.start_at is None
    connection.pull(Pull(log_offset=point), 0.0)
    assert connection.proven


@pytest.mark.parametrize(
    ("losses", "cut"),
    [
        ([], False),
        ([(5, -8)], True),
        ([(5, 0)], True),
        ([(5, 8)], False),
        ([(5, 8), (4, 0)], True),
        ([(3, -8)], False),
    ],
)
def test_what_a_mirror_knows_to_be_confirmed_is_cut_for_a_declared_loss_alone(
    pair: Pair, losses: list[tuple[int, int]], cut: bool
) -> None:
    """Goal: invariant 1. Follow with bytes of epoch 3 that the mirror knows to be confirmed and the master of epoch 5
    lacks: refused, and the range named, unless a loss was declared for a later epoch, from there or from below (bytes
    from the place where the histories part)."""
    first, point = pair.master.log.epochs.entries[0], pair.master.log.end
    start_epoch(pair.master, "n0", 5)
    epochs = told([first, Epoch(3, point, "n9", "a")])
    message = FollowRequest(log_id="x", epochs=epochs, begin=0, end=point + 800, confirmed=point + 8)
    connection = connection_of(pair.master, losses=[Declared(epoch, point + above) for epoch, above in losses])
    error = refusal(lambda: connection.follow(message, 0.0))
    assert (error is None) == cut
    if not cut:
        assert isinstance(error, MirrorAhead)
        assert error.details == {"first": point, "last": point + 800}


def test_no_declared_loss_excuses_a_master_that_loses_bytes_of_its_own_epoch(pair: Pair) -> None:
    """Follow with more of the present epoch than the master has, nothing of it confirmed as far as the mirror knows:
    refused whatever was declared before."""
    end = pair.master.log.end
    epochs = told(pair.master.log.epochs.entries)
    message = FollowRequest(log_id="x", epochs=epochs, begin=0, end=end + 800, confirmed=0)
    connection = connection_of(pair.master, losses=[Declared(1, 0)])
    assert isinstance(refusal(lambda: connection.follow(message, 0.0)), MirrorAhead)


def test_a_mirror_that_knows_a_later_master_is_told_that_this_one_is_deposed(pair: Pair) -> None:
    """Goal: a master that has not heard of its successor closes the link and nothing more: its copy has lost nothing.
    Follow with an epoch that somebody else opened after this master's: it is no master, and asking again is right."""
    epochs = [EpochEntry(1, 0), EpochEntry(2, pair.master.log.end, "n2", "b")]
    message = FollowRequest(log_id="x", epochs=epochs, begin=0, end=pair.master.log.end, confirmed=0)
    error = refusal(lambda: connection_of(pair.master).follow(message, 0.0))
    assert isinstance(error, NotMaster)
    assert error.retriable


def test_a_copy_that_begins_above_the_common_point_begins_anew(pair: Pair) -> None:
    """Goal: nothing of it is of use, for its first byte is of another history. Follow with a copy from 800 on where the
    histories part before."""
    first, point = pair.master.log.epochs.entries[0], pair.master.log.end
    start_epoch(pair.master, "n0", 5)
    message = FollowRequest(
        log_id="x", epochs=told([first, Epoch(3, point, "n9", "a")]), begin=point + 400, end=point + 800, confirmed=0
    )
    connection = connection_of(pair.master)
    (answer,) = frames_in(sends(connection.follow(message, 0.0)))
    history = decode(answer.payload)
    assert isinstance(history, History)
    assert history.start_at == pair.master.log.begin


def test_a_flush_of_the_master_is_not_needed_to_push(pair: Pair) -> None:
    """Push before and after a flush: the bytes are the same."""
    connection = connection_of(pair.master)
    parts = sends(prove(connection, pair.mirror))
    flush(pair.master)
    append(pair.master)
    parts += sends(connection.pump(0.0))
    assert runs_in(parts) == content(pair.master)
