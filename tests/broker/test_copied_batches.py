"""Copies of one log in which batches were appended once more: what each shows, at every step, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrorlog.broker.log.maintenance import PastKeeper
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import Flag, read_header
from mirrorlog.errors import BadBatch, BatchTooLarge, LogUnavailable
from mirrorlog.queues.changes import LogStartMoved, QueueDeclared, QueueStartsMoved, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from tests.ha.replicas import KIB, flush, log_id_of, open_master, open_replica, settings_of

QUEUE_ID = 1
NODES = ("n1", "n2")
SETTINGS = settings_of("n1", NODES)


class Story:
    """A master's log in which a queue of ten batches was copied in two pieces, with newer records in between."""

    def __init__(self, directory: Path) -> None:
        self.replica = replica = open_master(directory, SETTINGS)
        self.values: list[bytes] = []
        self.time = 1000
        declared = replica.queues.declare("q", {})
        assert declared is not None
        replica.append_change(declared, self.time)
        self.places = [self.publish() for _ in range(10)]
        self.confirm()
        self.begin = replica.log.end
        self.state()
        replica.append_change(encode_change(QueueStartsMoved(begins={QUEUE_ID: 0})), self.time)
        self.first_copy = replica.log.end
        self.copy(self.places[:5])
        self.later = [self.publish()]
        self.copy(self.places[5:])
        self.confirm()
        self.before_decision = replica.log.end
        replica.append_change(encode_change(LogStartMoved(log_offset=self.begin)), self.time)
        self.later.append(self.publish())
        self.confirm()

    def publish(self) -> int:
        """Two records in a batch; its log offset."""
        self.time += 1000
        values = [b"%d" % (len(self.values) + each) * 50 for each in range(2)]
        batch = memoryview(
            encode_batch(
                [Record(value) for value in values], queue_id=QUEUE_ID, producer_id=7, sequence=len(self.values)
            )
        )
        self.values += values
        return self.replica.append(batch, read_header(batch), self.time).log_offset

    def copy(self, places: Sequence[int]) -> None:
        for place in places:
            self.replica.append_copied(memoryview(self.replica.log.read_batch_at(place)[1]))

    def state(self) -> None:
        checkpoint(self.replica, self.time)

    def confirm(self) -> None:
        self.replica.set_confirmed(self.replica.log.end)

    def runs(self) -> list[tuple[int, bytes]]:
        """(log offset, bytes) of each batch from the begin on, to be fed to a mirror."""
        found: list[tuple[int, bytes]] = []
        self.replica.log.scan(self.begin, lambda header, batch: found.append((header.log_offset, bytes(batch))))
        return found


def checkpoint(replica: Replica, time_us: int) -> None:
    writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended)
    while (batch := writer.next_batch(replica.log.end)) is not None:
        replica.append_change(batch, time_us)


def values_of(replica: Replica) -> tuple[int, list[bytes]]:
    """(begin, all values of the queue from there on); a gap fails."""
    index = replica.index
    at = begin = index.begin(QUEUE_ID)
    values: list[bytes] = []
    while at < index.next_confirmed(QUEUE_ID):
        assert index.past_until(QUEUE_ID, at) is None
        for run in index.entries(QUEUE_ID, at, 1000):
            assert run.base_queue_offset == at, "nothing is left out"
            batch = replica.log.read_batch_at(run.log_offset)[1]
            values += [bytes(value or b"") for value in parse_batch_body(batch).values]
            at = run.next_queue_offset
    return begin, values


def open_at(directory: Path, story: Story) -> Replica:
    """A mirror that begins at the story's decided begin."""
    settings = settings_of("n2", NODES)
    mirror = Replica(settings.cluster.logs[0], log_id_of(settings), settings)
    mirror.open(directory, begin=story.begin, epochs=story.replica.log.epochs.entries)
    return mirror


def test_a_copied_batch_keeps_what_it_said(tmp_path: Path) -> None:
    """Goal: queue offsets, append time and the producer's part stay, byte for byte; the log's time does not go back,
    the producer's sequence does not move, and the place that counts is the new one."""
    story = Story(tmp_path)
    replica = story.replica
    first, original = replica.log.read_batch_at(story.places[0])
    header, copied = replica.log.read_batch_at(story.first_copy)
    assert copied[36:] == original[36:]
    assert (header.base_queue_offset, header.append_time_us, header.flags) == (0, first.append_time_us, Flag.COPIED)
    assert header.log_offset == story.first_copy
    assert replica.log.last_append_time_us == story.time
    assert replica.index.find(QUEUE_ID, 0).log_offset == story.first_copy
    state = replica.producers.state((7, QUEUE_ID), brief=False)
    assert state is not None
    assert state.last_append_time_us == story.time
    # A copy of a copy is one, too.
    again = replica.append_copied(memoryview(copied))
    assert (again.flags, again.append_time_us) == (Flag.COPIED, first.append_time_us)
    assert values_of(replica) == (0, story.values)


