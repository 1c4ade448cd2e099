"""What settled records stand as: remembered as runs of the dead, and told to whoever says something else."""

from __future__ import annotations

from random import Random

import pytest

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import NotGranted, SettledOtherwise
from mirrorlog.queues.changes import GroupReset, Settled
from mirrorlog.queues.checkpoint_states import GroupState, encode_checkpoint, encode_state
from mirrorlog.queues.delivery.group import LeaseClaim, Rules
from mirrorlog.queues.delivery.settlement import CONTRARY_MAX
from mirrorlog.queues.groups import states as group_states
from mirrorlog.queues.groups import verdicts
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.groups.verdicts import ACKED, DEAD, UNKNOWN, Before, Verdict, Verdicts
from mirrorlog.wire.frames import How
from tests.queues.delivered import Stage
from tests.queues.ledgers import END, table_facts
from tests.queues.test_groups import Book, Life, check_cuts, feed

RECORDS = 300
OTHER = {How.ACK: How.DEAD, How.DEAD: How.ACK}
STANDS = {How.ACK: ACKED, How.DEAD: DEAD}


# --- what is remembered ---


@pytest.mark.parametrize("seed", range(20))
def test_runs_say_of_each_record_what_a_set_of_records_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is forgotten within the bound, and what is beyond it is known not to be known. Method: random runs
    die; a plain set of offsets, and a border below which nothing is known, say the same of each record; taking back
    steps, the last first, leads through the same states again."""
    monkeypatch.setattr(verdicts, "RUNS_MAX", random_max := Random(seed).choice([2, 5, 100]))
    random, known = Random(seed), Verdicts(0)
    dead, known_from = set[int](), 0
    states: list[list[Verdict]] = []
    taken_back: list[list[Before]] = []
    for _ in range(60):
        states.append(list(known.parts(0, RECORDS)))
        first = random.randrange(RECORDS)
        until = min(RECORDS, first + random.choice([1, 1, 2, 30]))
        taken_back.append(known.died(first, until))
        dead.update(range(first, until))
        expected = [UNKNOWN if each < known.known_from else DEAD if each in dead else ACKED for each in range(RECORDS)]
        told = [each.stands for each in known.parts(0, RECORDS) for _ in range(each.first, each.until)]
        assert told == expected
        assert len(known) == len([each for each in known.parts(0, RECORDS) if each.stands == DEAD]) <= random_max
        assert known.known_from == known_from or len(known) == random_max, "forgotten though there was room"
        known_from = known.known_from
        low, high = sorted(random.sample(range(RECORDS), 2))
        parts = [each.stands for each in known.parts(low, high) for _ in range(each.first, each.until)]
        assert parts == expected[low:high]
    for befores, state in zip(reversed(taken_back), reversed(states), strict=True):
        for before in reversed(befores):
            known.take_back(before)
        assert list(known.parts(0, RECORDS)) == state


@pytest.mark.parametrize("seed", range(8))
def test_copies_forget_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is known does not depend on where a copy began. Method: the random life of groups, with checkpoints
    and cuts, where three runs are remembered and one is told at a time."""
    monkeypatch.setattr(verdicts, "RUNS_MAX", 3)
    monkeypatch.setattr(group_states, "RUNS_PER_STATE", 1)
    life = Life(seed)
    batches = life.live(160)
    expected = table_facts(life.master.derived.groups, END)
    for began_at in [0, *life.complete]:
        copy, mine = GroupTable(per_queue_max=4), life.master.log.since(began_at)
        feed(copy, mine, twice=life.random.random() < 0.5)
        assert table_facts(copy, END) == expected, (seed, began_at)
        check_cuts(life.random, mine, seed)
    plain = GroupTable(per_queue_max=4)
    feed(plain, [stored for stored in batches if stored[0].kind == 3])
    assert table_facts(plain, END) == expected


