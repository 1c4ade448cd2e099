"""Answers leave a stream in the order of its requests, and what is unanswered is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from mirrorlog.client import Receipt
from mirrorlog.doors.grpc.incoming import Batch, Opening, read_request
from mirrorlog.doors.grpc.producer_service import PublishStream
from mirrorlog.doors.grpc.window import SentBatch, StreamWindow
from mirrorlog.errors import BadBatch, BadRequest, InSyncReplicasNotEnough, NodeStopping, OutcomeUnknown
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability, Level

ANONYMOUS = Opening("q", Level.ALL, Durability.MEMORY, 1000, 0, 0)
TURNS = 50


class ByHand:
    """A way whose batches end when the test says so. `refusals`: by tag, raised instead of sending."""

    def __init__(self, *, idempotent: bool = False, refusals: dict[int, Exception] | None = None) -> None:
        self.idempotent = idempotent
        self.refusals = refusals or {}
        self.outcomes: dict[int, asyncio.Future[Receipt]] = {}

    async def send(self, batch: Batch) -> SentBatch:
        if batch.tag in self.refusals:
            raise self.refusals[batch.tag]
        self.outcomes[batch.tag] = asyncio.get_running_loop().create_future()
        return SentBatch(self.outcomes[batch.tag], self.idempotent)

    def confirm(self, tag: int) -> None:
        self.outcomes[tag].set_result(Receipt(tag, tag * 8, 1, 3, Durability.MEMORY, False))


class Running:
    """A stream that reads `requests` while the test looks at it."""

    def __init__(
        self,
        requests: Iterable[pb.PublishRequest],
        *,
        window: StreamWindow | None = None,
        one_attempt: ByHand | None = None,
    ) -> None:
        self.retrying = ByHand()
        self.one_attempt = one_attempt or ByHand()
        self.stream = PublishStream(
            opening=ANONYMOUS,
            one_attempt=self.one_attempt,
            retrying=self.retrying,
            window=window or StreamWindow(bytes_max=1 << 20, batches_max=100),
        )
        self.reading = asyncio.ensure_future(self.stream.read(each(requests)))
        self.results: list[pb.PublishResult] = []
        self.answering = asyncio.ensure_future(self._answer())

    @property
    def tags(self) -> list[int]:
        return [result.tag for result in self.results]

    async def _answer(self) -> None:
        async for result in self.stream.results():
            self.results.append(result)


async def each(requests: Iterable[pb.PublishRequest]) -> AsyncIterator[pb.PublishRequest | Batch]:
    for request in requests:
        await asyncio.sleep(0)
        yield read_request(request.SerializeToString())


async def settle() -> None:
    """Let everything that can happen without another event happen."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def records(tag: int, size: int = 1) -> pb.PublishRequest:
    batch = pb.PublishBatch(tag=tag, records=pb.Records(records=[pb.Record(value=bytes(size))]))
    return pb.PublishRequest(batch=batch)


def ready(tag: int) -> pb.PublishRequest:
    return pb.PublishRequest(batch=pb.PublishBatch(tag=tag, ready=b"x"))


async def test_answers_come_in_the_order_of_the_requests_whoever_is_done_first() -> None:
    """Goal: confirms in the order of the queue. Method: end the batches backwards."""
    running = Running([records(1), records(2), records(3)])
    await settle()
    for tag in (3, 2):
        running.retrying.confirm(tag)
        await settle()
        assert running.tags == []
    running.retrying.confirm(1)
    await asyncio.wait_for(running.answering, 5)
    assert running.tags == [1, 2, 3]


