"""Idempotent producers: what may come next, and what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Flag, Kind, read_header, stamp, write_producer_part
from mirrorlog.errors import BadBatch, MirrorlogError, OutOfSequence, StaleProducerEpoch
from mirrorlog.queues.producers import (
    EXPIRY_US,
    PRODUCER_EPOCH_JUMP_MAX,
    PRODUCER_EPOCH_MAX,
    REMEMBERED_BATCHES,
    Landed,
    ProducerTable,
    landed_of,
)

PRODUCER = 7


def make_header(
    sequence: int,
    *,
    count: int = 1,
    producer_id: int = PRODUCER,
    producer_epoch: int = 0,
    queue_id: int = 1,
    value: bytes = b"v",
    at: int = 0,
    kind: Kind = Kind.DATA,
    flags: int = 0,
    append_time_us: int = 1,
) -> BatchHeader:
    """The header of a real batch, stamped as appended at log offset `at`."""
    batch = encode_batch([Record(value)] * count, queue_id=queue_id)
    old = read_header(batch)
    write_producer_part(
        batch,
        kind=kind,
        queue_id=queue_id,
        record_count=count,
        columns=old.columns,
        padding=old.padding,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )
    stamp(
        batch,
        log_offset=at,
        base_queue_offset=at // 8,
        append_time_us=append_time_us,
        epoch=3,
        flags=flags,
        seed=0,
    )
    return read_header(batch)


def append(table: ProducerTable, header: BatchHeader) -> BatchHeader:
    assert table.check(header) is None
    table.apply(header)
    return header


def test_sequences_follow_one_another() -> None:
    """Send batches of several records: each begins where the one before it ended."""
    table = ProducerTable()
    append(table, make_header(0, count=3))
    append(table, make_header(3, count=2))
    append(table, make_header(5))


def test_a_retry_gets_the_place_of_the_first_copy() -> None:
    """Send the same batch again, at once and after others: told where it is, and nothing changes."""
    table = ProducerTable()
    first = append(table, make_header(0, count=3, at=800))
    for sequence in (3, 4, 5):
        append(table, make_header(sequence))
    expected = Landed(first.crc, 3, 800, 100, first.next_log_offset, 3)
    assert table.check(make_header(0, count=3)) == expected
    assert table.check(make_header(0, count=3)) == expected
    append(table, make_header(6))


def test_what_was_refused_is_known_as_refused_also_behind_a_checkpoint() -> None:
    """A full queue has sent the second one on: a retry is told so, by a table that was rebuilt from its states too."""
    table = ProducerTable()
    first = append(table, make_header(0))
    second = append(table, make_header(1, flags=Flag.REFUSED)._replace(epoch=2**32 - 1))
    anew = ProducerTable()
    states = [state for key in table.known() if (state := table.state(key, brief=False)) is not None]
    anew.restore(make_header(0, queue_id=9), states)
    for each in (table, anew):
        landed = [each.check(make_header(0)), each.check(make_header(1))]
        assert [place.refused for place in landed if place is not None] == [False, True]
    assert [landed_of(each).refused for each in (first, second)] == [False, True]


def test_another_batch_under_a_used_sequence_is_refused() -> None:
    """Send other bytes, and another count, under a sequence that is taken."""
    table = ProducerTable()
    append(table, make_header(0))
    for other in (make_header(0, value=b"w"), make_header(0, count=2)):
        with pytest.raises(BadBatch, match="sequence 0 was used for another batch"):
            table.check(other)


@pytest.mark.parametrize("sequence", [1, 3, 6, 2**63])
def test_what_does_not_follow_is_refused_naming_the_last_one_held(sequence: int) -> None:
    """Skip a record, and step into the middle of a batch that is held."""
    table = ProducerTable()
    append(table, make_header(0, count=5))
    with pytest.raises(OutOfSequence, match="does not follow 4") as caught:
        table.check(make_header(sequence))
    assert caught.value.details == {"last": 4}


def test_an_unknown_producer_begins_at_nought() -> None:
    """Come with a later sequence and no history: refused, nothing is held."""
    with pytest.raises(OutOfSequence) as caught:
        ProducerTable().check(make_header(5))
    assert caught.value.details == {"last": -1}


def test_a_new_producer_epoch_begins_anew_and_ends_the_old_one() -> None:
    """Raise the producer epoch: it starts at 0, and the old epoch is refused from then on, retries included."""
    table = ProducerTable()
    append(table, make_header(0))
    with pytest.raises(OutOfSequence):
        table.check(make_header(1, producer_epoch=1))
    append(table, make_header(0, producer_epoch=1))
    for old in (make_header(0), make_header(1)):
        with pytest.raises(StaleProducerEpoch) as caught:
            table.check(old)
        assert caught.value.details == {"producer_epoch": 1}


def test_queues_and_producers_count_apart() -> None:
    """Send to two queues and as two producers: each pair has its own sequence."""
    table = ProducerTable()
    for producer_id in (1, 2):
        for queue_id in (1, 2):
            append(table, make_header(0, producer_id=producer_id, queue_id=queue_id))
    assert len(table) == 4


def test_batches_without_a_producer_are_never_held_up() -> None:
    """Send the same batch without a producer id, twice."""
    table = ProducerTable()
    for _ in range(2):
        append(table, make_header(0, producer_id=0))
    assert len(table) == 0


@pytest.mark.parametrize("header", [make_header(9, flags=Flag.COPIED), make_header(9, kind=Kind.CONTROL)])
def test_copies_and_changes_do_not_count_as_sequences(header: BatchHeader) -> None:
    """Apply a copied batch and a control batch: the producer's own numbers are not touched."""
    table = ProducerTable()
    append(table, make_header(0))
    table.apply(header)
    append(table, make_header(1))


