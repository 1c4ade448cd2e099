"""The states of one group's records: against a plain dict, and what they cost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, LeaseRow, Ledger, State
from mirrorlog.queues.groups.ledger_update import Journal, LedgerUpdate
from tests.queues.ledgers import facts, merged

FREE, SETTLED, OUT, PARKED, LEASED = State
END = 2 * CHUNK_RECORDS + 100
LEAP = 1 << 40


# --- against a model ---

# Near each other and near the chunks' borders, where things go wrong.
_PLACES = st.one_of(
    st.integers(0, END),
    st.builds(lambda chunk, by: min(END, max(0, chunk * CHUNK_RECORDS + by)), st.integers(0, 3), st.integers(-3, 3)),
)
_RANGES = st.builds(lambda first, length: (first, min(END, first + length)), _PLACES, st.one_of(
    st.integers(1, 4), st.integers(1, 600), st.sampled_from([CHUNK_RECORDS, 2 * CHUNK_RECORDS, END]),
))  # fmt: skip


class AgainstPlainLists(RuleBasedStateMachine):
    """A ledger, and a list with a state, a number of attempts and what it waits for per record. Logged changes leave
    journals, which are undone from the newest on."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.states = [FREE] * END
        self.attempts = [0] * END
        self.waits: list[Any] = [None] * END
        self.rows: dict[int, LeaseRow] = {}
        self.undo: list[tuple[Journal, int, int, Any]] = []
        self.clock = 0

    # --- volatile ---

    @rule(of=_RANGES)
    def take(self, of: tuple[int, int]) -> None:
        self.ledger.take(*of)
        self._swap(of, FREE, OUT)

    @rule(of=_RANGES)
    def give_back(self, of: tuple[int, int]) -> None:
        self.ledger.give_back(*of)
        self._swap(of, OUT, FREE)

    @rule()
    def drop_volatile(self) -> None:
        self.ledger.drop_volatile()
        self._swap((0, END), OUT, FREE)

    # --- logged ---

    @rule(of=_RANGES)
    def settle(self, of: tuple[int, int]) -> None:
        self._begin()
        before = self.ledger.unsettled(*of)
        assert self._update().settle(*of) == before == sum(self.states[at] != SETTLED for at in range(*of))
        self._write(of, SETTLED, None)

    @rule(of=_RANGES, counted=st.booleans(), delay_ms=st.sampled_from([0, 0, 5, 7]))
    def give_again(self, of: tuple[int, int], counted: bool, delay_ms: int) -> None:
        self._begin()
        self._update().give_again(*of, counted=counted, delay_ms=delay_ms, logged_at=self.clock)
        for at in range(*of):
            self.attempts[at] += counted and self.states[at] != SETTLED
        self._write(of, PARKED if delay_ms else FREE, (delay_ms, self.clock) if delay_ms else None)

    @rule(of=_RANGES, number=st.integers(1, 3), again=st.booleans())
    def lease(self, of: tuple[int, int], number: int, again: bool) -> None:
        self._begin()
        row = LeaseRow("h", 1000, self.clock)
        if again:
            self._update().extend(number, row)
        else:
            self._update().lease(number, row, *of)
            self._write(of, LEASED, number)
        if number in self.waits:
            self.rows[number] = row

    @rule(by=st.integers(-3, 9))
    def mark(self, by: int) -> None:
        self._begin()
        self.ledger.watermark = max(0, self.ledger.watermark + by)

    @rule()
    def undo_one(self) -> None:
        if self.undo:
            journal, floor, watermark, model = self.undo.pop()
            LedgerUpdate(self.ledger).undo(journal, floor=floor, watermark=watermark)
            self.states, self.attempts, self.waits, self.rows = model
            assert self.ledger.watermark == watermark

    # --- what must be so ---

    @invariant()
    def is_what_the_list_says(self) -> None:
        ledger, states = self.ledger, self.states
        assert list(ledger.runs(0, END)) == merged((at, at + 1, state) for at, state in enumerate(states))
        assert ledger.floor == next((at for at, state in enumerate(states) if state != SETTLED), END)
        told = facts(ledger, END)
        assert told["attempts"] == merged(
            (at, at + 1, min(count, 255)) for at, count in enumerate(self.attempts) if count and states[at] != SETTLED
        )
        waits = [(at, at + 1, wait) for at, wait in enumerate(self.waits)]
        assert [(*row[:2], row[2:]) for row in told["parked"]] == merged(r for r in waits if isinstance(r[2], tuple))
        assert told["leases"] == {
            number: (row, [each[:2] for each in merged(r for r in waits if r[2] == number)])
            for number, row in self.rows.items()
        }
        assert ledger.out == states.count(OUT)

    @rule(at=_PLACES, until=_PLACES)
    def asked(self, at: int, until: int) -> None:
        ledger, states = self.ledger, self.states
        below = states[:until]
        assert ledger.ready(until) == below.count(FREE)
        assert ledger.unsettled_total(until) == until - below.count(SETTLED)
        assert ledger.unsettled(at, until) == sum(state != SETTLED for state in states[at:until])
        runs = merged((place, place + 1) for place in range(at, until) if states[place] == FREE)
        assert ledger.next_free(at, until) == (runs[0] if runs else None)
        if at < END:
            holders = [lease for lease in ledger.leases if ledger.lease_has(lease, at, at + 1)]
            assert holders == ([self.waits[at]] if states[at] == LEASED else [])

    # --- the model ---

    def _swap(self, of: tuple[int, int], state: State, other: State) -> None:
        self.states[of[0] : of[1]] = [other if each == state else each for each in self.states[of[0] : of[1]]]

    def _write(self, of: tuple[int, int], state: State, wait: Any) -> None:
        for at in range(*of):
            if self.states[at] != SETTLED:
                self.states[at], self.waits[at] = state, wait
        self.rows = {number: row for number, row in self.rows.items() if number in self.waits}

    def _begin(self) -> None:
        self.clock += 1
        states = [FREE if state == OUT else state for state in self.states]
        model = (states, list(self.attempts), list(self.waits), dict(self.rows))
        self.undo.append(([], self.ledger.floor, self.ledger.watermark, model))

    def _update(self) -> LedgerUpdate:
        return LedgerUpdate(self.ledger, self.undo[-1][0])


