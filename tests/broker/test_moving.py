"""A queue that moves takes all of its state along: whoever knows the log that it came to knows of the queue what those
knew who had the log that it left.

Method: a seed makes a queue of every kind, in a copy of one log on a real disk, and moves it to another log that has
queues, producers and checkpoints of its own meanwhile. The state there, on its master, on a mirror, after a restart,
from a later checkpoint on, after a cut anywhere within the arrival, is compared with that of before, but for log
offsets. Then states are spoilt on the way, one sort after the other, and each must be found out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from msgspec.structs import replace

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Flag, read_header
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import BadBatch, BadRequest, MirrorlogError, OutOfSequence, QueueMoving
from mirrorlog.queues.changes import (
    Addressed,
    Change,
    DeadLetterTarget,
    ForwardingStarted,
    GroupDeleted,
    GroupReset,
    LogStartMoved,
    PieceForwarded,
    PositionCommitted,
    QueueStartsMoved,
    QueueUsed,
    encode_change,
)
from mirrorlog.queues.checkpoint import CheckpointWriter
from mirrorlog.queues.checkpoint_states import (
    ForwardingState,
    GapsState,
    GroupState,
    HoldsState,
    LeasesState,
    LedgerChunk,
    ProducerState,
    QueueState,
    RunState,
    State,
    VerdictsState,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.groups.ledger import LeaseRow
from mirrorlog.queues.limits.holds import HoldRequest
from mirrorlog.queues.moving import (
    Arrival,
    QueuePieces,
    come_back,
    drop_arrival,
    hand_over,
    leave,
    open_arrived,
)
from tests.ha.replicas import content, flush, log_id_of, settings_of, start_epoch
from tests.queues.ledgers import END, facts, random_change

MOVE: Final = 77
NO_LOSS: Final = "ppggshfulc"
"""What may happen while a queue arrives: a loss is declared when a mastership begins."""
SEEDS: Final = range(12)
Spoil = Callable[[State], State | None]


def as_it_is(state: State) -> State | None:
    return state


def settings_for(number: int) -> Settings:
    settings = settings_of("n0", ["n0", "n1"])
    log = LogAssignment(name=f"log{number}", number=number, master="n0", mirrors=("n1",), min_in_sync=1)
    return settings.model_copy(update={"cluster": settings.cluster.model_copy(update={"logs": (log,)})})


def opened(path: Path, number: int, *, begin: int = 0, epochs: Any = ()) -> Replica:
    settings = settings_for(number)
    replica = Replica(settings.cluster.logs[0], log_id_of(settings), settings)
    replica.open(path, begin=begin, epochs=epochs)
    return replica


class Log:
    """A log and its master. `now_us` never goes back."""

    def __init__(self, path: Path, number: int, random: Random, *, epoch: int) -> None:
        self.path = path
        self.number = number
        self.random = random
        self.replica = opened(path, number)
        self.now_us = 1_000_000
        start_epoch(self.replica, "n0", epoch)
        self.sent: dict[tuple[int, int], list[BatchHeader]] = {}
        self.epochs: dict[tuple[int, int], int] = {}

    def say(self, batch: bytearray | None) -> BatchHeader:
        assert batch is not None
        self.now_us += self.random.choice([1, 1000])
        return self.replica.append_change(batch, self.now_us)

    def change(self, change: Change, queue_id: int) -> None:
        self.say(encode_change(change, queue_id=queue_id))

    def declare(self, name: str, **arguments: object) -> int:
        self.say(self.replica.queues.declare(name, arguments, incarnation=f"of {name}"))
        return self.replica.queues.find(name).queue_id

    def confirm(self) -> None:
        self.replica.set_confirmed(self.replica.log.end)

    def publish(self, queue_id: int) -> None:
        """Of a producer, some of them with attributes, or refused by a full queue."""
        random, key = self.random, (self.random.randrange(1, 4), queue_id)
        sent = self.sent.setdefault(key, [])
        if sent and random.random() < 0.05:
            self.epochs[key] = self.epochs.get(key, 0) + 1
            sent.clear()
        asked = Attributes(random.randrange(3), random.choice([None, 50_000]), random.choice([0, 9_000]))
        batch = encode_batch(
            [Record(b"v")] * random.randrange(1, 4),
            queue_id=queue_id,
            producer_id=key[0],
            producer_epoch=self.epochs.get(key, 0),
            sequence=sent[-1].next_sequence if sent else 0,
            attributes=asked if random.random() < 0.5 else None,
        )
        self.now_us += random.choice([1, 40_000, 3_000_000])
        assert self.replica.producers.check(read_header(batch)) is None
        if random.random() < 0.1:
            flags = int(Flag.REFUSED)
            sent.append(self.replica.append_transaction([memoryview(batch)], self.now_us, flags=flags)[0])
        else:
            sent.append(self.replica.append(memoryview(batch), read_header(batch), self.now_us))

    def checkpoint(self) -> CheckpointWriter:
        replica = self.replica
        return CheckpointWriter(
            replica.queues,
            replica.producers,
            replica.index.next_appended,
            log_start=lambda: replica.begins.newest,
            gaps=replica.index.gaps,
            holds=replica.holds,
            groups=replica.groups,
            runs=replica.runs,
            forwardings=replica.forwardings,
            queues_per_batch=self.random.choice([1, 3]),
            producers_per_batch=self.random.choice([1, 3]),
            group_parts_per_batch=self.random.choice([1, 3]),
        )

    def write(self, writer: CheckpointWriter, batches: int = 1 << 30) -> None:
        for _ in range(batches):
            if (batch := writer.next_batch(self.replica.log.end)) is None:
                return
            self.say(batch)


def anything(log: Log, queue_id: int, sorts: str = "ppppppggggggggsshhffuljc") -> None:
    """One thing that may happen to a queue, of these sorts."""
    what = log.random.choice(sorts)
    if what in "ljc":
        in_the_log(log, queue_id, what)
    elif what == "p":
        log.publish(queue_id)
    elif what == "g":
        change_group(log, queue_id, log.random.choice(["", "g"]))
    elif what == "s":
        change = PositionCommitted(
            group=log.random.choice("st"), log_id="l", epoch=1, queue_offset=log.random.randrange(9)
        )
        log.say(log.replica.queues.commit_position(log.replica.queues.find_id(queue_id).name, change))
    elif what == "h":
        hold(log, queue_id, log.random.choice("xyz"))
    elif what == "f":
        forward(log, queue_id)
    else:
        log.change(QueueUsed(), queue_id)


def in_the_log(log: Log, queue_id: int, what: str) -> None:
    if what == "c":
        log.confirm()
    elif log.random.random() < 0.3:
        begins = encode_change(QueueStartsMoved(begins={queue_id: log.random.randrange(4)}))
        log.say(begins if what == "l" else log.replica.jump_batch(lost_from=log.replica.log.end))


def make_groups(log: Log, queue_id: int) -> None:
    """At the queue's beginning, and for good: one that is made later, or set back, is given records whose attributes
    some copies have let go."""
    for group in log.random.choice([[], [""], ["", "g"], ["", "g"]]):
        offset, void = log.random.choice([0, 3]), log.random.randrange(9)
        log.change(GroupReset(group=group, queue_offset=offset, void=void), queue_id)


def change_group(log: Log, queue_id: int, group: str) -> None:
    if (ledger := log.replica.groups.get(queue_id, group)) is not None:
        change = random_change(log.random, group, log.replica.log.end, ledger.floor)
        if not isinstance(change, GroupDeleted):
            log.change(change, queue_id)
        ledger.take(0, 9)


def hold(log: Log, queue_id: int, name: str) -> None:
    random, holds = log.random, log.replica.holds
    wish = HoldRequest(name, "who", random.randrange(5), 1000, location="t", tiered=True)
    change = (
        holds.set(queue_id, wish, next_confirmed=5, left_ms=0)
        if random.random() < 0.7
        else holds.end(queue_id, name, random.choice(["released", "expired"]))
    )
    if change is not None:
        log.change(change, queue_id)


def forward(log: Log, queue_id: int) -> None:
    there = log.replica.forwardings.of(queue_id)
    number = there.next_forwarding
    if there.piece is not None:
        last = log.random.random() < 0.5
        log.change(PieceForwarded(departure=there.piece.departure, last=last), queue_id)
    elif there.forwardings and log.random.random() < 0.5:
        epoch, sequence = there.numbering(9)
        target = DeadLetterTarget("dead", "l", 9, epoch, sequence, [1, 3])
        log.change(Addressed(departure=there.forwardings[0].number, ranges=[1, 3], targets=[target]), queue_id)
    elif log.replica.groups.get(queue_id, "") is not None:
        at = log.random.randrange(40)
        started = ForwardingStarted(
            group="", departure=number, ranges=[at, at + 3], reason="rejected", at_us=log.now_us, exchange="e"
        )
        log.change(started, queue_id)


def known(replica: Replica, queue_id: int, *, whole: bool = True) -> dict[str, Any]:
    """All that a copy knows of a queue, but for log offsets. `whole`: with what a checkpoint may leave out."""
    queue = replica.queues.moves.aside.get(queue_id) or replica.queues.find_id(queue_id)
    ledgers = {group: facts(ledger, END) for group, ledger in replica.groups.groups(queue_id).items()}
    for each in ledgers.values():
        each["parked"] = joined([tuple(row[:3]) for row in each["parked"]])
        each["leases"] = {
            number: (LeaseRow(row.holder, row.lease_ms, 0), ranges) for number, (row, ranges) in each["leases"].items()
        }
    runs, floor = replica.runs.of(queue_id), replica.index.begin(queue_id)
    if "" in ledgers:  # what all have settled goes at some time
        floor = max(floor, min(each["floor"] for each in ledgers.values()))
    producers = {}
    for key in replica.producers.known():
        if key[1] == queue_id:
            state = replica.producers.state(key, brief=False, idle_brief=False)
            assert state is not None
            landed = {
                at: (crc, count, base, epoch >> 32) for at, (crc, count, _, base, _, epoch) in state.landed.items()
            }
            kept = landed if whole else dict(list(landed.items())[-1:])
            producers[key[0]] = (state.producer_epoch, state.next_sequence, state.last_append_time_us, kept)
    gaps = replica.index.gaps_of(queue_id)
    return {
        "queue": (queue.name, queue.incarnation, queue.arguments, queue.used_at >= 0),
        "positions": (queue.positions, queue.newest),
        "holds": (dict(replica.holds.newest(queue_id)), dict(replica.holds.confirmed(queue_id))),
        "groups": ledgers,
        "forwardings": replica.forwardings.of(queue_id),
        "runs": [
            row._replace(first=max(row.first, floor))
            for row in (runs.rows(floor, 1 << 62, 1 << 30) if runs is not None else [])
        ],
        "producers": producers,
        "gaps": gaps if whole else gaps[-1:],
        "begins": replica.index.begin(queue_id),
        "next": replica.index.next_appended(queue_id),
    }


def joined(rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for row in sorted(rows):
        if found and found[-1][1] == row[0] and found[-1][2] == row[2]:
            found[-1] = (found[-1][0], row[1], row[2])
        else:
            found.append(row)
    return found


class Story:
    """Two logs, and a queue that has left the first one, confirmed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.path = path
        self.source = Log(path / "a", 1, self.random, epoch=self.random.choice([1, 5]))
        self.target = Log(path / "b", 2, self.random, epoch=self.random.choice([1, 3, 7]))
        # The second one has no time to live: nothing of it stands in tables but what its batches have.
        self.queue_id = self.source.declare("q", **self.random.choice([{}, {"x-message-ttl": 60_000}]))
        other, self.own = self.source.declare("other"), self.target.declare("own")
        for log, queue_id in ((self.source, self.queue_id), (self.source, other), (self.target, self.own)):
            make_groups(log, queue_id)
        for _ in range(self.random.randrange(60, 160)):
            anything(self.source, self.random.choice([self.queue_id] * 4 + [other]))
            if self.random.random() < 0.3:
                anything(self.target, self.own)
        if self.random.random() < 0.5:
            self.source.write(self.source.checkpoint())
        self.source.confirm()
        self.target.confirm()
        self.before_end = self.source.replica.log.end
        self.before = known(self.source.replica, self.queue_id)
        following = self.source.replica.index.next_appended(self.queue_id)
        self.source.say(leave(self.source.replica.queues, self.queue_id, MOVE, "target", next_queue_offset=following))
        self.writer = self.target.checkpoint()

    def pieces(self, tables: Replica | None = None) -> QueuePieces:
        it = tables or self.source.replica
        return QueuePieces(it, self.queue_id, MOVE, log_id="source", epoch=it.log.epochs.current)

    def arrive(self, log: Log, pieces: QueuePieces, spoil: Spoil = as_it_is) -> None:
        """With other things between any two batches, up to its end."""
        random, limit = self.random, self.random.choice([2_000, 64 * 1024])
        arrival = Arrival(pieces.arriving, epoch=log.replica.log.epochs.current, batch_bytes_max=limit)
        if random.random() < 0.5:
            log.write(self.writer, 3)
        log.say(arrival.begin(log.replica.queues))
        number = 0
        while (piece := pieces.piece(number)) is not None:
            arrival.add(number, spoilt(piece, spoil))
            while (batch := arrival.next_batch(log.replica.log.end)) is not None:
                assert len(batch) <= limit + 1_000
                log.say(batch)
                if random.random() < 0.3:
                    anything(log, self.own, NO_LOSS)
                if random.random() < 0.3:
                    log.write(self.writer, 1)
            number += 1
        log.say(arrival.end())