def test_a_retry_that_was_forgotten_is_refused_and_not_doubled() -> None:
    """Retry a batch that is further back than what is remembered: refused, since its place is not known any more."""
    table = ProducerTable()
    for sequence in range(REMEMBERED_BATCHES + 1):
        append(table, make_header(sequence))
    with pytest.raises(OutOfSequence):
        table.check(make_header(0))
    assert table.check(make_header(1)) is not None


def test_applying_again_changes_nothing() -> None:
    """Apply each batch of a long history a second time, by itself: the next sequence is still the next, and what is
    remembered is still remembered."""
    table = ProducerTable()
    headers = [append(table, make_header(sequence)) for sequence in range(2 * REMEMBERED_BATCHES)]
    for header in headers:
        table.apply(header)
        assert table.check(make_header(2 * REMEMBERED_BATCHES)) is None
        assert table.check(headers[-REMEMBERED_BATCHES]) is not None


class Sent(NamedTuple):
    sequence: int
    records: int
    value: bytes
    place: int


class PlainTable:
    """What the table must say, from plain lists of all that was appended per (producer, queue)."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[int, int], int] = {}
        self.sent: dict[tuple[int, int, int], list[Sent]] = {}

    def verdict(self, key: tuple[int, int], epoch: int, sequence: int, count: int, value: bytes) -> object:
        """The place of the first copy, the class of the refusal, or None: append."""
        if epoch < self.epochs.get(key, 0):
            return StaleProducerEpoch
        sent = self.sent.get((*key, epoch), [])
        for each in sent[-REMEMBERED_BATCHES:]:
            if each.sequence == sequence:
                return each.place if (each.records, each.value) == (count, value) else BadBatch
        return None if sequence == self.following(key, epoch) else OutOfSequence

    def following(self, key: tuple[int, int], epoch: int) -> int:
        sent = self.sent.get((*key, epoch))
        return sent[-1].sequence + sent[-1].records if sent else 0

    def append(self, key: tuple[int, int], epoch: int, sent: Sent) -> None:
        self.epochs[key] = epoch
        self.sent.setdefault((*key, epoch), []).append(sent)


def outcome(step: Callable[[], Landed | None]) -> object:
    try:
        landed = step()
    except MirrorlogError as error:
        return type(error)
    return None if landed is None else landed.log_offset


attempts = st.tuples(
    st.sampled_from([(1, 1), (1, 2), (2, 1)]),
    st.integers(0, 2),
    st.one_of(st.just(None), st.integers(0, 12)),
    st.integers(1, 3),
    st.sampled_from([b"a", b"b"]),
    st.booleans(),
)


@given(st.lists(attempts, max_size=60))
def test_the_table_is_the_plain_list(
    steps: list[tuple[tuple[int, int], int, int | None, int, bytes, bool]],
) -> None:
    """Random sends of a few producers, in and out of order and epoch: the verdict is that of plain lists, also when
    every append is applied twice."""
    table, plain = ProducerTable(), PlainTable()
    for place, (key, epoch, asked, count, value, twice) in enumerate(steps):
        sequence = plain.following(key, epoch) if asked is None else asked
        header = make_header(
            sequence,
            count=count,
            producer_id=key[0],
            queue_id=key[1],
            producer_epoch=epoch,
            value=value,
            at=place * 8,
        )
        expected = plain.verdict(key, epoch, sequence, count, value)
        assert outcome(lambda header=header: table.check(header)) == expected
        if expected is None:
            for _ in range(1 + twice):
                table.apply(header)
            plain.append(key, epoch, Sent(sequence, count, value, place * 8))


def test_the_longest_idle_producer_is_forgotten_first() -> None:
    """Let three producers write where two are remembered: the idle one is told that its sequence does not follow, and
    goes on under a new producer epoch; the busy one is still known."""
    table = ProducerTable(producers_max=2)
    for producer_id in (1, 2):
        append(table, make_header(0, producer_id=producer_id))
    append(table, make_header(1, producer_id=1))
    append(table, make_header(0, producer_id=3))
    assert len(table) == 2
    append(table, make_header(2, producer_id=1))
    with pytest.raises(OutOfSequence) as caught:
        table.check(make_header(1, producer_id=2))
    assert caught.value.details["last"] == -1
    append(table, make_header(0, producer_id=2, producer_epoch=1))


# --- forgetting, and who comes back ---


@pytest.mark.parametrize("other", [make_header(0, producer_id=0), make_header(0, queue_id=0, kind=Kind.CONTROL)])
def test_a_producer_expires_by_the_time_of_the_log(other: BatchHeader) -> None:
    """Let the append times of a log, of whatever kind of batch, pass a producer's expiry: known up to the very end of
    it, forgotten after."""
    table = ProducerTable()
    first = append(table, make_header(0, append_time_us=1000))
    table.apply(other._replace(append_time_us=1000 + EXPIRY_US))
    assert table.check(first) is not None
    assert table.epoch_floor == 0
    table.apply(other._replace(append_time_us=1000 + EXPIRY_US + 1))
    assert len(table) == 0
    assert table.epoch_floor == 1


def test_nobody_expires_while_nothing_is_appended() -> None:
    """Come back after a long silence of the whole log: its time stood still, so the producer goes on, and with its own
    batch it is not forgotten either."""
    table = ProducerTable(expiry_us=10)
    append(table, make_header(0, append_time_us=1))
    append(table, make_header(1, append_time_us=10**9))
    assert table.check(make_header(0)) is not None
    assert len(table) == 1


def test_the_idle_expire_and_the_busy_stay() -> None:
    """Let three producers write at different times and one of them again: those who are idle too long go, in turn."""
    table = ProducerTable(expiry_us=10)
    for producer_id, append_time_us in ((1, 1), (2, 2), (3, 3), (1, 9)):
        sequence = 1 if append_time_us == 9 else 0
        append(table, make_header(sequence, producer_id=producer_id, append_time_us=append_time_us))
    known = []
    for append_time_us in (12, 13, 14, 19, 20):
        table.apply(make_header(0, producer_id=0, append_time_us=append_time_us))
        known.append(sorted(producer_id for producer_id, _ in table.known()))
    assert known == [[1, 2, 3], [1, 3], [1], [1], []]


def test_a_copied_batch_does_not_turn_time_back() -> None:
    """Append a copy with the time of its original between two batches: who was to expire does, who was not does not."""
    table = ProducerTable(expiry_us=10)
    append(table, make_header(0, append_time_us=100))
    table.apply(make_header(5, flags=Flag.COPIED, append_time_us=1))
    assert len(table) == 1
    table.apply(make_header(0, producer_id=0, append_time_us=111))
    assert len(table) == 0


def test_a_retry_of_someone_forgotten_never_lands() -> None:
    """Forget a producer of epoch 2 and send its batches again: the first is of an epoch that has ended, a later one
    does not follow. Both refusals say which epochs have ended, and the next one is taken."""
    table = ProducerTable(expiry_us=10)
    for sequence in (0, 1):
        append(table, make_header(sequence, producer_epoch=2, append_time_us=1))
    table.apply(make_header(0, producer_id=0, append_time_us=12))
    with pytest.raises(StaleProducerEpoch, match="up to 2 are in use or forgotten") as stale:
        table.check(make_header(0, producer_epoch=2))
    assert stale.value.details == {"producer_epoch": 2}
    with pytest.raises(OutOfSequence) as caught:
        table.check(make_header(1, producer_epoch=2))
    assert caught.value.details["last"] == -1
    append(table, make_header(0, producer_epoch=3))


def test_the_floor_is_for_those_who_are_not_known() -> None:
    """Forget one producer: another one of the same epoch goes on, and even raises its own; someone new of that epoch
    cannot be told from the one forgotten."""
    table = ProducerTable(expiry_us=10)
    append(table, make_header(0, producer_id=1, producer_epoch=5, append_time_us=1))
    append(table, make_header(0, producer_id=2, append_time_us=5))
    table.apply(make_header(0, producer_id=0, append_time_us=12))
    assert table.epoch_floor == 6
    append(table, make_header(1, producer_id=2))
    append(table, make_header(0, producer_id=2, producer_epoch=1))
    with pytest.raises(StaleProducerEpoch) as caught:
        table.check(make_header(0, producer_id=3))
    assert caught.value.details == {"producer_epoch": 5}
    append(table, make_header(0, producer_id=3, producer_epoch=6))


def test_a_producer_epoch_far_above_is_refused() -> None:
    """Begin at the largest leap and one above it, as someone new and as someone known."""
    table = ProducerTable()
    for last in (-1, PRODUCER_EPOCH_JUMP_MAX - 1):
        with pytest.raises(BadBatch, match=f"above {last}, the last one that ended"):
            table.check(make_header(0, producer_epoch=last + PRODUCER_EPOCH_JUMP_MAX + 1))
        append(table, make_header(0, producer_epoch=last + PRODUCER_EPOCH_JUMP_MAX))


def test_the_floor_ends_at_the_last_producer_epoch() -> None:
    """Forget a producer of the last epoch that there is: someone new may still begin, at that one."""
    table = ProducerTable(expiry_us=10)
    table.apply(make_header(0, producer_epoch=PRODUCER_EPOCH_MAX, append_time_us=1))
    table.apply(make_header(0, producer_id=0, append_time_us=12))
    assert table.epoch_floor == PRODUCER_EPOCH_MAX
    append(table, make_header(0, producer_epoch=PRODUCER_EPOCH_MAX))
