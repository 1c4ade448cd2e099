"""The checkers of acking groups can fail: bugs put into real nodes are found, each by a plan that gives it a chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.client.subscription.settlements import SettlementBatch
from mirrorlog.queues.delivery.group import Dispatch, GroupDelivery
from mirrorlog.queues.delivery.keys import KeyOrder
from mirrorlog.queues.delivery.ready import FreeRecords
from mirrorlog.queues.delivery.settlement import Outcomes, Settlement, SubscriberSettlement
from mirrorlog.queues.delivery.subscribers import Subscribers
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.ledger_chunk import Piece
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.groups.states import GroupPart, GroupWalk
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.groups.verdicts import Verdicts
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from sim.cluster_queues import KEYED, queues_of
from sim.processes import current_process
from tests.sim.seeded import found_in, small_plan

SEEDS_MAX = 8
SEEDS = range(SEEDS_MAX)

FALLING = (Event(0.7, "kill", ("@master", 0.6)), Event(2.2, "kill", ("@master", 0.6)))
CUT_OFF = (Event(0.6, "isolate", ("@master", "nodes", 2.0)),)
SESSIONS = (Event(0.5, "desert", ("takers1", 0.2)), Event(1.2, "reset", ("@master", "takers2")))
MEDDLED = (
    Event(0.6, "meddle", ("reset back", "g")),
    Event(0.9, "meddle", ("purge", "")),
    Event(1.2, "meddle", ("delete queue", "")),
    Event(1.9, "meddle", ("reset to earliest", "")),
    Event(2.2, "kill", ("@master", 0.4)),
)
LOST_ANSWERS = (
    *(Event(0.4, "lengthen", (node, takers, 0.06, 2.6)) for node in "abc" for takers in ("takers1", "takers2")),
    *(Event(at_s, "kill", ("@master", 0.3)) for at_s in (0.7, 1.3, 1.9, 2.5)),
)
"""Masters die while what they have settled, and its answers, are on their way."""
PEACE: tuple[Event, ...] = ()


def caught(*events: Event, by: tuple[str, ...], queues: tuple[str, ...] = ()) -> bool:
    """Whether one of those checks finds something in the first schedules; with queues of other sorts, in those that
    have one of these."""
    seeds = [each for each in range(20) if set(queues_of(f"seeded groups {each}")) & set(queues)] if queues else SEEDS
    return found_in((replace(plan(seed, events), queues=bool(queues)) for seed in seeds[:SEEDS_MAX]), by)


def plan(seed: int, events: tuple[Event, ...]) -> Plan:
    return small_plan(f"seeded groups {seed}", events, groups=True)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("events", [FALLING, CUT_OFF, SESSIONS, LOST_ANSWERS, PEACE])
def test_nothing_is_found_without_a_bug(events: tuple[Event, ...]) -> None:
    """By the same plans, with nothing put in."""
    found = attempt(plan(0, events))
    assert not isinstance(found, Failure), found.reason


@pytest.mark.long
def test_nothing_is_found_in_queues_of_other_sorts_without_a_bug() -> None:
    """One that is reset, purged, deleted and made anew, and one whose begin follows; and both of those of which one at
    a time has records."""
    for wanted in ({"wild", "work"}, {"single", "lone"}):
        seed = next(each for each in range(100) if set(queues_of(f"seeded groups {each}")) == wanted)
        found = attempt(replace(plan(seed, MEDDLED), queues=True))
        assert not isinstance(found, Failure), found.reason


def test_a_single_active_consumer_that_has_company_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a master that lets everybody take from such a queue."""
    monkeypatch.setattr(Subscribers, "_choose", lambda self: None)
    assert caught(*PEACE, by=("one at a time", "the order is kept"), queues=("single",))


def test_a_key_that_two_consumers_share_is_found() -> None:
    """By a master that takes no notice of keys."""

    def takes_no_notice(self: KeyOrder, until: int) -> None:
        self.met = max(self.met, until)

    with mock.patch.object(KeyOrder, "meet", takes_no_notice):
        assert caught(*PEACE, by=("each key is in order",), queues=(KEYED,))


@pytest.mark.long
def test_a_key_that_goes_on_while_what_was_returned_waits_is_found() -> None:
    """By a master that takes a record which comes back for one that is done, as far as its key goes."""
    settled = SubscriberSettlement.settled

    def frees(self: SubscriberSettlement, settlement: Settlement, now: float) -> None:
        settled(self, settlement, now)
        self._free.came_back(self._free.keys.settled(settlement.ranges))

    with mock.patch.object(SubscriberSettlement, "settled", frees):
        assert caught(*SESSIONS, by=("each key is in order",), queues=(KEYED,))


