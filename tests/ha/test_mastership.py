"""What a master decides about its log: who may publish, when they are answered, which copies count."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorlog.errors import AckBeyondEnd, InSyncReplicasNotEnough, LogRecovering, MirrorAhead, NotAMember, Overloaded
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import Answer, PutStatus
from mirrorlog.ha.mastership import LogState, Mastership
from mirrorlog.wire.frames import Durability
from tests.ha.links import Pair, ack_of, connection_of, everybody, prove, refusal
from tests.ha.replicas import append

MEMORY = Durability.MEMORY


@pytest.fixture
def mastership(pair: Pair) -> Mastership:
    return make_mastership(pair)


def make_mastership(pair: Pair, *, min_in_sync: int = 1, waiting_max: int = 100) -> Mastership:
    """Of a log with mirrors n1, whose copy is `pair.mirror`, and n2, which never comes."""
    mastership = Mastership(
        name="main",
        own="n0",
        in_sync=everybody(("n0", "n1", "n2"), copies_wanted=min_in_sync),
        durability=MEMORY,
        confirmed=0,
        waiting_max=waiting_max,
    )
    mastership.appended(pair.master.log.end)
    return mastership


def join(mastership: Mastership, pair: Pair) -> HAConnection:
    connection = connection_of(pair.master)
    mastership.join(connection)
    prove(connection, pair.mirror)
    mastership.proven(connection)
    return connection


def publish(mastership: Mastership, pair: Pair, *, copies: int, deadline: float = 5.0) -> tuple[int, list[Answer]]:
    """Append one batch; its end, and the answers that come at once."""
    end = append(pair.master).next_log_offset
    answers = mastership.appended(end)
    return end, answers + mastership.wait(end, end=end, copies=copies, durability=MEMORY, deadline=deadline)


@pytest.mark.story("002:167")
def test_a_publish_waits_for_its_copies(pair: Pair, mastership: Mastership) -> None:
    """Publish for one copy, for two and for three: answered at once, at the mirror's ack, and not at all."""
    link = join(mastership, pair)
    end, answers = publish(mastership, pair, copies=1)
    assert answers == [Answer(end, PutStatus.PUT_OK, 1)]
    end, answers = publish(mastership, pair, copies=2)
    assert answers == []
    third, answers = publish(mastership, pair, copies=3)
    assert answers == []
    link.pump(0.0)
    assert mastership.acked(link, ack_of(third, epoch=1), 0.0) == [Answer(end, PutStatus.PUT_OK, 2)]
    assert mastership.waiting == 1


@pytest.mark.story("002:255-257")
def test_an_ack_answers_everything_that_it_covers(pair: Pair, mastership: Mastership) -> None:
    """Let ten publishes wait and ack the seventh: seven are answered in that step, in order, and three wait on."""
    link = join(mastership, pair)
    ends = [publish(mastership, pair, copies=2)[0] for _ in range(10)]
    link.pump(0.0)
    answers = mastership.acked(link, ack_of(ends[6], epoch=1), 0.0)
    assert [answer.token for answer in answers] == ends[:7]
    assert mastership.waiting == 3


def test_a_false_ack_answers_nobody(pair: Pair, mastership: Mastership) -> None:
    """Ack more than was sent: no publish is answered by it, and nothing is counted."""
    link = join(mastership, pair)
    end, _ = publish(mastership, pair, copies=2)
    assert isinstance(refusal(lambda: mastership.acked(link, ack_of(end, epoch=1), 0.0)), AckBeyondEnd)
    assert mastership.waiting == 1
    assert mastership.progress.held("n1").written == 0


def test_what_a_mirror_already_has_is_confirmed_when_it_proves_it(pair: Pair, mastership: Mastership) -> None:
    """Lose the ack but not the bytes: the mirror's next link, which asks from behind them, answers the publish."""
    end, _ = publish(mastership, pair, copies=2)
    pair.mirror.align(0, pair.master.log.epochs.entries)
    pair.mirror.append_run(pair.master.log.read(0, 1 << 20, until=end), log_offset=0)  # type: ignore[arg-type]
    connection = connection_of(pair.master)
    mastership.join(connection)
    prove(connection, pair.mirror)
    assert mastership.proven(connection) == [Answer(end, PutStatus.PUT_OK, 2)]