def spoilt(piece: bytes, spoil: Spoil) -> bytes:
    if spoil is as_it_is or not piece:
        return piece
    left = [state for each in decode_checkpoint(piece) if (state := spoil(each)) is not None]
    return bytes(encode_checkpoint([encode_state(state) for state in left])) if left else b""


def moved(path: Path, seed: int, spoil: Spoil = as_it_is) -> Story:
    story = Story(path, seed)
    story.arrive(story.target, story.pieces(), spoil)
    story.target.confirm()
    return story


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_is_known_where_it_came_to_as_where_it_was(tmp_path: Path, seed: int) -> None:
    """On the master and a mirror, after a restart of each, and from a later checkpoint on."""
    story = moved(tmp_path, seed)
    target, queue_id = story.target, story.queue_id
    with pytest.raises(QueueMoving):
        target.replica.queues.find_id(queue_id)
    assert known(target.replica, queue_id) == story.before
    target.say(open_arrived(target.replica.queues, queue_id, MOVE))
    assert target.replica.queues.find("q").queue_id == queue_id
    check_producers(story, target.replica)
    target.write(story.writer)
    for _ in range(2):
        target.write(target.checkpoint())
        anything(target, story.own, NO_LOSS)
    target.confirm()

    mirror = opened(tmp_path / "m", 2)
    follow(mirror, target.replica, story.random)
    mirror.set_confirmed(mirror.log.end)
    assert known(mirror, queue_id) == known(target.replica, queue_id) == story.before

    begin = target.replica.log.state_from
    assert begin
    target.say(encode_change(LogStartMoved(log_offset=begin)))
    target.confirm()
    late = opened(tmp_path / "l", 2, begin=begin, epochs=target.replica.log.epochs.held(begin))
    follow(late, target.replica, story.random)
    late.set_confirmed(late.log.end)
    for replica in (mirror, late, target.replica):
        flush(replica)
        flush(replica)
        replica.close()
    whole = known(target.replica, queue_id, whole=False)
    assert known(late, queue_id, whole=False) == whole
    assert late.queues.epoch_shifts == target.replica.queues.epoch_shifts
    for name in "bml":
        again = opened(tmp_path / name, 2)
        again.set_confirmed(again.log.end)
        assert known(again, queue_id, whole=False) == whole, name
        again.close()
    story.source.replica.close()