AgainstPlainLists.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestAgainstPlainLists = AgainstPlainLists.TestCase


# --- what it costs ---


def test_a_group_that_acks_in_order_is_a_few_numbers() -> None:
    """Settle a million records one by one, in order, as a copy does; and as a master does, with a thousand out at a
    time: no chunk is left over."""
    copy, master = Ledger(), Ledger()
    for at in range(20_000):
        LedgerUpdate(copy).settle(at, at + 1)
    for at in range(0, 20_000, 1000):
        master.take(at, at + 1000)
        for each in range(at, at + 1000):
            LedgerUpdate(master).settle(each, each + 1)
    for ledger in (copy, master):
        assert (ledger.floor, list(ledger.chunk_ranges()), ledger.out) == (20_000, [], 0)


def test_what_came_back_and_was_settled_leaves_nothing() -> None:
    """Return one counted, park one, lease one; give all out, settle all: nothing is special any more."""
    ledger = Ledger()
    LedgerUpdate(ledger).give_again(5, 6, counted=True)
    LedgerUpdate(ledger).give_again(7, 8, counted=True, delay_ms=10)
    LedgerUpdate(ledger).lease(1, LeaseRow("h", 1, 0), 9, 10)
    ledger.take(0, 20)
    assert LedgerUpdate(ledger).settle(0, 20) == 20
    assert (ledger.floor, list(ledger.chunk_ranges()), ledger.leases) == (20, [], {})


def test_a_million_in_hand_are_a_chunk_for_each_4096() -> None:
    """Take a million, settle them in any order: chunks go as they are whole, and the floor follows."""
    count = 256 * CHUNK_RECORDS
    ledger = Ledger()
    ledger.take(0, count)
    assert (len(list(ledger.chunk_ranges())), ledger.out, ledger.ready(count)) == (256, count, 0)
    LedgerUpdate(ledger).settle(CHUNK_RECORDS, count - 1)
    assert (ledger.floor, len(list(ledger.chunk_ranges())), ledger.unsettled_total(count)) == (0, 3, CHUNK_RECORDS + 1)
    LedgerUpdate(ledger).settle(0, CHUNK_RECORDS)
    assert (ledger.floor, ledger.unsettled_total(count)) == (count - 1, 1)


