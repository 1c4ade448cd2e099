"""What readers are told where queue offsets leapt over a loss: never records from behind the gap in silence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from mirrorlog.broker.log.fetch import Fetcher
from mirrorlog.broker.log.maintenance import PastKeeper
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import MirrorlogError, OffsetOutOfRange, PositionLost
from mirrorlog.queues.changes import QueueStartsMoved, encode_change
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import BATCHES, FRAME_HEADER_SIZE, Fetch, FrameType
from mirrorlog.wire.messages.codec import as_error, decode
from mirrorlog.wire.messages.handshake import Failure
from tests.broker.test_leap import FAR, SETTINGS, checkpoint, confirm, declare, jump, publish
from tests.ha.nodes import until
from tests.ha.replicas import KIB, open_master, open_replica

TOP = FAR + 3
"""Where queues go on when the longest had three records."""


class Reader:
    """A connection that notes its answers: base queue offsets of the batches, or the error."""

    open = True

    unsent_bytes = 0
    meter = None

    def __init__(self) -> None:
        self.answers: list[list[int] | MirrorlogError] = []

    def send(self, parts: Iterable[bytes | memoryview]) -> None:
        head = memoryview(b"".join(parts))
        content = head[FRAME_HEADER_SIZE:]
        if int.from_bytes(head[4:6], "little") == FrameType.ERROR:
            self.answers.append(as_error(cast(Failure, decode(content))))
            return
        bases, at = [], BATCHES.size
        while at < len(content):
            header = read_header(content[at:])
            bases.append(header.base_queue_offset)
            at += header.length
        self.answers.append(bases)


class Readers:
    """Fetches of one copy."""

    def __init__(self, replica: Replica, helper: ThreadPoolExecutor) -> None:
        self.replica = replica
        self.past = PastKeeper(replica, helper=helper, failed=lambda error: None)
        self.fetcher = Fetcher(
            replica, limits=SETTINGS.limits, settings=SETTINGS.log, past=self.past, helper=helper, now=time.monotonic
        )  # fmt: skip

    def ask(self, queue_id: int, queue_offset: int, *, wait_ms: int = 0) -> Reader:
        """Its answer may still be to come."""
        fetch = Fetch(queue_id=queue_id, epoch=0, queue_offset=queue_offset, max_bytes=1 << 20, wait_ms=wait_ms)
        reader = Reader()
        try:
            self.fetcher.fetch(fetch, cast(Endpoint, reader), 1)
        except MirrorlogError as error:
            reader.answers.append(error)
        return reader

    async def answer(self, queue_id: int, queue_offset: int) -> list[int] | MirrorlogError:
        reader = self.ask(queue_id, queue_offset)
        await until(lambda: bool(reader.answers))
        return reader.answers[0]


@pytest.fixture
async def helper() -> AsyncIterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return open_master(tmp_path / "n1", SETTINGS)


def is_lost(answer: object, go_on_at: int) -> bool:
    return isinstance(answer, PositionLost) and answer.details["go_on_at"] == go_on_at


async def test_a_position_in_the_gap_is_lost(replica: Replica, helper: ThreadPoolExecutor) -> None:
    """Goal: a loss is told from retention, and says where to go on. Ask at each place of a queue whose offsets leapt,
    with nothing behind the leap, and with a record there; in one answer only what is before the gap."""
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    jump(replica)
    confirm(replica)
    readers = Readers(replica, helper)
    for _ in range(2):
        for place in (3, 4, FAR, TOP - 1):
            assert is_lost(await readers.answer(queue_id, place), TOP)
        assert await readers.answer(queue_id, 1) == [0]
        publish(replica, queue_id)
        confirm(replica)
    assert await readers.answer(queue_id, TOP) == [TOP, TOP + 1]
    beyond = await readers.answer(queue_id, TOP + 3)
    assert type(beyond) is OffsetOutOfRange


async def test_who_waits_at_the_end_learns_of_the_loss(replica: Replica, helper: ThreadPoolExecutor) -> None:
    """Goal: records may have stood where a reader waits, and be lost before it was told. Readers of a queue with
    records and of one without wait at their ends, a third one where it will go on; at the leap's confirm the first two
    are told, the third waits for its record."""
    queue_id, empty = declare(replica, "q"), declare(replica, "empty")
    publish(replica, queue_id, 3)
    confirm(replica)
    readers = Readers(replica, helper)
    jump(replica)
    at_end, at_start = readers.ask(queue_id, 3, wait_ms=60_000), readers.ask(empty, 0, wait_ms=60_000)
    behind = readers.ask(queue_id, TOP, wait_ms=60_000)
    assert not at_end.answers
    confirm(replica)
    assert is_lost(at_end.answers[0], TOP)
    assert is_lost(at_start.answers[0], TOP)
    assert not behind.answers
    publish(replica, queue_id)
    confirm(replica)
    assert behind.answers == [[TOP]]


async def test_a_reader_of_lost_records_waits_for_the_leap(replica: Replica, helper: ThreadPoolExecutor) -> None:
    """Goal: who has read what is lost now stands above the log's end; as soon as the leap is in the log, that is not
    beyond the end any more. Ask there before it is confirmed, and confirm it."""
    queue_id = declare(replica, "q")
    publish(replica, queue_id, 3)
    confirm(replica)
    readers = Readers(replica, helper)
    assert type(await readers.answer(queue_id, 10)) is OffsetOutOfRange
    jump(replica)
    reader = readers.ask(queue_id, 10, wait_ms=60_000)
    assert not reader.answers
    confirm(replica)
    assert is_lost(reader.answers[0], TOP)


async def test_a_start_at_the_begin_of_an_empty_queue_loses_nothing(
    replica: Replica, helper: ThreadPoolExecutor
) -> None:
    """Goal: who names no position reads on. A queue without records, and one that retention emptied: both begin where
    they go on, and what retention took is told from what was lost."""
    never, emptied = declare(replica, "never"), declare(replica, "emptied")
    publish(replica, emptied, 3)
    replica.append_change(encode_change(QueueStartsMoved(begins={emptied: 3})), 1)
    jump(replica)
    confirm(replica)
    readers = Readers(replica, helper)
    for queue_id in (never, emptied):
        begin = replica.index.begin(queue_id)
        assert begin == TOP
        assert await readers.answer(queue_id, begin) == []
    assert is_lost(await readers.answer(never, 0), TOP)
    assert is_lost(await readers.answer(emptied, 3), TOP)
    freed = await readers.answer(emptied, 2)
    assert type(freed) is OffsetOutOfRange
    assert freed.details["begin"] == TOP


async def test_a_gap_of_the_past_is_told_too(replica: Replica, helper: ThreadPoolExecutor) -> None:
    """Goal: the same words when only tables and disk know. Fill segments before, between and behind two leaps, start
    again, and ask in both gaps and before them."""
    queue_id = declare(replica, "q")
    for part in range(3):
        for _ in range(12):
            publish(replica, queue_id, size=30 * KIB)
        if part < 2:
            jump(replica)
    checkpoint(replica)
    confirm(replica)
    for _ in range(12):
        publish(replica, queue_id, size=30 * KIB)
    checkpoint(replica)
    confirm(replica)
    replica.close()
    again = open_replica(replica.log.directory, SETTINGS)
    readers = Readers(again, helper)
    first, second = 12 + FAR, 12 + FAR + 12 + FAR
    assert again.index.hot_start(queue_id) > second
    assert await readers.answer(queue_id, 10) == [10, 11]
    assert await readers.answer(queue_id, first + 10) == [first + 10, first + 11]
    for place in (12, first - 1):
        assert is_lost(await readers.answer(queue_id, place), first)
    for place in (first + 12, second - 1):
        assert is_lost(await readers.answer(queue_id, place), second)
    again.close()
