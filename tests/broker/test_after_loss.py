"""A loss takes the word of a move out of a log: its next master says it again before anybody is served, so that no
record is taken for a queue that is elsewhere, and no number is given out twice.

Method: a copy on a real disk ends before what others had confirmed, and begins an epoch as a master does, with what
the cluster has decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mirrorlog.broker.log.after_loss import say_what_is_so
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.cluster.requests import AskRecords, RecordsTold
from mirrorlog.cluster.state.placements import MovingQueue, Span
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.errors import PositionLost, QueueMoving
from mirrorlog.ha.pace import MovePace
from mirrorlog.queues.changes import (
    ArrivalDropped,
    Change,
    QueueArriving,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueReturned,
    encode_change,
)
from mirrorlog.queues.checkpoint_states import GapsState, encode_checkpoint, encode_state
from mirrorlog.queues.moving import Arrival, QueuePieces
from tests.broker.test_fetch_leap import Readers
from tests.broker.test_leap import FAR, SETTINGS, SETTINGS_2, confirm, declare, feed, lose, publish, reopened, walk
from tests.ha.replicas import KIB, open_master, open_replica

OTHER = str(UUID(int=0xB))


@dataclass
class View:
    """What the cluster has decided, as `after_loss` asks for it."""

    where: Mapping[str, str] = field(default_factory=dict)
    spanned: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    moving: Mapping[str, MovingQueue] = field(default_factory=dict)

    def log_facts(self, log_id: str) -> LogFacts | None:
        return None

    def placed(self, queue: str) -> UUID | None:
        return UUID(self.where[queue]) if queue in self.where else None

    def spans(self, queue: str) -> tuple[Span, ...]:
        return self.spanned.get(queue, ())

    def all_spans(self) -> Mapping[str, tuple[Span, ...]]:
        return self.spanned

    def moves(self) -> Mapping[str, MovingQueue]:
        return self.moving


def say(replica: Replica, change: Change) -> None:
    replica.append_change(encode_change(change), 1)


def begin_behind_loss(replica: Replica, log_offset: int, view: View) -> None:
    """As a master that finds the log ending there."""
    lose(replica, log_offset)
    say_what_is_so(replica, cast(Any, view), lost_from=log_offset, queue_ids=0, now_us=1)
    confirm(replica)


def own_id(replica: Replica) -> str:
    return str(replica.log_id)


async def test_a_queue_that_is_elsewhere_has_left_before_anything_is_taken(tmp_path: Path) -> None:
    """And what its records were here is told as lost up to where it left, and no further."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id, stays = declare(replica, "q"), declare(replica, "stays")
    publish(replica, queue_id, 3)
    confirm(replica)
    kept = replica.log.end
    publish(replica, queue_id, 2)
    say(replica, QueueLeft(queue_id=queue_id, move=7, target=OTHER, next_queue_offset=5))

    spans = {"q": (Span(own_id(replica), 0), Span(OTHER, 5))}
    begin_behind_loss(replica, kept, View({"q": OTHER, "stays": own_id(replica)}, spans))
    with pytest.raises(QueueMoving):
        replica.queues.find_id(queue_id)
    assert replica.queues.find_id(stays)
    assert replica.index.next_appended(stays) >= FAR
    with ThreadPoolExecutor(1) as helper:
        readers = Readers(replica, helper)
        assert await readers.answer(queue_id, 0) == [0]
        lost = await readers.answer(queue_id, 3)
    assert isinstance(lost, PositionLost)
    assert lost.details["go_on_at"] == 5


async def test_whoever_copies_what_was_left_here_is_told_what_is_lost(tmp_path: Path) -> None:
    """From the border down to what is left, and then that; nothing above the border."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    confirm(replica)
    spans = {"q": (Span(own_id(replica), 0), Span(OTHER, 5))}
    begin_behind_loss(replica, replica.log.end, View({"q": OTHER}, spans))
    log = SimpleNamespace(name="source", log_id=replica.log_id, replica=replica, knows_confirmed=True)
    with ThreadPoolExecutor(1) as helper:
        records = FormerRecords(
            "n1",
            cast(Any, {own_id(replica): log}),
            cast(Any, SimpleNamespace(lost_from=lambda log_id: True)),
            helper=helper,
            pace=MovePace(0),
        )

        async def told(until: int) -> RecordsTold:
            asked = AskRecords(log_id=own_id(replica), queue_id=queue_id, first=0, until=until, max_bytes=KIB)
            answer = await records.asked(asked)
            assert isinstance(answer, RecordsTold)
            return answer

        lost_whole = AskRecords(log_id=own_id(replica), queue_id=99, first=2, until=8, max_bytes=KIB)
        assert await records.asked(lost_whole) == RecordsTold(first=2, lost=(2, 8))
        assert await told(8) == RecordsTold(first=5, lost=(5, 8))
        assert await told(5) == RecordsTold(first=3, lost=(3, 5))
        assert ((last := await told(3)).first, len(last.batches), last.lost) == (0, 1, None)


def test_what_a_former_log_has_lost_is_a_gap_of_the_log_that_the_queue_is_in(tmp_path: Path) -> None:
    """Said outside of a checkpoint; then in each, on a mirror, and after a start. Also when arrivals from before it are
    confirmed only then, one of which was dropped."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    say(replica, QueueArriving(queue_id=queue_id, move=8, source=OTHER, first=4))
    say(replica, ArrivalDropped(queue_id=queue_id, move=8))
    say(replica, QueueArriving(queue_id=queue_id, move=9, source=OTHER, first=8))
    told = GapsState({queue_id: (3, 5)})
    replica.append_change(encode_checkpoint([encode_state(told)]), 1)
    confirm(replica)
    mirror = open_replica(tmp_path / "n2", SETTINGS_2)
    mirror.align(0, replica.log.epochs.entries)
    mirror.aligned()
    feed(mirror, replica)
    for copy in (replica, mirror, reopened(tmp_path / "n1", tmp_path / "again")):
        assert copy.index.gaps_of(queue_id) == ((3, 5),)
        assert copy.index.gap_end(queue_id, 4) == 5
        assert dict(copy.index.gaps()) == {queue_id: ((3, 5),)}


