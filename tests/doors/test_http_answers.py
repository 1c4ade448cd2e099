"""A node is asked as seldom as serves, and nobody who asks the door waits longer than the deadline."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.doors.http.answers import NodeReport, StatusScrape, StatusSource
from mirrorlog.errors import ConnectionLost, MirrorlogError, NodeStopping, RequestTimeout
from mirrorlog.wire.messages.status import Status

TOLD = NodeReport(
    "mirrorlog 0.1.0",
    Status(cluster_id="c", cluster_name="c", node_id="n1", start_id="s", now_us=0, logs=[]),
)
LONG_S = 3_600.0


class Node:
    """Answers each question with the next of `outcomes`, the last one again and again; None: never."""

    def __init__(self, *outcomes: NodeReport | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self) -> NodeReport:
        outcome = self.outcomes[min(self.asked, len(self.outcomes) - 1)]
        self.asked += 1
        await self.may_answer.wait()
        if outcome is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome


async def failure(source: StatusSource) -> MirrorlogError:
    with pytest.raises(MirrorlogError) as caught:
        await source.answer()
    return caught.value


async def test_all_who_ask_at_once_share_one_question() -> None:
    """Goal: one question under way. Method: hold the node's answer back until fifty have asked."""
    node = Node(TOLD)
    node.may_answer.clear()
    source = StatusSource(node.ask, fresh_s=0.0)
    askers = [asyncio.ensure_future(source.answer()) for _ in range(50)]
    await asyncio.sleep(0)
    node.may_answer.set()
    answers = await asyncio.gather(*askers)
    assert node.asked == 1
    assert all(answer is answers[0] for answer in answers)
    assert answers[0].told is TOLD


@pytest.mark.parametrize(("fresh_s", "asked"), [(LONG_S, 1), (0.0, 3)])
async def test_an_answer_is_shared_while_it_is_fresh_and_no_longer(fresh_s: float, asked: int) -> None:
    """Goal: the node is not asked for each scrape, nor answered for. Method: three scrapes, one after the other."""
    node = Node(TOLD)
    source = StatusSource(node.ask, fresh_s=fresh_s)
    for _ in range(3):
        assert (await source.answer()).told is TOLD
    assert node.asked == asked


async def test_a_node_that_never_answers_is_given_up_at_the_deadline() -> None:
    """Goal: nothing hangs. Method: a question without an answer; all who wait are told, and the next may ask anew."""
    node = Node(None, TOLD)
    source = StatusSource(node.ask, deadline_ms=20, fresh_s=0.0)
    async with asyncio.timeout(10):
        failures = await asyncio.gather(*(failure(source) for _ in range(3)))
        assert {type(each) for each in failures} == {RequestTimeout}
        assert "20 ms" in str(failures[0])
        assert (await source.answer()).failures == 1
    assert node.asked == 2


async def test_a_failure_is_shared_as_an_answer_is() -> None:
    """Goal: a refused connection is not tried for each scrape. Method: three scrapes while the failure is fresh."""
    node = Node(ConnectionLost("no connection to 127.0.0.1:1", master="n2"))
    source = StatusSource(node.ask, fresh_s=LONG_S)
    for _ in range(3):
        error = await failure(source)
        assert (type(error), str(error)) == (ConnectionLost, "no connection to 127.0.0.1:1")
        assert error.details == {"master": "n2"}
    assert node.asked == 1


async def test_failures_are_counted_by_questions() -> None:
    """Goal: the counter in a scrape is that of unanswered questions. Method: two of them, then an answer."""
    source = StatusSource(Node(NodeStopping("going"), ConnectionLost("gone"), TOLD).ask, fresh_s=0.0)
    await failure(source)
    await failure(source)
    answer = await source.answer()
    assert isinstance(answer, StatusScrape)
    assert answer.failures == 2
    assert answer.took_s >= 0.0


async def test_one_who_gives_up_takes_no_answer_from_the_others() -> None:
    """Goal: a scraper that hangs up disturbs nobody. Method: cancel the one whose question it is."""
    node = Node(TOLD)
    node.may_answer.clear()
    source = StatusSource(node.ask)
    first, second = asyncio.ensure_future(source.answer()), asyncio.ensure_future(source.answer())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    node.may_answer.set()
    assert (await second).told is TOLD
    assert first.cancelled()
    assert node.asked == 1


async def test_a_fault_of_our_own_is_not_taken_for_an_answer() -> None:
    """Goal: no old answer for a new one. Method: an answer that is no longer fresh, then an error of no known kind."""
    node = Node(TOLD, ZeroDivisionError(), TOLD)
    source = StatusSource(node.ask, fresh_s=0.0)
    await source.answer()
    with pytest.raises(ZeroDivisionError):
        await source.answer()
    assert (await source.answer()).told is TOLD
    assert node.asked == 3
