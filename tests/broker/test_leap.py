"""A log whose newest records were lost: its queue offsets leap, on every copy and after every start alike."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.queues.changes import LogStartMoved, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from tests.broker.derived import derived
from tests.broker.test_after_a_cut import Writer, tiny_segments
from tests.ha.replicas import KIB, flush, log_id_of, open_master, open_replica, settings_of, start_epoch

NODES = ("n1", "n2")
SETTINGS = settings_of("n1", NODES)
SETTINGS_2 = settings_of("n2", NODES)
FAR = 1 << 32


def declare(replica: Replica, name: str) -> int:
    """The queue's id."""
    batch = replica.queues.declare(name, {})
    assert batch is not None
    replica.append_change(batch, 1)
    return replica.queues.find(name).queue_id


def publish(
    replica: Replica, queue_id: int, count: int = 1, *, size: int = 10, sequence: int | None = None
) -> QueuedBatch:
    """A batch of `count` records; of producer 7 if it has a sequence."""
    producer = {} if sequence is None else {"producer_id": 7, "sequence": sequence}
    batch = encode_batch([Record(b"v" * size)] * count, queue_id=queue_id, **producer)
    stamped = replica.append(memoryview(batch), read_header(batch), 1)
    return QueuedBatch(stamped.log_offset, stamped.base_queue_offset, count, stamped.length)


def jump(replica: Replica, *, lost_from: int = 0) -> BatchHeader:
    return replica.append_change(replica.jump_batch(lost_from=lost_from), 1)


def checkpoint(replica: Replica) -> int:
    """Its log offset."""
    began_at = replica.log.end
    writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended, gaps=replica.index.gaps)
    while (batch := writer.next_batch(replica.log.end)) is not None:
        replica.append_change(batch, 1)
    return began_at


def confirm(replica: Replica) -> None:
    replica.set_confirmed(replica.log.end)
    flush(replica)


def lose(replica: Replica, log_offset: int) -> None:
    """The log ends there, whatever was confirmed behind it, and a new epoch begins: by a copy that had no more."""
    epoch = replica.log.epochs.current + 1
    replica.align(log_offset, [*replica.log.epochs.held(log_offset), Epoch(epoch, log_offset, "n9", "s")])
    replica.aligned()
    start_epoch(replica, "n1", epoch + 1)


def offsets(replica: Replica, queue_id: int) -> tuple[int, int, int]:
    index = replica.index
    return index.begin(queue_id), index.next_confirmed(queue_id), index.next_appended(queue_id)


def reopened(directory: Path, at: Path) -> Replica:
    """Another copy of the directory, recovered."""
    shutil.copytree(directory, at)
    return open_replica(at, SETTINGS)


def feed(mirror: Replica, master: Replica) -> None:
    """All that the mirror lacks, batch by batch, and what is confirmed."""
    found: list[tuple[int, bytes]] = []
    master.log.scan(mirror.log.end, lambda header, batch: found.append((header.log_offset, bytes(batch))))
    for log_offset, batch in found:
        mirror.append_run(memoryview(batch), log_offset=log_offset)
    mirror.set_confirmed(master.log.confirmed)


def runs_from(replica: Replica, queue_id: int, at: int) -> list[QueuedBatch]:
    """What an answer to a fetch there would hold, from memory or from the past."""
    until = replica.index.past_until(queue_id, at)
    if until is None:
        return replica.index.entries(queue_id, at, 1 << 40)
    assert replica.past is not None
    runs = replica.past.entries(queue_id, at, 1 << 40, until=until)
    return runs or replica.index.entries(queue_id, until, 1 << 40)