def test_a_queue_that_was_back_gives_no_number_twice(tmp_path: Path) -> None:
    """Its move was cancelled, and records were confirmed behind that; the loss has left it as one that is leaving."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    say(replica, QueueLeft(queue_id=queue_id, move=7, target=OTHER, next_queue_offset=3))
    confirm(replica)
    kept = replica.log.end
    say(replica, QueueReturned(queue_id=queue_id, move=7))
    publish(replica, queue_id, 4)

    begin_behind_loss(replica, kept, View({"q": own_id(replica)}))
    assert replica.queues.find_id(queue_id).name == "q"
    assert publish(replica, queue_id).base_queue_offset >= FAR


def test_a_queue_that_was_opened_gives_no_number_twice(tmp_path: Path) -> None:
    """It came by a move, was opened, and records were copied from its former log; of that the loss has left the
    arrival."""
    target, queue_id, kept = arrived_and_opened(tmp_path)
    spans = {"q": (Span("a", 0), Span(own_id(target), 1))}
    begin_behind_loss(target, kept, View({"q": own_id(target)}, spans))
    assert target.queues.find_id(queue_id).name == "q"
    assert publish(target, queue_id).base_queue_offset >= FAR


def test_a_queue_that_was_opened_and_has_gone_on_left_what_is_lost(tmp_path: Path) -> None:
    """Else nobody knew there that it was ever there, and who reads or copies that span waited for ever."""
    target, queue_id, kept = arrived_and_opened(tmp_path)
    spans = {"q": (Span("a", 0), Span(own_id(target), 3), Span(OTHER, 5))}
    begin_behind_loss(target, kept, View({"q": OTHER}, spans))
    with pytest.raises(QueueMoving):
        target.queues.find_id(queue_id)
    assert target.queues.moves.left[queue_id].next_queue_offset == 5
    assert target.index.gap_end(queue_id, 3) is not None


def arrived_and_opened(tmp_path: Path) -> tuple[Replica, int, int]:
    """A log that a queue has come to with record 3, its id, and where its arrival ends."""
    source, target = open_master(tmp_path / "a", SETTINGS), open_master(tmp_path / "b", SETTINGS)
    queue_id = declare(source, "q")
    publish(source, queue_id, 3)
    say(source, QueueLeft(queue_id=queue_id, move=7, target="b", next_queue_offset=3))
    confirm(source)
    pieces = QueuePieces(source.derived, queue_id, 7, log_id="a", epoch=1)
    arrival, number = Arrival(pieces.arriving, epoch=1), 0
    target.append_change(arrival.begin(target.queues), 1)
    while (piece := pieces.piece(number)) is not None:
        arrival.add(number, piece)
        while (batch := arrival.next_batch(target.log.end)) is not None:
            target.append_change(batch, 1)
        number += 1
    target.append_change(arrival.end(), 1)
    confirm(target)
    kept = target.log.end
    say(target, QueueOpened(queue_id=queue_id, move=7))
    publish(target, queue_id, 2)
    return target, queue_id, kept


def test_what_was_lost_here_is_known_when_the_queue_comes_back(tmp_path: Path) -> None:
    """And nothing else: what it gave out elsewhere, and gives out here then, is below where the offsets had gone."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    confirm(replica)
    kept = replica.log.end
    say(replica, QueueLeft(queue_id=queue_id, move=7, target=OTHER, next_queue_offset=5))
    spans = {"q": (Span(own_id(replica), 0), Span(OTHER, 5))}
    begin_behind_loss(replica, kept, View({"q": OTHER}, spans))

    say(replica, QueueArriving(queue_id=queue_id, move=9, source=OTHER, first=8))
    assert dict(replica.index.gaps())[queue_id] == ((3, 5),)
    confirm(replica)
    assert replica.index.gaps_of(queue_id) == ((3, 5),)
    assert replica.index.next_appended(queue_id) == 8
    assert walk(replica, queue_id)[1][0] == (3, 8), "what is in the other log is in no gap, and not here"


async def test_a_visit_that_is_lost_whole_is_known_to_be(tmp_path: Path) -> None:
    """The queue had come back to the log that it was declared in, and gone again; the loss took all of that."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    say(replica, QueueLeft(queue_id=queue_id, move=7, target=OTHER, next_queue_offset=3))
    say(replica, QueueHandedOver(queue_id=queue_id, move=7))
    confirm(replica)
    here = own_id(replica)
    spans = {"q": (Span(here, 0), Span(OTHER, 3), Span(here, 6), Span(OTHER, 9))}
    begin_behind_loss(replica, replica.log.end, View({"q": OTHER}, spans))
    left = replica.queues.moves.left[queue_id]
    assert (left.name, left.next_queue_offset, replica.queues.moves.id_left_as("q")) == ("q", 9, queue_id)
    with ThreadPoolExecutor(1) as helper:
        readers = Readers(replica, helper)
        assert await readers.answer(queue_id, 0) == [0]
        lost = await readers.answer(queue_id, 6)
    assert isinstance(lost, PositionLost)
    assert lost.details["go_on_at"] == 9
    assert replica.index.gaps_of(queue_id) == ((6, 9),)
    end = replica.log.end
    begin_behind_loss(replica, end, View({"q": OTHER}, spans))
    assert replica.queues.moves.left[queue_id].until == end, "it is said once"
