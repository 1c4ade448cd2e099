"""Reading what leaves a queue: each batch once, and nothing is told as gone that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.dead_letters import reader as letter_reader
from mirrorlog.broker.dead_letters.reader import READ_BYTES_MAX, DeadLetterReader, Leaving, Room
from mirrorlog.commitlog.format.attributes import asked_attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec
from mirrorlog.errors import BadBatch, LogUnavailable, OffsetOutOfRange
from mirrorlog.queues.registry import QueueRegistry

RECORDS = 1000


async def nothing_before(queue_id: int, queue_offset: int) -> bytes | None:
    """No queue of these has moved."""
    raise AssertionError(f"record {queue_offset} of queue {queue_id} was looked for in a former log")


class Stored:
    """A queue of batches, each of so many records with this value; what is below `begin` was freed."""

    def __init__(self, count: int, *, value: bytes = b"v", priorities: tuple[int, ...] = (0,)) -> None:
        self.begin = self.came_from = 0
        self.next_confirmed = count * RECORDS
        self.gap: tuple[int, int] | None = None
        self.reads = 0
        self._batches = [
            bytes(
                encode_batch(
                    [Record(value + b"%d" % (number * RECORDS + at)) for at in range(RECORDS)],
                    queue_id=1,
                    attributes=asked_attributes(priorities[number % len(priorities)]),
                )
            )
            for number in range(count)
        ]

    def batch(self, number: int) -> bytes:
        return self._batches[number]

    @property
    def index(self) -> Any:
        return SimpleNamespace(
            begin=lambda _: self.begin,
            next_confirmed=lambda _: self.next_confirmed,
            gap_end=lambda _, at: self.gap[1] if self.gap and self.gap[0] <= at < self.gap[1] else None,
            past_until=lambda _, at: self.came_from if at < self.came_from else None,
            find=self._find,
        )

    def read(self, log_offset: int, length: int, *, until: int) -> memoryview:
        self.reads += 1
        return memoryview(self._batches[log_offset])

    def _find(self, _: int, at: int) -> Any:
        if not self.begin <= at < self.next_confirmed:
            raise OffsetOutOfRange("not there")
        number = at // RECORDS
        return SimpleNamespace(
            base_queue_offset=number * RECORDS,
            next_queue_offset=(number + 1) * RECORDS,
            log_offset=number,
            length=len(self._batches[number]),
        )


def reading(
    stored: Stored,
    read: Callable[[DeadLetterReader], Awaitable[Leaving]],
    body_bytes_max: int = 64 << 20,
    former: Callable[[int, int], Awaitable[bytes | None]] | None = None,
) -> Leaving:
    async def run() -> Leaving:
        with ThreadPoolExecutor(1) as helper:
            queues = QueueRegistry(queues_max=1, groups_max=1)
            queues.moves.firsts[1] = stored.came_from
            replica: Any = SimpleNamespace(
                index=stored.index, past=None, log=SimpleNamespace(read=stored.read), queues=queues
            )
            return await read(
                DeadLetterReader(
                    replica,
                    helper=helper,
                    past_helper=helper,
                    body_bytes_max=body_bytes_max,
                    former=former or nothing_before,
                )
            )

    return asyncio.run(run())


def every_second(first: int, count: int) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(first, first + 2 * count, 2)]


def test_records_that_lie_scattered_in_one_batch_are_all_read_and_the_batch_once() -> None:
    stored = Stored(1)
    found = reading(stored, lambda reader: reader.read_again(1, every_second(0, 128)))
    assert [at for at, _ in found.records] == list(range(0, 256, 2))
    assert [record.value for _, record in found.records] == [b"v%d" % at for at in range(0, 256, 2)]
    assert (found.gone, stored.reads) == ([], 1)


def test_what_was_addressed_is_read_again_however_large_its_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new piece ends when much was read for it; the same piece again is what it was."""
    monkeypatch.setattr(letter_reader, "READ_BYTES_MAX", 1)
    ranges = [(at, at + 1) for at in range(0, 8 * RECORDS, RECORDS)]
    new = reading(Stored(8), lambda reader: reader.read(1, ranges, Room(256, read=1)))
    again = reading(Stored(8), lambda reader: reader.read_again(1, ranges))
    assert (len(new.records), len(again.records)) == (1, 8)
    assert READ_BYTES_MAX > 1


def test_a_read_ends_with_its_room_and_before_another_priority() -> None:
    everything = [(0, 2 * RECORDS)]
    found = reading(Stored(2), lambda reader: reader.read(1, everything, Room(RECORDS + 5)))
    assert [at for at, _ in found.records] == list(range(RECORDS + 5))
    found = reading(Stored(2), lambda reader: reader.read(1, everything, Room(256, size=10)))
    assert [at for at, _ in found.records] == list(range(5))
    found = reading(Stored(2, value=b"v" * 100), lambda reader: reader.read(1, everything, Room(256, size=10)))
    assert [at for at, _ in found.records] == [0], "a larger one goes alone"
    found = reading(Stored(2, priorities=(3, 4)), lambda reader: reader.read(1, everything, Room(2 * RECORDS)))
    assert (len(found.records), found.priority) == (RECORDS, 3)