def walk(replica: Replica, queue_id: int) -> tuple[list[int], list[tuple[int, int]]]:
    """(queue offsets of all visible records, the gaps between them and before the next one), as a reader meets them."""
    at, following, _ = offsets(replica, queue_id)
    records: list[int] = []
    gaps: list[tuple[int, int]] = []
    while at < following:
        runs = runs_from(replica, queue_id, at)
        base = runs[0].base_queue_offset if runs else following
        if base > at:
            gaps.append((at, base))
            at = base
        for run in runs:
            assert run.base_queue_offset == at, "no answer runs over a gap"
            at = run.next_queue_offset
            records += range(run.base_queue_offset, at)
    return records, gaps


def test_every_queue_leaps_one_that_comes_later_does_not(tmp_path: Path) -> None:
    """Goal: records of any queue may be lost, of one that shows none too. A queue with records, one without, one that
    is declared behind the leap; the records below and above stay readable, after a start as well."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    full, empty = declare(replica, "full"), declare(replica, "empty")
    publish(replica, full, 3)
    jump(replica)
    later = declare(replica, "later")
    for queue_id in (full, empty, later):
        publish(replica, queue_id, 2)
    confirm(replica)
    for copy in (replica, reopened(tmp_path / "n1", tmp_path / "again")):
        top = FAR + 3
        assert walk(copy, full) == ([0, 1, 2, top, top + 1], [(3, top)])
        assert walk(copy, empty) == ([top, top + 1], [])
        assert copy.index.gap_end(empty, 0) == top
        assert walk(copy, later) == ([0, 1], [])
        copy.close()


def test_a_mirror_follows_as_its_master_leads(tmp_path: Path) -> None:
    """Goal: all that a mirror derives is the master's, at each step. Records, a leap, records, another leap."""
    master = open_master(tmp_path / "n1", SETTINGS)
    mirror = open_replica(tmp_path / "n2", settings_of("n2", NODES))
    mirror.log.adopt_epochs(master.log.epochs.entries)
    queue_id, _ = declare(master, "q"), declare(master, "empty")
    for _ in range(2):
        publish(master, queue_id, 3)
        jump(master)
        publish(master, queue_id)
        feed(mirror, master)
        assert derived(mirror) == derived(master)
        confirm(master)
        feed(mirror, master)
        assert derived(mirror) == derived(master)
        assert walk(mirror, queue_id) == walk(master, queue_id)
    master.close()
    mirror.close()


def test_a_leap_is_cut_with_its_batch(tmp_path: Path) -> None:
    """Goal: what a cut removes never was. Cut a leap that is not confirmed, and number the next record."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id, empty = declare(replica, "q"), declare(replica, "empty")
    publish(replica, queue_id, 3)
    confirm(replica)
    jump(replica)
    publish(replica, queue_id)
    lose(replica, replica.log.confirmed)
    assert offsets(replica, queue_id) == (0, 3, 3)
    assert offsets(replica, empty) == (0, 0, 0)
    assert publish(replica, queue_id).base_queue_offset == 3
    replica.close()


def test_a_leap_that_was_lost_itself_is_not_made_again(tmp_path: Path) -> None:
    """Goal: no queue offset is given out twice, also not that of a record behind a leap when both were lost. Let a log
    leap, number a record, lose both and leap again, as often as its epochs rise."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    confirm(replica)
    place, given_out = replica.log.end, {0, 1, 2}
    for _ in range(4):
        jump(replica, lost_from=place)
        base = publish(replica, queue_id).base_queue_offset
        assert base not in given_out
        assert base >= max(given_out) + FAR
        given_out.add(base)
        lose(replica, place)
    replica.close()


