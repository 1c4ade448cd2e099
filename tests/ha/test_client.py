"""A mirror's end of its link to the master."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from mirrorlog.errors import (
    BadBatch,
    ConnectionLost,
    DiskFailed,
    DiskFull,
    LogCorrupt,
    LogRecovering,
    MirrorlogError,
    NodeStopping,
    NotMaster,
    ProtocolError,
    StalledFrame,
    WrongCluster,
)
from mirrorlog.ha.actions import Align, Close, Connect
from mirrorlog.ha.client import DISK_FULL_RETRY_S, NO_SPACE_RETRY_S, ClientState, HAClient
from mirrorlog.wire.frames import Frame, FrameType
from mirrorlog.wire.messages.codec import decode
from mirrorlog.wire.messages.handshake import Failure
from mirrorlog.wire.messages.replication import FollowRequest, Pull
from tests.ha.links import (
    Declared,
    Pair,
    client_of,
    closes,
    history,
    lead_to_asking,
    lead_to_transfer,
    message_frame,
    only,
    refusal,
    sends,
    transfer,
    welcome,
)
from tests.ha.replicas import acks_in, append, content, flush, frames_in, settings_of, start_epoch

Make = Callable[..., HAClient]
EMPTY = memoryview(b"")


def joined(pair: Pair, make: Make = HAClient, now: float = 0.0) -> HAClient:
    client = client_of(pair.mirror, pair.mirror_settings, make=make, now=now)
    lead_to_transfer(client, pair, now)
    assert client.state is ClientState.TRANSFER
    return client


# --- Connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.story("002:381-389")
def test_a_mirror_tries_again_soon_and_then_after_the_reconnect_interval(pair: Pair) -> None:
    """Goal: a master that was just promoted is not missed by half a second, one that is gone is not asked all the time.
    Fail to connect many times: each next attempt is due after twice the time, up to the interval; a link that came to
    its transfer begins that anew."""
    client = client_of(pair.mirror, pair.mirror_settings)
    now = 0.0
    for wait_s in (0.02, 0.04, 0.08, 0.1, 0.1):
        assert isinstance(only(Connect, client.tick(now)), Connect)
        assert client.tick(now + 0.01) == []
        client.disconnected(now, ConnectionLost("refused"))
        assert client.tick(now + wait_s - 0.001) == []
        now += wait_s
    for _ in range(2000):
        client.disconnected(now, ConnectionLost("refused"))
    assert client.retry_at == now + 0.1
    client.tick(client.retry_at)
    lead_to_transfer(client, pair, now)
    client.disconnected(now)
    assert client.retry_at == now + 0.02


@pytest.mark.parametrize("error", [BadBatch("bad on the way"), LogCorrupt("bad there"), DiskFailed("cannot be read")])
def test_a_master_that_agrees_and_cannot_send_is_asked_less_and_less(pair: Pair, error: MirrorlogError) -> None:
    """Goal: a master that goes on with bad bytes where its mirror ends is not dialled all the time, and nothing else is
    missed for it. Lose link after link in its transfer, with nothing but an empty frame on it, to bytes that cannot be
    sent or believed: each next attempt is due after twice the time, up to the interval, and the reason stays known.
    Bytes, or a frame that says that none are lacking, begin that anew."""
    append(pair.master, 100)
    client = client_of(pair.mirror, pair.mirror_settings)

    def lost(now: float, *frames: Frame, reason: MirrorlogError | None = error) -> float:
        client.tick(now)
        lead_to_transfer(client, pair, now)
        for each in frames:
            client.received(each, now)
        client.disconnected(now, reason)
        return round(client.retry_at - now, 6)

    end = pair.master.log.end
    assert [lost(float(number), transfer(pair.master, 0, 0)) for number in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    lead_to_transfer(client, pair, 5.0)
    assert client.last_error is error
    client.received(transfer(pair.master, 0, end), 5.0)
    assert client.last_error is None
    client.disconnected(5.0, error)
    assert client.retry_at == 5.02
    append(pair.master, 100)
    assert [lost(float(number)) for number in range(6, 9)] == [0.02, 0.04, 0.08]
    pair.master.log.truncate(end, pair.master.log.epochs.entries)
    assert [lost(float(number), transfer(pair.master, end, end)) for number in range(9, 12)] == [0.02, 0.02, 0.02]


@pytest.mark.parametrize("passing", [ConnectionLost("reset"), NotMaster("deposed"), NodeStopping("going down"), None])
def test_a_master_that_could_not_send_is_missed_at_once_when_it_goes(
    pair: Pair, passing: MirrorlogError | None
) -> None:
    """Goal: a restart or a failover is never met later for what was before. Lose links to bad bytes until the wait is
    the longest; then lose one because the master goes, in its transfer or while it is dialled: the next attempt is due
    as soon as after any link, and further ones as ever."""
    append(pair.master, 100)
    client = client_of(pair.mirror, pair.mirror_settings)
    now = 0.0
    for connects in (True, False):
        for _ in range(10):
            now += 1.0
            lead_to_transfer(client, pair, now)
            client.disconnected(now, BadBatch("bad"))
        assert client.retry_at == now + 0.1
        if connects:
            lead_to_transfer(client, pair, now)
        else:
            client.tick(client.retry_at)
        waits = []
        for _ in range(4):
            client.disconnected(now, passing)
            waits.append(round(client.retry_at - now, 6))
            client.tick(client.retry_at)
        assert waits == ([0.02, 0.04, 0.08, 0.1] if connects else [0.04, 0.08, 0.1, 0.1])


@pytest.mark.story("002:405-433")
def test_one_link_at_a_time(pair: Pair) -> None:
    """Let time pass while the link is being opened and while it is open: no second one is asked for."""
    client = client_of(pair.mirror, pair.mirror_settings)
    only(Connect, client.tick(0.0))
    assert client.tick(1.0) == []
    client.connected(1.0)
    assert not any(isinstance(action, Connect) for action in client.tick(2.0))


@pytest.mark.story("002:329-357")
def test_a_lost_link_is_used_no_more_and_opened_anew(pair: Pair) -> None:
    """Lose the link in each state: nothing is sent on it any more, and the next thing is a new connection."""
    client = client_of(pair.mirror, pair.mirror_settings)
    for lead in (
        lambda: client.tick(0.0),
        lambda: client.connected(0.0),
        lambda: lead_to_asking(client, pair.mirror_settings),
        lambda: lead_to_transfer(client, pair),
    ):
        lead()
        client.disconnected(0.0)
        assert client.state is ClientState.WAITING
        assert client.flushed(0.01) == []
        assert client.tick(0.01) == []
        assert client.tick(0.1) == [Connect()]
        client.disconnected(-1.0)


def test_no_new_link_is_opened_while_the_log_is_being_cut(pair: Pair) -> None:
    """Lose the link while the helper still aligns: the mirror connects again only when that is done, so that what it
    says it holds is what it holds, and no late cut removes what was acked meanwhile."""
    client = client_of(pair.mirror, pair.mirror_settings)
    lead_to_asking(client, pair.mirror_settings)
    only(Align, client.received(history(pair.master), 0.0))
    client.disconnected(1.0)
    assert client.tick(5.0) == []
    assert client.aligned(5.0) == []
    assert client.tick(5.0) == [Connect()]


def test_a_cut_that_failed_does_not_keep_the_mirror_away(pair: Pair) -> None:
    """Let the helper fail: the link is lost with that reason, and the mirror tries again."""
    client = client_of(pair.mirror, pair.mirror_settings)
    lead_to_asking(client, pair.mirror_settings)
    only(Align, client.received(history(pair.master), 0.0))
    client.align_failed()
    client.disconnected(1.0, ConnectionLost("disk"))
    assert client.tick(5.0) == [Connect()]


def test_a_mirror_on_a_full_disk_waits_for_space(pair: Pair) -> None:
    """Goal: nothing is sent over the network for nothing. Lose the link to a full disk: no new one while no space is
    found but for a rare try, in case the log has got a file back; one at once when there is space; without anybody who
    measures, after five seconds."""
    client = client_of(pair.mirror, pair.mirror_settings)
    full = DiskFull("no room")
    client.tick(0.0)
    client.disconnected(1.0, full)
    assert client.waits_for_space
    assert client.last_error is full
    assert client.tick(1.0 + DISK_FULL_RETRY_S - 0.01) == []
    assert client.tick(1.0 + DISK_FULL_RETRY_S) == [Connect()]
    client.space_measured(room=False, now=9.0)
    client.disconnected(10.0, full)
    assert client.tick(10.0 + NO_SPACE_RETRY_S - 0.01) == []
    assert client.tick(10.0 + NO_SPACE_RETRY_S) == [Connect()]
    client.disconnected(50.0, full)
    assert client.tick(60.0) == []
    client.space_measured(room=True, now=60.0)
    assert client.tick(60.0) == [Connect()]


def test_space_is_no_matter_to_a_mirror_that_left_for_another_reason(pair: Pair) -> None:
    """Goal: a full disk keeps nobody away who needs no space now. Lose the link otherwise, on a disk without room: the
    next attempt is due after its time, no sooner for space that is found, and later ones too."""
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    client.space_measured(room=False, now=0.0)
    for error in (ConnectionLost("refused"), None):
        client.disconnected(1.0, error)
        client.space_measured(room=True, now=1.0)
        client.space_measured(room=False, now=1.0)
        assert client.tick(1.019) == []
        assert client.tick(1.1) == [Connect()]


def test_a_stopped_mirror_stays_stopped(pair: Pair) -> None:
    """Stop while a connection is being made, and while the log is being cut: what completes later starts nothing."""
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    client.stop()
    only(Close, client.connected(0.1))
    client.disconnected(0.2)
    assert client.state is ClientState.STOPPED
    assert client.tick(100.0) == []
    assert client.aligned(100.0) == []


# --- Greeting and history ---------------------------------------------------------------------------------------------


def test_a_mirror_greets_first_and_then_says_what_it_holds(pair: Pair) -> None:
    """Connect and be welcomed: HELLO, then what is on this disk."""
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    (hello,) = frames_in(sends(client.connected(0.0)))
    assert hello.type == FrameType.HELLO
    (follow,) = frames_in(sends(client.received(welcome(pair.mirror_settings), 0.0)))
    told = decode(follow.payload)
    assert isinstance(told, FollowRequest)
    assert (told.begin, told.end, told.confirmed, told.epochs) == (0, 0, 0, [])


def test_a_master_of_another_cluster_is_left_at_once(pair: Pair) -> None:
    """Be welcomed by another cluster: nothing of the copy is told."""
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    client.connected(0.0)
    other = settings_of("n0", ["n0", "n1"])
    other = other.model_copy(update={"cluster": other.cluster.model_copy(update={"name": "elsewhere"})})
    assert isinstance(refusal(lambda: client.received(welcome(other), 0.0)), WrongCluster)


@pytest.mark.story("002:435-449")
def test_what_a_mirror_asks_for_is_checked_against_the_masters_history(pair: Pair) -> None:
    """Let the mirror hold a tail that is not the master's: it is cut first, and the request is the common point."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    common = pair.mirror.log.end
    client.disconnected(0.0)
    pair.mirror.log.open_epoch(2)
    append(pair.mirror, 500)
    start_epoch(pair.master, "n0", 3)
    lead_to_asking(client, pair.mirror_settings, 1.0)
    align = only(Align, client.received(history(pair.master), 1.0))
    assert align.log_offset == common
    pair.mirror.align(align.log_offset, align.epochs)
    pair.mirror.aligned()
    pull, ack = frames_in(sends(client.aligned(1.0)))
    assert decode(pull.payload) == Pull(log_offset=common)
    assert ack.type == FrameType.ACK


