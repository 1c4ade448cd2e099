"""A checkpoint: what is in it, how it is cut into batches, and when it counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import CONTROL_QUEUE_ID, BatchHeader, Kind, check_producer_part, read_header
from mirrorlog.errors import BadBatch, NoSuchQueue, OutOfSequence
from mirrorlog.queues.checkpoint import BATCH_BYTES_MAX, GROUPS_PER_STATE, CheckpointTracker, CheckpointWriter
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    GovernedState,
    ProducerState,
    QueueState,
    State,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.producers import IDLE_CARRIED_BATCHES, RECENT_US, REMEMBERED_BATCHES
from tests.queues.statelog import Derived, Master, StateLog, Stored, data


def states_of(batches: list[Stored]) -> list[State]:
    return [state for _, batch in batches for state in decode_checkpoint(batch)]


def began() -> bytearray:
    return encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=0))])


def ended(began_at: int) -> bytearray:
    return encode_checkpoint([encode_state(CheckpointEnded(began_at=began_at, producer_epoch_floor=0))])


# --- what is in it ---


def test_an_empty_log_has_a_checkpoint_of_two_batches() -> None:
    """Checkpoint a log without queues: it begins, it ends and says where it began, and then there is no more."""
    master = Master(begin=800)
    writer = CheckpointWriter(master.derived.registry, master.derived.producers, master.derived.next_queue_offset)
    batches = [writer.next_batch(800), writer.next_batch(912)]
    assert [decode_checkpoint(batch) for batch in batches if batch] == [
        [CheckpointBegan(queue_id_max=0)],
        [CheckpointEnded(began_at=800, producer_epoch_floor=0)],
    ]
    assert writer.next_batch(1024) is None
    assert writer.next_batch(1024) is None


def test_every_batch_is_a_checkpoint_batch_of_the_log_itself() -> None:
    """Checkpoint two queues and a producer: whole batches with their CRC, of queue id 0 and no producer."""
    master = Master()
    master.publish(master.declare("a"), producer_id=7)
    master.declare("b")
    for header, batch in master.checkpoint():
        assert check_producer_part(memoryview(batch), max_batch_bytes=BATCH_BYTES_MAX)
        assert (header.kind, header.queue_id, header.producer_id) == (Kind.CHECKPOINT, CONTROL_QUEUE_ID, 0)


def test_a_checkpoint_says_all_that_stands_before_it() -> None:
    """Checkpoint a queue with records, a confirmed and an unconfirmed position and a producer: all of it is there."""
    master = Master(begin=160)
    queue_id = master.declare("q", flush="disk")
    master.commit("q", "seen", 1)
    master.confirm_all()
    landed = master.publish(queue_id, count=3, producer_id=7, producer_epoch=2)
    master.commit("q", "coming", 2)
    _, queue, producer, _ = states_of(master.checkpoint())
    assert queue == QueueState(
        queue_id=queue_id,
        name="q",
        incarnation="of q",
        arguments={"flush": "disk"},
        next_queue_offset=3,
        positions={"seen": ("l", 1, 1), "coming": ("l", 1, 2)},
        declared_at=160,
    )
    facts = (landed.crc, 3, landed.log_offset, 0, landed.next_log_offset, 1)
    assert producer == ProducerState(
        producer_id=7,
        queue_id=queue_id,
        producer_epoch=2,
        next_sequence=3,
        last_append_time_us=master.log.now_us,
        landed={0: facts},
    )


def test_a_piece_says_the_state_of_its_own_place() -> None:
    """Begin a checkpoint, move a position and a producer on, then go on with it: the pieces have what came between."""
    master = Master()
    queue_id = master.declare("q")
    master.publish(queue_id, producer_id=7)
    writer = master.derived.writer(queues_per_batch=1, producers_per_batch=1)
    master.append(writer.next_batch(master.log.end))
    master.commit("q", "g", 1)
    queue = decode_checkpoint(writer.next_batch(master.log.end) or b"")[0]
    assert isinstance(queue, QueueState)
    assert queue.positions == {"g": ("l", 1, 1)}
    master.publish(queue_id, producer_id=7, sequence=1)
    producer = decode_checkpoint(writer.next_batch(master.log.end) or b"")[0]
    assert isinstance(producer, ProducerState)
    assert producer.next_sequence == 2


def test_who_wrote_a_while_ago_carries_the_newest_batches_only() -> None:
    """Fill two producers' memories, one long before the other: the late one comes with all, the early one in brief."""
    master = Master()
    queue_id = master.declare("q")
    for producer_id in (1, 2):
        for sequence in range(REMEMBERED_BATCHES + 1):
            master.publish(queue_id, producer_id=producer_id, sequence=sequence)
        master.log.now_us += RECENT_US + 1
    states = [state for state in states_of(master.checkpoint()) if isinstance(state, ProducerState)]
    carried = {state.producer_id: list(state.landed) for state in states}
    newest = list(range(1, REMEMBERED_BATCHES + 1))
    assert carried == {1: newest[-IDLE_CARRIED_BATCHES:], 2: newest}