def test_a_jump_is_above_all_those_together_that_were_lost(tmp_path: Path) -> None:
    """Whoever was told to go on at a number finds the queue beyond it. By a log that jumps in two epochs, and goes back
    to before both; the cluster has declared both losses."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id)
    confirm(replica)
    before = replica.log.end
    told, losses = list[int](), list[int]()
    for _ in range(2):
        start_epoch(replica, "n1", replica.log.epochs.current + 1)
        jump(replica)
        told.append(replica.index.next_highest())
        losses.append(replica.log.epochs.current)
    lose(replica, before)
    replica.append_change(replica.jump_batch(lost_from=before, losses=losses), 1)
    assert replica.index.next_highest() > max(told)
    replica.close()


def test_a_second_master_may_leap_once_more(tmp_path: Path) -> None:
    """Goal: a master that died before it could say that it leapt. Its successor, which has the batch, leaps again: one
    gap, and whoever stood before the first goes on behind the second."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    jump(replica)
    confirm(replica)
    start_epoch(replica, "n1")
    jump(replica)
    confirm(replica)
    top = 3 + FAR + 2 * FAR
    assert offsets(replica, queue_id) == (0, top, top)
    assert replica.index.gap_end(queue_id, 3) == replica.index.gap_end(queue_id, 3 + FAR) == top
    replica.close()


def test_queue_offsets_do_not_run_out(tmp_path: Path) -> None:
    """Goal: readers count up to 2^63. Leap in an epoch as high as epochs get, again and again."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    start_epoch(replica, "n1", 2**32 - 1)
    for _ in range(20):
        before = replica.index.next_appended(queue_id)
        jump(replica)
        assert before + FAR <= replica.index.next_appended(queue_id) < 2**63 - FAR
    replica.close()


def test_a_checkpoint_carries_the_leap_on(tmp_path: Path) -> None:
    """Goal: the batch that leapt may be freed. A copy that begins with a checkpoint behind it knows where each queue
    goes on and what is lost, of a queue with nothing left and of one that never had anything."""
    master = open_master(tmp_path / "n1", SETTINGS)
    queues = [declare(master, name) for name in ("gone", "empty", "goes on")]
    publish(master, queues[0], 3)
    publish(master, queues[2], 2)
    jump(master)
    publish(master, queues[2])
    confirm(master)
    begin = checkpoint(master)
    confirm(master)
    config = settings_of("n2", NODES)
    mirror = Replica(config.cluster.logs[0], log_id_of(config), config)
    mirror.open(tmp_path / "n2", begin=begin, epochs=master.log.epochs.entries)
    feed(mirror, master)
    top = FAR + 3
    for copy in (mirror, master):
        assert [copy.index.next_appended(each) for each in queues] == [top, top, top + 1]
        assert dict(copy.index.gaps()) == {queues[0]: ((3, top),), queues[1]: ((0, top),), queues[2]: ((2, top),)}
    assert [offsets(mirror, each)[0] for each in queues] == [top, top, top + 1]
    mirror.close()
    again = open_replica(tmp_path / "n2", config)
    assert dict(again.index.gaps()) == dict(mirror.index.gaps())
    master.close()
    again.close()


def test_checkpoints_carry_all_losses_on(tmp_path: Path) -> None:
    """Goal: two losses with records between them, and none of their batches is read any more: a copy that begins with
    the second checkpoint knows both gaps, by the word of the first one and of what was followed since; after a start,
    too, and where retention has gone over the first one it is no longer said."""
    config = settings_of("n2", NODES)
    master = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(master, "q")
    expected = list[tuple[int, int]]()
    for _ in range(2):
        publish(master, queue_id, 3)
        first = master.index.next_appended(queue_id)
        jump(master)
        expected.append((first, master.index.next_appended(queue_id)))
        publish(master, queue_id, 3)
        confirm(master)
        begin = checkpoint(master)
        confirm(master)
    mirror = Replica(config.cluster.logs[0], log_id_of(config), config)
    mirror.open(tmp_path / "n2", begin=begin, epochs=master.log.epochs.entries)
    feed(mirror, master)
    assert master.index.gaps_of(queue_id) == mirror.index.gaps_of(queue_id) == tuple(expected)
    mirror.close()
    master.close()
    again = open_replica(tmp_path / "n1", SETTINGS)
    assert again.index.gaps_of(queue_id) == tuple(expected)
    again.close()
    again = open_replica(tmp_path / "n2", config)
    assert again.index.gaps_of(queue_id) == tuple(expected)
    again.index.partial = False
    assert dict(again.index.gaps()) == {queue_id: tuple(expected[1:])}, "what is left begins behind both"
    again.close()


def test_a_retry_of_a_lost_batch_lands_again_behind_the_leap(tmp_path: Path) -> None:
    """Goal: sequences know nothing of leaps. A producer's second batch is lost; its retry is taken, numbered above the
    gap, and the next retry gets that answer; the first batch is still known."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    first = publish(replica, queue_id, 2, sequence=0)
    place = replica.log.end
    lost = publish(replica, queue_id, 2, sequence=2)
    lose(replica, place)
    jump(replica, lost_from=place)
    first_again, again = (
        read_header(
            encode_batch([Record(b"v" * 10)] * 2, queue_id=queue_id, producer_id=7, sequence=sequence)
        )
        for sequence in (0, 2)
    )  # fmt: skip
    assert replica.producers.check(again) is None
    landed = publish(replica, queue_id, 2, sequence=2)
    assert landed.base_queue_offset >= lost.base_queue_offset + FAR
    for header, run in ((first_again, first), (again, landed)):
        known = replica.producers.check(header)
        assert known is not None
        assert (known.log_offset, known.base_queue_offset) == run[:2]
    replica.close()


