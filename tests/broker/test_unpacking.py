"""The line of a connection whose batches are opened before they are published, with a helper that works when told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.log.unpacking import PublishLine, Unpacking
from mirrorlog.broker.session.client_session import ClientSession
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns
from mirrorlog.commitlog.format.header import HEADER_SIZE, Codec
from mirrorlog.config import LimitSettings
from mirrorlog.errors import AccessRefused, BadBatch, MirrorlogError, NoSuchQueue, Overloaded
from mirrorlog.wire.frames import PRODUCE, Frame, FrameType

KIB = 1024


class ByHand(Executor):
    """Runs one job each time it is told to, the oldest first; none that was cancelled."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, partial(function, *args, **kwargs)))
        return future

    async def run_one(self) -> None:
        future, job = self.jobs.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)
        for _ in range(4):
            await asyncio.sleep(0)  # the loop hears of it, and calls back


def batch(size: int, *, is_bad: bool = False) -> bytes:
    """Packed; so many bytes when opened, and some."""
    draft = compress_draft(draft_columns([bytes(size)]), Codec.LZ4)
    if is_bad:
        draft.data[HEADER_SIZE:] = b"\xff" * (len(draft.data) - HEADER_SIZE)
    return bytes(draft.seal(queue_id=1))


def plain() -> bytes:
    return bytes(draft_columns([b"x"]).seal(queue_id=1))


def whole(payload: memoryview) -> Sequence[memoryview]:
    return (payload,)


class Line:
    """One connection, and what became of what it published, by number."""

    def __init__(self, unpacking: Unpacking) -> None:
        self.ended: list[int | tuple[int, str]] = []
        self.handled = 0
        self.line = PublishLine(unpacking, self._handled)

    def take(self, number: int, payload: bytes, publish: Callable[[memoryview], None] | None = None) -> None:
        given = bytearray(payload)

        def published(content: memoryview) -> None:
            assert content == payload
            self.ended.append(number)

        def refused(error: MirrorlogError) -> None:
            self.ended.append((number, error.code))

        self.line.take(memoryview(given), whole, publish or published, refused)
        given[:] = bytes(len(given))  # a connection's buffer is used again

    def _handled(self) -> None:
        self.handled += 1


async def test_a_small_batch_with_nothing_before_it_is_opened_where_it_is() -> None:
    """No helper is asked; a bad one is refused by what is raised."""
    helper = ByHand()
    line = Line(Unpacking(helper, LimitSettings()))
    line.take(0, batch(1000))
    line.take(1, plain())
    with pytest.raises(BadBatch, match="lz4"):
        line.take(2, batch(1000, is_bad=True))
    assert line.ended == [0, 1]
    assert not helper.jobs


async def test_what_comes_behind_one_that_is_being_opened_waits_for_it() -> None:
    """A large one, a plain one, a bad one, a small one: all in their order, from copies, and told once a turn."""
    helper = ByHand()
    unpacking = Unpacking(helper, LimitSettings())
    line = Line(unpacking)
    for number, each in enumerate((batch(400 * KIB), plain(), batch(400 * KIB, is_bad=True), batch(1000))):
        line.take(number, each)
    assert line.ended == []
    assert unpacking.waiting_bytes > 0
    await helper.run_one()
    assert line.ended == [0]
    await helper.run_one()
    assert line.ended == [0, 1, (2, "BAD_BATCH"), 3]
    assert (unpacking.waiting_bytes, unpacking.lines, line.handled) == (0, 0, 2)
    line.take(4, plain())
    assert line.ended[-1] == 4