def follow(mirror: Replica, master: Replica, random: Random) -> None:
    """All that the master has, in runs that end anywhere between two batches; at times it is confirmed."""
    mirror.align(mirror.log.end, master.log.epochs.entries)
    mirror.aligned()
    bytes_ = content(master)
    at = mirror.log.end
    ends = [end for end in borders(bytes_, master.log.begin) if end > at]
    while ends:
        end = random.choice(ends[:20])
        ends = [each for each in ends if each > end]
        mirror.append_run(memoryview(bytes_)[at - master.log.begin : end - master.log.begin], log_offset=at)
        at = end


def borders(batches: bytes, begin: int) -> list[int]:
    found, at = [], 0
    while at < len(batches):
        at += read_header(memoryview(batches)[at:]).length
        found.append(begin + at)
    return found


def check_producers(story: Story, replica: Replica) -> None:
    """What was sent before is known, whoever sends it again, and what follows is taken."""
    for (producer, queue_id), sent in story.source.sent.items():
        if queue_id != story.queue_id or not sent:
            continue
        for header in sent[-64:]:
            landed = replica.producers.check(header)
            assert landed is not None
            assert landed.moved
            assert landed.base_queue_offset == header.base_queue_offset
            assert landed.next_log_offset <= replica.log.confirmed
        batch = encode_batch(
            [Record(b"new")], queue_id=queue_id, producer_id=producer,
            producer_epoch=sent[-1].producer_epoch, sequence=sent[-1].next_sequence + 1,
        )  # fmt: skip
        with pytest.raises(OutOfSequence):
            replica.producers.check(read_header(batch))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_within_the_arrival_and_another_master_lose_nothing(tmp_path: Path, seed: int) -> None:
    """A mirror that has followed is cut anywhere, within the arrival most times. It is the next master, drops what
    came, is given all of it again, by a source that was restarted, and opens the queue."""
    story = moved(tmp_path, seed)
    replica, random = story.target.replica, story.random
    mirror = opened(tmp_path / "m", 2)
    follow(mirror, replica, random)
    end = random.choice(borders(content(replica), 0))
    mirror.align(end, replica.log.epochs.entries)
    mirror.aligned()
    flush(story.source.replica)
    story.source.confirm()
    flush(story.source.replica)
    story.source.replica.close()
    story.source.replica = opened(tmp_path / "a", 1)
    assert known(story.source.replica, story.queue_id) == story.before

    again = Log.__new__(Log)
    again.__dict__.update(story.target.__dict__)
    again.replica = mirror
    again.sent, again.epochs = {}, {(producer, story.own): 9 for producer in range(1, 4)}
    start_epoch(mirror, "n1", replica.log.epochs.current + 1)
    story.writer = again.checkpoint()
    if (there := mirror.queues.moves.arriving.get(story.queue_id)) is None or not there.arrived:
        if there is not None:
            again.say(drop_arrival(mirror.queues, story.queue_id, MOVE))
        assert not mirror.groups.groups(story.queue_id)
        assert not mirror.holds.newest(story.queue_id)
        assert mirror.runs.of(story.queue_id) is None
        if story.own not in mirror.queues.queue_ids():
            story.own = again.declare("own too")
        story.arrive(again, story.pieces())
    again.confirm()
    again.say(open_arrived(mirror.queues, story.queue_id, MOVE))
    assert known(mirror, story.queue_id) == story.before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_cut_is_taken_back_to_the_last_byte(tmp_path: Path, seed: int) -> None:
    """Goal: a mirror that is cut anywhere in an arrival, and follows again, knows what one knows that was never cut."""
    story = moved(tmp_path, seed)
    replica, random = story.target.replica, story.random
    replica_end = replica.log.end
    mirror = opened(tmp_path / "m", 2)
    follow(mirror, replica, random)
    for _ in range(4):
        end = random.choice(borders(content(replica), 0))
        mirror.align(end, replica.log.epochs.entries)
        mirror.aligned()
        follow(mirror, replica, random)
        assert mirror.log.end == replica_end
        assert known(mirror, story.queue_id)["groups"] == story.before["groups"]
    mirror.set_confirmed(mirror.log.end)
    assert known(mirror, story.queue_id) == story.before


