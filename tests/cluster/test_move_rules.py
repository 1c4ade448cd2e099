"""What the cluster allows of queues that move between logs, and what it remembers of where they were."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.raft.messages import EntryKind, RaftEntry
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    LogMade,
    LogRemoved,
    MoveBegun,
    MoveCancelled,
    Promoted,
    QueuesMoved,
    QueuesPlaced,
    QueuesRemoved,
    QueueSyncWished,
    RecordsCopied,
    SpanEnded,
    SpanSeen,
    TransientLogMade,
)
from mirrorlog.cluster.state.events import events_of
from mirrorlog.cluster.state.machine import AppliedEntry, applied
from mirrorlog.cluster.state.move_rules import why_not
from mirrorlog.cluster.state.placements import SPANS_KEPT, SPANS_LIVE_MAX, MovingQueue, Placement, Span
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, decode_state, encode_state


class World:
    """A cluster of two nodes with the logs A, B and C, and queues in A."""

    def __init__(self, *queues: str) -> None:
        nodes = {name: NodeFacts(number, Addresses(), start_id="run") for number, name in enumerate("ab", 1)}
        self.state = ClusterState(
            "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8", "c", nodes=nodes, cluster_version=versions.OWN
        )
        self.index = 0
        self.told: list[str] = []
        for number, log_id in enumerate("ABC"):
            rule = Placement(copies=1, flush="memory" if number else "disk")
            self.apply(LogMade(log_id=log_id, number=number, name=f"log{log_id}", flush=rule.flush, replicas=("a",),
                               copies=1, placement=rule))  # fmt: skip
        self.apply(QueuesPlaced(log_id="A", names=queues))

    def apply(self, command: Command) -> str:
        """The refusal, if it is one. What changes nothing changes nothing; what a snapshot keeps is the same."""
        self.index += 1
        before = self.state
        self.state, outcome = applied(before, self.index, command)
        entry = RaftEntry(self.index, 1, EntryKind.COMMAND, b"")
        self.told += [event.kind for event in events_of(AppliedEntry(entry, command, before, self.state, outcome))]
        assert not outcome.refusal or self.state is before
        assert decode_state(encode_state(self.state)) == self.state
        return outcome.refusal

    def move(self, *names: str, to: str, log_group: str = "") -> int:
        """Begin a move; its number."""
        assert not self.apply(MoveBegun(names=names, target=to, log_group=log_group))
        return self.state.placing.moves[names[0]].number

    def seen(self, name: str, log_id: str) -> SpanSeen:
        """The newest span of a queue in that log, but for where it is."""
        span = next(span for span in self.state.placing.spans[name][-2::-1] if span.log_id == log_id)
        return SpanSeen(self.state.queues[name], self.state.placing.came.get(name, 0), span.first)

    def copied(self, name: str, log_id: str, first: int) -> str:
        return self.apply(RecordsCopied(name=name, log_id=log_id, first=first, span=self.seen(name, log_id)))

    def lead(self, log_id: str, *, lost_from: int | None = None) -> None:
        """Node a masters the log, in a new epoch."""
        log = self.state.logs[log_id]
        promoted = Promoted(log_id=log_id, seen=log.seen, holder=Holder("a", "run"), epoch=log.epoch + 1,
                            lost_from=lost_from)  # fmt: skip
        assert not self.apply(promoted)

    def moved(self, *names: str, to: str, at: int) -> None:
        number = self.move(*names, to=to)
        assert not self.apply(QueuesMoved(number=number, first=dict.fromkeys(names, at)))


def test_a_queue_that_moved_has_a_span_in_each_log() -> None:
    """From its first offset on; and no other queue has any."""
    world = World("q", "other")
    number = world.move("q", to="B")
    assert world.state.placing.moves == {"q": MovingQueue(number, "A", "B")}
    assert world.state.queues["q"] == "A"
    assert not world.apply(QueuesMoved(number=number, first={"q": 10}))
    assert (world.state.queues["q"], world.state.placing.moves) == ("B", {})
    world.moved("q", to="A", at=20)
    assert world.state.placing.spans == {"q": (Span("A", 0), Span("B", 10), Span("A", 20))}
    assert world.told[-4:] == ["move_begun", "queue_moved", "move_begun", "queue_moved"]


def test_what_is_said_twice_counts_once() -> None:
    """A move that is begun, has come about or is cancelled already."""
    world = World("q")
    number = world.move("q", to="B")
    assert world.move("q", to="B") == number
    assert not world.apply(QueuesMoved(number=number, first={"q": 1}))
    assert "there is no move" in world.apply(QueuesMoved(number=number, first={"q": 1}))
    assert not world.apply(MoveBegun(names=("q",), target="B"))
    assert world.state.placing.moves == {}
    assert not world.apply(MoveCancelled(number=number))
    assert world.state.queues["q"] == "B"


def test_a_cancelled_move_does_not_come_about() -> None:
    """Whoever says later that the queue is there is refused, also when it moves to the same log again."""
    world = World("q")
    first = world.move("q", to="B")
    assert not world.apply(MoveCancelled(number=first))
    second = world.move("q", to="B")
    assert second != first
    assert "there is no move" in world.apply(QueuesMoved(number=first, first={"q": 1}))
    assert world.state.queues["q"] == "A"
    assert "move_cancelled" in world.told


@pytest.mark.parametrize("log_id", ["A", "B"])
def test_a_loss_that_is_declared_of_either_log_ends_a_move(log_id: str) -> None:
    """What had come to the target counts no more, though its master may say later that all of it is there: the source
    may have lost that the queue had left, and takes publishes for it again."""
    world = World("q", "beside")
    world.lead(log_id)
    number = world.move("q", to="B")
    beside = world.move("beside", to="C")
    world.lead(log_id)
    assert world.state.placing.moves.keys() == {"q", "beside"}, "nothing was lost"
    world.lead(log_id, lost_from=100)
    assert "there is no move" in world.apply(QueuesMoved(number=number, first={"q": 10}))
    assert world.state.queues["q"] == "A"
    assert world.told.count("move_cancelled") == (2 if log_id == "A" else 1)
    assert ("beside" in world.state.placing.moves) == (log_id == "B")
    assert world.move("q", to="B") > beside


def test_software_of_version_6_agrees_that_a_loss_ends_no_move() -> None:
    world = World("q")
    world.state = replace(world.state, cluster_version=versions.PLACEMENTS)
    world.lead("A")
    world.move("q", to="B")
    world.lead("A", lost_from=100)
    assert "q" in world.state.placing.moves


def test_the_queues_of_a_group_are_one_move() -> None:
    """All of them or none; the group goes along, and nobody joins it meanwhile."""
    world = World()
    world.apply(QueuesPlaced(log_id="A", names=("q", "p"), log_group="g"))
    number = world.move("q", "p", to="B", log_group="g")
    joins = QueuesPlaced(log_id="A", names=("late",), log_group="g")
    assert "are moving to another log; ask again" in world.apply(joins)
    assert "and of no others" in world.apply(QueuesMoved(number=number, first={"q": 1}))
    assert not world.apply(QueuesMoved(number=number, first={"q": 1, "p": 2}))
    assert world.state.log_groups == {"g": "B"}
    assert not world.apply(joins)
    assert world.state.queues["late"] == "B"


@pytest.mark.parametrize(
    ("names", "target", "reason"),
    [
        (("q",), "X", "there is no log X"),
        (("none",), "B", "there is no queue none"),
        (("q", "far"), "B", "queues of several logs cannot be one move"),
        (("q", "there"), "B", "queues of several logs cannot be one move"),
        (("q",), "t", "does not move, and nothing moves there"),
        (("passing",), "B", "does not move, and nothing moves there"),
        (("moving",), "B", "is moving to log logC; wait for that"),
    ],
)
def test_what_cannot_move_is_refused(names: tuple[str, ...], target: str, reason: str) -> None:
    """By the reason: an unknown log or queue, queues of several logs, what goes with its node, what moves elsewhere."""
    world = World("q", "moving")
    world.apply(QueuesPlaced(log_id="C", names=("far",)))
    world.apply(QueuesPlaced(log_id="B", names=("there",)))
    world.apply(TransientLogMade(log_id="t", number=9, node="a"))
    world.apply(QueuesPlaced(log_id="t", names=("passing",)))
    world.move("moving", to="C")
    assert reason in world.apply(MoveBegun(names=names, target=target))


def test_a_queue_that_moves_is_not_taken_away() -> None:
    """Its place stays until the move is over: a late deletion in the log that it leaves is of another one."""
    world = World("q", "p")
    world.move("q", to="B")
    world.apply(QueuesRemoved(names=("q", "p"), log_id="A", epoch=0, removals=0))
    assert world.state.queues == {"q": "A"}


def test_spans_end_in_their_order_and_are_remembered() -> None:
    """An ended one is still there for positions that name its log; the log itself may go."""
    world = World("q")
    world.moved("q", to="B", at=10)
    world.moved("q", to="C", at=20)
    assert "they end first" in world.apply(SpanEnded(name="q", log_id="B"))
    seen = world.state.logs["A"].seen
    assert "or spans" in world.apply(LogRemoved(log_id="A", seen=seen))
    assert not world.apply(SpanEnded(name="q", log_id="A"))
    assert world.state.placing.spans["q"] == (Span("A", 0, ended=True), Span("B", 10), Span("C", 20))
    assert not world.apply(SpanEnded(name="q", log_id="A"))
    assert not world.apply(SpanEnded(name="q", log_id="C")), "where it is now nothing ends"
    assert world.state.placing.spans["q"][-1] == Span("C", 20)
    assert not world.apply(LogRemoved(log_id="A", seen=seen))
    assert "A" not in world.state.logs
    assert world.state.placing.ids_given == {"0": 4096}


def test_of_a_queue_that_moves_for_ever_not_all_spans_are_kept() -> None:
    """The newest; and each that has records, however many."""
    world = World("q")
    for number in range(2 * SPANS_KEPT):
        here, there = ("A", "B") if number % 2 == 0 else ("B", "A")
        world.moved("q", to=there, at=number)
        world.apply(SpanEnded(name="q", log_id=here))
    assert len(world.state.placing.spans["q"]) == SPANS_KEPT
    world = World("q")
    for number in range(2 * SPANS_KEPT):
        world.moved("q", to="AB"[(number + 1) % 2], at=number)
    assert len(world.state.placing.spans["q"]) == 2 * SPANS_KEPT + 1


def test_a_deleted_queue_leaves_nothing() -> None:
    """Neither spans nor a place."""
    world = World("q")
    world.moved("q", to="B", at=10)
    assert not world.apply(QueuesRemoved(names=("q",), log_id="B", epoch=0, removals=0))
    assert (world.state.queues, world.state.placing.spans) == ({}, {})


def test_a_queue_with_records_in_many_logs_stays_until_some_are_gone() -> None:
    """Goal: how many logs and nodes it takes to read a queue is bounded. Method: it goes to and fro, and nothing of it
    is freed; then the oldest span ends."""
    world = World("q")
    for number in range(SPANS_LIVE_MAX - 1):
        assert not why_not(world.state, MoveBegun(names=("q",), target="BA"[number % 2]))
        world.moved("q", to="BA"[number % 2], at=number + 1)
    further = MoveBegun(names=("q",), target="C")
    assert "has records in 8 logs already" in why_not(world.state, further)
    assert "retention_ms" in why_not(world.state, further)
    assert not world.apply(SpanEnded(name="q", log_id="A"))
    assert not why_not(world.state, further)
    assert "there is no log X" in why_not(world.state, MoveBegun(names=("q",), target="X"))


def test_what_was_copied_is_of_the_newest_span_from_then_on() -> None:
    """From the queue offset that is told; a span of which nothing is left has ended, the newest first."""
    world = World("q")
    world.moved("q", to="B", at=10)
    world.moved("q", to="C", at=20)
    assert not world.apply(QueueSyncWished(name="q"))
    assert "is not the one" in world.copied("q", "A", 5)
    assert not world.copied("q", "B", 15)
    assert world.state.placing.spans["q"] == (Span("A", 0), Span("B", 10), Span("C", 15))
    assert not world.copied("q", "B", 17), "said late"
    assert world.state.placing.spans["q"][-1] == Span("C", 15)
    assert not world.copied("q", "B", 4)
    assert world.state.placing.spans["q"] == (Span("A", 0), Span("B", 10, ended=True), Span("C", 10))
    assert "is not the one" in world.copied("q", "B", 4)
    assert not world.copied("q", "A", 6)
    assert world.state.placing.spans["q"] == (Span("A", 0), Span("B", 6, ended=True), Span("C", 6))
    assert world.state.placing.syncs
    assert not world.copied("q", "A", 0)
    assert world.state.placing.spans["q"][-1] == Span("C", 0)
    assert world.state.placing.syncs == {}
    assert world.told[-3:] == ["records_copied", "records_copied", "sync_ended"]


def said_of_a_span(world: World, name: str, log_id: str) -> tuple[Command, Command]:
    """That all of it was copied, and that nothing of it is left."""
    seen = world.seen(name, log_id)
    copied = RecordsCopied(name=name, log_id=log_id, first=seen.first, span=seen)
    return copied, SpanEnded(name=name, log_id=log_id, span=seen)


def test_what_is_said_late_of_a_span_ends_no_later_one_of_its_log() -> None:
    """The queue has come back to the log meanwhile, with all that it had, and gone to the same one again."""
    world = World("q")
    world.moved("q", to="C", at=10)
    late = said_of_a_span(world, "q", "A")
    assert not world.apply(late[0])
    world.moved("q", to="A", at=20)
    assert not world.copied("q", "C", 0)
    world.moved("q", to="C", at=30)
    assert world.seen("q", "A").first == 0
    for command in late:
        assert "has moved on" in world.apply(command)
    assert not world.state.placing.spans["q"][-2].ended


def test_what_is_said_twice_of_a_span_ends_no_later_one_of_its_log() -> None:
    """They were both there when it was said."""
    world = World("q")
    for number, log_id in enumerate("BAC", 1):
        world.moved("q", to=log_id, at=10 * number)
    ended = SpanEnded(name="q", log_id="A", span=SpanSeen("C", world.state.placing.came["q"], 0))
    assert not world.apply(ended)
    assert not world.apply(SpanEnded(name="q", log_id="B", span=world.seen("q", "B")))
    assert "has moved on" in world.apply(ended)
    assert not world.apply(SpanEnded(name="q", log_id="A", span=world.seen("q", "A")))


def test_what_is_said_late_of_a_queue_ends_no_span_of_the_next_one_of_its_name() -> None:
    world = World("q")
    world.moved("q", to="B", at=10)
    late = said_of_a_span(world, "q", "A")
    assert not world.apply(QueuesRemoved(names=("q",), log_id="B", epoch=0, removals=0))
    world.apply(QueuesPlaced(log_id="A", names=("q",)))
    world.moved("q", to="B", at=10)
    for command in late:
        assert "another one" in world.apply(command)
    assert not any(span.ended for span in world.state.placing.spans["q"])


def test_software_of_version_6_agrees_on_spans_that_end() -> None:
    """It looks at no more than queue and log, and says no more; nor does any software look at more in its cluster."""
    world = World("q", "p")
    for name in ("q", "p"):
        world.moved(name, to="B", at=10)
    assert not world.apply(SpanEnded(name="q", log_id="A"))
    assert world.state.placing.spans["q"][0].ended
    world.state = replace(world.state, cluster_version=versions.PLACEMENTS)
    assert not world.apply(SpanEnded(name="p", log_id="A", span=SpanSeen("C", 7, 7)))
    assert world.state.placing.spans["p"][0].ended


def test_what_somebody_has_cancelled_no_policy_has_copied_until_somebody_asks() -> None:
    """Goal: an automatic sync is wished for by whoever masters the log, again and again, and never against an operator.
    Method: the wish of a policy before and after a cancel, one that comes late, one of a queue that is on its way, or
    has nothing elsewhere; a cancel is over once nothing is left, and with the queue."""
    world = World("q", "p")
    automatic, places = QueueSyncWished(name="q", automatic=True), lambda: world.state.placing
    assert not world.apply(automatic)
    assert places().syncs == {}, "it has never moved"
    world.move("q", to="B")
    assert not places().may_sync_by_itself("q")
    assert not world.apply(automatic)
    assert places().syncs == {}, "it may go on elsewhere"
    assert not world.apply(QueuesMoved(number=places().moves["q"].number, first={"q": 10}))
    assert places().may_sync_by_itself("q")
    assert not world.apply(automatic)
    assert not world.apply(QueueSyncWished(name="q", wished=False))
    assert (places().syncs, places().may_sync_by_itself("q")) == ({}, False)
    assert not world.apply(automatic), "decided on what was so before"
    assert places().syncs == {}
    assert world.told[-1] == "sync_cancelled"
    assert not world.apply(QueueSyncWished(name="q"))
    assert (places().syncs.keys(), places().unsynced) == ({"q"}, {})
    assert not world.apply(QueueSyncWished(name="q", wished=False))
    assert not world.apply(SpanEnded(name="q", log_id="A", span=world.seen("q", "A")))
    assert places().unsynced == {}, "nothing is left of what was cancelled"
    world.moved("q", to="C", at=20)
    assert places().may_sync_by_itself("q")
    world.moved("p", to="B", at=10)
    assert not world.apply(QueueSyncWished(name="p", wished=False)), "before anybody wished for it"
    assert not places().may_sync_by_itself("p")
    assert not world.apply(QueuesRemoved(names=("p",), log_id="B", epoch=0, removals=0))
    assert places().unsynced == {}


def test_a_wish_to_sync_stays_while_there_is_something_to_copy() -> None:
    """Also of a queue that is on its way; it ends with a cancel, with the last record elsewhere, and with the queue."""
    world = World("q", "p")
    assert "there is no queue" in world.apply(QueueSyncWished(name="none"))
    assert not world.apply(QueueSyncWished(name="q"))
    assert world.state.placing.syncs == {}, "it has never moved"
    number = world.move("q", to="B")
    assert not world.apply(QueueSyncWished(name="q"))
    assert not world.apply(QueueSyncWished(name="q"))
    assert world.state.placing.syncs.keys() == {"q"}
    assert not world.apply(MoveCancelled(number=number))
    assert world.state.placing.syncs.keys() == {"q"}, "it is tried again"
    world.moved("q", to="B", at=10)
    world.moved("p", to="B", at=10)
    for name in "qp":
        assert not world.apply(QueueSyncWished(name=name))
    world.moved("q", to="C", at=20)
    assert not world.apply(QueueSyncWished(name="q", wished=False))
    assert not world.apply(QueueSyncWished(name="q", wished=False))
    assert world.state.placing.syncs.keys() == {"p"}
    assert not world.apply(SpanEnded(name="p", log_id="A"))
    assert world.state.placing.syncs == {}
    assert not world.apply(QueueSyncWished(name="q"))
    assert not world.apply(QueuesRemoved(names=("q",), log_id="C", epoch=0, removals=0))
    assert world.state.placing.syncs == {}
    assert world.told.count("sync_begun") == 3
    assert world.told.count("sync_cancelled") == 1