def test_what_is_confirmed_here_is_never_cut(pair: Pair) -> None:
    """Meet a master whose history parts below what is confirmed here: the mirror keeps all and names the range."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    common = pair.mirror.log.end
    pair.mirror.log.open_epoch(2)
    append(pair.mirror, 500)
    pair.mirror.set_confirmed(pair.mirror.log.end)
    kept = content(pair.mirror)
    start_epoch(pair.master, "n0", 3)
    client.disconnected(0.0)
    lead_to_asking(client, pair.mirror_settings, 1.0)
    error = refusal(lambda: client.received(history(pair.master), 1.0))
    assert isinstance(error, LogRecovering)
    assert error.details == {"first": common, "last": len(kept)}
    assert content(pair.mirror) == kept


def copy_with_a_diverged_tail(pair: Pair, *, confirmed: bool) -> int:
    """The mirror holds, and perhaps knows to be confirmed, what the master of epoch 3 has never seen; where that
    begins."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    common = pair.mirror.log.end
    pair.mirror.log.open_epoch(2)
    append(pair.mirror, 500)
    if confirmed:
        pair.mirror.set_confirmed(pair.mirror.log.end)
    start_epoch(pair.master, "n0", 3)
    return common


@pytest.mark.parametrize("confirmed", [False, True])
def test_what_is_declared_lost_is_set_aside_and_cut(pair: Pair, confirmed: bool) -> None:
    """Goal: a declared loss lets a copy that has more follow again, whether it knows to be confirmed what may have
    been. The cut names the first epoch for which a loss was declared since."""
    common = copy_with_a_diverged_tail(pair, confirmed=confirmed)
    losses = [Declared(9, common - 8), Declared(3, common), Declared(2, 0)]
    client = client_of(pair.mirror, pair.mirror_settings, losses=losses)
    lead_to_asking(client, pair.mirror_settings)
    align = only(Align, client.received(history(pair.master), 0.0))
    assert (align.log_offset, align.anew, align.loss) == (common, False, 3)