async def test_a_failed_batch_is_an_answer_and_not_the_end() -> None:
    """Goal: per-batch failures. Method: empty, refused by the way, failed later, and a good one behind them."""
    one = ByHand(refusals={2: BadBatch("damaged")})
    running = Running([pb.PublishRequest(batch=pb.PublishBatch(tag=1)), ready(2), ready(3), ready(4)], one_attempt=one)
    await settle()
    one.outcomes[3].set_exception(InSyncReplicasNotEnough("one is down"))
    one.confirm(4)
    await asyncio.wait_for(running.answering, 5)
    assert running.tags == [1, 2, 3, 4]
    assert [result.error.code for result in running.results] == [
        "BAD_BATCH",
        "BAD_BATCH",
        "IN_SYNC_REPLICAS_NOT_ENOUGH",
        "",
    ]
    assert running.results[3].confirm.base_queue_offset == 4


@pytest.mark.parametrize("idempotent", [True, False])
async def test_an_unknown_outcome_is_retriable_as_its_batch_is(idempotent: bool) -> None:
    """Goal: nothing is doubled by a client that trusts the answer. Method: a batch with and without a number."""
    one = ByHand(idempotent=idempotent)
    running = Running([ready(1)], one_attempt=one)
    await settle()
    one.outcomes[1].set_exception(OutcomeUnknown("no ack"))
    await asyncio.wait_for(running.answering, 5)
    assert running.results[0].error.retriable == idempotent


@pytest.mark.parametrize(("window", "taken"), [((1 << 20, 3), 3), ((2_500, 100), 3), ((1, 100), 1)])
async def test_reading_stops_while_the_window_is_full(window: tuple[int, int], taken: int) -> None:
    """Goal: a stream's memory has a limit. Method: ten batches of about 1 kB, none answered, then one by one."""
    bytes_max, batches_max = window
    running = Running(
        [records(tag, 1000) for tag in range(10)], window=StreamWindow(bytes_max=bytes_max, batches_max=batches_max)
    )
    await settle()
    for answered in range(10):
        assert len(running.retrying.outcomes) == min(10, answered + taken)
        running.retrying.confirm(answered)
        await settle()
    await asyncio.wait_for(running.answering, 5)
    assert running.tags == list(range(10))


async def test_a_ready_batch_does_not_overtake_records_that_may_be_tried_again() -> None:
    """Goal: the order of the requests is that of the queue. Method: mix both; the next kind waits for the answers."""
    running = Running([records(1), ready(2), records(3)])
    await settle()
    assert not running.one_attempt.outcomes
    running.retrying.confirm(1)
    await settle()
    assert list(running.one_attempt.outcomes) == [2]
    assert list(running.retrying.outcomes) == [1]
    running.one_attempt.confirm(2)
    await settle()
    running.retrying.confirm(3)
    await asyncio.wait_for(running.answering, 5)
    assert running.tags == [1, 2, 3]


async def test_what_makes_no_sense_ends_the_stream_behind_the_answers_before_it() -> None:
    """Goal: nobody loses a confirm. Method: a second `open` behind a batch that is not answered yet."""
    running = Running([records(1), pb.PublishRequest(open=pb.OpenPublish(queue="q")), records(2)])
    await settle()
    running.retrying.confirm(1)
    with pytest.raises(BadRequest, match="open"):
        await asyncio.wait_for(running.answering, 5)
    assert running.tags == [1]
    assert list(running.retrying.outcomes) == [1]


async def test_an_end_that_is_asked_for_comes_behind_what_was_read() -> None:
    """Goal: a stopping door answers what it took. Method: end the stream with a batch in it."""
    running = Running([records(1)])
    await settle()
    running.stream.end(NodeStopping("stopping"))
    running.retrying.confirm(1)
    # The client's own end was read first here, so the stream ended well, with the answer.
    await asyncio.wait_for(running.answering, 5)
    assert running.tags == [1]


async def test_a_defect_while_reading_ends_the_stream_too() -> None:
    """Goal: nothing hangs, whatever breaks. Method: a way that raises what no way should."""
    running = Running([ready(1)], one_attempt=ByHand(refusals={1: ZeroDivisionError("defect")}))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(running.answering, 5)