# --- how it is cut ---


def test_batches_have_a_limit_of_states() -> None:
    """Checkpoint five queues and five producers by two: three batches of each."""
    master = Master()
    for number in range(5):
        master.publish(master.declare(str(number)), producer_id=7)
    counts = [header.record_count for header, _ in master.checkpoint(queues_per_batch=2, producers_per_batch=2)]
    assert counts == [1, 2, 2, 1, 2, 2, 1, 1]


def test_batches_have_a_limit_of_bytes() -> None:
    """Checkpoint queues with long arguments: the batches are nearly full, none is above the limit, none is missing."""
    master = Master()
    for number in range(50):
        master.declare_as_before(str(number), text="x" * 30_000)
    batches = master.checkpoint()
    sizes = [header.length for header, _ in batches[1:-1]]
    assert max(sizes) <= BATCH_BYTES_MAX
    assert min(sizes[:-1]) > BATCH_BYTES_MAX - 31_000
    assert [state.name for state in states_of(batches) if isinstance(state, QueueState)] == [
        str(number) for number in range(50)
    ]


def test_a_state_above_the_limit_stands_alone() -> None:
    """Checkpoint a queue whose arguments alone are longer than a batch, between two small ones."""
    master = Master()
    for name, size in (("a", 1), ("long", BATCH_BYTES_MAX), ("c", 1)):
        master.declare_as_before(name, text="x" * size)
    assert [header.record_count for header, _ in master.checkpoint()] == [1, 1, 1, 1, 1]


def test_many_groups_come_in_several_states() -> None:
    """Checkpoint a queue with more groups than a state takes, under the longest names: each batch keeps the limit, and
    the parts together are what was there."""
    master = Master()
    master.declare_as_before("q", text="x" * 30_000)
    groups = {f"{number:03}".ljust(255, "\U0001f600"): number for number in range(2 * GROUPS_PER_STATE + 1)}
    for group, queue_offset in groups.items():
        master.commit("q", group, queue_offset)
    batches = master.checkpoint()
    assert max(header.length for header, _ in batches) <= BATCH_BYTES_MAX
    master.confirm_all()
    positions = master.rebuilt(batches[0][0].log_offset).registry.find("q").positions
    assert {group: position.queue_offset for group, position in positions.items()} == groups


# --- what is read from it ---


def test_ids_and_queue_offsets_go_on_behind_a_checkpoint() -> None:
    """Rebuild from a checkpoint below which all records stood: the next queue and the next record get new numbers."""
    master = Master()
    master.publish(master.declare("q"), count=5)
    began_at = master.checkpoint()[0][0].log_offset
    master.confirm_all()
    rebuilt = master.rebuilt(began_at)
    assert rebuilt.next_queue_offset(1) == 5
    assert rebuilt.registry.find("q").declared_at == 0
    assert rebuilt.registry.queue_id_max == 1


def test_the_id_of_a_queue_that_is_gone_is_not_given_out_again() -> None:
    """Follow a checkpoint that speaks of larger ids than its queues have, and cut behind it: the next id is above."""
    log, derived = StateLog(), Derived()
    derived.follow(*log.append(encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=50))])))
    border = log.end
    derived.follow(*log.append(encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=60))])))
    assert derived.registry.queue_id_max == 60
    derived.confirm(border)
    derived.registry.cut(border)
    assert derived.registry.queue_id_max == 50
    derived.follow(*log.append(derived.registry.declare("q", {}) or bytearray()))
    assert derived.registry.find("q").queue_id == 51


def test_what_is_confirmed_with_a_checkpoint_is_seen_with_its_confirm() -> None:
    """Follow a checkpoint as a mirror that begins with it: queues at once, positions and queue offsets with the
    confirm of their batch."""
    master = Master()
    master.publish(master.declare("q"), count=5)
    master.commit("q", "g", 3)
    batches = master.checkpoint()
    mirror = Derived()
    for stored in batches:
        mirror.follow(*stored)
    queue = mirror.registry.find("q")
    mirror.confirm(batches[1][0].log_offset)
    assert (queue.positions, queue.next_queue_offset) == ({}, 0)
    mirror.confirm(batches[1][0].next_log_offset)
    assert (queue.positions["g"].queue_offset, queue.next_queue_offset) == (3, 5)


