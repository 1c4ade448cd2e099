"""Where queues begin by what the log says, and the limits that their arguments give."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.errors import BadBatch, BadRequest
from mirrorlog.queues.changes import LogStartMoved, QueueStartsMoved, decode_changes, encode_change
from mirrorlog.queues.checkpoint import STARTS_PER_STATE, CheckpointWriter
from mirrorlog.queues.checkpoint_states import QueueStartsState, decode_checkpoint, encode_checkpoint, encode_state
from mirrorlog.queues.log_state import LogStartTracker
from mirrorlog.queues.registry import QueueRegistry
from tests.queues.statelog import Derived, Master, StateLog, follow_batch


def moved(**begins: int) -> bytearray:
    """Queues by "q" and their id."""
    return encode_change(QueueStartsMoved(begins={int(name[1:]): begin for name, begin in begins.items()}))


def with_begins() -> Master:
    master = Master()
    for name in ("a", "b"):
        master.publish(master.declare(name), count=50)
    return master


# --- limits ---


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        ({}, None),
        ({"retention_ms": -1, "retention_bytes": -1}, None),
        ({"retention_ms": 5}, QueueLimits(max_age_us=5000)),
        ({"retention_ms": -1, "retention_bytes": 7}, QueueLimits(max_bytes=7)),
        ({"retention_ms": 2**63 - 1, "retention_bytes": 1}, QueueLimits(max_age_us=(2**63 - 1) * 1000, max_bytes=1)),
    ],
)
def test_a_queue_has_the_limits_of_its_arguments(arguments: dict[str, int], limits: QueueLimits | None) -> None:
    """Declare with each; a queue that is cut away has none any more, and a checkpoint gives them back."""
    master = Master()
    queue_id = master.declare("q", **arguments)
    expected = {queue_id: limits} if limits is not None else {}
    assert master.derived.registry.limits == expected
    began_at = master.checkpoint()[0][0].log_offset
    assert master.rebuilt(began_at).registry.limits == expected
    master.derived.registry.cut(0)
    assert master.derived.registry.limits == {}


@pytest.mark.parametrize("limit", [0, -2, 2**63, 1.5, True, "1", None])
def test_what_is_no_limit_is_refused(limit: object) -> None:
    """Declare with each under both names; the error says what it may be."""
    for key in ("retention_ms", "retention_bytes"):
        with pytest.raises(BadRequest, match=f"{key}.*-1 for that of the log"):
            Master().declare("q", **{key: limit})


# --- begins ---


def test_a_begin_counts_from_its_confirm_and_never_goes_back() -> None:
    """Say begins, one of them lower than before, and confirm: each comes true once; applying them twice changes
    nothing."""
    master = with_begins()
    registry = master.derived.registry
    master.confirm_all()
    for batch in (moved(q1=10, q2=5), moved(q1=10, q2=20), moved(q1=3)):
        master.append(batch)
    assert registry.start_offsets == {1: 10, 2: 20}, "the next decision builds on it"
    assert registry.confirm(master.log.end) == {1: 10, 2: 20}
    assert registry.confirm(master.log.end) == {}
    for header, batch in master.log.batches:
        if header.record_count == 1:
            follow_batch(registry, header, batch)
    assert registry.start_offsets == {1: 10, 2: 20}
    assert registry.confirm(master.log.end) == {}


def test_a_cut_takes_unconfirmed_begins_back() -> None:
    """Confirm one, cut the next away: the first one stands, and the other may be said again."""
    master = with_begins()
    registry = master.derived.registry
    master.append(moved(q1=10))
    master.confirm_all()
    border = master.log.end
    master.append(moved(q1=20, q2=5))
    registry.cut(border)
    master.log.cut(border)
    assert registry.start_offsets == {1: 10}
    master.append(moved(q2=5))
    assert registry.confirm(master.log.end) == {2: 5}


def test_a_checkpoint_carries_begins_and_where_the_log_begins() -> None:
    """Checkpoint with more begins than a value takes, moving one in between; rebuild from it: the begins come true with
    its confirm, though all that said them is gone."""
    master = Master()
    for number in range(STARTS_PER_STATE + 1):
        master.declare(str(number))
    begins = {number + 1: number for number in range(STARTS_PER_STATE + 1)}
    master.append(encode_change(QueueStartsMoved(begins=begins)))
    writer = CheckpointWriter(
        master.derived.registry, master.derived.producers, master.derived.next_queue_offset, log_start=lambda: 800
    )
    began_at = master.log.end
    while (batch := writer.next_batch(master.log.end)) is not None:
        if any(isinstance(state, QueueStartsState) for state in decode_checkpoint(batch)):
            master.append(moved(q1=7))
        master.append(batch)
    derived, tracker = Derived(), LogStartTracker()
    for header, stored in master.log.since(began_at):
        derived.follow(header, stored)
        if header.kind == 4:
            tracker.restore(header, decode_checkpoint(stored))
    assert derived.registry.confirm(master.log.end) == derived.registry.start_offsets == {**begins, 1: 7}
    assert tracker.newest == 800
    assert tracker.confirm(master.log.end) == 800


def test_a_checkpoint_without_begins_says_nothing_of_them() -> None:
    """No begin of a queue or of the log: no batch more than before. The log's alone: one batch."""
    master = Master()
    writer = CheckpointWriter(master.derived.registry, master.derived.producers, master.derived.next_queue_offset)
    batches = [writer.next_batch(0), writer.next_batch(96), writer.next_batch(192)]
    assert batches[2] is None
    writer = CheckpointWriter(
        master.derived.registry, master.derived.producers, master.derived.next_queue_offset, log_start=lambda: 5
    )
    assert writer.next_batch(0)
    assert decode_checkpoint(writer.next_batch(96) or b"") == [QueueStartsState(log_start=5, begins={})]