async def test_whatever_happens_while_one_is_opened_is_its_answer_and_the_next_ones_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no fault silences a connection. Method: memory runs out while the first of three is opened."""
    failures = [MemoryError()]

    def check(*args: Any, **kwargs: Any) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr("mirrorlog.broker.log.unpacking.check_compressed", check)
    helper = ByHand()
    unpacking = Unpacking(helper, LimitSettings())
    line = Line(unpacking)
    for number, each in enumerate((batch(400 * KIB), batch(1000), plain())):
        line.take(number, each)
    for _ in range(2):
        await helper.run_one()
    assert line.ended == [(0, "INTERNAL"), 1, 2]
    assert (unpacking.waiting_bytes, unpacking.lines, line.handled) == (0, 0, 2)


async def test_lines_take_turns() -> None:
    """One with twenty large batches is not served before one that has a single one."""
    helper = ByHand()
    unpacking = Unpacking(helper, LimitSettings())
    greedy, modest = Line(unpacking), Line(unpacking)
    for number in range(20):
        greedy.take(number, batch(1200 * KIB))
    modest.take(0, batch(400 * KIB))
    for _ in range(3):
        await helper.run_one()
    assert modest.ended == [0]
    assert greedy.ended == [0, 1]


async def test_what_waits_is_bounded_by_a_share() -> None:
    """Above `unpacking_bytes` who has more than his share is refused, by the limit's name, and nobody else."""
    helper = ByHand()
    unpacking = Unpacking(helper, LimitSettings(unpacking_bytes=1024 * KIB, max_record_bytes=8192 * KIB))
    greedy, modest = Line(unpacking), Line(unpacking)
    large = batch(8_000 * KIB)
    for number in range(1024 * KIB // len(large)):
        greedy.take(number, large)
    with pytest.raises(Overloaded) as refusal:
        greedy.take(100, large)
    assert refusal.value.details["limit"] == "unpacking_bytes"
    modest.take(0, large)
    while helper.jobs:
        await helper.run_one()
    assert modest.ended == [0]
    assert greedy.ended == list(range(1024 * KIB // len(large)))


async def test_a_connection_that_goes_leaves_nothing_behind() -> None:
    """Goal: who sends much that is to be opened and leaves keeps nobody waiting. Method: two large ones wait, also
    behind another's that is being opened; what is closed is not published, counts no more, and its job is not done."""
    helper = ByHand()
    unpacking = Unpacking(helper, LimitSettings())
    line = Line(unpacking)
    line.take(0, batch(400 * KIB))
    line.take(1, batch(400 * KIB))
    line.line.close()
    line.line.close()
    (future, _), *others = helper.jobs
    await asyncio.sleep(0)
    assert future.cancelled()
    assert not others
    await helper.run_one()
    assert line.ended == []
    assert (unpacking.waiting_bytes, unpacking.lines, len(helper.jobs)) == (0, 0, 0)


async def test_what_is_refused_late_is_told_and_the_next_one_has_its_turn() -> None:
    """A publish that raises, by a refusal or by a mistake, ends as a refusal; those behind it go on."""
    helper = ByHand()
    line = Line(Unpacking(helper, LimitSettings()))

    def refuse(_: memoryview) -> None:
        raise NoSuchQueue("gone meanwhile")

    def fail(_: memoryview) -> None:
        raise ZeroDivisionError

    line.take(0, batch(400 * KIB))
    line.take(1, plain(), refuse)
    line.take(2, plain(), fail)
    line.take(3, plain())
    while helper.jobs:
        await helper.run_one()
    assert line.ended == [0, (1, "NO_SUCH_QUEUE"), (2, "PROTOCOL_ERROR"), 3]


async def test_what_waited_is_stored_only_if_who_sent_it_may_still_publish() -> None:
    """Goal: a right that is taken away is gone for what is on its way, too. Method: it goes while a batch is opened;
    the one that came before is stored, this one is refused."""
    helper = ByHand()
    stored: list[int] = []
    sent: list[bytes] = []
    refused: Counter[str] = Counter()
    rights = {1}

    def check_publish(queue_id: int) -> None:
        if queue_id not in rights:
            raise AccessRefused("no right")

    publisher = SimpleNamespace(publish=lambda payload, session, correlation_id: stored.append(correlation_id))
    door: Any = SimpleNamespace(
        unpacking=Unpacking(helper, LimitSettings()),
        push=lambda: None,
        log_of=lambda queue_id: SimpleNamespace(publisher=publisher),
        refused=refused,
        settings=SimpleNamespace(limits=LimitSettings()),
    )
    session = ClientSession(door, SimpleNamespace())  # type: ignore[arg-type]
    session._gate = SimpleNamespace(check_publish=check_publish)  # type: ignore[assignment]
    session._endpoint = SimpleNamespace(send=lambda parts: sent.extend(map(bytes, parts)))  # type: ignore[assignment]
    for number in range(2):
        payload = memoryview(bytes(PRODUCE.size) + batch(1200 * KIB))
        session._dispatch(Frame(FrameType.PRODUCE, number, payload))
    await helper.run_one()
    rights.clear()
    await helper.run_one()
    assert stored == [0]
    assert refused == {AccessRefused.code: 1}
    assert len(sent) == 1
