"""The checkers of times, priorities, limits and transactions can fail: bugs put into real nodes are found, each by a
plan that gives it a chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mirrorlog.broker.consumer_groups.subscriptions import Subscribing
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.queues.delivery.ready import FreeRecords
from mirrorlog.queues.delivery.settlement import Outcomes
from mirrorlog.queues.groups.ledger import State
from mirrorlog.queues.limits.attributes import QueueRuns, RunRow
from mirrorlog.queues.limits.length import QueueLength, QueueLengthView
from mirrorlog.wire.transaction_frames import Transact
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from sim.cluster_sorts import sorts_of
from sim.processes import current_process
from tests.sim.seeded import found_in, small_plan

SEEDS_MAX = 4
SEED = "seeded records {}"

FALLING = (Event(0.7, "kill", ("@master", 0.6)), Event(2.2, "kill", ("@master", 0.6)))
SESSIONS = (
    Event(0.4, "doze", ("takers1", 0.6)),
    Event(0.5, "desert", ("takers1", 0.2)),
    Event(1.2, "doze", ("takers2", 0.5)),
    Event(1.3, "reset", ("@master", "takers2")),
)
LATE = (Event(0.6, "isolate", ("a", "nodes", 1.2)), Event(0.75, "kill", ("a", 1.2)))
PEACE: tuple[Event, ...] = ()


def caught(*events: Event, by: tuple[str, ...], sort: str = "", begin: int = 0) -> bool:
    """Whether one of those checks finds something in the first schedules that have a queue of that sort, or in the
    first with transactions. `begin`: the first that is tried, since it is known to find it."""
    plans = [plan(number, events, transactions=not sort) for number in range(begin, 40)]
    fitting = [each for each in plans if not sort or sort in sorts_of(each.seed, records=True, transactions=False)]
    return found_in(fitting[:SEEDS_MAX], by)


def plan(number: int, events: tuple[Event, ...], *, transactions: bool = False) -> Plan:
    return small_plan(SEED.format(number), events, groups=True, records=not transactions, transactions=transactions)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("transactions", [False, True])
def test_nothing_is_found_without_a_bug(transactions: bool) -> None:
    """By such a plan, with nothing put in."""
    found = attempt(plan(0, (*FALLING, *SESSIONS), transactions=transactions))
    assert not isinstance(found, Failure), found.reason


# --- times, priorities, limits ---


def test_a_delay_that_is_not_waited_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that gives out at once what has one."""
    monkeypatch.setattr(Attributes, "not_before_us", lambda self, append_time_us: append_time_us)
    assert caught(*PEACE, by=("nothing is given before its time",), sort="timed")