def test_a_leap_between_segments_of_the_past(tmp_path: Path) -> None:
    """Goal: gaps that only the tables of sealed segments have. Fill segments before and behind a leap, write a
    checkpoint, and start: no look-up runs over the gap, and the place where it is, is known."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    queue_id = declare(replica, "q")
    for _ in range(12):
        publish(replica, queue_id, size=30 * KIB)
    jump(replica)
    for _ in range(12):
        publish(replica, queue_id, size=30 * KIB)
    checkpoint(replica)
    confirm(replica)
    for _ in range(12):
        publish(replica, queue_id, size=30 * KIB)
    checkpoint(replica)
    confirm(replica)
    flush(replica)
    replica.close()
    again = open_replica(tmp_path / "n1", SETTINGS)
    top = FAR + 12
    assert again.index.hot_start(queue_id) > top
    assert walk(again, queue_id) == ([*range(12), *range(top, top + 24)], [(12, top)])
    assert again.index.gap_end(queue_id, 12) == top
    again.close()


def fill_segment(replica: Replica, queue_id: int) -> None:
    """With batches of one queue, until a segment begins."""
    segments = len(replica.log._chain.segments)
    while len(replica.log._chain.segments) == segments:
        publish(replica, queue_id, size=30 * KIB)


def forget_below(replica: Replica, begin: int) -> None:
    """The log begins there from now on, as it is when its retention has done its work."""
    replica.append_change(encode_change(LogStartMoved(log_offset=begin)), 1)
    confirm(replica)
    replica.start_moved(begin, replica.past_upkeep.starts_behind(begin, replica.log))
    flush(replica)
    replica.past_upkeep.drop(begin, replica.log)


def told(replica: Replica) -> dict[str, Any]:
    """Of each queue by name: its offsets, its gaps, and its records and gaps as a reader meets them."""
    gaps = dict(replica.index.gaps())
    return {
        queue.name: (offsets(replica, queue.queue_id), gaps.get(queue.queue_id), walk(replica, queue.queue_id))
        for queue in replica.queues
    }


def test_a_start_follows_leaps_in_front_of_the_checkpoint_that_declares_the_queues(tmp_path: Path) -> None:
    """Goal: confirmed records in front of a leap stay visible. A start walks the log from the segment in which its
    checkpoint begins; queues declared in a sealed segment have records there, then come two leaps, then the checkpoint
    that says who they are: all that they are told by is what it was before."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    full, short, _ = declare(replica, "full"), declare(replica, "short"), declare(replica, "empty")
    fill_segment(replica, full)
    publish(replica, short, 3)
    jump(replica)
    publish(replica, short)
    jump(replica)
    checkpoint(replica)
    confirm(replica)
    before = told(replica)
    replica.close()
    again = open_replica(tmp_path / "n1", SETTINGS)
    assert again.log._chain.is_sealed(0)
    assert offsets(again, short)[0] == 0
    assert told(again) == before
    again.close()