def test_an_older_word_about_the_logs_begin_changes_nothing() -> None:
    """Restore a begin that is lower than the one known, and apply the decision itself twice."""
    log, tracker = StateLog(), LogStartTracker()
    follow_batch(tracker, *log.append(encode_change(LogStartMoved(log_offset=900))))
    header, _ = log.append(encode_checkpoint([encode_state(QueueStartsState(log_start=800, begins={}))]))
    tracker.restore(header, [QueueStartsState(log_start=800, begins={})])
    assert tracker.confirm(log.end) == 900
    assert tracker.confirm(log.end) is None


# --- bytes ---


def test_the_bytes_of_begins() -> None:
    """Goal: the bytes are part of the format. Encode one of each by hand, and read it back."""
    assert encode_state(QueueStartsState(log_start=5, begins={1: 300})) == b"\x93\xa1L\x05\x81\x01\xcd\x01\x2c"
    batch = moved(q1=300)
    assert b"\x82\xa4type\xb0QueueBeginsMoved\xa6begins\x81\x01\xcd\x01\x2c" in batch
    assert decode_changes(batch) == [QueueStartsMoved(begins={1: 300})]


@pytest.mark.parametrize("value", [b"\x93\xa1L\x05\x01", b"\x92\xa1L\x05", b"\x93\xa1L\x05\x81\xa1q\x01"])
def test_begins_that_do_not_fit_are_a_bad_batch(value: bytes) -> None:
    """Decode begins that are no map, are missing, or name their queue by a text."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_checkpoint(encode_checkpoint([value]))


def test_begins_of_a_queue_that_is_not_known_yet_are_kept() -> None:
    """A copy that begins between a queue's declaration and its state meets its begin first."""
    registry = QueueRegistry(queues_max=10, groups_max=10)
    header, batch = StateLog().append(moved(q7=3))
    follow_batch(registry, header, batch)
    assert registry.confirm(header.next_log_offset) == {7: 3}