@pytest.mark.parametrize("seed", SEEDS)
def test_where_it_was_it_comes_back_or_leaves_nothing_but_its_records(tmp_path: Path, seed: int) -> None:
    """Cut below QueueLeft, cancelled, or handed over, also in a copy that follows."""
    story = Story(tmp_path, seed)
    source, queue_id = story.source, story.queue_id
    assert known(source.replica, queue_id) == story.before
    mirror = opened(tmp_path / "m", 1)
    follow(mirror, source.replica, story.random)
    mirror.align(story.before_end, source.replica.log.epochs.entries)
    mirror.aligned()
    assert mirror.queues.find_id(queue_id).name == "q"
    assert not mirror.queues.moves.left
    mirror.set_confirmed(mirror.log.end)
    assert known(mirror, queue_id) == story.before

    source.say(come_back(source.replica.queues, queue_id, MOVE))
    assert source.replica.queues.find("q").queue_id == queue_id
    assert known(source.replica, queue_id) == story.before
    with pytest.raises(BadRequest):
        story.pieces()
    following = source.replica.index.next_appended(queue_id)
    source.say(leave(source.replica.queues, queue_id, MOVE, "target", next_queue_offset=following))
    source.say(hand_over(source.replica.queues, queue_id, MOVE))
    assert hand_over(source.replica.queues, queue_id, MOVE) is None
    follow(mirror, source.replica, story.random)
    for replica in (source.replica, mirror):
        assert not replica.groups.groups(queue_id)
        assert not replica.holds.newest(queue_id)
        assert replica.runs.of(queue_id) is None
        assert not [key for key in replica.producers.known() if key[1] == queue_id]
        assert replica.index.next_appended(queue_id) == following
        with pytest.raises(QueueMoving):
            replica.queues.find_id(queue_id)
    end = source.replica.log.end
    source.replica.set_confirmed(end)
    mirror.set_confirmed(end)
    with pytest.raises(BadRequest):
        come_back(source.replica.queues, queue_id, MOVE)


