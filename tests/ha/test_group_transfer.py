"""Waiting publishes: each is answered by the copies or by its own deadline."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable

import pytest

from mirrorlog.errors import Overloaded
from mirrorlog.ha.group_transfer import Answer, GroupTransferService, Progress, PutStatus
from mirrorlog.wire.frames import Durability
from tests.ha.links import everybody

MEMORY, DISK = Durability.MEMORY, Durability.DISK


def make_transfers(make: Callable[..., GroupTransferService] = GroupTransferService) -> GroupTransferService:
    return make(waiting_max=100)


def make_progress(end: int, *acked: int) -> Progress:
    """A master at `end`, on disk too, and mirrors that hold so much in memory."""
    mirrors = tuple(f"n{number}" for number in range(1, len(acked) + 1))
    in_sync = everybody(("n0", *mirrors))
    progress = Progress(own="n0", in_sync=in_sync, durability=MEMORY, confirmed=0)
    progress.count(in_sync, up=mirrors)
    progress.appended(end)
    progress.flushed(end)
    for node, written in zip(mirrors, acked, strict=True):
        progress.acked(node, written=written, flushed=0)
    return progress


def tokens(answers: list[Answer]) -> list[object]:
    return [answer.token for answer in answers]


def check_each_wait_has_its_own_deadline(make: Callable[..., GroupTransferService] = GroupTransferService) -> None:
    transfers = make_transfers(make)
    stuck = make_progress(300, 0)
    for number, end in enumerate((100, 200, 300)):
        transfers.wait(number, end=end, copies=2, durability=MEMORY, deadline=5.0)
    transfers.wait("later", end=300, copies=2, durability=MEMORY, deadline=6.0)
    assert transfers.expired(4.999, stuck, links_up=2) == []
    assert tokens(transfers.expired(5.0, stuck, links_up=2)) == [0, 1, 2]
    assert tokens(transfers.expired(6.0, stuck, links_up=2)) == ["later"]


@pytest.mark.story("002:181-213")
def test_each_wait_has_its_own_deadline() -> None:
    """Let three publishes wait from the same moment: all three end at the same moment, none waits for its turn."""
    check_each_wait_has_its_own_deadline()


def test_a_slow_publish_holds_nobody_up() -> None:
    """Put a wait for three copies before one for two: the second is answered while the first still waits."""
    transfers = make_transfers()
    transfers.wait("slow", end=100, copies=3, durability=MEMORY, deadline=5.0)
    transfers.wait("fast", end=200, copies=2, durability=MEMORY, deadline=5.0)
    assert transfers.progressed(make_progress(200, 200, 0)) == [Answer("fast", PutStatus.PUT_OK, 2)]
    assert len(transfers) == 1


@pytest.mark.story("002:185")
def test_an_ack_of_exactly_the_end_is_enough() -> None:
    """Ack one byte less than a publish's end, then exactly its end."""
    transfers = make_transfers()
    transfers.wait("p", end=100, copies=2, durability=MEMORY, deadline=5.0)
    assert transfers.progressed(make_progress(100, 99)) == []
    assert transfers.progressed(make_progress(100, 100)) == [Answer("p", PutStatus.PUT_OK, 2)]


@pytest.mark.story("002:173-177")
def test_waits_that_begin_while_others_are_answered_are_kept() -> None:
    """Register waits out of order and between two rounds of answers: each is answered once, in offset order."""
    transfers = make_transfers()
    transfers.wait("b", end=200, copies=2, durability=MEMORY, deadline=5.0)
    transfers.wait("a", end=100, copies=2, durability=MEMORY, deadline=5.0)
    transfers.wait("d", end=400, copies=2, durability=MEMORY, deadline=5.0)
    assert tokens(transfers.progressed(make_progress(400, 200))) == ["a", "b"]
    transfers.wait("c", end=300, copies=2, durability=MEMORY, deadline=5.0)
    assert tokens(transfers.progressed(make_progress(400, 400))) == ["c", "d"]
    assert tokens(transfers.progressed(make_progress(400, 400))) == []
    assert tokens(transfers.expired(9.0, make_progress(400, 400), links_up=2)) == []


@pytest.mark.story("002:203-211")
@pytest.mark.parametrize(
    ("durability", "acked", "links_up", "status", "copies"),
    [
        (MEMORY, 0, 2, PutStatus.FLUSH_SLAVE_TIMEOUT, 1),
        (MEMORY, 0, 1, PutStatus.SLAVE_NOT_AVAILABLE, 1),
        (DISK, 100, 2, PutStatus.FLUSH_DISK_TIMEOUT, 1),
        (DISK, 0, 2, PutStatus.FLUSH_SLAVE_TIMEOUT, 1),
    ],
)
def test_what_a_deadline_says(durability: int, acked: int, links_up: int, status: PutStatus, copies: int) -> None:
    """End a wait for two copies in each situation: the status tells a slow mirror from a missing one and a disk."""
    transfers = make_transfers()
    transfers.wait("p", end=100, copies=2, durability=durability, deadline=1.0)
    answers = transfers.expired(1.0, make_progress(100, acked), links_up=links_up)
    assert answers == [Answer("p", status, copies)]