def test_a_time_to_live_that_is_passed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that lasts half a second longer than it was to."""
    monkeypatch.setattr(Attributes, "expires_at_us", _ends(lambda ms: ms + 500))
    assert caught(*SESSIONS, by=("nothing is given after its time",), sort="timed")


@pytest.mark.long
def test_a_record_that_expires_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that lasts half as long."""
    monkeypatch.setattr(Attributes, "expires_at_us", _ends(lambda ms: ms // 2))
    assert caught(*SESSIONS, by=("nothing expires early",), sort="timed")


def _ends(lasts_ms: Any) -> Any:
    def expires_at_us(self: Attributes, append_time_us: int) -> int | None:
        return None if self.ttl_ms is None else append_time_us + lasts_ms(self.ttl_ms) * 1000

    return expires_at_us


def test_a_priority_that_is_passed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By giving out in the order of the queue."""

    def in_order(self: FreeRecords, limit: int) -> tuple[int, int] | None:
        return self._ledger.next_free(self._ledger.floor, limit)

    monkeypatch.setattr(FreeRecords, "next", in_order)
    assert caught(*SESSIONS, by=("the urgent go first",), sort="urgent", begin=4)


def test_a_queue_that_grows_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By dropping nothing."""
    monkeypatch.setattr(QueueLength, "to_drop", lambda self, view: [])
    assert caught(*PEACE, by=("queues are no longer than they may be",), sort="short")


def test_a_full_queue_that_takes_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By refusing nothing."""
    monkeypatch.setattr(QueueLength, "check", lambda self, view, count, size: None)
    assert caught(*PEACE, by=("queues are no longer than they may be",), sort="tight")


@pytest.mark.long
def test_a_record_that_is_dropped_in_hand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking for ready whatever is not settled. Whoever has it is told that his ack of it counts; the check that
    looks at that comes first, and is off."""

    def all_of_it(self: QueueLengthView) -> Iterator[tuple[int, int]]:
        if self.ledger is not None:
            for low, high, state in self.ledger.runs(self.low, self.until):
                if state != State.SETTLED:
                    yield low, high

    monkeypatch.setattr(QueueLengthView, "ranges", all_of_it)
    monkeypatch.setattr("sim.cluster_group_checks.one_verdict_stands", lambda groups: None)
    assert caught(*SESSIONS, by=("nothing is dropped in hand",), sort="short", begin=2)


def test_a_delivery_limit_that_is_passed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By giving out again whatever comes back."""
    monkeypatch.setattr(Outcomes, "_sort_out", lambda self, ranges: (list(ranges), []))
    assert caught(*SESSIONS, by=("nothing comes back too often",), sort="fragile")


def test_a_copy_with_other_priorities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that takes everything for urgent."""
    add = QueueRuns.add

    def urgent(self: QueueRuns, row: RunRow) -> None:
        process = current_process()
        if process is not None and process.machine == "b":
            row = row._replace(attributes=row.attributes._replace(priority=9))
        add(self, row)

    monkeypatch.setattr(QueueRuns, "add", urgent)
    # Takers that are away leave records that copies can differ in: in peace they are settled between two looks.
    assert caught(*SESSIONS, by=("copies know the same times",), sort="urgent")


# --- transactions ---


def test_a_transaction_that_is_stored_in_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that leaves the first of its batches out."""
    whole = Replica.append_transaction

    def a_part(self: Replica, batches: Sequence[memoryview], now_us: int) -> list[BatchHeader]:
        stamped = whole(self, batches[1:], now_us)
        return [stamped[0], *stamped]

    monkeypatch.setattr(Replica, "append_transaction", a_part)
    assert caught(*PEACE, by=("all or none",))


def test_a_transaction_that_is_seen_in_part_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes that show of some queues what is not confirmed yet."""
    confirmed = QueueIndex.next_confirmed

    def next_confirmed(self: QueueIndex, queue_id: int) -> int:
        return confirmed(self, queue_id) if queue_id % 2 else self.next_appended(queue_id)

    monkeypatch.setattr(QueueIndex, "next_confirmed", next_confirmed)
    assert caught(*LATE, by=("never half seen",), begin=2)


@pytest.mark.long
def test_a_transaction_without_its_acks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that settles them, and logs nothing of it."""
    whole = Replica.append_transaction

    def published(self: Replica, batches: Sequence[memoryview], now_us: int) -> list[BatchHeader]:
        return whole(self, [each for each in batches if each.nbytes and _is_data(each)], now_us)

    monkeypatch.setattr(Replica, "append_transaction", published)
    assert caught(*SESSIONS, by=("once for each order", "a group is not done", "no confirmed ack comes back"))


@pytest.mark.long
def test_an_ack_of_what_somebody_else_has_settled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a commit that takes it for its own: so its records count twice."""
    within = Subscribing.settle_within

    def settle_within(self: Subscribing, settle: Any, ranges: Sequence[int], *, whole: bool) -> Any:
        return within(self, settle, ranges)

    monkeypatch.setattr(Subscribing, "settle_within", settle_within)
    storm = tuple(Event(0.3 + 0.5 * number, "kill", ("@master", 0.1)) for number in range(6))
    assert caught(*storm, by=("once for each order",), begin=2)


def test_a_commit_that_is_answered_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that answers as soon as it has it itself."""
    wait = LogPublisher.wait_together

    def at_once(self: LogPublisher, end: int, request: Transact, done: Any, **facts: Any) -> None:
        wait(self, end, request._replace(level=1), done, **facts)

    monkeypatch.setattr(LogPublisher, "wait_together", at_once)
    assert caught(*LATE, by=("a commit that was answered counts", "no confirmed ack comes back"), begin=2)


def _is_data(batch: memoryview) -> bool:
    return read_header(batch).kind == Kind.DATA