def test_a_group_in_which_nothing_dies_says_nothing_of_it_in_a_checkpoint() -> None:
    """One value, as before; with an exception above the floor, or a dead record, one more."""
    book = Book()
    book.append(GroupReset(group="", queue_offset=0), Settled(group="", ranges=[0, 500]))
    assert [type(book.table.state(part)) for part in book.table.parts()] == [GroupState]
    book.append(Settled(group="", ranges=[500, 501], why="limit"))
    names = [type(book.table.state(part)).__name__ for part in book.table.parts()]
    assert names == ["GroupState", "VerdictsState"]


def test_of_what_software_before_has_settled_nobody_knows_as_what() -> None:
    """A checkpoint of before: below its watermark it is not known, what is settled behind it is."""
    table, log = GroupTable(per_queue_max=1), Book().log
    old = GroupState(queue_id=1, group="", floor=5, watermark=8)
    header: BatchHeader
    header, _ = log.append(encode_checkpoint([encode_state(old)]))
    table.restore(header, [old])
    ledger = table.find(1, "")
    LedgerUpdate(ledger).die(8, 9)
    assert list(ledger.verdicts.parts(0, 10)) == [(0, 8, UNKNOWN), (8, 9, DEAD), (9, 10, ACKED)]


def test_the_first_of_two_changes_stands() -> None:
    """Whatever is logged of a record that is settled."""
    book = Book()
    book.append(GroupReset(group="", queue_offset=0))
    book.append(Settled(group="", ranges=[0, 2]), Settled(group="", ranges=[1, 4], why="dead"))
    book.append(Settled(group="", ranges=[0, 4]))
    assert list(book.ledger.verdicts.parts(0, 4)) == [(0, 2, ACKED), (2, 4, DEAD)]


# --- who hears of it ---


def held_by_two(count: int = 4) -> Stage:
    """Subscriber 1 had them in an epoch before, and is back as 2; subscriber 3 has them now."""
    it = Stage(Rules())
    it.publish(count)
    it.subscribe(1, 10_000)
    it.move_watermark()
    it.confirm()
    it.pump()
    it.fail_over()
    it.subscribe(3, 10_000)
    it.move_watermark()
    it.confirm()
    it.pump()
    it.subscribe(2, 10_000)
    return it


@pytest.mark.parametrize("first", [How.ACK, How.DEAD])
def test_the_second_verdict_hears_which_one_stands(first: How) -> None:
    """Goal: of two that contradict each other one is answered as success. Method: who has it says one thing, who had it
    in the epoch before another; then the same."""
    it = held_by_two()
    assert it.settle(3, 0, 1, how=first).refusal is None
    late = it.settle(2, 0, 1, how=OTHER[first], epoch=1)
    assert (late.records, late.changes, late.contrary) == (0, (), ((0, 1, STANDS[first]),))
    assert isinstance(late.refusal, SettledOtherwise)
    assert late.refusal.details["stands"] == STANDS[first]
    assert it.settle(2, 0, 1, how=first, epoch=1).refusal is None


@pytest.mark.parametrize("first", [How.ACK, How.DEAD])
def test_a_verdict_is_remembered_through_failovers_and_told_in_the_same_session(first: How) -> None:
    """A master that takes over knows it from the log; and who settles twice in one session hears it as well."""
    it = held_by_two()
    it.settle(3, 0, 1, how=first)
    it.confirm()
    assert it.settle(3, 0, 1, how=OTHER[first]).contrary
    it.fail_over()
    it.subscribe(4)
    assert it.settle(4, 0, 1, how=OTHER[first], epoch=1).contrary == ((0, 1, STANDS[first]),)
    assert it.settle(4, 0, 1, how=first, epoch=1).contrary == ()


def test_a_verdict_that_was_cut_is_forgotten_with_its_record() -> None:
    """It was rejected at a master that nobody followed: at the next one the record is free, and may be acknowledged."""
    it = held_by_two()
    it.settle(3, 0, 1, how=How.DEAD)
    it.fail_over()
    it.subscribe(4)
    late = it.settle(4, 0, 1, epoch=1)
    assert (late.records, late.contrary) == (1, ())