def test_a_later_position_is_not_taken_back_by_a_checkpoint() -> None:
    """Move a position behind its checkpoint piece, and behind the checkpoint: the newest stays, rebuilt or not."""
    master = Master()
    master.declare("q")
    master.commit("q", "g", 1)
    writer = master.derived.writer(queues_per_batch=1, producers_per_batch=1)
    began_at = master.log.end
    master.append(writer.next_batch(master.log.end))
    master.append(writer.next_batch(master.log.end))
    master.commit("q", "g", 2)
    master.append(writer.next_batch(master.log.end))
    master.confirm_all()
    for derived in (master.derived, master.rebuilt(began_at)):
        assert derived.registry.find("q").positions["g"].queue_offset == 2


def test_records_and_positions_may_come_before_their_queue() -> None:
    """Rebuild from a checkpoint in which both stand before their queue: tolerated, and there afterwards."""
    master = Master()
    queue_id = master.declare("q")
    writer = master.derived.writer(queues_per_batch=1, producers_per_batch=1)
    began_at = master.log.end
    master.append(writer.next_batch(master.log.end))
    master.publish(queue_id, producer_id=7)
    master.commit("q", "g", 1)
    early = Derived()
    early.follow_all(master.log.since(began_at), confirmed=master.log.end)
    with pytest.raises(NoSuchQueue):
        early.registry.find("q")
    while (batch := writer.next_batch(master.log.end)) is not None:
        early.follow(*master.log.since(master.append(batch).log_offset)[0])
    early.confirm(master.log.end)
    master.confirm_all()
    assert early.queue_facts() == master.derived.queue_facts()
    assert early.producer_facts() == master.derived.producer_facts()


def test_following_a_checkpoint_twice_changes_nothing() -> None:
    """Follow every batch of a checkpoint a second time, by itself, where all was known and where nothing was."""
    master = Master()
    master.publish(master.declare("q"), count=2, producer_id=7)
    master.commit("q", "g", 1)
    batches = master.checkpoint(queues_per_batch=1, producers_per_batch=1)
    master.confirm_all()
    again = Derived()
    for derived in (master.derived, again):
        for stored in batches:
            derived.follow(*stored)
            derived.follow(*stored)
        derived.confirm(master.log.end)
        assert derived.queue_facts() == master.rebuilt(0).queue_facts()
        assert derived.producer_facts() == master.rebuilt(0).producer_facts()


def test_an_older_word_about_a_producer_changes_nothing() -> None:
    """Restore a producer as it was, under this producer epoch and under an older one, after it went on."""
    master = Master()
    queue_id = master.declare("q")
    master.publish(queue_id, count=9, producer_id=7)
    old_epoch = master.derived.producers.state((7, queue_id), brief=False)
    master.publish(queue_id, producer_id=7, producer_epoch=1)
    old_sequence = master.derived.producers.state((7, queue_id), brief=False)
    last = master.publish(queue_id, producer_id=7, producer_epoch=1, sequence=1)
    before = master.derived.producer_facts()
    assert old_epoch is not None
    assert old_sequence is not None
    master.derived.producers.restore(last, [old_epoch, old_sequence])
    assert master.derived.producer_facts() == before
    assert master.derived.producers.check(last) is not None


def test_a_newer_word_about_a_producer_stands() -> None:
    """Restore a producer under a higher producer epoch than the one known: what is known is the new one alone."""
    master = Master()
    queue_id = master.declare("q")
    first = master.publish(queue_id, producer_id=7)
    newer = ProducerState(
        producer_id=7, queue_id=queue_id, producer_epoch=3, next_sequence=4, last_append_time_us=5, landed={}
    )
    master.derived.producers.restore(first, [newer])
    with pytest.raises(OutOfSequence, match="does not follow 3"):
        master.derived.producers.check(read_header(data(queue_id, producer_id=7, producer_epoch=3, sequence=9)))


# --- when it counts ---


def follow(tracker: CheckpointTracker, stored: Stored) -> BatchHeader:
    tracker.apply(*stored)
    return stored[0]


def test_a_checkpoint_counts_from_the_confirm_of_its_end() -> None:
    """Confirm a checkpoint step by step, then begin another one: the first counts until the second is confirmed."""
    log, tracker = StateLog(begin=800), CheckpointTracker()
    first = follow(tracker, log.append(began()))
    follow(tracker, log.append(data(1)))
    end = follow(tracker, log.append(ended(first.log_offset)))
    assert tracker.state_from == 0
    tracker.confirm(end.log_offset)
    assert tracker.state_from == 0
    tracker.confirm(end.next_log_offset)
    assert tracker.state_from == first.log_offset == 800
    second = follow(tracker, log.append(began()))
    tracker.confirm(log.end)
    assert tracker.state_from == first.log_offset
    follow(tracker, log.append(ended(second.log_offset)))
    tracker.confirm(log.end)
    assert tracker.state_from == second.log_offset