def test_it_moves_on_and_comes_back_with_what_happened_meanwhile(tmp_path: Path) -> None:
    story = moved(tmp_path, 3)
    target, source, queue_id = story.target, story.source, story.queue_id
    target.say(open_arrived(target.replica.queues, queue_id, MOVE))
    source.say(hand_over(source.replica.queues, queue_id, MOVE))
    target.sent = {key: sent for key, sent in source.sent.items() if key[1] == queue_id}
    target.epochs = dict(source.epochs)
    for _ in range(60):
        anything(target, queue_id)
    target.confirm()
    before = known(target.replica, queue_id)
    following = target.replica.index.next_appended(queue_id)
    target.say(leave(target.replica.queues, queue_id, 99, "source", next_queue_offset=following))
    it = target.replica
    pieces = QueuePieces(it, queue_id, 99, log_id="target", epoch=it.log.epochs.current)
    assert pieces.arriving.grants_epoch > it.log.epochs.current or not it.queues.epoch_shifts
    arrival = Arrival(pieces.arriving, epoch=source.replica.log.epochs.current)
    source.say(arrival.begin(source.replica.queues))
    number = 0
    while (piece := pieces.piece(number)) is not None:
        arrival.add(number, piece)
        while (batch := arrival.next_batch(source.replica.log.end)) is not None:
            source.say(batch)
        number += 1
    source.say(arrival.end())
    source.say(open_arrived(source.replica.queues, queue_id, 99))
    source.confirm()
    after = known(source.replica, queue_id)
    before["gaps"] = after["gaps"]  # this log knows of some itself
    assert after == before
    assert (
        source.replica.log.epochs.current + source.replica.queues.epoch_shifts[queue_id] > pieces.arriving.grants_epoch
    )
    assert not source.replica.queues.moves.left