def test_copies_are_seen_once_and_in_order_at_every_step(tmp_path: Path) -> None:
    """Confirm the master's log batch by batch, on a copy that has all of it: at each step the queue is what was
    published up to there, each record once."""
    story = Story(tmp_path / "master")
    content: list[tuple[int, bytes]] = []
    story.replica.log.scan(0, lambda header, batch: content.append((header.log_offset, bytes(batch))))
    settings = settings_of("n2", NODES)
    mirror = open_replica(tmp_path / "mirror", settings)
    mirror.align(0, story.replica.log.epochs.entries)
    mirror.aligned()
    for log_offset, batch in content:
        mirror.append_run(memoryview(batch), log_offset=log_offset)
        mirror.set_confirmed(mirror.log.end)
        begin, values = values_of(mirror)
        assert (begin, values) == (0, story.values[: len(values)])
    assert values == story.values


def test_a_mirror_that_begins_at_the_decision_shows_no_gap(tmp_path: Path) -> None:
    """Goal: a mirror without the first places of the records shows a stretch without gaps at every step, and all of it
    once it has come to the decision that freed them; after a restart at any step it shows the same."""
    story = Story(tmp_path / "master")
    mirror = open_at(tmp_path / "mirror", story)
    for number, (log_offset, batch) in enumerate(story.runs()):
        mirror.append_run(memoryview(batch), log_offset=log_offset)
        mirror.set_confirmed(mirror.log.end)
        begin, values = values_of(mirror)
        assert values == story.values[begin : begin + len(values)]
        assert mirror.index.partial == (mirror.log.end <= story.before_decision)
        if number % 3 == 0:
            flush(mirror)
            mirror.close()
            mirror = open_replica(tmp_path / "mirror", settings_of("n2", NODES))
            assert values_of(mirror) == (begin, values)
    assert (begin, values) == (0, story.values)


def test_a_mirror_that_begins_above_the_decision_shows_what_it_has(tmp_path: Path) -> None:
    """Goal: as a mirror does that begins at the last segment. It meets copies of the oldest records, and none of those
    in between: it begins at the newer ones, through a restart too, until the log's begin has come to its own."""
    story = Story(tmp_path / "master")
    replica = story.replica
    story.begin = replica.log.end
    story.state()
    newest = len(story.values)
    story.publish()
    story.copy(story.places[:5])
    story.confirm()
    mirror = open_at(tmp_path / "mirror", story)
    fed = 0

    def feed() -> None:
        nonlocal fed
        for log_offset, batch in story.runs()[fed:]:
            mirror.append_run(memoryview(batch), log_offset=log_offset)
            mirror.set_confirmed(mirror.log.end)
            fed += 1

    feed()
    for _ in range(2):
        assert mirror.index.partial
        assert values_of(mirror) == (newest, story.values[newest:])
        flush(mirror)
        mirror.close()
        mirror = open_replica(tmp_path / "mirror", settings_of("n2", NODES))
    story.copy(story.places[5:])
    story.copy(story.later)
    replica.append_change(encode_change(LogStartMoved(log_offset=story.begin)), story.time)
    story.confirm()
    feed()
    assert not mirror.index.partial
    assert values_of(mirror) == (0, story.values)


@pytest.mark.parametrize("begin_is_logged", [False, True])
def test_a_mirror_that_restarts_with_a_sealed_segment_shows_no_gap(tmp_path: Path, begin_is_logged: bool) -> None:
    """Goal: a restart does not forget that records are missing. A mirror begins at the last segment, has a queue's two
    newest batches in it, seals it, and meets copies of the three oldest; the queue's begin is known to it before, or
    only after its restart. It begins at the newest, before the restart and behind it."""
    places = [
        settings.model_copy(update={"log": settings.log.model_copy(update={"kept_mapped_bytes": 0})})
        for settings in (SETTINGS, settings_of("n2", NODES))
    ]
    master = open_master(tmp_path / "master", places[0])
    for queue_id in (QUEUE_ID, QUEUE_ID + 1):
        master.append_change(encode_change(QueueDeclared(name=f"q{queue_id}", queue_id=queue_id)), 1)

    oldest = [publish(master, QUEUE_ID, 1000) for _ in range(10)]
    if begin_is_logged:
        master.append_change(encode_change(QueueStartsMoved(begins={QUEUE_ID: 0})), 1)
    fill_segment(master)
    begin = master.log.last_start
    publish(master, QUEUE_ID, 1000)
    publish(master, QUEUE_ID, 1000)
    fill_segment(master)
    mirror = Replica(places[1].cluster.logs[0], log_id_of(places[1]), places[1])
    mirror.open(tmp_path / "mirror", begin=begin, epochs=master.log.epochs.entries)
    if begin_is_logged:
        copy(master, oldest[:3])
    feed(mirror, master)
    flush(mirror)
    flush(mirror)
    with ThreadPoolExecutor(1) as helper:
        asyncio.run(seal(mirror, helper))
    assert mirror.past is not None
    assert list(mirror.past.tables.heads) == [begin]
    assert (mirror.index.partial, mirror.index.begin(QUEUE_ID)) == (True, 10)
    flush(mirror)
    mirror.close()
    mirror = open_replica(tmp_path / "mirror", places[1])
    if not begin_is_logged:
        master.append_change(encode_change(QueueStartsMoved(begins={QUEUE_ID: 0})), 1)
        copy(master, oldest[:3])
        feed(mirror, master)
    assert mirror.queues.start_offsets == {QUEUE_ID: 0}
    assert (mirror.index.partial, mirror.index.begin(QUEUE_ID), mirror.index.next_confirmed(QUEUE_ID)) == (True, 10, 12)