@pytest.mark.parametrize("late", [False, True], ids=["a start", "a mirror"])
def test_a_gap_is_whole_where_only_its_last_leap_is_read(tmp_path: Path, late: bool) -> None:
    """Goal: who stands anywhere in a gap is told of the loss, also where it was made by two leaps and the first one is
    read no more. A checkpoint begins in the segment before, its queues come behind the border, then a leap, then the
    next checkpoint; a start, and a mirror that begins at the border, where the leap is confirmed first."""
    master = open_master(tmp_path / "n1", SETTINGS)
    full, short, empty = declare(master, "full"), declare(master, "short"), declare(master, "empty")
    publish(master, short, 3)
    jump(master)
    writer = CheckpointWriter(master.queues, master.producers, master.index.next_appended, gaps=master.index.gaps)
    first = writer.next_batch(master.log.end)
    assert first is not None
    master.append_change(first, 1)
    fill_segment(master, full)
    queues = writer.next_batch(master.log.end)
    assert queues is not None
    master.append_change(queues, 1)
    jump(master)
    confirm(master)
    begin = master.log._chain.segments[-1].start
    mirror = Replica(SETTINGS_2.cluster.logs[0], log_id_of(SETTINGS_2), SETTINGS_2)
    if late:
        mirror.open(tmp_path / "n2", begin=begin, epochs=master.log.epochs.entries)
        feed(mirror, master)
    checkpoint(master)
    confirm(master)
    expected = dict(master.index.gaps())
    assert [first for first, _ in expected[short]] == [3]
    assert [first for first, _ in expected[empty]] == [0]
    if late:
        feed(mirror, master)
        assert {each: dict(mirror.index.gaps())[each] for each in (short, empty)} == {
            each: expected[each] for each in (short, empty)
        }
        mirror.close()
    master.close()
    again = open_replica(tmp_path / "n1", SETTINGS)
    assert again.log._chain.is_sealed(0)
    assert dict(again.index.gaps()) == expected
    again.close()