def test_pieces_are_given_again_and_begin_anew(tmp_path: Path) -> None:
    story = Story(tmp_path, 5)
    pieces, numbers = story.pieces(), []
    with pytest.raises(BadRequest):
        pieces.piece(1)
    while (piece := pieces.piece(len(numbers))) is not None:
        assert pieces.piece(len(numbers)) == piece
        numbers.append(piece)
    assert pieces.piece(len(numbers)) is None
    if len(numbers) > 1:
        with pytest.raises(BadRequest):
            pieces.piece(len(numbers) - 1)
    assert [pieces.piece(number) for number in range(len(numbers))] == numbers
    assert [pieces.piece(number) for number in range(len(numbers))] == numbers


def test_what_is_not_this_queues_does_not_come_in(tmp_path: Path) -> None:
    story = Story(tmp_path, 6)
    pieces = story.pieces()
    arrival = Arrival(replace(pieces.arriving, queue_id=story.queue_id + 1), epoch=1)
    piece = pieces.piece(0)
    assert piece
    with pytest.raises(BadBatch):
        arrival.add(0, piece)
    with pytest.raises(BadRequest):
        arrival.add(1, b"")
    with pytest.raises(BadRequest):
        arrival.end()


# --- what has to be found out ---


def border(state: State) -> State | None:
    return (
        replace(state, floor=state.floor + 1, watermark=state.watermark + 1) if isinstance(state, GroupState) else state
    )