def test_a_part_that_contradicts_is_named_and_the_rest_counts() -> None:
    """Goal: one dead record does not undo the acks that were told with it. Method: of eight one is dead, one
    acknowledged, two somebody else's."""
    it = held_by_two(8)
    it.settle(3, 1, 2, how=How.DEAD)
    it.settle(3, 3, 4)
    it.settle(3, 4, 8, how=How.RELEASE)
    it.subscribe(5, 2)
    it.pump()
    late = it.settle(2, 0, 8, epoch=1)
    refusal = late.refusal
    assert late.contrary == ((1, 2, DEAD),)
    assert refusal is not None
    assert refusal.within(1, 2) is not None
    assert type(refusal.within(0, 1)) is NotGranted  # somebody else has some of the others
    assert late.passed_over == 8 - 2 - late.records


def test_returns_say_nothing_of_what_is_settled() -> None:
    """They are no verdicts: what is settled does not come again, which is all that can be said."""
    it = held_by_two()
    it.settle(3, 0, 1, how=How.DEAD)
    it.settle(3, 1, 2)
    for how in (How.RETURN, How.RELEASE):
        assert it.settle(2, 0, 2, how=how, epoch=1).contrary == ()


@pytest.mark.parametrize("why", ["purged", "gone"])
def test_what_was_purged_or_is_gone_has_no_dead_letter(why: str) -> None:
    """An ack of it is a success, for nothing comes of it; a reject is not, for no dead letter comes."""
    it = held_by_two()
    it.settle(3, 0, 4, how=How.RELEASE)
    it.append([Settled(group="", ranges=[0, 1], why=why)])
    assert it.settle(2, 0, 1, epoch=1).contrary == ()
    assert it.settle(2, 0, 1, how=How.DEAD, epoch=1).contrary == ((0, 1, ACKED),)


def test_a_reset_forgets() -> None:
    """What was settled below the place where a group was set is nobody's word any more."""
    it = held_by_two()
    it.settle(3, 0, 2, how=How.DEAD)
    it.append([GroupReset(group="", queue_offset=3)])
    assert list(it.ledger.verdicts.parts(0, 4)) == [(0, 3, UNKNOWN), (3, 4, ACKED)]


def test_leases_hear_it_too_and_nothing_of_such_a_settlement_counts() -> None:
    """Goal: the same for receipts. Method: two leases of two records each; of one both are rejected with its own
    receipt; then one settlement names a record of each, and acknowledges."""
    it = Stage(Rules())
    it.publish(4)
    for number in (1, 2):
        it.lease(number, 2, 60_000)
        it.pump()
    one, two = 1 << 32 | 1, 1 << 32 | 2

    def settle(how: How, *receipts: LeaseClaim) -> list[Verdict]:
        settlement = it.delivery.leases.settle(receipts, how, end=4)
        it.append(settlement.changes)
        it.delivery.settling.settled(settlement, it.now)
        assert not settlement.contrary or (settlement.records, settlement.changes) == (0, ())
        return list(settlement.contrary)

    assert settle(How.DEAD, LeaseClaim(0, 2, one)) == []
    assert settle(How.ACK, LeaseClaim(1, 2, one), LeaseClaim(2, 3, two)) == [(1, 2, DEAD)]
    assert settle(How.ACK, LeaseClaim(2, 3, two)) == []
    assert settle(How.ACK, LeaseClaim(2, 3, two)) == []
    assert settle(How.DEAD, LeaseClaim(2, 3, two)) == [(2, 3, ACKED)]
    assert settle(How.DEAD, LeaseClaim(0, 2, one)) == []


def test_an_answer_names_so_many_runs_and_says_of_the_rest_that_nobody_knows() -> None:
    """Every other one of many is dead."""
    count = 2 * CONTRARY_MAX + 40
    it = held_by_two(count)
    it.settle(3, *(border for at in range(0, count, 2) for border in (at, at + 1)), how=How.DEAD)
    late = it.settle(2, 0, count, epoch=1)
    assert len(late.contrary) == CONTRARY_MAX + 1
    assert late.contrary[-1] == (2 * CONTRARY_MAX, count, UNKNOWN)