@pytest.mark.parametrize(("epoch", "above"), [(3, 8), (2, 0), (1, 0)])
def test_a_loss_that_is_another_one_excuses_nothing(pair: Pair, epoch: int, above: int) -> None:
    """Goal: a loss covers what stands from its start on, of epochs before its own. Meet a master that lacks what is
    confirmed here, with a loss that begins behind it, or was declared before these bytes were written."""
    common = copy_with_a_diverged_tail(pair, confirmed=True)
    client = client_of(pair.mirror, pair.mirror_settings, losses=[Declared(epoch, common + above)])
    lead_to_asking(client, pair.mirror_settings)
    assert isinstance(refusal(lambda: client.received(history(pair.master), 0.0)), LogRecovering)


def test_what_stands_below_a_declared_loss_and_is_not_confirmed_is_cut_as_ever(pair: Pair) -> None:
    """Goal: nothing is kept that cannot have been confirmed. A loss begins above the place where the histories part:
    what was confirmed below it, the master has."""
    common = copy_with_a_diverged_tail(pair, confirmed=False)
    client = client_of(pair.mirror, pair.mirror_settings, losses=[Declared(3, common + 8)])
    lead_to_asking(client, pair.mirror_settings)
    align = only(Align, client.received(history(pair.master), 0.0))
    assert (align.log_offset, align.loss) == (common, 0)