def test_what_a_lease_has_is_found_without_looking_at_what_others_have() -> None:
    """A chunk of 4,096 leases of one record each, and one of two leases with every other record: to ask each of them
    what it has, and each record whose it is, looks at a few rows for each. Counted, not timed."""
    ledger, looked_at = Ledger(), 0

    class Counting(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(index)

    for at in range(2 * CHUNK_RECORDS):
        lease = at if at < CHUNK_RECORDS else CHUNK_RECORDS + at % 2
        LedgerUpdate(ledger).lease(lease, LeaseRow("x", 1, 1), at, at + 1)
    for chunk in ledger.chunks.values():
        chunk.rows = Counting(chunk.rows)
    for at in range(CHUNK_RECORDS):
        assert list(ledger.lease_ranges(at)) == [(at, at + 1)]
        assert (ledger.lease_has(at, at, at + 1), ledger.lease_has(at, at, at + 2)) == (True, False)
    assert not ledger.lease_has(0, 1, 2)
    assert looked_at < 80 * CHUNK_RECORDS
    looked_at = 0
    assert len(list(ledger.lease_ranges(CHUNK_RECORDS + 1))) == CHUNK_RECORDS // 2
    assert looked_at < 2 * CHUNK_RECORDS
    for at in range(CHUNK_RECORDS, CHUNK_RECORDS + 3):
        assert ledger.lease_has(CHUNK_RECORDS + at % 2, at, at + 1)


def test_queue_offsets_that_leapt_cost_nothing() -> None:
    """Settle what a leap gave up, with one record open before it and one behind, park that, take it all back: whatever
    the distance, it is a few chunks."""
    ledger = Ledger()
    journal: Journal = []
    update = LedgerUpdate(ledger, journal)
    update.settle(1, LEAP)
    update.give_again(LEAP + 5, LEAP + 6, counted=True, delay_ms=3, logged_at=9)
    assert len(list(ledger.chunk_ranges())) == 3
    assert ledger.unsettled_total(LEAP + 10) == 11
    assert (ledger.next_free(0, LEAP + 9), ledger.next_free(1, LEAP + 9)) == ((0, 1), (LEAP, LEAP + 5))
    LedgerUpdate(ledger).settle(0, 1)
    assert (ledger.floor, ledger.ready(LEAP + 10)) == (LEAP, 9)
    assert journal
    ledger, journal = Ledger(), []
    LedgerUpdate(ledger, journal).settle(0, LEAP)
    LedgerUpdate(ledger).undo(journal, floor=0, watermark=0)
    assert (ledger.floor, ledger.next_free(0, LEAP)) == (0, (0, LEAP))


@pytest.mark.parametrize("seed", range(3))
def test_attempts_stop_at_255(seed: int) -> None:
    """Return a random stretch 300 times: its attempts are 255, those around it 0."""
    random = Random(seed)
    first = random.randrange(2 * CHUNK_RECORDS)
    until = first + random.randrange(1, CHUNK_RECORDS)
    ledger = Ledger()
    for _ in range(300):
        LedgerUpdate(ledger).give_again(first, until, counted=True)
    assert ledger.attempts(first, until + 10) == (255, until), f"seed {seed}"
    assert ledger.attempts(until, until + 10) == (0, until + 10)


def test_what_was_out_is_free_when_its_change_is_undone() -> None:
    """Settle, return and lease what is out, one and several at a time; undo each: nothing is out, all is free."""
    for change in (
        lambda update, until: update.settle(5, until),
        lambda update, until: update.give_again(5, until, counted=True, delay_ms=3),
        lambda update, until: update.lease(1, LeaseRow("h", 1, 1), 5, until),
    ):
        for until in (6, 9):
            ledger = Ledger()
            ledger.take(0, 10)
            journal: Journal = []
            change(LedgerUpdate(ledger, journal), until)
            LedgerUpdate(ledger).undo(journal, floor=0, watermark=0)
            assert (ledger.out, list(ledger.runs(0, 10)), list(ledger.chunk_ranges())) == (0, [(0, 10, FREE)], [])


def test_an_empty_range_is_nothing() -> None:
    """Asked for, settled, returned, leased, taken: nothing happens, and nothing is left over."""
    ledger = Ledger(10)
    for act in (ledger.take, ledger.give_back, LedgerUpdate(ledger).settle):
        act(20, 20)
        act(20, 5)
    LedgerUpdate(ledger).give_again(20, 20, counted=True)
    LedgerUpdate(ledger).lease(1, LeaseRow("h", 1, 1), 20, 20)
    LedgerUpdate(ledger).extend(1, LeaseRow("h", 1, 1))
    assert (ledger.floor, list(ledger.chunk_ranges()), ledger.leases) == (10, [], {})
    assert (ledger.next_free(0, 10), ledger.next_free(0, 11), ledger.ready(5)) == (None, (10, 11), 0)
    assert list(ledger.runs(0, 12)) == [(0, 10, SETTLED), (10, 12, FREE)]