def test_the_next_deadline_is_that_of_a_wait_that_still_waits() -> None:
    """Answer the wait that is due first: the next deadline is the other's."""
    transfers = make_transfers()
    assert transfers.next_deadline() is None
    transfers.wait("a", end=100, copies=2, durability=MEMORY, deadline=1.0)
    transfers.wait("b", end=200, copies=2, durability=MEMORY, deadline=2.0)
    transfers.progressed(make_progress(200, 100))
    assert transfers.next_deadline() == 2.0


def test_too_many_waits_are_refused_before_the_append() -> None:
    """Fill the service: the next publish is told which limit it met."""
    transfers = GroupTransferService(waiting_max=1)
    transfers.check_room()
    transfers.wait("p", end=100, copies=2, durability=MEMORY, deadline=5.0)
    with pytest.raises(Overloaded, match="max_waiting_confirms"):
        transfers.check_room()


class Token:
    """A waiter that can be watched."""


@pytest.mark.parametrize("answered", ["by its copies", "by its deadline"])
def test_what_was_answered_is_forgotten(answered: str) -> None:
    """Answer ten thousand waits, far from their deadline or without any progress: next to nothing is held of them."""
    transfers = GroupTransferService(waiting_max=100)
    alive = []
    for number in range(1, 10_001):
        token = Token()
        alive.append(weakref.ref(token))
        deadline = 1e9 if answered == "by its copies" else float(number)
        transfers.wait(token, end=number, copies=2, durability=MEMORY, deadline=deadline)
        if answered == "by its copies":
            assert len(transfers.progressed(make_progress(number, number))) == 1
        else:
            assert len(transfers.expired(float(number), make_progress(number, 0), links_up=1)) == 1
        del token
    assert sum(reference() is not None for reference in alive) < 1_000


def test_every_wait_is_answered_once_and_truly() -> None:
    """Random waits, acks and times: every wait ends once, as the copies and its deadline say."""
    random_ = random.Random(11)
    transfers = GroupTransferService(waiting_max=10_000)
    open_: dict[int, tuple[int, int, int, float]] = {}
    acked = [0, 0]
    end = 0
    now = 0.0
    for number in range(3_000):
        end += random_.randrange(1, 50)
        now += random_.random() / 10
        wait = (end, random_.choice((2, 3)), random_.choice((MEMORY, DISK)), now + random_.choice((0.1, 1.0, 5.0)))
        open_[number] = wait
        transfers.wait(number, end=wait[0], copies=wait[1], durability=wait[2], deadline=wait[3])
        mirror = random_.randrange(2)
        acked[mirror] = max(acked[mirror], end - random_.randrange(200))
        progress = make_progress(end, *acked)
        for answer in transfers.progressed(progress):
            assert answer.status is PutStatus.PUT_OK
            ended = open_.pop(answer.token)  # type: ignore[call-overload]
            assert progress.copies_of(ended[0], ended[2]) == answer.copies >= ended[1]
        for answer in transfers.expired(now, progress, links_up=3):
            ended = open_.pop(answer.token)  # type: ignore[call-overload]
            assert ended[3] <= now
            assert progress.copies_of(ended[0], ended[2]) == answer.copies < ended[1]
        assert len(transfers) == len(open_)
        assert all(deadline > now for *_, deadline in open_.values())


def test_waits_that_are_abandoned_are_told_in_their_order_and_never_answered() -> None:
    """Let three wait for different levels and deadlines, one of them answered; abandon the rest: their tokens come in
    the order in which they began, and neither an ack nor a deadline answers them later."""
    service = GroupTransferService(waiting_max=3)
    progress = make_progress(0, 0)
    for token, (end, copies) in {"late": (300, 2), "done": (100, 1), "early": (200, 2)}.items():
        service.wait(token, end=end, copies=copies, durability=Durability.MEMORY, deadline=10.0 - end / 100)
    progress.appended(300)
    progress.acked("n1", written=100, flushed=0)
    assert [answer.token for answer in service.progressed(progress)] == ["done"]
    assert service.abandon() == ["late", "early"]
    progress.acked("n1", written=300, flushed=0)
    assert service.progressed(progress) == service.expired(20.0, progress, links_up=2) == service.abandon() == []
    service.check_room()
