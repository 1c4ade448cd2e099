"""What the operators' commands print, from fixed answers."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from mirrorlog.client import Client
from mirrorlog.errors import Refused
from mirrorlog.tools.cluster import UnseenEvents, event_line, former_view, nodes_of
from mirrorlog.tools.common.output import page
from mirrorlog.tools.common.views import View
from mirrorlog.tools.masters import (
    PromotionReport,
    RebalancePlan,
    bytes_left,
    plan_view,
    promote_view,
    rebalance_view,
    reports_of,
    still_held,
    until_drained,
)
from mirrorlog.wire.messages.operators import (
    ClusterEvent,
    CopyPromoted,
    CopyReport,
    Events,
    FormerFreed,
    FormerKept,
    MasterMove,
    PlannedMove,
    Rebalanced,
)
from mirrorlog.wire.messages.queues import MoveOfQueue
from mirrorlog.wire.messages.status import FormerStatus
from tests.tools.goldens import golden
from tests.tools.statuses import LOG_ID, NOW_US, OUTAGE, VIEW, placed

MOVES = [
    MasterMove(log_id=LOG_ID, name="main", source="n2", target="n1"),
    MasterMove(log_id="two", name="other", source="", target="n3", reason="the log has no master"),
]
PLANNED = [
    PlannedMove(
        log_id=LOG_ID,
        name="main",
        source=["n1", "n2"],
        target=["n4", "n2"],
        why="under way",
        size_bytes=12_345_678_912,
        under_way=True,
    ),
    PlannedMove(
        log_id="2", name="other", source=["n1", "n2"], target=["n2", "n1"], why="n1 is home to 3 logs, n2 to 1"
    ),
    PlannedMove(log_id="3", name="third", source=["n3"], target=["n4"], why="n3 leaves"),
]
QUEUES = [
    MoveOfQueue(
        queue="orders",
        source="2-copies-disk-n1",
        target="on-n3-disk-n3",
        number=7,
        why="nodes = ['n3'], not None",
        records=12_345,
        reason="nobody masters that log at the moment",
        told=True,
    ),
    MoveOfQueue(queue="left", source="main", target="other", number=8, stage="left", records=1, pieces=12, told=True),
    MoveOfQueue(
        queue="later", source="main", target="1-copies-disk", stage="wanted", why="copies = 1, not 3", told=True
    ),
    MoveOfQueue(queue="unknown", source="far", target="main", number=9, reason="nobody who answers masters log far"),
    MoveOfQueue(queue="", source="", target="", stage="unknown", reason="node n1: down; what shall move is not known"),
]
PLAN = RebalancePlan(moves=MOVES, done=False, copies=PLANNED, left_bytes={LOG_ID: (1_048_576_000, 104_857_600.0)})
WOULD = CopyPromoted(log_id=LOG_ID, name="main", missing=["n3"], able=["n1", "n2", "n4"])
COPIES = [
    CopyReport(node_id="n1", last_epoch=3, end=12_345_678_912, confirmed=12_345_416_768),
    CopyReport(node_id="n2", error="node n2 did not answer within 2000 ms"),
]
DONE = CopyPromoted(
    log_id=LOG_ID,
    name="main",
    missing=["n3"],
    able=["n1", "n2"],
    done=True,
    node="n1",
    epoch=4,
    lost_from=12_345_678_912,
    copies=COPIES,
)
FORMER = [
    FormerStatus(
        log_id=LOG_ID, name="main", size_bytes=12_345_678_912, since_us=NOW_US, goes_us=NOW_US + 86_400_000_000
    ),
    FormerStatus(log_id="two", name="other", size_bytes=1000, since_us=NOW_US, removed=True),
]
KEPT = [FormerKept(log_id="three", name="third", reason="no node that is up has a whole copy of log third in sync")]
ABSENT = [FormerKept(log_id="", name="", reason="no connection to 127.0.0.1:7403")]


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("former_dry.txt", former_view([FormerFreed(node="n1", freed=FORMER), FormerFreed(node="n2")], done=False)),
        (
            "former_freed.txt",
            former_view(
                [FormerFreed(node="n1", freed=FORMER[:1], kept=KEPT), FormerFreed(node="n3", kept=ABSENT)], done=True
            ),
        ),
        ("former_none.txt", former_view([FormerFreed(node="n1")], done=True)),
        ("rebalance_dry.txt", rebalance_view(Rebalanced(moves=MOVES, done=False), waited=False)),
        ("rebalance.txt", rebalance_view(Rebalanced(moves=MOVES, done=True), waited=True)),
        ("rebalance_plan.txt", plan_view(PLAN, waited=False)),
        ("rebalance_queues.txt", plan_view(RebalancePlan(moves=[], done=False, queues=QUEUES), waited=False)),
        ("rebalance_paused.txt", plan_view(RebalancePlan(moves=[], done=False, paused=True), waited=False)),
        ("promote_dry.txt", promote_view(PromotionReport(answer=WOULD, copies=reports_of(WOULD, OUTAGE)), to="n2")),
        ("promote.txt", promote_view(PromotionReport(answer=DONE, copies=COPIES), to="")),
    ],
)
def test_a_view_is_printed_as_recorded(name: str, view: View) -> None:
    """Goal: the layout changes on purpose only. Method: compare with the golden text."""
    text = page(view)
    assert text == golden(name, text)


def test_nothing_to_move_is_one_line() -> None:
    """Goal: a script sees at once that all is well. Method: no moves."""
    assert page(rebalance_view(Rebalanced(moves=[], done=True), waited=False)) == "every log is mastered by its home\n"


def test_what_is_left_to_be_copied_is_what_new_mirrors_lack() -> None:
    """Goal: progress is of the copies that are made, not of mirrors that lag for other reasons. Method: a log whose
    mirror n3 is behind, on its way to n3, and to others."""
    (move, *_) = PLANNED
    assert bytes_left([move], OUTAGE) == {}
    to_n3 = PlannedMove(**{name: getattr(move, name) for name in move.__struct_fields__} | {"target": ["n3"]})
    assert bytes_left([to_n3], OUTAGE) == {LOG_ID: (12_345_678_912, 0.0)}


def test_what_a_leaving_node_still_holds_is_named() -> None:
    """Goal: who waits knows for what. Method: a node that does not leave, one that does, a log under way, a pause."""
    assert still_held(VIEW, "n1") == ["the node that answers does not know yet that n1 leaves"]
    nodes = [replace(node, leaving=node.node_id == "n1") for node in VIEW.nodes]
    leaves = replace(VIEW, nodes=nodes, logs=[placed("a"), placed("b", target=["n2", "n4"])], moving_paused=True)
    assert still_held(leaves, "n1") == [
        "log a (its turn has not come)",
        "log b (on its way to n2, n4)",
        "moving is paused: mqtool rebalance --resume",
    ]
    assert still_held(replace(leaves, logs=[placed("c", replicas=["n2", "n3"])]), "n1") == []


def test_a_node_in_no_cluster_has_no_view() -> None:
    """Goal: an empty table never stands for "not known". Method: a status without a cluster."""
    with pytest.raises(Refused, match="node n1 is in no cluster yet"):
        nodes_of(OUTAGE.nodes[0], OUTAGE)


def test_an_event_is_one_line() -> None:
    """Goal: it can be cut and searched. Method: one with a time, one from before the node's run."""
    event = ClusterEvent(number=1, time_us=NOW_US, kind="node_left", text="node n3, member 3, was forgotten")
    assert event_line(event) == "2026-11-21T11:41:31.850Z  node_left            node n3, member 3, was forgotten"
    old = ClusterEvent(number=1, time_us=0, kind="promoted", text="log main: n1 is master, epoch 1, clean")
    assert event_line(old) == f"{'-':<24}  promoted             log main: n1 is master, epoch 1, clean"