def test_an_end_without_its_beginning_does_not_count() -> None:
    """End a checkpoint that began below this copy's begin, one that another one followed, and one that was cut."""
    log, tracker = StateLog(begin=800), CheckpointTracker()
    follow(tracker, log.append(ended(400)))
    left = follow(tracker, log.append(began()))
    follow(tracker, log.append(began()))
    follow(tracker, log.append(ended(left.log_offset)))
    tracker.confirm(log.end)
    assert tracker.state_from == 0
    cut = follow(tracker, log.append(began()))
    tracker.cut(cut.log_offset)
    log.cut(cut.log_offset)
    follow(tracker, log.append(data(1)))
    follow(tracker, log.append(ended(cut.log_offset)))
    tracker.confirm(log.end)
    assert tracker.state_from == 0


def test_a_checkpoint_whose_end_was_cut_counts_when_it_comes_again() -> None:
    """Cut the end of a checkpoint: it does not count, until the same batch is fetched again."""
    log, tracker = StateLog(begin=800), CheckpointTracker()
    first = follow(tracker, log.append(began()))
    border = log.end
    follow(tracker, log.append(ended(first.log_offset)))
    tracker.cut(border)
    log.cut(border)
    tracker.confirm(10**9)
    assert tracker.state_from == 0
    follow(tracker, log.append(ended(first.log_offset)))
    tracker.confirm(log.end)
    assert tracker.state_from == first.log_offset


def test_a_batch_of_several_states_is_not_read_for_its_ends() -> None:
    """Give the tracker a long checkpoint batch that is no batch inside, and a data batch: it looks into neither."""
    log, tracker = StateLog(), CheckpointTracker()
    follow(tracker, log.append(encode_batch([Record(b"\xc1")] * 2, queue_id=0, kind=Kind.CHECKPOINT)))
    follow(tracker, log.append(data(1, value=b"\xc1")))
    with pytest.raises(BadBatch, match="does not fit"):
        follow(tracker, log.append(encode_batch([Record(b"\xc1")], queue_id=0, kind=Kind.CHECKPOINT)))


# --- its bytes ---


def test_the_states_of_a_checkpoint_are_arrays() -> None:
    """Goal: the bytes are part of the format. Encode one of each by hand."""
    assert encode_state(CheckpointBegan(queue_id_max=5)) == b"\x92\xa1B\x05"
    queue = QueueState(
        queue_id=1, name="q", incarnation="", arguments={}, next_queue_offset=2, positions={"g": ("l", 1, 3)},
        declared_at=0,
    )  # fmt: skip
    assert encode_state(queue) == b"\x9b\xa1Q\x01\xa1q\xa0\x80\x02\x81\xa1g\x93\xa1l\x01\x03\x00\xff\xc0\xc2"
    before = b"\x9a\xa1Q\x01\xa1q\xa0\x80\x02\x81\xa1g\x93\xa1l\x01\x03\x00\xff\xc0"
    assert decode_checkpoint(encode_checkpoint([before])) == [queue], "that of software before version 8"
    governed = replace(queue, governed=GovernedState(7, "p", "", {"x-max-length": 5}))
    assert encode_state(governed)[-22:-1] == b"\xff\x94\x07\xa1p\xa0\x81\xacx-max-length\x05"
    producer = ProducerState(
        producer_id=7, queue_id=1, producer_epoch=0, next_sequence=1, last_append_time_us=9,
        landed={0: (1, 1, 96, 0, 104, 1)},
    )  # fmt: skip
    assert encode_state(producer) == b"\x97\xa1P\x07\x01\x00\x01\x09\x81\x00\x96\x01\x01\x60\x00\x68\x01"
    assert encode_state(CheckpointEnded(began_at=96, producer_epoch_floor=1)) == b"\x93\xa1E\x60\x01"


def test_a_state_of_a_newer_software_is_left_out_and_a_new_field_is_not_read() -> None:
    """Decode a state whose letter is not known here, and a known one with one more field."""
    batch = encode_checkpoint([b"\x92\xa1Z\x05", b"\x93\xa1B\x05\xa3new"])
    assert decode_checkpoint(batch) == [CheckpointBegan(queue_id_max=5)]


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\x91\xa1B", b"\x92\xa1B\xa1x", b"\x80", b"\x91" * 5000])
def test_what_is_no_state_is_a_bad_batch(value: bytes) -> None:
    """Decode values that are no states, or known ones that lack a field or have another type in it."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_checkpoint(encode_checkpoint([value]))
