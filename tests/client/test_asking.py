"""Several nodes are asked the same: one that is silent delays nobody, one that answers is not drowned in questions."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client.connection.finder import Ask, ask_nodes
from mirrorlog.errors import ConnectionLost, MirrorlogError, UnsupportedVersion


class Asked:
    """Counts who was asked, and who was told that nobody waits any more."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dropped: list[str] = []

    def says(self, answer: str | MirrorlogError) -> Ask[str]:
        async def ask() -> str:
            self.asked.append(str(answer))
            if isinstance(answer, MirrorlogError):
                raise answer
            return answer

        return ask

    def is_silent(self) -> Ask[str]:
        async def ask() -> str:
            self.asked.append("silent")
            try:
                await asyncio.Event().wait()
            finally:
                self.dropped.append("silent")
            raise AssertionError

        return ask


async def test_the_first_that_answers_is_the_only_one_asked() -> None:
    """With a head start that is never waited for; by two that would answer."""
    nodes = Asked()
    heard = await ask_nodes([nodes.says("a"), nodes.says("b")], lambda _: 0.0, head_start_s=60)
    assert (heard.answers, nodes.asked) == (["a"], ["a"])


async def test_the_next_one_is_asked_when_one_has_failed_or_is_silent() -> None:
    """At once, or after the head start; nobody is left waiting for the silent one."""
    nodes = Asked()
    asks = [nodes.says(ConnectionLost("x")), nodes.is_silent(), nodes.says("b"), nodes.says("c")]
    heard = await asyncio.wait_for(ask_nodes(asks, lambda _: 0.0, head_start_s=0.01), 10)
    assert (heard.answers, nodes.asked, nodes.dropped) == (["b"], ["x", "silent", "b"], ["silent"])


async def test_an_answer_that_will_not_do_lets_all_others_be_asked() -> None:
    """At once, and as long as is asked for; by one that is silent among them."""
    nodes = Asked()
    asks = [nodes.says("no"), nodes.is_silent(), nodes.says("no"), nodes.says("yes")]
    heard = await asyncio.wait_for(
        ask_nodes(asks, lambda answers: 0.0 if "yes" in answers else 60.0, head_start_s=60), 10
    )
    assert sorted(heard.answers) == ["no", "no", "yes"]
    heard = await asyncio.wait_for(ask_nodes([nodes.says("no"), nodes.is_silent()], lambda _: 0.01), 10)
    assert (heard.answers, nodes.dropped) == (["no"], ["silent", "silent"])


async def test_when_all_fail_the_one_that_spoke_tells_why() -> None:
    """Else each of them; in the order in which they were given."""
    nodes = Asked()
    lost = [nodes.says(ConnectionLost("one")), nodes.says(ConnectionLost("two"))]
    heard = await ask_nodes([*lost, nodes.says(UnsupportedVersion("old"))], lambda _: 0.0)
    assert isinstance(heard.no_answer(), UnsupportedVersion)
    heard = await ask_nodes(lost, lambda _: 0.0)
    assert str(heard.no_answer()) == "no node answers: one; two"


async def test_who_gives_up_asking_leaves_nothing_behind() -> None:
    """By cancelling it while one is silent."""
    nodes = Asked()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask_nodes([nodes.is_silent()], lambda _: 0.0), 0.01)
    assert nodes.dropped == ["silent"]