def answer(run: str, *events: ClusterEvent) -> Events:
    last = events[-1].number if events else 0
    return Events(node_id=f"n{run}", start_id=run, now_us=NOW_US, first=1, last=last, events=list(events))


def event(number: int, *, index: int = 0, time_us: int = 0) -> ClusterEvent:
    return ClusterEvent(number=number, time_us=time_us, kind="k", text="", index=index)


def test_within_a_run_every_event_is_shown_once() -> None:
    """Goal: nothing twice, nothing left out, also two events of one entry. Method: answers that overlap."""
    fresh = UnseenEvents()
    assert [each.number for each in fresh.take(answer("1", event(1, index=5), event(2, index=5)))] == [1, 2]
    assert fresh.after == 2
    assert fresh.take(answer("1", event(2, index=5))) == []
    assert [each.number for each in fresh.take(answer("1", event(3, index=5), event(4, time_us=1)))] == [3, 4]
    assert fresh.take(answer("1")) == []
    assert fresh.after == 4


def test_another_run_goes_on_where_the_last_one_was_left() -> None:
    """Goal: a node that dies ends no watching. Method: another run, asked by a number that is not its own, then from
    its begin."""
    fresh = UnseenEvents()
    fresh.take(answer("1", event(1, index=5, time_us=10), event(2, time_us=20)))
    assert fresh.take(answer("2", event(7, index=9, time_us=30))) == []
    assert fresh.after == 0
    known = [event(1, index=4), event(2, index=5, time_us=9), event(3, time_us=15)]
    new = [event(4, index=6, time_us=21), event(5, index=6, time_us=21), event(6, time_us=22)]
    found = fresh.take(answer("2", *known, *new))
    assert [each.number for each in found] == [4, 5, 6]


async def test_who_ends_the_wait_for_a_drain_is_told_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: Ctrl-C is not taken for an end of the drain. Method: a wait that is cancelled, as Ctrl-C does it, while the
    node is asked."""
    asked, silence = asyncio.Event(), asyncio.Event()

    class Silent:
        async def status(self) -> None:
            asked.set()
            await silence.wait()

    client = cast("Client", SimpleNamespace(admin=Silent()))
    waiting = asyncio.ensure_future(until_drained(client, "n1", empty=True, timeout_s=60.0))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    told = capsys.readouterr().err
    assert told == "nobody waits any more, and the drain of node n1 goes on; mqtool drain n1 --undo ends it\n"