def test_a_reset_that_copies_do_not_follow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a copy that takes a reset for one to where it stands."""
    put = GroupTable._put

    def stays(self: GroupTable, header: Any, key: Any, ledger: Ledger | None, *, partial: bool = False) -> None:
        there = self.get(*key)
        process = current_process()
        if there is not None and ledger is not None and process is not None and process.machine == "b":
            ledger = Ledger(there.floor, there.watermark)
        put(self, header, key, ledger, partial=partial)

    monkeypatch.setattr(GroupTable, "_put", stays)
    assert caught(*MEDDLED, by=("copies know the same", "a checkpoint tells"), queues=("wild",))


def test_an_ack_that_is_forgotten_at_failover_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a new master that takes the last twenty records below the floor for open."""
    begin = Deliverer.begin

    def forget(self: Deliverer, **facts: Any) -> None:
        for _, _, ledger in self._replica.groups:
            floor = max(0, ledger.floor - 20)
            LedgerUpdate(ledger).undo([Piece(floor, ledger.floor, None, None)], floor=floor, watermark=ledger.watermark)
        begin(self, **facts)

    monkeypatch.setattr(Deliverer, "begin", forget)
    monkeypatch.setattr("sim.cluster_ledgers.Ledgers.look", lambda self, nodes: None)
    assert caught(*FALLING, by=("no confirmed ack comes back",))


def test_a_watermark_that_is_not_confirmed_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By giving out what no watermark covers."""
    grant = GroupDelivery.grant

    def uncovered(self: GroupDelivery, end: int, now: float, *, bytes_max: int) -> Dispatch | None:
        self.front.covered = end
        return grant(self, end, now, bytes_max=bytes_max)

    monkeypatch.setattr(GroupDelivery, "grant", uncovered)
    monkeypatch.setattr(GroupDelivery, "watermark_wanted", lambda self, end, freed=0: None)
    assert caught(*FALLING, by=("not redelivered means never delivered",))


def test_an_undo_that_is_forgotten_at_a_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a former master that goes on with settlements which its log has lost."""
    monkeypatch.setattr(GroupTable, "_take_back", lambda self, undo: None)
    assert caught(*CUT_OFF, by=("copies know the same", "nothing is settled that nobody settled"))


def test_two_verdicts_that_are_both_confirmed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a master that answers whoever comes second as the first time."""
    monkeypatch.setattr(Outcomes, "contrary", lambda self, how, ranges: ())
    assert caught(*FALLING, by=("one verdict stands",))


def test_a_verdict_that_nobody_remembers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By masters that take for acknowledged whatever is settled."""
    monkeypatch.setattr(Verdicts, "died", lambda self, first, until: [])
    assert caught(*FALLING, by=("one verdict stands",))


def test_a_checkpoint_without_the_dead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a copy that begins there, and takes them for acknowledged."""
    monkeypatch.setattr(Verdicts, "runs", lambda self, at, runs_max: [])
    assert caught(*FALLING, by=("a checkpoint tells", "copies know the same", "one verdict stands"))


def test_a_checkpoint_without_a_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By leaving out what stands above the floor."""

    def parts(self: GroupWalk) -> Iterator[GroupPart]:
        yield GroupPart(self)

    monkeypatch.setattr(GroupWalk, "parts", parts)
    assert caught(*FALLING, by=("a checkpoint tells", "copies know the same", "no confirmed ack"))


def test_a_return_that_is_counted_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every copy alike."""
    give_again = LedgerUpdate.give_again

    def twice(self: LedgerUpdate, *args: Any, **facts: Any) -> None:
        give_again(self, *args, **facts)
        give_again(self, *args, **facts)

    monkeypatch.setattr(LedgerUpdate, "give_again", twice)
    assert caught(*SESSIONS, by=("attempts are returns",))


def test_a_record_that_is_given_to_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking the first record that is not settled for free now and then, whoever has it."""
    confirmed = GroupDelivery.watermark_confirmed

    def forgetful(self: GroupDelivery, queue_offset: int, end: int) -> bool:
        confirmed(self, queue_offset, end)
        self.ledger.give_back(self.ledger.floor, self.ledger.floor + 1)
        self.free.freed(self.ledger.floor)
        return True

    monkeypatch.setattr(GroupDelivery, "watermark_confirmed", forgetful)
    assert caught(*PEACE, by=("no record is in two hands",))


def test_a_settlement_of_more_than_was_asked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one record more in each change that settles."""
    settle = Outcomes.settle

    def more(self: Outcomes, ranges: Any, why: str) -> Any:
        pairs = list(ranges)
        return settle(self, [*pairs[:-1], (pairs[-1][0], pairs[-1][1] + 1)], why)

    monkeypatch.setattr(Outcomes, "settle", more)
    assert caught(*PEACE, by=("nothing is settled that nobody settled", "one verdict stands"))


def test_records_that_are_never_given_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a master that does not look back for what was returned."""
    monkeypatch.setattr(FreeRecords, "freed", lambda self, first: None)
    assert caught(*SESSIONS, by=("a group is not done",))


@pytest.mark.long
def test_a_refusal_of_what_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client that passes on what was answered last, to all whose records left together."""
    monkeypatch.setattr(SettlementBatch, "failed", lambda self, error: error)
    monkeypatch.setattr(SettlementBatch, "error_of", lambda self, first, following: self.error)
    assert caught(*LOST_ANSWERS, by=("nothing refused is settled", "one verdict stands"))
