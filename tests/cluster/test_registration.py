"""How a run comes to be known to its cluster, and finds out that it is over: the table of `cluster.registration`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from mirrorlog.cluster.membership import registration
from mirrorlog.cluster.membership.registration import Registration
from mirrorlog.cluster.raft.messages import Members, Snapshot
from mirrorlog.cluster.requests import Applied, AskApply, AskState, Joined, decode_question, encode
from mirrorlog.cluster.state.command_codec import decode_command
from mirrorlog.cluster.state.commands import Addresses, Command, NodeForgotten, NodeJoined, NodeStarted, StartKind
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome, encode_state
from mirrorlog.errors import MirrorlogError, NotAMember, NotLeader, RequestTimeout
from tests.cluster.ports import until

AT = Addresses(client="h:1", replication="h:2")
DEADLINE_S = 20.0


def state(run: str = "run 1", *names: str) -> ClusterState:
    """Of a and b, where b's last registered run is `run`."""
    nodes = {name: NodeFacts(number, AT, start_id=f"{name} 1") for number, name in enumerate(names or ("a", "b"), 1)}
    return ClusterState("id", "name", nodes={**nodes, "b": replace(nodes["b"], start_id=run)})


class Script:
    """Node b's Raft member, number 2, and the cluster, which decides what it is asked for.

    `failures`: what the next commands end with instead; `lost`: whether the answer to one that was decided is; `deaf`:
    it hears no leader, and learns nothing; `lone`: nobody else can be asked.
    """

    def __init__(self, begun: ClusterState, own: int = 2) -> None:
        self.now = begun
        self.own = own
        self.commands: list[NodeStarted] = []
        self.failures: list[MirrorlogError] = []
        self.began: list[int] = []
        self.deaf = self.lone = False
        self.lost: Callable[[NodeStarted], bool] = lambda _: False
        self.asked = self.passed_on = 0
        self._index = 100

    def decide(self, command: Command) -> Outcome:
        self._index += 1
        self.now, outcome = applied(self.now, self._index, command)
        return outcome

    # --- registration.Member ---

    @property
    def applied_index(self) -> int:
        return 0 if self.deaf else self._index

    @property
    def hears_leader(self) -> bool:
        return not self.deaf

    def others(self) -> list[str]:
        return [] if self.lone else ["a"]

    async def ask(self, node: str, question: bytes) -> bytes:
        self.asked += 1
        asked = decode_question(question)
        if isinstance(asked, AskApply):
            assert asked.pass_on
            self.passed_on += 1
            outcome = self._decided(asked.command)
            return encode(Applied(index=outcome.index, refusal=outcome.refusal))
        assert isinstance(asked, AskState)
        return encode(self._told())

    async def ask_leader(self, data: bytes) -> Outcome:
        if self.deaf:
            raise NotLeader("no coordinator is known")
        return self._decided(data)

    async def told(self, node: str, index: int) -> Joined:
        if self.deaf:
            raise RequestTimeout("not known here")
        return self._told()

    async def begin_anew(self, told: Joined) -> None:
        self.own = told.member
        self.deaf = False
        self.began.append(told.member)

    def _decided(self, data: bytes) -> Outcome:
        if self.failures:
            raise self.failures.pop(0)
        command = decode_command(data)
        assert isinstance(command, NodeStarted)
        self.commands.append(command)
        outcome = self.decide(command)
        if self.lost(command):
            raise RequestTimeout("no answer")
        return outcome

    def _told(self) -> Joined:
        if "b" not in self.now.nodes:
            raise NotAMember("node b was forgotten by its cluster")
        return Joined(
            member=self.now.nodes["b"].member,
            snapshot=Snapshot(self._index, 1, Members((1, 2)), encode_state(self.now)),
        )