def settled_bit(state: State) -> State | None:
    if not isinstance(state, LedgerChunk) or not state.settled:
        return state
    bits = int.from_bytes(state.settled, "little")
    return replace(
        state, settled=(bits << 1 & (1 << 8 * len(state.settled)) - 1).to_bytes(len(state.settled), "little")
    )


def without(kind: type) -> Spoil:
    return lambda state: None if isinstance(state, kind) else state


def last_sequence(state: State) -> State | None:
    return replace(state, next_sequence=state.next_sequence + 1) if isinstance(state, ProducerState) else state


def forgotten_batch(state: State) -> State | None:
    if not isinstance(state, ProducerState) or len(state.landed) < 2:
        return state
    return replace(state, landed=dict(list(state.landed.items())[1:]))


def attempts(state: State) -> State | None:
    return replace(state, attempts=b"") if isinstance(state, LedgerChunk) else state


def positions(state: State) -> State | None:
    return replace(state, positions={}) if isinstance(state, QueueState) else state


MUTANTS: Final[dict[str, Spoil]] = {
    "a ledger's border off by one": border,
    "a settled record off by one": settled_bit,
    "a sequence table left behind": without(ProducerState),
    "a sequence off by one": last_sequence,
    "a landed batch forgotten": forgotten_batch,
    "attempts forgotten": attempts,
    "positions left behind": positions,
    **{
        f"{kind.__name__} left behind": without(kind)
        for kind in (LedgerChunk, VerdictsState, LeasesState, HoldsState, ForwardingState, RunState, GapsState)
    },
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_spoilt_on_the_way_is_found_out(tmp_path: Path, mutant: str) -> None:
    for seed in SEEDS:
        try:
            story = moved(tmp_path / str(seed), seed, MUTANTS[mutant])
        except MirrorlogError:
            return  # the log that it comes to cannot follow it
        if known(story.target.replica, story.queue_id) != story.before:
            return
    raise AssertionError(f"nobody saw: {mutant}")
