"""What a member is told that asks another one to have something decided, and loses an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorlog.broker.session.operator_requests import Operations
from mirrorlog.cluster.decisions import Decisions, Ground
from mirrorlog.cluster.requests import Applied, encode
from mirrorlog.cluster.state.commands import Command, NodeDraining
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.errors import ConnectionLost, MirrorlogError, NotLeader, OutcomeUnknown, Refused
from mirrorlog.wire.messages.operators import DrainNode, Rebalance

CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
DRAINING = NodeDraining(node="n1", draining=True)
LOST = ConnectionLost("the connection to node n2 ended")
REFUSED = Applied(index=7, refusal="node n1 has moved on")


class Member:
    """One that does not lead. `answers`: the leader's, in order; an error is raised, and None is that nobody leads,
    from then on."""

    def __init__(self, *answers: Applied | MirrorlogError | None) -> None:
        self.answers = list(answers)
        self.state = ClusterState(CLUSTER_ID, "c")
        self.driver = SimpleNamespace(raft=SimpleNamespace(leader=2, own=1))
        self.mesh = self

    @property
    def leader(self) -> str:
        return "n2" if self.answers and self.answers[0] is not None else ""

    def check_run(self, command: Command) -> None:
        raise AssertionError("this one does not lead")

    async def ask(self, node: str, question: bytes, *, timeout_s: float) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Applied):
            return encode(answer)
        assert answer is not None
        raise answer

    @property
    def decisions(self) -> Decisions:
        return Decisions(cast(Ground, self))


async def test_a_command_whose_answer_was_lost_is_not_refused_because_nobody_leads() -> None:
    """Goal: who asked is not told that nothing was decided. Method: the leader takes the command in and is lost, and
    there is no other one within the time; and the same without the first attempt."""
    with pytest.raises(OutcomeUnknown):
        await Member(LOST, None).decisions.propose(DRAINING, timeout_s=0.15)
    with pytest.raises(NotLeader):
        await Member(None).decisions.propose(DRAINING, timeout_s=0.15)


async def test_a_refusal_behind_a_lost_answer_is_marked_as_one() -> None:
    """Goal: the rule may forbid it because it was decided just now. Method: the answer is lost, the next one refuses; a
    success behind it needs no mark."""
    assert (await Member(LOST, REFUSED).decisions.propose(DRAINING, timeout_s=5.0)).in_doubt
    assert not (await Member(REFUSED).decisions.propose(DRAINING, timeout_s=5.0)).in_doubt
    assert not (await Member(LOST, Applied(index=7)).decisions.propose(DRAINING, timeout_s=5.0)).in_doubt


class Service:
    """As much of one as operators need."""

    def __init__(self, *answers: Applied | MirrorlogError | None) -> None:
        member = Member(*answers)
        member.driver.machine = SimpleNamespace(index=0)
        self.decisions = member.decisions
        self.identity = SimpleNamespace(node="n1", start_id="s")
        self.state = SimpleNamespace(nodes={"n1": SimpleNamespace()}, logs=dict[str, Any]())
        self.life = lambda node: None

    @property
    def operations(self) -> Operations:
        return Operations(cast(Any, self), cast(Any, None))


@pytest.mark.parametrize(("answers", "kind"), [((LOST, REFUSED), OutcomeUnknown), ((REFUSED,), Refused)])
async def test_an_operator_is_told_what_is_known(answers: tuple[Applied | MirrorlogError, ...], kind: type) -> None:
    """Goal: Refused means that nothing was done. Method: a drain that is refused, behind a lost answer and at once."""
    with pytest.raises(kind) as told:
        await Service(*answers).operations.handlers[DrainNode](DrainNode())
    assert type(told.value) is kind


async def test_a_rebalance_that_stops_in_the_middle_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the same of what is several decisions. Method: two logs are away from home; for the second there is no
    leader any more."""
    service = Service(Applied(index=0), None)
    logs: Mapping[str, Any] = {
        name: SimpleNamespace(name=name, master=None, wished="", seen=None) for name in ("one", "two")
    }
    service.state.logs.update(logs)
    away = [SimpleNamespace(log_id=name, home="n2", reason="") for name in logs]
    monkeypatch.setattr("mirrorlog.broker.session.operator_requests.away_from_home", lambda state, life: away)
    monkeypatch.setattr("mirrorlog.broker.session.operator_requests.MasterWished", lambda **_: DRAINING)
    async with asyncio.timeout(10):
        with pytest.raises(OutcomeUnknown, match="1 of 2 logs"):
            await service.operations.handlers[Rebalance](Rebalance())
