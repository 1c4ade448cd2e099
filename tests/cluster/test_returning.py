"""A node with a blank disk becomes another member under its name, however often and however it is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from mirrorlog.cluster.membership.registration import ReturnedNode, come_back
from mirrorlog.cluster.raft.messages import Members, Snapshot
from mirrorlog.cluster.requests import Applied, Joined
from mirrorlog.cluster.state.commands import Addresses, Command, Holder, NodeForgotten, NodeStarted, StartKind
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, encode_state
from mirrorlog.errors import MirrorlogError, NotAMember, NotLeader, ProtocolError, RequestTimeout

AT = Addresses(client="h:1", replication="h:2")


def state(c_runs_as: str = "c 1") -> ClusterState:
    """Of a, b and c, where c holds a copy in sync if it has run."""
    nodes = {name: NodeFacts(number, AT, start_id=f"{name} 1") for number, name in enumerate("abc", 1)}
    nodes["c"] = replace(nodes["c"], start_id=c_runs_as)
    in_sync = {"a": "a 1", **({"c": c_runs_as} if c_runs_as else {})}
    log = LogFacts(0, "x", "disk", ("a", "c"), master=Holder("a", "a 1"), epoch=1, in_sync=in_sync)
    return ClusterState("id", "name", nodes=nodes, logs={"l": log})


class Script:
    """The cluster: decides what it is asked for. `before`, `after`: called with each command, before and after it is
    decided; what they raise is all that the node hears. `shown`: the state that is told next, instead of the newest."""

    def __init__(self, begun: ClusterState) -> None:
        self.states = [begun]
        self.commands: list[Command] = []
        self.before: Callable[[NodeStarted], None] = lambda _: None
        self.after: Callable[[NodeStarted], None] = lambda _: None
        self.shown: ClusterState | None = None

    @property
    def now(self) -> ClusterState:
        return self.states[-1]

    def decide(self, command: Command) -> Applied:
        self.commands.append(command)
        index = 100 + len(self.commands)
        changed, outcome = applied(self.now, index, command)
        self.states.append(changed)
        return Applied(index=index, refusal=outcome.refusal)

    async def apply(self, command: NodeStarted) -> Applied:
        self.before(command)
        told = self.decide(command)
        self.after(command)
        return told

    async def state(self, index: int) -> Joined:
        told, self.shown = self.shown or self.now, None
        if "c" not in told.nodes:
            raise NotAMember("node c was forgotten")
        return Joined(member=told.nodes["c"].member, snapshot=Snapshot(9, 1, Members((1, 2)), encode_state(told)))


def started(run: str) -> NodeStarted:
    return NodeStarted(node="c", start_id=run, kind=StartKind.LOSSY, addresses=AT)


def returned(script: Script, run: str = "new") -> ReturnedNode | None:
    return asyncio.run(come_back(started(run), f"never before {run}", script))


def once(error: MirrorlogError) -> Callable[[NodeStarted], None]:
    """Raised at the first call only."""
    left = [error]

    def raise_it(_: NodeStarted) -> None:
        if left:
            raise left.pop()

    return raise_it


def test_a_disk_is_replaced_any_number_of_times() -> None:
    """Each time it is another member, of another number, and its copy is marked; by three blank disks."""
    script, numbers = Script(state()), {3}
    for number in range(3):
        found = returned(script, f"run {number}")
        assert found is not None
        assert not found.first
        facts = script.now.nodes["c"]
        assert (facts.start_id, facts.kind, facts.member) == (f"run {number}", StartKind.LOSSY, found.joined.member)
        assert script.now.logs["l"].marked == {"c"}
        numbers.add(facts.member)
    assert len(numbers) == 4


def test_who_never_registered_is_another_member_too() -> None:
    """Its disk may have voted all the same; by a founder of which no run is known. No copy of it was ever in sync."""
    script = Script(state(c_runs_as=""))
    found = returned(script)
    assert found is not None
    assert found.first
    assert found.joined.member == script.now.nodes["c"].member > 3
    assert not script.now.logs["l"].marked


def test_who_was_forgotten_is_told_to_join() -> None:
    """By a cluster that does not know the name, and one that forgets it while it comes back."""
    script = Script(state())
    script.decide(NodeForgotten(node="c"))
    assert returned(script) is None
    script = Script(state())
    script.before = lambda _: None if "c" not in script.now.nodes else script.decide(NodeForgotten(node="c")) and None
    assert returned(script) is None


@pytest.mark.parametrize("c_runs_as", ["c 1", ""])
@pytest.mark.parametrize("place", ["before", "after"])
def test_what_was_cut_short_is_done_again(c_runs_as: str, place: str) -> None:
    """The same run tries again, and there is no third member; by a failure before and after each command is decided."""
    for failing in range(1, 3):
        script, asked = Script(state(c_runs_as)), []

        def fail(command: NodeStarted, asked: list[NodeStarted] = asked, failing: int = failing) -> None:
            asked.append(command)
            if len(asked) == failing:
                raise RequestTimeout("no answer")

        setattr(script, place, fail)
        for _ in range(2):
            try:
                found = returned(script)
            except RequestTimeout:
                continue
            assert found is not None
            assert found.joined.member == script.now.nodes["c"].member
            assert script.now.nodes["c"].start_id == "new"
        assert len({each.nodes["c"].member for each in script.states}) == 2


def test_a_member_that_lags_misleads_nobody() -> None:
    """What it tells is refused, and asked for anew; by the state of before a run, and of before this one was in."""
    script = Script(state())
    returned(script, "other")
    script.shown = script.states[0]
    with pytest.raises(NotLeader, match="which its disk does not know"):
        returned(script)
    found = returned(script)
    assert found is not None
    script.shown = script.states[0]
    again = returned(script)
    assert again is not None
    assert again.joined.member == found.joined.member == script.now.nodes["c"].member


def test_a_run_that_is_there_keeps_its_name() -> None:
    """The leader says so, and its word is passed on; then it may come back. By one refusal."""
    script = Script(state())
    script.before = once(NotLeader("run c 1 is there", rival="c 1"))
    with pytest.raises(NotLeader) as caught:
        returned(script)
    assert caught.value.details["rival"] == "c 1"
    assert script.now == state()
    assert returned(script) is not None


def test_a_state_that_does_not_fit_is_refused() -> None:
    """By bytes that are none, and a state without the node."""

    class Wrong(Script):
        async def state(self, index: int) -> Joined:
            return Joined(member=3, snapshot=Snapshot(9, 1, Members((1,)), self.said))

        said = b"\xc1"

    wrong = Wrong(state())
    with pytest.raises(ProtocolError, match="does not fit"):
        returned(wrong)
    wrong.said = encode_state(ClusterState("id", "name"))
    with pytest.raises(ProtocolError, match="does not fit"):
        returned(wrong)