def test_what_was_freed_is_gone_and_takes_no_room() -> None:
    """Ranges, however long they are."""
    stored = Stored(3)
    stored.begin = 2 * RECORDS
    found = reading(stored, lambda reader: reader.read(1, [(0, 10), (20, 2 * RECORDS + 3)], Room(256)))
    assert found.gone == [(0, 10), (20, 2 * RECORDS)]
    assert [at for at, _ in found.records] == [2 * RECORDS + at for at in range(3)]


def test_what_a_loss_has_taken_is_gone() -> None:
    stored = Stored(3)
    stored.gap = (RECORDS, 2 * RECORDS)
    found = reading(stored, lambda reader: reader.read_again(1, [(RECORDS - 1, 2 * RECORDS + 1)]))
    assert found.gone == [(RECORDS, 2 * RECORDS)]
    assert [at for at, _ in found.records] == [RECORDS - 1, 2 * RECORDS]


def test_what_is_not_known_to_be_confirmed_is_waited_for_and_is_not_gone() -> None:
    stored = Stored(2)
    stored.next_confirmed = RECORDS
    with pytest.raises(LogUnavailable):
        reading(stored, lambda reader: reader.read(1, [(RECORDS, RECORDS + 1)], Room(256)))


def test_records_that_are_there_and_cannot_all_be_read_are_no_reason_to_send_the_others() -> None:
    """Two priorities in what was addressed as one: that is not so, and nothing is taken for freed by it."""
    with pytest.raises(LogUnavailable):
        reading(Stored(2, priorities=(3, 4)), lambda reader: reader.read_again(1, [(0, RECORDS + 1)]))


def sealed(values: list[bytes], *, opened: bytes = b"") -> bytes:
    """A batch as its producer compressed it; `opened`: it has such bytes instead."""
    draft = compress_draft(draft_columns(values), Codec.LZ4)
    if opened:
        draft.data[HEADER_SIZE:] = opened * (len(draft.data) - HEADER_SIZE)
    return bytes(draft.seal(queue_id=1, producer_id=77))


def test_what_nobody_can_open_is_told_apart_and_what_stands_behind_it_is_read() -> None:
    stored = Stored(3)
    stored._batches[1] = sealed([b"v"] * RECORDS, opened=b"\xff")
    found = reading(stored, lambda reader: reader.read(1, [(998, 1002), (1500, 2002)], Room(600)))
    assert [at for at, _ in found.records] == [998, 999, 2000, 2001]
    assert [at for first, until in found.unreadable for at in range(first, until)] == [1000, 1001, *range(1500, 2000)]
    assert found.why.startswith("producer 77 sent what nobody can open: the body is no lz4 block")
    assert not found.gone


def test_bytes_that_went_bad_here_are_no_reason_to_hold_anything() -> None:
    """Another copy has better ones: it is tried again, by another master too."""
    stored = Stored(2)
    stored._batches[1] = stored._batches[1][:HEADER_SIZE] + b"\xff" * (len(stored._batches[1]) - HEADER_SIZE)
    with pytest.raises(BadBatch, match="CRC-32C"):
        reading(stored, lambda reader: reader.read(1, [(998, 1002)], Room(600)))


def test_a_body_that_was_let_in_under_a_larger_limit_is_opened() -> None:
    stored = Stored(1)
    stored._batches[0] = sealed([bytes(100)] * RECORDS)
    found = reading(stored, lambda reader: reader.read(1, [(0, 2)], Room(600)), body_bytes_max=64 * 1024)
    assert [record.value for _, record in found.records] == [bytes(100)] * 2


def test_what_is_in_a_log_that_the_queue_was_in_before_is_read_there() -> None:
    """In one step with what is here; what is freed there is gone, and while nobody can say nothing is taken for it."""
    stored = Stored(2)
    stored.came_from = RECORDS
    wanted = [(RECORDS - 2, RECORDS + 2)]

    async def there(queue_id: int, queue_offset: int) -> bytes | None:
        assert (queue_id, queue_offset) == (1, RECORDS - 2)
        return stored.batch(0)

    found = reading(stored, lambda reader: reader.read(1, wanted, Room(256)), former=there)
    assert [at for at, _ in found.records] == list(range(RECORDS - 2, RECORDS + 2))
    assert found.records[0][1].value == b"v%d" % (RECORDS - 2)

    async def freed(queue_id: int, queue_offset: int) -> bytes | None:
        return None

    found = reading(stored, lambda reader: reader.read(1, wanted, Room(256)), former=freed)
    assert found.gone == [(RECORDS - 2, RECORDS - 1), (RECORDS - 1, RECORDS)]
    assert [at for at, _ in found.records] == [RECORDS, RECORDS + 1]

    async def silent(queue_id: int, queue_offset: int) -> bytes | None:
        raise LogUnavailable("nobody masters that log at the moment")

    with pytest.raises(LogUnavailable):
        reading(stored, lambda reader: reader.read(1, wanted, Room(256)), former=silent)
