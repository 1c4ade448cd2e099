"""Bugs in how queues move, put into real nodes: each is found by plans in which some do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace as with_fields
from itertools import islice
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.moves import move_service, sync_service, wanted_places
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.cluster.requests import AskOfFormer, BeginTold, HeldTold, RecordsTold
from mirrorlog.cluster.state import log_rules, machine, move_rules
from mirrorlog.cluster.state.commands import QueuesMoved
from mirrorlog.cluster.state.placements import MovingQueue
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.queues.changes import QueueGoverned
from mirrorlog.queues.checkpoint_states import (
    GroupState,
    LeasesState,
    ProducerState,
    State,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.moving import QueuePieces, come_back, open_arrived
from mirrorlog.queues.registry import QueueRegistry
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from tests.sim.seeded import found_in, small_plan

SEEDS: Final = 8
LOGS: Final = ("memory", "disk")
MOVING: Final = tuple(Event(0.3 + 0.25 * number, "alter", (number, 1)) for number in range(10))
"""Each queue in its turn, to and fro."""
FALLING: Final = tuple(
    event
    for at_s in (0.3, 3.5)
    for event in (
        Event(at_s, "ambush", ("begun mirror", "isolate", 0.9, 0.0, 0.5)),
        Event(at_s, "ambush", ("arrived target", "kill", 0.9, 0.12, 2.5)),
        Event(at_s + 0.02, "alter", (0, 1)),
    )
)
"""A queue comes to a log of which a mirror is cut off, and then the master falls."""
LOST_ANSWERS: Final = (
    *MOVING,
    *(Event(0.25, "lengthen", (node, "writers", 0.03, 3.0)) for node in "abc"),
    *(
        Event(0.3 + 0.25 * number + after_s, "reset", (node, "writers"))
        for number in range(10)
        for after_s in (0.03, 0.05, 0.07, 0.09)
        for node in "abc"
    ),
)
"""What is published as a queue leaves is sent again."""
POWERLESS: Final = tuple(
    event
    for number in range(5)
    for event in (
        Event(0.3 + 1.5 * number, "alter", (number, 1)),
        *(
            Event(0.3 + 1.5 * number, "ambush", (f"added {who}", "power", 0.9, 0.001, 0.5))
            for who in ("mirror", "target")
        ),
    )
)
"""A queue has come to a log, and all that hold it lose their power."""
CUT_OFF: Final = tuple(
    event
    for number in range(4)
    for event in (
        Event(0.3 + 2.0 * number, "alter", (0, 1)),
        Event(0.3 + 2.0 * number, "ambush", ("arrived target", "isolate", 0.9, 0.0, 1.2)),
        Event(0.3 + 2.0 * number, "ambush", ("arrived source", "power", 0.9, 0.02, 0.2)),
    )
)
"""All of a queue has come, and its target can tell nobody; then its source loses its power, and with it that the queue
has left."""
SOURCE_POWERLESS: Final = tuple(
    event
    for number in range(5)
    for event in (
        Event(0.3 + 1.5 * number, "alter", (number, 1)),
        Event(0.3 + 1.5 * number, "ambush", ("added source", "power", 0.9, 0.001, 0.5)),
    )
)
"""A queue has just gone elsewhere, and where it was the power goes."""
GOVERNED: Final = (
    *(Event(0.3 + 2.5 * number, "govern", policy) for number, policy in enumerate([(0, 2), (1, 1), (2, 4)])),
    *(Event(7.8, "govern", (number, 0)) for number in range(3)),
)
"""Policies of all queues and of each are set, changed and cleared."""
CALLED_OFF: Final = (
    *MOVING,
    *(Event(0.3 + 0.5 * number, "call_off", ("arrived", 0.4, 0.0)) for number in range(5)),
    *(Event(0.55 + 0.5 * number, "call_off", ("left", 0.4, 0.1)) for number in range(5)),
)
"""Somebody cancels moves when all has come, or a while after the queue has left."""


def plans(*events: Event, first: int = 0, **kinds: Any) -> Iterator[Plan]:
    """`first`: the seed of the first one; `kinds`: fields that are not as usual."""
    each = small_plan("", tuple(sorted(events, key=lambda event: event.at_s)), logs=LOGS, placing=True)
    return (with_fields(each, seed=f"seeded moves {seed}", **kinds) for seed in range(first, first + SEEDS))


class Bug(NamedTuple):
    """`wrong` takes the place of `name`, an attribute or a key; `by`: the checks of which one finds it, in `plans`."""

    where: Any
    name: Any
    wrong: Any
    by: tuple[str, ...]
    plans: Callable[[], Iterator[Plan]]


# --- the bugs ---


def _told_at_once(self: move_service.MoveService, log: HostedLog, moves: dict[str, MovingQueue]) -> None:
    """The cluster adds a span when all of it has come, confirmed or not."""
    there = {log.replica.queues.moves.name(each): each for each in log.replica.queues.moves.arriving}
    for name, move in moves.items():
        known = log.replica.queues.moves.arriving.get(there.get(name, 0))
        if known is not None and known.arrived and move.number not in self._deciding:
            moved = QueuesMoved(number=move.number, first={name: known.first})
            self._start(self._deciding, move.number, self._decide(moved))


async def _told_in_memory(self: move_service.MoveService, log: HostedLog, moved: QueuesMoved) -> None:
    """The cluster adds a span while what arrived is on no disk."""
    await self._decide(moved)


def _opened_at_once(self: move_service.MoveService, log: HostedLog, moves: dict[str, MovingQueue]) -> None:
    """The queue is in the new log as soon as all of it has come, and then the cluster decides."""

    async def decide(moved: QueuesMoved) -> None:
        await asyncio.sleep(0.2)
        await self._decide(moved)

    of = log.replica.queues.moves
    for queue_id, each in list(of.arriving.items()):
        name = of.name(queue_id)
        if each.arrived and each.until <= log.replica.log.confirmed and name in moves:
            self._append(log, open_arrived(log.replica.queues, queue_id, each.move))
            self._open(log, queue_id, name, "queue_moved")
            moved = QueuesMoved(number=each.move, first={name: each.first})
            self._start(self._deciding, each.move, decide(moved))


def _comes_back(registry: QueueRegistry, queue_id: int, move: int) -> bytearray:
    """The former master goes on with a queue that is in another log by now."""
    return come_back(registry, queue_id, move)


_producers = QueuePieces._producers


def _one_batch_behind(self: QueuePieces) -> Iterator[bytes]:
    """What is known of producers is from before their newest batches."""
    for value in _producers(self):
        state = decode_checkpoint(encode_checkpoint([value]))[0] if value else None
        if not isinstance(state, ProducerState) or not state.landed:
            yield value
            continue
        *before, newest = state.landed
        landed = {sequence: state.landed[sequence] for sequence in before}
        yield encode_state(replace(state, next_sequence=newest, landed=landed))


_groups = QueuePieces._groups


def _one_too_far(self: QueuePieces) -> Iterator[State]:
    """A group whose consumer takes one record after the other comes with one more settled than is."""
    for state in _groups(self):
        if isinstance(state, GroupState) and state.group == "ordered" and state.floor < self.arriving.first:
            yield replace(state, floor=state.floor + 1)
        else:
            yield state


def _without_leases(self: QueuePieces) -> Iterator[State]:
    return (state for state in _groups(self) if not isinstance(state, LeasesState))


_state = QueueRegistry.state


def _without_positions(self: QueueRegistry, queue_id: int, groups: Any, *, next_queue_offset: int) -> Any:
    return _state(self, queue_id, [], next_queue_offset=next_queue_offset)


def _first_alone(state: ClusterState, index: int, command: QueuesMoved) -> ClusterState:
    """Of several queues of one move only the first is elsewhere."""
    moved = move_rules.moved(state, index, command)
    stay = sorted(command.first)[1:]
    return replace(moved, queues={**moved.queues, **{name: state.queues[name] for name in stay}})


def _never_cleared(self: wanted_places.QueueGovernor, *queue: Any) -> QueueGoverned | None:
    """What no policy holds for is not looked at."""
    change = _CHANGE(self, *queue)
    return change if change is not None and (change.policy or change.operator_policy) else None


_CHANGE: Final = wanted_places.QueueGovernor.change


BUGS: Final = {
    "a span added before what arrived is confirmed": Bug(
        move_service.MoveService, "_finish_arrivals", _told_at_once,
        ("a queue does not come to its place", "nothing confirmed is lost", "nothing is confirmed"),
        lambda: plans(*FALLING, first=8, nodes=5, copies=2),
    ),
    "a span added before what arrived is on disk": Bug(
        move_service.MoveService, "_add_spans", _told_in_memory,
        ("a queue does not come to its place", "nothing confirmed is lost", "nothing is confirmed", "does not serve"),
        lambda: plans(*POWERLESS, first=21, nodes=3, copies=2),
    ),
    "a sequence table that lacks the newest batch": Bug(
        QueuePieces, "_producers", _one_batch_behind, ("nothing lands twice",), lambda: plans(*LOST_ANSWERS)
    ),
    "a hold left behind": Bug(
        QueuePieces, "_holds", lambda self: iter(()), ("holds keep",), lambda: plans(*MOVING)
    ),
    "a ledger's border off by one": Bug(
        QueuePieces, "_groups", _one_too_far,
        ("nothing is settled that nobody settled", "nothing refused is settled", "a group is not done"),
        lambda: plans(*MOVING, first=1, groups=True),
    ),
    "a former master that goes on": Bug(
        move_service, "hand_over", _comes_back,
        ("records are where the spans say", "a queue does not come to its place"), lambda: plans(*MOVING),
    ),
    "a queue opened before the cluster has added its span": Bug(
        move_service.MoveService, "_finish_arrivals", _opened_at_once,
        ("records are where the spans say", "a queue does not come to its place"), lambda: plans(*CALLED_OFF),
    ),
    "a cancelled move whose target goes on": Bug(
        move_service, "came_by", lambda *_: True,
        ("records are where the spans say", "a queue does not come to its place"), lambda: plans(*CALLED_OFF),
    ),
    "leases left behind": Bug(
        QueuePieces, "_groups", _without_leases, ("leases hold", "a group is not done"),
        lambda: plans(*MOVING, groups=True),
    ),
    "positions left behind": Bug(
        QueueRegistry, "state", _without_positions, ("positions only go forward",), lambda: plans(*MOVING),
    ),
    "dead letters on their way left behind": Bug(
        QueuePieces, "_forwardings", lambda self: iter(()),
        ("letters keep their order", "letters come once", "what is sent back comes once", "a group is not done"),
        lambda: plans(*MOVING, first=5, groups=True, letters=True),
    ),
    "times and priorities left behind": Bug(
        QueuePieces, "_runs", lambda self: iter(()),
        ("nothing is given before its time", "nothing is given after its time", "the urgent go first"),
        lambda: plans(*MOVING, first=3, groups=True, records=True),
    ),
    "a move that comes about over a loss of its source": Bug(
        log_rules, "without_moves_of", lambda state, log_id: state,
        ("records are where the spans say", "positions only go forward", "nothing confirmed is lost"),
        lambda: plans(*CUT_OFF, first=1, nodes=3, copies=1),
    ),
    "a policy that is cleared, and holds on": Bug(
        wanted_places.QueueGovernor, "change", _never_cleared, ("a queue does not come to its place",),
        lambda: plans(*GOVERNED),
    ),
    "a policy that leads nowhere": Bug(
        wanted_places.WantedPlaces, "_begin_one", lambda self, now: None, ("a queue does not come to its place",),
        lambda: plans(*GOVERNED[:3]),
    ),
    "an automatic sync that nobody wishes for": Bug(
        sync_service.SyncService, "_automatic", lambda self: [], ("a queue does not come to its place",),
        lambda: plans(*GOVERNED[:1]),
    ),
    "a log group torn": Bug(
        machine.HANDLERS, QueuesMoved, _first_alone,
        ("a log group stays together", "a queue does not come to its place"),
        lambda: plans(*MOVING, groups=True, transactions=True),
    ),
}  # fmt: skip


QUICK: Final = ("a sequence table that lacks the newest batch", "a hold left behind", "a log group torn")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(MOVING, id="moving"),
        *(
            pytest.param(events, marks=pytest.mark.long, id=name)
            for name, events in (
                ("falling", FALLING),
                ("powerless", POWERLESS),
                ("lost answers", LOST_ANSWERS),
                ("called off", CALLED_OFF),
                ("governed", GOVERNED),
            )
        ),
    ],
)
def test_nothing_is_found_without_a_bug(events: tuple[Event, ...]) -> None:
    """By the same plans, with nothing put in; and queues do move, or come back."""
    counts = attempt(next(plans(*events)))
    assert not isinstance(counts, Failure), counts.reason
    assert counts["moves: come about"] + counts["moves: cancelled"] >= 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if name in QUICK else pytest.mark.long, id=name) for name, bug in BUGS.items()],
)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(bug.where, dict):
        monkeypatch.setitem(bug.where, bug.name, bug.wrong)
    else:
        monkeypatch.setattr(bug.where, bug.name, bug.wrong)
    assert found_in(bug.plans(), bug.by)


def test_a_move_whose_source_has_lost_something_loses_nothing_else() -> None:
    """One of these found that a copy forgot, at its next start, the gaps that a queue had come with: its sync never
    ended. Until two schedules have had both, a loss and a move that comes about."""
    both = 0
    for plan in islice(plans(*CUT_OFF, first=1, nodes=3, copies=1), 12):
        counts = attempt(plan)
        assert not isinstance(counts, Failure), counts.reason
        both += bool(counts["branch: a loss is declared"] and counts["moves: come about"])
        if both == 2:
            return
    raise AssertionError(f"{both} schedules have had both")


def test_what_others_leave_in_a_segment_is_not_missed_once_it_stands_behind_it() -> None:
    """Found by seed 10: a queue has gone, the segment that it was in is freed, and what another queue has there is
    appended once more. A reader who was told of its former place is no witness of a loss."""
    counts = attempt(next(plans(*SOURCE_POWERLESS, first=10, nodes=3, copies=1)))
    assert not isinstance(counts, Failure), counts.reason
    assert counts["moves: come about"] >= 3


def test_a_plan_in_which_nothing_moves_is_told_from_one_in_which_something_does() -> None:
    """By what is counted: of a plan without who alters queues there is nothing."""
    counts = attempt(next(plans(Event(0.5, "reset", ("a", "writers")))))
    assert not isinstance(counts, Failure), counts.reason
    assert not [name for name in counts if name.startswith("moves: ") and name != "moves: holds kept"]


@pytest.mark.long
def test_what_a_former_log_keeps_quiet_about_keeps_its_span() -> None:
    """Bug: of a piece that is asked for to be copied, the oldest batch is not told of. Nothing is lost by it, for all
    is looked up before a span ends; so the copying does not come to its end."""
    asked_soundly = FormerRecords.asked

    async def asked(self: FormerRecords, asked: AskOfFormer) -> RecordsTold | HeldTold | BeginTold:
        told = await asked_soundly(self, asked)
        return replace(told, batches=told.batches[1:]) if isinstance(told, RecordsTold) else told

    with patch.object(FormerRecords, "asked", asked):
        assert found_in(plans(*MOVING), ("does not come to its place",))