def test_a_loss_takes_nothing_from_a_copy_that_has_no_more(pair: Pair) -> None:
    """Goal: who lost something too has nothing to keep. Meet the next master with a declared loss and no more than it
    has."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    pair.mirror.set_confirmed(pair.mirror.log.end)
    start_epoch(pair.master, "n0", 3)
    client = client_of(pair.mirror, pair.mirror_settings, losses=[Declared(3, 0)])
    lead_to_asking(client, pair.mirror_settings)
    align = only(Align, client.received(history(pair.master), 0.0))
    assert (align.log_offset, align.loss) == (pair.mirror.log.end, 0)


def test_an_older_history_than_the_one_known_here_is_refused(pair: Pair) -> None:
    """Hear an old master's history after a newer one: nothing is cut for it."""
    client = joined(pair)
    old = history(pair.master)
    start_epoch(pair.master, "n0")
    client.disconnected(0.0)
    lead_to_transfer(client, pair, 1.0)
    client.disconnected(1.0)
    lead_to_asking(client, pair.mirror_settings, 2.0)
    assert isinstance(refusal(lambda: client.received(old, 2.0)), ProtocolError)


# --- Reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.story("002:441")
def test_the_first_report_comes_at_once(pair: Pair) -> None:
    """Join: the request and a first ack leave in the same turn, with no interval before them."""
    client = client_of(pair.mirror, pair.mirror_settings)
    pull, ack = frames_in(sends(lead_to_transfer(client, pair)))
    assert (pull.type, ack.type) == (FrameType.PULL, FrameType.ACK)