def test_a_queue_whose_records_before_a_leap_went_begins_with_a_record(tmp_path: Path) -> None:
    """Goal: who reads from the earliest hears nothing of a leap that has nothing from before it. A start leaves the
    records before the first of two leaps to the past; then the log's begin moves behind them, and the copy tells what
    the next start tells."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    full, short = declare(replica, "full"), declare(replica, "short")
    publish(replica, short, 3)
    fill_segment(replica, full)
    jump(replica)
    kept = publish(replica, short)
    jump(replica)
    begin = checkpoint(replica)
    confirm(replica)
    replica.close()
    replica = open_replica(tmp_path / "n1", SETTINGS)
    assert offsets(replica, short)[0] == 0
    segment = replica.log._chain.segments[-1].start
    assert 0 < segment < kept.log_offset < begin
    forget_below(replica, segment)
    assert offsets(replica, short)[0] == kept.base_queue_offset
    before = told(replica)
    replica.close()
    again = open_replica(tmp_path / "n1", SETTINGS)
    assert told(again) == before
    again.close()


STEP = st.sampled_from(["publish", "publish", "large", "declare", "leap", "checkpoint", "confirm", "restart", "lose"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(STEP, st.integers(0, 5)), max_size=40))
def test_any_history_is_read_as_a_plain_list_says(steps: Sequence[tuple[str, int]]) -> None:
    """Goal: numbers and gaps through records, leaps, checkpoints, starts and losses of what was not confirmed. Method:
    a list of records and leaps per queue beside the log; after each start and at the end a reader walks all queues."""
    with tempfile.TemporaryDirectory() as directory:
        _run(Path(directory) / "n1", steps)


def _run(directory: Path, steps: Sequence[tuple[str, int]]) -> None:
    replica = open_master(directory, SETTINGS)
    # (log offset, queue id, first queue offset, next) of each batch and, with queue id 0, where each leap went on.
    entries: list[tuple[int, int, int, int]] = []
    declared: dict[int, int] = {}
    for step, number in steps:
        if step == "declare" or not declared:
            at = replica.log.end
            declared[declare(replica, f"q{at} {len(declared)}")] = at
        elif step in ("publish", "large"):
            queue_id = sorted(declared)[number % len(declared)]
            run = publish(replica, queue_id, number + 1, size=5 * KIB if step == "large" else 10)
            assert run.base_queue_offset == _following(entries, declared, queue_id, replica.log.end)
            entries.append((run.log_offset, queue_id, run.base_queue_offset, run.next_queue_offset))
        elif step == "leap":
            stamped = jump(replica)
            top = max(replica.index.next_appended(each) for each in declared)
            entries.append((stamped.log_offset, 0, top, top))
        elif step == "checkpoint":
            checkpoint(replica)
        elif step == "lose":
            end = replica.log.confirmed
            lose(replica, end)
            entries = [each for each in entries if each[0] < end]
            declared = {queue_id: at for queue_id, at in declared.items() if at < end}
        elif step == "restart":
            confirm(replica)
            replica.close()
            replica = open_master(directory, SETTINGS)
            _check(replica, entries, declared)
        else:
            confirm(replica)
    confirm(replica)
    _check(replica, entries, declared)
    replica.close()


def _following(entries: Sequence[tuple[int, int, int, int]], declared: dict[int, int], queue_id: int, end: int) -> int:
    said = [following for at, owner, _, following in entries if at < end and owner in (0, queue_id)
            and at > declared[queue_id]]  # fmt: skip
    return max(said, default=0)


def _check(replica: Replica, entries: Sequence[tuple[int, int, int, int]], declared: dict[int, int]) -> None:
    assert sorted(replica.queues.queue_ids()) == sorted(declared)
    for queue_id in declared:
        records = [offset for _, owner, base, end in entries if owner == queue_id for offset in range(base, end)]
        following = _following(entries, declared, queue_id, replica.log.end)
        found, gaps = walk(replica, queue_id)
        assert found == records
        assert offsets(replica, queue_id) == (records[0] if records else following, following, following)
        for first, end in gaps:
            assert first - 1 in records
            assert end in records or end == following
        known = replica.index.gaps_of(queue_id)
        assert [each for each in known if each[1] > offsets(replica, queue_id)[0]] == gaps


@pytest.mark.parametrize("epoch", [1, 7])
def test_the_batch_says_epoch_and_distance(tmp_path: Path, epoch: int) -> None:
    """Goal: at least 2^32, and above the leap of any former epoch. Leap in a log whose longest queue has five
    records."""
    replica = open_master(tmp_path / "n1", SETTINGS)
    short, long = declare(replica, "short"), declare(replica, "long")
    publish(replica, short, 2)
    publish(replica, long, 5)
    if epoch > 1:
        start_epoch(replica, "n1", epoch)
    jump(replica, lost_from=4096)
    assert {replica.index.next_appended(each) for each in (short, long)} == {5 + epoch * FAR}
    replica.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_start_tells_what_the_copy_told(tmp_path: Path, seed: int) -> None:
    """Goal: a start moves no begin and loses no gap, wherever seals, checkpoints, leaps, the begin and the confirmed
    offset stand. Method: write at random in tiny segments, confirm a part, and compare what a start tells with what the
    copy told; now and then move the log's begin, and find each queue to begin with the first record behind it."""
    settings = tiny_segments(SETTINGS)
    replica = open_master(tmp_path / "n1", settings)
    writer, own = Writer(replica, seed), random.Random(seed)
    for turn in range(5):
        for _ in range(80):
            writer.step()
        behind = [header.log_offset for header in headers_from(replica, replica.log.confirmed)]
        replica.set_confirmed(own.choice([*behind, replica.log.end]))
        starts = [each.start for each in replica.log._chain.segments]
        if begins := [
            each for each in starts if replica.log.begin < each <= replica.log.state_from and own.random() < 0.5
        ]:
            forget_below(replica, own.choice(begins))
            assert {queue.name: replica.index.begin(queue.queue_id) for queue in replica.queues} == begins_in(replica)
        flush(replica)
        before = told(replica)
        replica.close()
        replica = writer.replica = open_replica(tmp_path / "n1", settings)
        assert told(replica) == before, f"turn {turn}"
    assert replica.log.begin
    replica.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_mirror_that_begins_late_tells_what_its_master_tells(tmp_path: Path, seed: int) -> None:
    """Goal: where queues go on and what they lost, also of leaps that stand in front of the checkpoint, or of the copy.
    Method: write at random in tiny segments; a mirror begins at a segment's start and confirms now and then. Its queues
    go on and have their gaps as its master's, and begin with its first record, after a start too."""
    settings, config = tiny_segments(SETTINGS), tiny_segments(SETTINGS_2)
    master = open_master(tmp_path / "n1", settings)
    writer, own = Writer(master, seed), random.Random(seed)
    while not (
        starts := [each.start for each in master.log._chain.segments if 0 < each.start <= master.log.state_from]
    ):
        for _ in range(150):
            writer.step()
        confirm(master)
    for turn in range(3):
        begin = own.choice(starts)
        mirror = Replica(config.cluster.logs[0], log_id_of(config), config)
        mirror.open(tmp_path / f"n2-{turn}", begin=begin, epochs=master.log.epochs.entries)
        found: list[bytes] = []
        master.log.scan(begin, lambda header, batch, found=found: found.append(bytes(batch)))
        for batch in found:
            mirror.append_run(memoryview(batch), log_offset=mirror.log.end)
            if own.random() < 0.2:
                mirror.set_confirmed(mirror.log.end)
        confirm(mirror)
        for _ in range(2):
            begins = begins_in(mirror)
            assert goes_on(mirror, begins) == goes_on(master, begins), f"from {begin}"
            mirror.index.partial = False
            assert {queue.name: mirror.index.begin(queue.queue_id) for queue in mirror.queues} == begins
            mirror.close()
            mirror = open_replica(tmp_path / f"n2-{turn}", config)
        mirror.close()
    master.close()


def headers_from(replica: Replica, log_offset: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    replica.log.scan(log_offset, lambda header, batch: found.append(header))
    return found


def begins_in(replica: Replica) -> dict[str, int]:
    """The first confirmed record of each queue by name, as the log has them; where it goes on when there is none."""
    first: dict[int, int] = {}
    for header in headers_from(replica, replica.log.begin):
        if header.kind == Kind.DATA and header.log_offset < replica.log.confirmed:
            first.setdefault(header.queue_id, header.base_queue_offset)
    return {
        queue.name: first.get(queue.queue_id, replica.index.next_confirmed(queue.queue_id)) for queue in replica.queues
    }


def goes_on(replica: Replica, begins: dict[str, int]) -> dict[str, Any]:
    """Of each queue by name: where it goes on, its newest gap, and those before that are not below its begin."""
    found: dict[str, Any] = {}
    for queue in replica.queues:
        gaps = replica.index.gaps_of(queue.queue_id)
        there = [gap for gap in gaps if gap[1] > begins[queue.name]]
        found[queue.name] = (offsets(replica, queue.queue_id)[1:], gaps[-1:], there)
    return found