def publish(replica: Replica, queue_id: int, size: int) -> int:
    """One record; its log offset."""
    batch = memoryview(encode_batch([Record(b"x" * size)], queue_id=queue_id))
    return replica.append(batch, read_header(batch), 1).log_offset


def fill_segment(replica: Replica) -> None:
    """With a queue that is not looked at, and a checkpoint in the next one."""
    start = replica.log.active_start
    while replica.log.active_start == start:
        publish(replica, QUEUE_ID + 1, 30 * KIB)
    writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended)
    while (batch := writer.next_batch(replica.log.end)) is not None:
        replica.append_change(batch, 1)
    replica.set_confirmed(replica.log.end)


def feed(mirror: Replica, master: Replica) -> None:
    """What the mirror has not yet, batch by batch."""
    found: list[tuple[int, bytes]] = []
    master.log.scan(mirror.log.begin, lambda header, batch: found.append((header.log_offset, bytes(batch))))
    for log_offset, batch in found:
        if log_offset >= mirror.log.end:
            mirror.append_run(memoryview(batch), log_offset=log_offset)
            mirror.set_confirmed(mirror.log.end)


def copy(replica: Replica, places: Sequence[int]) -> None:
    for place in places:
        replica.append_copied(memoryview(replica.log.read_batch_at(place)[1]))
    replica.set_confirmed(replica.log.end)


async def seal(replica: Replica, helper: ThreadPoolExecutor) -> None:
    """Every segment that can be sealed."""
    past = PastKeeper(replica, helper=helper, failed=lambda error: None)
    past.wake()
    if past._task is not None:
        await past._task


def test_a_bad_batch_is_not_copied(tmp_path: Path) -> None:
    """Goal: damage does not spread. Append a batch once more with a flipped bit, cut short, above what copies take, and
    into a closed log: refused, and nothing is stored."""
    story = Story(tmp_path)
    replica = story.replica
    _, original = replica.log.read_batch_at(story.places[0])
    end = replica.log.end
    spoiled = bytearray(original)
    spoiled[-9] ^= 1
    for bad in (spoiled, original[:-8]):
        with pytest.raises(BadBatch):
            replica.append_copied(memoryview(bad))
    replica.log.max_batch_bytes = len(original) - 8
    with pytest.raises(BatchTooLarge):
        replica.append_copied(memoryview(original))
    assert replica.log.end == end
    replica.close()
    with pytest.raises(LogUnavailable):
        replica.append_copied(memoryview(original))


def test_attributes_of_what_was_copied_are_kept_when_the_log_begins_behind_its_first_place(tmp_path: Path) -> None:
    """Goal: a time to live, delay or priority is not forgotten while its record is there. Method: a record with one is
    copied behind a plain one, at which the log begins; the copy's segment goes from memory right before, so that the
    first record in memory is a later one. What the queue no longer has is forgotten."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    declared = replica.queues.declare("q", {})
    assert declared is not None
    replica.append_change(declared, 1)
    (asked, place), (_, begin) = [_published(replica, each) for each in (Attributes(ttl_ms=1000), NO_ATTRIBUTES)]
    checkpoint(replica, 1)
    replica.append_change(encode_change(QueueStartsMoved(begins={QUEUE_ID: 0})), 1)
    replica.append_copied(memoryview(replica.log.read_batch_at(place)[1]))
    replica.append_change(encode_change(LogStartMoved(log_offset=begin)), 1)
    _, later = _published(replica, NO_ATTRIBUTES)
    replica.set_confirmed(replica.log.end)
    replica.index.evict(later)
    replica.start_moved(begin, {})
    assert (replica.index.hot_first(QUEUE_ID), replica.index.begin(QUEUE_ID)) == (2, 0)
    assert _runs_of(replica) == [(0, 1, asked)]
    replica.append_change(encode_change(QueueStartsMoved(begins={QUEUE_ID: 1})), 1)
    replica.set_confirmed(replica.log.end)
    assert _runs_of(replica) == []


def _published(replica: Replica, attributes: Attributes) -> tuple[Attributes, int]:
    """And its log offset."""
    draft = draft_columns([b"x" * 100], attributes=attributes)
    batch = memoryview(bytearray(draft.seal(queue_id=QUEUE_ID)))
    return attributes, replica.append(batch, read_header(batch), 1).log_offset


def _runs_of(replica: Replica) -> list[tuple[int, int, Attributes]]:
    runs = replica.runs.of(QUEUE_ID)
    return [(each.first, each.until, each.attributes) for each in runs.rows(0, 10, 10)] if runs is not None else []