@pytest.mark.story("002:457-469")
def test_a_silent_mirror_reports_again(pair: Pair) -> None:
    """Say nothing for the heartbeat interval: the same ack goes out, and the clock starts anew with each."""
    client = joined(pair)
    assert client.tick(0.49) == []
    (first,) = acks_in(sends(client.tick(0.5)))
    assert client.tick(0.99) == []
    (second,) = acks_in(sends(client.tick(1.0)))
    assert first == second == (pair.mirror.log.end, pair.mirror.log.flushed, 1, 0)


def test_a_run_is_acked_once_and_as_soon_as_it_is_stored(pair: Pair) -> None:
    """Goal: a driver that acks when the bytes are in the log sends no second ack when they are followed. Method: let
    the copy tell when it stores a run, as a node does; a heartbeat that follows brings no ack either."""
    client = joined(pair)
    said: list[bytes | memoryview] = []
    pair.mirror.on_stored.append(lambda: said.extend(sends(client.stored(0.0))))
    begin, end = pair.mirror.log.end, pair.master.log.end
    assert client.received(transfer(pair.master, begin, end), 0.0) == []
    assert [ack.written for ack in acks_in(said)] == [end]
    assert client.received(transfer(pair.master, end, end), 0.0) == []


@pytest.mark.story("002:475-513")
def test_an_ack_says_what_is_held_and_of_which_history(pair: Pair) -> None:
    """Receive, then flush: the acks say how far in memory, how far on disk, and the epoch; nothing more is claimed."""
    client = joined(pair)
    end = pair.master.log.end
    (written,) = acks_in(sends(client.received(transfer(pair.master, 0, end), 0.0)))
    assert written == (end, 0, 1, 0)
    flush(pair.mirror)
    (flushed,) = acks_in(sends(client.flushed(0.1)))
    assert flushed == (end, end, 1, 0)


# --- Bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.story("002:625-651")
def test_each_transfer_is_stored_and_acked(pair: Pair) -> None:
    """Receive three runs: each is in the log and acked before the next one comes."""
    client = joined(pair)
    borders = [0, pair.master.log.end, append(pair.master).next_log_offset, append(pair.master).next_log_offset]
    for first, last in pairwise(borders):
        (ack,) = acks_in(sends(client.received(transfer(pair.master, first, last), 0.0)))
        assert ack.written == pair.mirror.log.end == last
    assert content(pair.mirror) == content(pair.master)


@pytest.mark.story("002:613-621")
@pytest.mark.parametrize("heartbeat", [False, True])
def test_bytes_that_do_not_follow_close_the_link(pair: Pair, heartbeat: bool) -> None:
    """Push from another offset than the end, with bytes and without: the link ends and the copy is as before."""
    client = joined(pair)
    first = pair.master.log.end
    client.received(transfer(pair.master, 0, first), 0.0)
    kept = content(pair.mirror)
    second = append(pair.master).next_log_offset
    append(pair.master)
    last = second if heartbeat else pair.master.log.end
    error = refusal(lambda: client.received(transfer(pair.master, second, last), 0.0))
    assert isinstance(error, ProtocolError)
    assert content(pair.mirror) == kept


def check_an_empty_mirror_takes_only_the_beginning(pair: Pair, make: Make = HAClient) -> None:
    first = pair.master.log.end
    append(pair.master)
    for last in (first, pair.master.log.end):
        client = joined(pair, make)
        error = refusal(lambda client=client, last=last: client.received(transfer(pair.master, first, last), 0.0))
        assert isinstance(error, ProtocolError), f"an empty copy took a push from {first}"
        assert pair.mirror.log.end == 0


@pytest.mark.story("002:609-623")
def test_an_empty_mirror_takes_only_the_beginning(pair: Pair) -> None:
    """Push from the middle of the log to a mirror that has nothing, a run and a heartbeat: the link ends, nothing is
    stored."""
    check_an_empty_mirror_takes_only_the_beginning(pair)


