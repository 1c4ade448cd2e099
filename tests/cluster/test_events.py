"""What the cluster decided, told to who watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mirrorlog.cluster.decisions import asked_by, signed
from mirrorlog.cluster.raft.messages import EntryKind, Members, RaftEntry, Snapshot
from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LogAltered,
    LogMade,
    LogRemoved,
    LossEndFound,
    MasterWished,
    MovingPaused,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeLeaving,
    NodeStarted,
    NodeStopped,
    OffsetJumpConfirmed,
    Promoted,
    QueuesPlaced,
    QueueSyncWished,
    RecordsCopied,
    ReplicaAdded,
    ReplicaRemoved,
    ReplicaRetired,
    ReplicasWished,
    Seen,
    StartKind,
    VersionRaised,
)
from mirrorlog.cluster.state.events import LOGGED, Event, events_of, line_of
from mirrorlog.cluster.state.machine import Machine
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.cluster.state.state import ClusterState, encode_state
from mirrorlog.cluster.state.topology_commands import (
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    UserLimitsSet,
    UserRemoved,
    UserSet,
    VirtualHostMade,
    VirtualHostRemoved,
)
from mirrorlog.versions import run_id
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.names import qualified
from mirrorlog.wire.policies import Policy


class History:
    """Commands applied one after the other, and the events that they gave."""

    def __init__(self) -> None:
        self._machine = Machine(Snapshot(0, 0, Members((1,)), encode_state(ClusterState("id", "testing"))))

    def tell(self, *commands: Command) -> list[Event]:
        found = []
        for command in commands:
            entry = RaftEntry(self._machine.index + 1, 1, EntryKind.COMMAND, encode_command(command))
            for step in self._machine.apply([entry]):
                found += events_of(step)
        return found

    @property
    def seen(self) -> Seen:
        return self._machine.state.logs["log"].seen


def started(*nodes: str, run: int = 1, kind: StartKind = StartKind.CLEAN) -> list[Command]:
    before = "" if run == 1 else f"{run - 1}"
    return [
        NodeStarted(node=node, start_id=f"{run}", kind=kind, addresses=Addresses(), before=before) for node in nodes
    ]


def with_log() -> History:
    """Nodes a, b and c, and a log of a and b that a masters."""
    history = History()
    history.tell(*(NodeJoined(node=node, addresses=Addresses()) for node in "abc"), *started(*"abc"))
    history.tell(LogMade(log_id="log", number=0, name="main", flush="memory", replicas=("a", "b")))
    history.tell(Promoted(log_id="log", seen=history.seen, holder=Holder("a", "1"), epoch=1))
    history.tell(InSyncGrown(log_id="log", seen=history.seen, holder=Holder("b", "1")))
    return history


def kinds(events: Sequence[Event]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.node, event.log) for event in events]


def test_a_nodes_life_is_told() -> None:
    """From joining to leaving, each with its entry; by one life."""
    history = History()
    found = history.tell(
        NodeJoined(node="a", addresses=Addresses(), witness=True),
        *started("a"),
        NodeDraining(node="a", draining=True),
        NodeDraining(node="a", draining=False),
        NodeStopped(node="a", start_id="1"),
        NodeForgotten(node="a"),
    )
    assert [event.kind for event in found] == [
        "node_joined", "node_started", "node_draining", "node_undrained", "node_stopped", "node_left",
    ]  # fmt: skip
    assert [event.index for event in found] == [1, 2, 3, 4, 5, 6]
    assert {event.node for event in found} == {"a"}
    assert found[0].text == "node a joined as a witness, member 1"


def test_a_logs_life_is_told() -> None:
    """Its making, its masters, its copies and its in-sync set; by one life."""
    history = with_log()
    assert kinds(history.tell(MasterWished(log_id="log", seen=history.seen, node="b"))) == [
        ("master_wished", "b", "main")
    ]
    (promoted,) = history.tell(Promoted(log_id="log", seen=history.seen, holder=Holder("b", "1"), epoch=2))
    assert promoted.details == {"from": "a", "to": "b", "epoch": 2, "clean": True}
    assert promoted.text == "log main: b is master after a, epoch 2, clean"
    (shrunk,) = history.tell(InSyncShrunk(log_id="log", seen=history.seen, nodes=("a",)))
    assert (shrunk.kind, shrunk.node, shrunk.details["in_sync"]) == ("in_sync_shrunk", "a", ["b"])
    assert kinds(history.tell(ReplicaAdded(log_id="log", seen=history.seen, node="c"))) == [
        ("replica_added", "c", "main")
    ]
    assert kinds(history.tell(ReplicaRemoved(log_id="log", seen=history.seen, node="a"))) == [
        ("replica_removed", "a", "main")
    ]


def test_a_log_that_moves_is_told() -> None:
    """Its rule, where it goes, what it leaves, and its end; by a log that goes from a and b to c and b, one that is
    taken back, one that is removed, a pause, and a node that leaves."""
    history = with_log()
    told = history.tell(
        LogAltered(log_id="log", seen=history.seen, placement=Placement(copies=2)),
    )
    told += history.tell(ReplicasWished(log_id="log", seen=history.seen, nodes=("c", "a")))
    told += history.tell(ReplicasWished(log_id="log", seen=history.seen, nodes=()))
    told += history.tell(ReplicasWished(log_id="log", seen=history.seen, nodes=("a", "c")))
    history.tell(ReplicaAdded(log_id="log", seen=history.seen, node="c"))
    history.tell(InSyncGrown(log_id="log", seen=history.seen, holder=Holder("c", "1")))
    told += history.tell(ReplicaRetired(log_id="log", seen=history.seen, node="b"))
    history.tell(LogAltered(log_id="log", seen=history.seen, placement=Placement(copies=1)))
    history.tell(ReplicasWished(log_id="log", seen=history.seen, nodes=("a",)))
    told += history.tell(ReplicaRetired(log_id="log", seen=history.seen, node="c"))
    told += history.tell(MovingPaused(paused=True), MovingPaused(paused=True), MovingPaused(paused=False))
    told += history.tell(NodeLeaving(node="b", leaving=True), NodeLeaving(node="b", leaving=False, by="ann"))
    told += history.tell(LogRemoved(log_id="log", seen=history.seen))
    assert [(each.kind, each.node, each.text) for each in told] == [
        ("log_altered", "", "log main is by the rule 2-copies-memory from now on"),
        ("replicas_wished", "", "log main goes from a, b to c, a"),
        ("replicas_wished", "", "log main stays on a, b"),
        ("replicas_wished", "", "log main goes from a, b to a, c"),
        ("replica_retired", "b", "log main has no copy on b any more; 2 others are in sync"),
        ("replica_retired", "c", "log main has no copy on c any more; 1 other is in sync"),
        ("moving_paused", "", "nothing moves any more"),
        ("moving_resumed", "", "moving goes on"),
        ("node_leaving", "b", "node b leaves: its copies go elsewhere"),
        ("node_stays", "b", "node b stays; ann asked for it"),
        ("log_removed", "", "log main, number 0, was removed: nothing was in it"),
    ]
    assert told[0].details == {"copies": 2}
    assert line_of(told[4]) == "replica_retired log=main node=b replicas=a,c whole=a,c staying=a,b,c"
    assert line_of(told[6]) == "moving_paused"
    assert told[1].details == {"from": ["a", "b"], "to": ["c", "a"]}


def test_a_raise_of_the_clusters_version_is_told() -> None:
    """Once, whatever often it is asked for; by one node that can do it."""
    history = History()
    start = NodeStarted(node="a", start_id=run_id("1", 2), kind=StartKind.CLEAN, addresses=Addresses())
    history.tell(NodeJoined(node="a", addresses=Addresses()), start)
    (raised,) = history.tell(VersionRaised(version=2), VersionRaised(version=2))
    assert (raised.kind, raised.index, raised.details) == ("version_raised", 3, {"version": 2})
    assert raised.text == "the cluster runs at version 2, for good"


def test_a_loss_is_told_from_its_declaration_to_its_end() -> None:
    """By an unclean promotion, a leap, and a copy that returns."""
    history = with_log()
    unclean = Promoted(log_id="log", seen=history.seen, holder=Holder("b", "1"), epoch=2, unclean=True, lost_from=4_096)
    promoted, declared = history.tell(unclean)
    assert not promoted.details["clean"]
    assert (declared.kind, declared.details) == ("loss_declared", {"epoch": 2, "start": 4_096})
    assert promoted.index == declared.index
    assert kinds(history.tell(OffsetJumpConfirmed(log_id="log", seen=history.seen))) == [("leap_confirmed", "", "main")]
    (found,) = history.tell(LossEndFound(log_id="log", epoch=2, end=8_192))
    assert found.text == "log main: lost when epoch 2 began is 4096..8192 or further"


def test_a_start_that_has_lost_something_says_which_copies_are_marked() -> None:
    """And that nobody is left who has everything; by lossy starts of both."""
    history = with_log()
    assert [event.kind for event in history.tell(*started("b", run=2, kind=StartKind.LOSSY))] == [
        "node_started", "copy_marked",
    ]  # fmt: skip
    assert [event.kind for event in history.tell(*started("a", run=2, kind=StartKind.LOSSY))] == [
        "node_started", "copy_marked", "log_recovering",
    ]  # fmt: skip


def test_what_was_refused_or_changed_nothing_is_not_told() -> None:
    """By commands that are late, doubled, or of no concern to an operator."""
    history = with_log()
    late = Promoted(log_id="log", seen=Seen(0, 0), holder=Holder("b", "1"), epoch=9)
    assert history.tell(late, *started("a"), NodeForgotten(node="x")) == []
    assert history.tell(QueuesPlaced(log_id="log", names=("q",))) == []


def test_what_a_user_asked_for_says_so() -> None:
    """Goal: one can tell who changed what, and no hash is shown. Method: each change of users and virtual hosts by
    somebody; a change by a node itself; one that changes nothing."""
    told = History().tell(
        VirtualHostMade(name="shop", by="root"),
        VirtualHostMade(name="shop", by="root"),
        UserSet(name="ann", password_hash="HASH", tags=("administrator",), by="root"),
        UserSet(name="ann", password_hash="OTHER", by="ann"),
        UserSet(name="ann", tags=("administrator", "x"), by="ann"),
        PermissionsSet(user="ann", virtual_host="shop", configure="", write="a", read=".*", by="root"),
        PermissionsCleared(user="ann", virtual_host="shop", by="root"),
        UserLimitsSet(user="ann", limits=UserLimits(max_connections=3, read_byte_rate=70), by="root"),
        UserLimitsSet(user="ann", limits=UserLimits(), by="root"),
        VirtualHostRemoved(name="shop"),
        UserSet(name="bob", by="ann"),
        UserRemoved(name="bob", by="ann"),
    )
    assert [(each.kind, each.text) for each in told] == [
        ("virtual_host_added", "virtual host shop was added; root asked for it"),
        ("user_set", "user ann was added, tags: administrator; root asked for it"),
        ("user_set", "user ann was changed, tags: administrator, another password; ann asked for it"),
        ("user_set", "user ann was changed, tags: administrator, x; ann asked for it"),
        ("permissions_set", "user ann may in virtual host shop: configure '', write 'a', read '.*'; root asked for it"),
        ("permissions_cleared", "user ann may do nothing any more in virtual host shop; root asked for it"),
        (
            "user_limits_set",
            "user ann has these limits on each node: max_connections 3, read_byte_rate 70; root asked for it",
        ),
        ("user_limits_set", "user ann has these limits on each node: none; root asked for it"),
        ("virtual_host_deleted", "virtual host shop was deleted"),
        ("user_set", "user bob was added, tags: none; ann asked for it"),
        ("user_deleted", "user bob was deleted; ann asked for it"),
    ]
    assert told[0].details == {"virtual_host": "shop", "by": "root"}
    assert told[6].details == {"user": "ann", "max_connections": 3, "read_byte_rate": 70, "by": "root"}
    assert "by" not in told[8].details
    assert all("HASH" not in str(each) and "OTHER" not in str(each) for each in told)


def test_policies_are_told_with_what_they_say() -> None:
    """Goal: one can tell which policy came when, from whom, and what it said. Method: a policy that is set, set once
    more as it was, changed, and cleared twice; one of operators."""
    two = Policy("^q", {"ha-mode": "exactly", "ha-params": 2}, "queues", 1)
    told = History().tell(
        PolicySet(virtual_host="/", name="two", policy=two, by="ann"),
        PolicySet(virtual_host="/", name="two", policy=two),
        PolicySet(virtual_host="/", name="cap", policy=Policy(".", {"max-length": 5}, "queues"), operator=True),
        PolicyCleared(virtual_host="/", name="two", by="ann"),
        PolicyCleared(virtual_host="/", name="two"),
    )
    definition = '{"ha-mode":"exactly","ha-params":2}'
    assert [(each.kind, each.text) for each in told] == [
        (
            "policy_set",
            f"policy two of virtual host / was set: queues that fit '^q', priority 1: {definition}; ann asked for it",
        ),
        ("policy_set", "operator policy cap of virtual host / was set: queues that fit '.', priority 0: "
                       '{"max-length":5}'),
        ("policy_cleared", "policy two of virtual host / was cleared; ann asked for it"),
    ]  # fmt: skip
    assert line_of(told[0]) == (
        "policy_set policy=two virtual_host=/ operator=False pattern=^q apply_to=queues priority=1 "
        f"definition={definition} by=ann"
    )
    assert line_of(told[2]) == "policy_cleared policy=two virtual_host=/ operator=False by=ann"


def test_no_text_of_a_client_makes_a_line_of_the_log_read_as_another() -> None:
    """Goal: nobody who may set a policy writes lines into the logs of all nodes. Method: a pattern with a line break, a
    name with blanks, one that is quoted already, and a queue of another virtual host."""
    odd = Policy("^a\nnode_left node=n1|\u2028", {"max-length": 5}, "queues")
    (told,) = History().tell(PolicySet(virtual_host="/", name="two of=them", policy=odd))
    assert line_of(told) == (
        "policy_set policy='two of=them' virtual_host=/ operator=False pattern='^a\\nnode_left node=n1|\\u2028' "
        'apply_to=queues priority=0 definition={"max-length":5}'
    )
    event = Event(kind="sync_begun", text="", details={"queue": qualified("shop", "orders"), "by": "'ann'"})
    assert line_of(event) == """sync_begun queue='orders in virtual host shop' by="'ann'\""""


def test_every_node_logs_what_concerns_mirrors_and_policies() -> None:
    """Goal: one line for each, whoever's log is read. Method: the kinds of commands that are logged beside the ring."""
    assert {PolicySet, PolicyCleared, ReplicaAdded, ReplicaRetired, QueueSyncWished, RecordsCopied, Promoted} <= {
        *LOGGED
    }


async def test_a_command_is_signed_where_its_request_came_in_and_nowhere_else() -> None:
    """Goal: what a node does by itself is nobody's. Method: within, in a task that is made within and goes on later,
    outside, and one that says somebody already."""
    command = VirtualHostMade(name="v")
    go = asyncio.Event()

    async def later() -> str:
        await go.wait()
        return signed(command).by

    with asked_by("ann"):
        task = asyncio.ensure_future(later())
        assert signed(command).by == "ann"
        assert signed(VirtualHostMade(name="v", by="bob")).by == "bob"
    assert signed(command) is command
    go.set()
    assert await task == "ann"
    assert decode_command(encode_command(command)) == command