class Run:
    """Run `run 2` of node b, by default on a disk that knows `run 1`."""

    def __init__(self, script: Script, *, before: str = "run 1", since: tuple[str, ...] = ()) -> None:
        self.script = script
        self.failed: list[MirrorlogError] = []
        started = NodeStarted(node="b", start_id="run 2", kind=StartKind.DIED, addresses=AT, before=before, since=since)
        self.registration = Registration(lambda: started, script, failed=self.failed.append)

    async def register(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.registration.register()
        self.note()

    def note(self) -> None:
        self.registration.note(self.script.now, 100)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here takes time, so nothing has to be waited for."""
    for name in ("ASK_S", "RETRY_S", "RIVAL_S", "STUCK_S", "WATCH_S"):
        monkeypatch.setattr(registration, name, getattr(registration, name) / 100)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work()

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("registered", "before", "since"),
    [("", "", ()), ("run 1", "run 1", ()), ("run 1b", "run 1", ("run 1a", "run 1b"))],
    ids=["first", "next", "not heard of"],
)
def test_a_run_on_a_disk_that_knows_the_last_one_is_registered(
    registered: str, before: str, since: tuple[str, ...]
) -> None:
    """As the member that it is, and what it is worth; by the cluster's start id before, in each place on the disk."""

    async def work() -> None:
        script = Script(state(registered))
        made = Run(script, before=before, since=since)
        await made.register()
        assert made.registration.is_in
        facts = script.now.nodes["b"]
        assert (facts.start_id, facts.kind, facts.member, script.began) == ("run 2", StartKind.DIED, 2, [])
        assert len(script.commands) == 1

    run(work)


def test_a_disk_that_was_set_back_begins_anew() -> None:
    """It names the run that it has not known, and is another member. By a disk that knows an older run."""

    async def work() -> None:
        script = Script(state("run 1"))
        made = Run(script, before="run 0")
        await made.register()
        assert [each.seen for each in script.commands] == ["", "run 1", ""]
        facts = script.now.nodes["b"]
        assert (facts.start_id, facts.kind) == ("run 2", StartKind.LOSSY)
        assert script.began == [facts.member]
        assert script.own == facts.member > 2

    run(work)


def test_a_lone_node_that_was_set_back_keeps_its_number() -> None:
    """Nobody could tell it what was decided; by a cluster of one."""

    async def work() -> None:
        script = Script(ClusterState("id", "name", nodes={"b": NodeFacts(2, AT, start_id="run 1")}))
        script.lone = True
        await Run(script, before="run 0").register()
        assert (script.now.nodes["b"].member, script.began) == (2, [])

    run(work)


def test_a_decision_that_was_not_heard_of_is_found() -> None:
    """The node is another member already; by a run that died before it knew, and by an answer that was lost."""

    async def work() -> None:
        script = Script(state("run 1"))
        script.decide(NodeStarted(node="b", start_id="run 1b", kind=StartKind.CLEAN, addresses=AT, seen="run 1"))
        renumbered = script.now.nodes["b"].member
        await Run(script, before="run 0", since=("run 1b",)).register()
        assert script.began == [renumbered]
        assert script.now.nodes["b"].start_id == "run 2"

        script = Script(state("run 1"))
        script.lost = lambda command: bool(command.seen) and len(script.commands) == 2
        await Run(script, before="run 0").register()
        assert script.began == [script.now.nodes["b"].member]
        assert [each.seen for each in script.commands] == ["", "run 1", "run 1", ""]

    run(work)


@pytest.mark.parametrize("again", [False, True], ids=["forgotten", "another member"])
def test_a_member_that_was_forgotten_ends(again: bool) -> None:
    """For good, also when its name is another member's; by forgetting it, and letting another one in."""

    async def work() -> None:
        script = Script(state("run 1"))
        script.decide(NodeForgotten(node="b"))
        if again:
            script.decide(NodeJoined(node="b", addresses=AT, token="t"))
        with pytest.raises(NotAMember, match="forgotten"):
            await Run(script).register()
        assert not script.began

    run(work)


def test_a_start_id_that_the_disk_knows_is_refused_for_good() -> None:
    """Its refusal has another reason, and no other start would help; by a witnessed run and another number."""

    async def work() -> None:
        script = Script(state("run 1"), own=9)
        with pytest.raises(NotAMember, match="does not let this node in"):
            await Run(script).register()

    run(work)


def test_failures_are_asked_through() -> None:
    """Until it is in; by three errors of different kinds."""

    async def work() -> None:
        script = Script(state("run 1"))
        script.failures = [NotLeader("nobody leads"), RequestTimeout("too slow"), NotLeader("nobody leads")]
        await Run(script).register()
        assert script.now.nodes["b"].start_id == "run 2"

    run(work)


def test_a_rival_is_waited_for_and_then_ends_this_run() -> None:
    """It may be ending; by one that goes, and one that stays."""

    async def work() -> None:
        rival = NotLeader("run run 1 of node b is there", rival="run 1")
        script = Script(state("run 1"))
        script.failures = [rival]
        await Run(script, before="run 0").register()
        script = Script(state("run 1"))
        script.failures = [rival] * 10_000
        with pytest.raises(NotAMember, match="is there"):
            await Run(script, before="run 0").register()

    run(work)


def test_who_hears_no_leader_is_passed_on_by_others() -> None:
    """A member that was removed is told nothing any more; by one that is deaf until it begins anew."""

    async def work() -> None:
        script = Script(state("run 1"))
        script.deaf = True
        await Run(script, before="run 0").register()
        assert script.passed_on
        assert script.began

    run(work)


def test_a_member_that_learns_nothing_under_a_leader_ends() -> None:
    """Its disk lacks what it has answered for, and no start id tells; by one that hears a leader and stands still."""

    class Stuck(Script):
        @property
        def applied_index(self) -> int:
            return 7

        async def told(self, node: str, index: int) -> Joined:
            raise RequestTimeout("not known here")

    async def work() -> None:
        with pytest.raises(NotAMember, match="start it with a blank disk"):
            await Run(Stuck(state("run 1"))).register()

    run(work)


def test_another_run_or_none_ends_this_one() -> None:
    """Once it is in, and not before; by what the state says of the node."""

    async def work() -> None:
        for change, reason in (
            (NodeStarted(node="b", start_id="run 3", kind=StartKind.DIED, addresses=AT, before="run 2"), "another run"),
            (NodeForgotten(node="b"), "was forgotten"),
        ):
            made = Run(Script(state("run 1")))
            made.note()
            assert not made.failed, "the run before it is no rival"
            await made.register()
            assert not made.failed
            made.script.decide(change)
            made.note()
            assert [reason in str(error) for error in made.failed] == [True]

    run(work)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_run_that_hears_nothing_asks_whether_it_is_over(forgotten: bool) -> None:
    """Nobody tells a member that was removed; by one that was, and one that was only cut off."""

    async def work() -> None:
        script = Script(state("run 1"))
        made = Run(script)
        await made.register()
        script.deaf = True
        if forgotten:
            script.decide(NodeForgotten(node="b"))
        watching = asyncio.ensure_future(made.registration.watch())
        await until(lambda: script.asked >= 3)
        watching.cancel()
        assert bool(made.failed) == forgotten

    run(work)