@pytest.mark.story("002:639")
@pytest.mark.parametrize("damage", [0, 60, -1])
def test_a_damaged_batch_is_neither_stored_nor_acked(pair: Pair, damage: int) -> None:
    """Flip a byte in the header, in the producer's part and at the end of a run: none of the run is kept."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    first = pair.master.log.end
    append(pair.master)
    append(pair.master)
    bad = transfer(pair.master, first, pair.master.log.end, damage=damage)
    assert isinstance(refusal(lambda: client.received(bad, 0.0)), BadBatch)
    assert pair.mirror.log.end == first


def test_bytes_of_another_epoch_are_refused(pair: Pair) -> None:
    """Push under another epoch than the history's: not taken."""
    client = joined(pair)
    other = transfer(pair.master, 0, pair.master.log.end, epoch=2)
    assert isinstance(refusal(lambda: client.received(other, 0.0)), ProtocolError)
    assert pair.mirror.log.end == 0


def test_only_what_is_held_becomes_confirmed(pair: Pair) -> None:
    """Hear of a confirmed offset beyond the copy's end: the copy's own end is all that is confirmed here."""
    end = pair.master.log.end
    append(pair.master)
    pair.master.set_confirmed(pair.master.log.end)
    client = joined(pair)
    client.received(transfer(pair.master, 0, end), 0.0)
    assert pair.mirror.log.confirmed == pair.mirror.log.end == end
    client.received(transfer(pair.master, end, pair.master.log.end), 0.0)
    assert pair.mirror.log.confirmed == pair.master.log.end


def test_a_heartbeat_is_not_answered(pair: Pair) -> None:
    """Receive an empty transfer at the end: it is a sign of life and asks for nothing."""
    client = joined(pair)
    client.received(transfer(pair.master, 0, pair.master.log.end), 0.0)
    assert client.received(transfer(pair.master, pair.master.log.end, pair.master.log.end), 0.3) == []
    assert client.last_read == 0.3


@pytest.mark.parametrize("kind", [FrameType.WELCOME, FrameType.HISTORY, FrameType.ACK, FrameType.PING])
def test_a_frame_out_of_order_ends_the_link(pair: Pair, kind: FrameType) -> None:
    """Receive, while bytes flow, what belongs elsewhere."""
    client = joined(pair)
    assert isinstance(refusal(lambda: client.received(Frame(kind, 0, EMPTY), 0.0)), ProtocolError)


def test_the_masters_reason_is_kept(pair: Pair) -> None:
    """Be refused by an ERROR frame: the reason is the one that the master gave, of its own class."""
    client = joined(pair)
    said = message_frame(FrameType.ERROR, Failure(code="WRONG_CLUSTER", message="go away"))
    error = refusal(lambda: client.received(said, 0.0))
    assert isinstance(error, WrongCluster)
    client.disconnected(0.0, error)
    assert client.last_error is error


def test_goodbye_closes_without_an_error(pair: Pair) -> None:
    """Receive GOODBYE: the link closes as an ordinary end."""
    client = joined(pair)
    assert only(Close, client.received(Frame(FrameType.GOODBYE, 0, EMPTY), 0.0)).error is None


# --- Silence ----------------------------------------------------------------------------------------------------------


def check_housekeeping_looks_at_what_was_read(pair: Pair, make: Make = HAClient) -> None:
    client = joined(pair, make)
    now = 0.0
    while now < 1.9:
        client.flushed(now)
        assert not closes(client.tick(now))
        now += 0.1
    assert closes(client.tick(2.0)), "a master that says nothing was not left"
    client = joined(pair, make, now=10.0)
    for step in range(1, 10):
        client.received(transfer(pair.master, 0, 0), 10.0 + step * 1.9)
        assert not closes(client.tick(10.0 + step * 1.9 + 1.8)), "a master that speaks was left"


@pytest.mark.story("002:359-375")
def test_housekeeping_looks_at_what_was_read(pair: Pair) -> None:
    """Keep writing to a master that says nothing: it is left after the interval; one that speaks is not."""
    check_housekeeping_looks_at_what_was_read(pair)


def test_a_master_that_never_answers_the_greeting_is_left(pair: Pair) -> None:
    """Connect and hear nothing: the link ends after the housekeeping interval."""
    client = client_of(pair.mirror, pair.mirror_settings)
    client.tick(0.0)
    client.connected(1.0)
    assert client.tick(2.9) == []
    assert isinstance(only(Close, client.tick(3.0)).error, StalledFrame)