def test_deadlines_tell_a_missing_mirror_from_a_slow_one(pair: Pair, mastership: Mastership) -> None:
    """Let two publishes for two copies time out, one with the mirror's link up and one after it has gone."""
    link = join(mastership, pair)
    end, _ = publish(mastership, pair, copies=2, deadline=1.0)
    assert mastership.next_deadline() == 1.0
    assert mastership.expired(1.0) == [Answer(end, PutStatus.FLUSH_SLAVE_TIMEOUT, 1)]
    end, _ = publish(mastership, pair, copies=2, deadline=2.0)
    mastership.leave(link)
    assert mastership.expired(2.0) == [Answer(end, PutStatus.SLAVE_NOT_AVAILABLE, 1)]
    assert mastership.next_deadline() is None


@pytest.mark.story("002:857-879")
def test_too_few_proven_links_refuse_a_publish(pair: Pair) -> None:
    """Ask for two copies up: a link that has only greeted does not count, a proven one does, a lost one no more."""
    mastership = make_mastership(pair, min_in_sync=2)
    link = connection_of(pair.master)
    mastership.join(link)
    with pytest.raises(InSyncReplicasNotEnough, match="1 copies up, min_in_sync is 2; waiting for n1, n2"):
        mastership.admit()
    prove(link, pair.mirror)
    mastership.proven(link)
    mastership.admit()
    mastership.leave(link)
    with pytest.raises(InSyncReplicasNotEnough):
        mastership.admit()


def test_too_many_waiting_publishes_refuse_another(pair: Pair) -> None:
    """Fill the waits: the next publish is refused before it is appended."""
    mastership = make_mastership(pair, waiting_max=1)
    publish(mastership, pair, copies=2)
    with pytest.raises(Overloaded):
        mastership.admit()


@pytest.mark.story("002:119-131")
def test_a_mirror_has_one_link_and_the_newer_one_counts(pair: Pair, mastership: Mastership) -> None:
    """Let a mirror come back before its old link was seen to die: the new one replaces it, and the old one's end does
    not take the new one along."""
    old = join(mastership, pair)
    new = connection_of(pair.master)
    assert mastership.join(new) is old
    prove(new, pair.mirror)
    mastership.proven(new)
    mastership.leave(old)
    assert mastership.links == {"n1": new}
    assert mastership.copies_up == 2


def test_a_stranger_is_no_mirror(mastership: Mastership) -> None:
    """Ask for a node that the log is not assigned to: refused by name."""
    mastership.check_member("n2")
    with pytest.raises(NotAMember, match="'n7' is no mirror of log main; its mirrors are n1, n2"):
        mastership.check_member("n7")


def test_a_mirror_that_is_ahead_closes_the_log(pair: Pair, mastership: Mastership) -> None:
    """Meet a mirror with bytes that the master lost: publishes are refused with the reason, and no mirror may join
    any more, so that none is cut or fed by this master."""
    mastership.ahead(MirrorAhead("mirror n2 holds log offsets 100 to 200 that this master has lost"))
    assert mastership.state is LogState.RECOVERING
    with pytest.raises(LogRecovering, match="100 to 200"):
        mastership.admit()
    with pytest.raises(LogRecovering, match="100 to 200"):
        mastership.join(connection_of(pair.master))
    assert mastership.links == {}


def test_every_wait_ends_when_the_log_closes(pair: Pair, mastership: Mastership, tmp_path: Path) -> None:
    """Close the log under a waiting publish: it still ends, at its deadline."""
    end, _ = publish(mastership, pair, copies=2, deadline=1.0)
    mastership.ahead(MirrorAhead("ahead"))
    assert [answer.token for answer in mastership.expired(1.0)] == [end]
