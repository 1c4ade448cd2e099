"""Holds of landings: what each wish gives, and that their state follows the log, whatever is applied twice or cut."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.errors import BadRequest, HoldTaken, Overloaded
from mirrorlog.queues.changes import HoldEnded, HoldSet, encode_change
from mirrorlog.queues.checkpoint_states import HoldsState
from mirrorlog.queues.limits.holds import (
    EXPIRED,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LOCATION_CHARS_MAX,
    RELEASED,
    TOO_MUCH,
    Hold,
    HoldRequest,
    HoldTable,
)
from tests.queues.statelog import StateLog, follow_batch

QUEUE = 7
END = 100
LEASE_MS = 60_000
X = HoldRequest("lake", "x", 10, LEASE_MS, "file:///lake")


class Book:
    """A log of holds, its state, and what a table says that follows it."""

    def __init__(self, *, per_queue_max: int = 4) -> None:
        self.log = StateLog()
        self.holds = HoldTable(per_queue_max=per_queue_max)

    def ask(self, wish: HoldRequest, *, left_ms: int = LEASE_MS, queue_id: int = QUEUE) -> Hold:
        """The hold, as appended."""
        self.append(self.holds.set(queue_id, wish, next_confirmed=END, left_ms=left_ms), queue_id)
        return self.holds.newest(queue_id)[wish.name]

    def end(self, reason: str, name: str = "lake", holder: str = "") -> None:
        self.append(self.holds.end(QUEUE, name, reason, holder=holder))

    def append(self, change: HoldSet | HoldEnded | None, queue_id: int = QUEUE) -> None:
        if change is not None:
            follow_batch(self.holds, *self.log.append(encode_change(change, queue_id=queue_id)))

    def confirm(self) -> None:
        self.holds.confirm(self.log.end)

    def cut(self, log_offset: int) -> None:
        self.log.cut(log_offset)
        self.holds.cut(log_offset)


# --- wishes ---


def test_the_first_registration_begins_with_epoch_1_and_counts_from_its_confirm() -> None:
    """Register; look before and after the confirm."""
    book = Book()
    hold = book.ask(X)
    assert hold == Hold("lake", "x", 1, 10, LEASE_MS, "file:///lake", landed_from=10)
    assert (book.holds.confirmed(QUEUE), book.holds.floors()) == ({}, {QUEUE: 10})
    book.confirm()
    assert book.holds.confirmed(QUEUE) == {"lake": hold}


def test_a_renewal_moves_forward_only_and_writes_nothing_when_nothing_changed() -> None:
    """By the same holder: the same, further, back, under its epoch and under another one."""
    book = Book()
    book.ask(X)
    assert book.holds.set(QUEUE, X, next_confirmed=END, left_ms=1) is None
    assert book.ask(X._replace(queue_offset=30, epoch=1)).queue_offset == 30
    assert book.holds.set(QUEUE, X._replace(queue_offset=20), next_confirmed=END, left_ms=1) is None
    with pytest.raises(HoldTaken, match="in epoch 1"):
        book.ask(X._replace(epoch=2))


def test_another_holder_waits_for_the_lease_or_takes_over() -> None:
    """While it runs, by force, and after it; the one that was replaced is refused at its next renewal, and told by
    whom."""
    book = Book()
    book.ask(X)
    y = X._replace(holder="y", queue_offset=5)
    with pytest.raises(HoldTaken, match=r"held by 'x' in epoch 1, 1\.5 s of its lease are left") as refusal:
        book.ask(y, left_ms=1500)
    assert refusal.value.details == {"holder": "x", "epoch": 1, "left_ms": 1500}
    taken = book.ask(y._replace(take_over=True), left_ms=1500)
    assert (taken.holder, taken.epoch, taken.queue_offset) == ("y", 2, 5)
    with pytest.raises(HoldTaken, match="held by 'y' in epoch 2"):
        book.ask(X._replace(epoch=1))
    assert book.ask(y._replace(take_over=True)).epoch == 2, "asked for twice, it is given once"
    assert book.ask(X, left_ms=0).epoch == 3


def test_who_has_a_hold_hands_it_over_under_its_epoch() -> None:
    """To another name, by force, as a run that ends does; one whose hold was taken meanwhile is refused, also with
    force."""
    book = Book()
    book.ask(X)
    assert book.ask(X._replace(holder="nobody", epoch=1, take_over=True)).epoch == 2
    assert book.ask(X._replace(holder="y", take_over=True)).epoch == 3
    with pytest.raises(HoldTaken, match="held by 'y' in epoch 3"):
        book.ask(X._replace(holder="nobody", epoch=1, take_over=True))


@pytest.mark.parametrize("reason", [EXPIRED, TOO_MUCH])
def test_what_ended_by_itself_stays_known_and_the_epoch_goes_on(reason: str) -> None:
    """End one; it keeps nothing and says why; its own holder, or another, registers again in the next epoch, where it
    asks to begin; a renewal that has not heard of the end does not revive it, but is told why."""
    book = Book()
    ended = replace(book.ask(X), ended=reason)
    book.end(reason)
    assert book.holds.newest(QUEUE) == {"lake": ended}
    assert (book.holds.floors(), list(book.holds.live())) == ({}, [])
    assert book.holds.end(QUEUE, "lake", reason) is None
    with pytest.raises(HoldTaken, match=rf"has no hold of epoch 1 any more: it ended in epoch 1 \({reason}\)") as late:
        book.ask(X._replace(queue_offset=30, epoch=1))
    assert late.value.details["ended"] == reason
    again = book.ask(X._replace(queue_offset=3))
    assert (again.epoch, again.queue_offset, again.ended) == (2, 3, "")


def test_what_was_released_is_forgotten() -> None:
    """By its holder, not by another, and by an operator who names nobody; the next one begins with epoch 1."""
    book = Book()
    book.ask(X)
    with pytest.raises(HoldTaken):
        book.end(RELEASED, holder="y")
    book.end(RELEASED, holder="x")
    assert book.holds.newest(QUEUE) == {}
    with pytest.raises(HoldTaken, match="it was ended"):
        book.ask(X._replace(epoch=1))
    assert book.holds.newest(QUEUE) == {}
    assert book.ask(X).epoch == 1
    book.end(EXPIRED)
    book.end(RELEASED)
    assert book.holds.newest(QUEUE) == {}
    assert book.holds.end(QUEUE, "lake", RELEASED) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name has 1 to 255"),
        ({"name": "a" * 256}, "name has 1 to 255"),
        ({"holder": "a\nb"}, "holder has 1 to 255"),
        ({"location": "a" * (LOCATION_CHARS_MAX + 1)}, "at most 4096"),
        ({"location": "", "tiered": True}, "give its location"),
        ({"lease_ms": LEASE_MS_MIN - 1}, "lease_ms 99"),
        ({"lease_ms": LEASE_MS_MAX + 1}, "lease_ms"),
        ({"queue_offset": -1}, "queue offset -1"),
        ({"queue_offset": END + 1}, "within 0 and 100"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(change: dict, message: str) -> None:
    """Each by name; what is just within a limit is taken."""
    with pytest.raises(BadRequest, match=message):
        Book().ask(X._replace(**change))
    longest = X._replace(name="n" * 255, holder="h" * 255, location="l" * 4096, lease_ms=LEASE_MS_MAX, queue_offset=END)
    assert Book().ask(longest).queue_offset == END


def test_a_queue_has_so_many_holds_ended_ones_among_them() -> None:
    """Two at most: a third is refused until one is forgotten; other queues have their own."""
    book = Book(per_queue_max=2)
    for name in "ab":
        book.ask(X._replace(name=name))
    book.end(EXPIRED, "a")
    with pytest.raises(Overloaded, match="max_holds_per_queue"):
        book.ask(X._replace(name="c"))
    book.ask(X._replace(name="a"))
    book.ask(X._replace(name="c"), queue_id=QUEUE + 1)
    book.end(RELEASED, "a")
    book.ask(X._replace(name="c"))


def test_the_floor_is_the_smallest_of_those_that_hold() -> None:
    """Three holds, one tiered and moved on, that end one after the other."""
    book = Book()
    for name, queue_offset in (("a", 30), ("b", 20), ("c", 40)):
        book.ask(X._replace(name=name, queue_offset=queue_offset, tiered=name == "c"))
    book.ask(X._replace(name="c", queue_offset=41, tiered=True))
    assert (book.holds.floors(), book.holds.tiered()) == ({QUEUE: 20}, {QUEUE})
    book.end(EXPIRED, "b")
    assert book.holds.floors() == {QUEUE: 30}
    book.end(EXPIRED, "c")
    assert (book.holds.floors(), book.holds.tiered()) == ({QUEUE: 30}, set())


# --- tiers ---

T = X._replace(tiered=True)


def test_a_table_is_a_tier_once_its_landing_has_landed_something() -> None:
    """Registered, as any holder, it is none yet, and frees nothing; moved on, it is, over another holder and an end;
    set back to where it began it has a new table, which is none."""
    book = Book()

    def is_tier() -> bool:
        return book.holds.newest(QUEUE)["lake"].is_tier

    book.ask(T._replace(queue_offset=5))
    book.end(EXPIRED)
    book.ask(T)  # retention has gone on meanwhile
    book.ask(T._replace(holder="y", take_over=True))
    assert (is_tier(), book.holds.tiered()) == (False, set())
    book.ask(T._replace(holder="y", queue_offset=11))
    assert (is_tier(), book.holds.tiered()) == (True, {QUEUE})
    book.ask(T._replace(queue_offset=11, take_over=True))
    assert is_tier(), "the same table in another run"
    book.end(EXPIRED)
    assert (is_tier(), book.holds.tiered()) == (True, set())
    book.ask(T._replace(queue_offset=11))
    assert is_tier()
    book.ask(T._replace(holder="y", queue_offset=10, take_over=True))
    assert not is_tier()
    book.ask(T._replace(holder="y", queue_offset=20))
    book.end(RELEASED)
    book.ask(T._replace(queue_offset=20))
    assert not is_tier(), "forgotten"


def test_what_was_landed_before_it_was_tiered_counts() -> None:
    """Land to a table that is not tiered, then say that it is; and to another place, where it begins anew."""
    book = Book()
    book.ask(X)
    book.ask(X._replace(queue_offset=20))
    assert not book.holds.newest(QUEUE)["lake"].is_tier
    assert book.ask(T._replace(queue_offset=20)).is_tier
    other = Book()
    other.ask(X)
    other.ask(X._replace(queue_offset=20))
    assert not other.ask(T._replace(queue_offset=20, location="file:///new")).is_tier


@pytest.mark.parametrize("change", [{"location": "file:///new"}, {"tiered": False}])
@pytest.mark.parametrize("ended", [False, True])
def test_a_table_that_readers_look_in_is_not_left_under_its_name(change: dict, ended: bool) -> None:
    """Another place, or not tiered any more, by a renewal or a new run: refused, saying what to do; a name of its own
    is given, and so is the same name before anything was landed, or once the table is forgotten."""
    book = Book()
    book.ask(T)
    book.ask(T._replace(location="file:///second"))
    book.ask(T)
    book.ask(T._replace(queue_offset=20))
    if ended:
        book.end(EXPIRED)
    before = dict(book.holds.newest(QUEUE))
    for wish in (T._replace(holder="y", take_over=True), *(() if ended else (T._replace(epoch=1, queue_offset=30),))):
        with pytest.raises(BadRequest, match=r"up to 20 to file:///lake.*name of its own.*mqtool landing-end"):
            book.ask(wish._replace(**change))
    assert book.holds.newest(QUEUE) == before
    book.ask(T._replace(name="new", **change))
    assert book.holds.newest(QUEUE)["lake"].is_tier
    book.end(RELEASED)
    assert book.ask(T._replace(**change)).location == change.get("location", T.location)


def test_entries_of_before_say_that_all_was_landed() -> None:
    """A change, and a checkpoint's row, that do not say where their landing began."""
    book = Book()
    old = HoldSet(name="lake", holder="x", epoch=1, queue_offset=10, lease_ms=LEASE_MS, location="t", tiered=True)
    assert b"landed_from" not in msgspec.msgpack.encode(old)
    book.append(old)
    assert book.holds.tiered() == {QUEUE}
    row = ["lake", "x", 1, 10, LEASE_MS, "t", True, ""]
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(["H", QUEUE, [row]]), type=HoldsState)
    restored = HoldTable(per_queue_max=4)
    header, _ = book.log.batches[-1]
    restored.restore(header, [state])
    assert restored.newest(QUEUE) == book.holds.newest(QUEUE)


def test_a_checkpoint_keeps_where_a_landing_began() -> None:
    """Restore from the state of one that has landed nothing, and one that has."""
    book, restored = Book(), HoldTable(per_queue_max=4)
    book.ask(T)
    book.ask(T._replace(name="on"))
    book.ask(T._replace(name="on", queue_offset=20))
    state = book.holds.state(QUEUE, ["lake", "on"])
    assert state is not None
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=HoldsState)
    restored.restore(book.log.batches[-1][0], [decoded])
    assert restored.newest(QUEUE) == book.holds.newest(QUEUE)
    assert [hold.is_tier for hold in restored.newest(QUEUE).values()] == [False, True]


# --- deciding ---


def test_who_decided_before_a_hold_came_has_to_look_again() -> None:
    """The count rises with what may keep more, and with nothing else: forward, and an end, keep less."""
    book = Book()

    def rose(act: object) -> bool:
        before = book.holds.lowered
        act()  # type: ignore[operator]
        return book.holds.lowered > before

    assert rose(lambda: book.ask(X))
    assert not rose(lambda: book.ask(X._replace(queue_offset=20)))
    assert rose(lambda: book.ask(X._replace(holder="y", queue_offset=5, take_over=True)))
    assert not rose(lambda: book.ask(X._replace(holder="z", queue_offset=50, take_over=True)))
    assert not rose(lambda: book.end(EXPIRED))
    assert rose(lambda: book.ask(X._replace(queue_offset=60)))
    book.confirm()
    end = book.log.end
    book.ask(X._replace(queue_offset=70))
    assert rose(lambda: book.cut(end)), "the move is gone: more is kept than before"


# --- random lives ---

_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from("ab"),
            st.sampled_from("xy"),
            st.integers(0, END),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(st.just("end"), st.sampled_from("ab"), st.sampled_from([RELEASED, EXPIRED, TOO_MUCH])),
        st.tuples(st.just("confirm"), st.floats(0, 1)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=_STEPS)
def test_a_random_life_is_what_its_log_says(steps: list[tuple]) -> None:
    """Goal: copies agree, whatever they met twice or cut. Any wishes, ends, confirms and cuts; after each, a table that
    reads the log from its start, and one that reads every batch twice, say the same, and an epoch never belongs to two
    holders."""
    life = Life()
    for step in steps:
        life.step(*step)
        life.check()


class Life:
    """A book, and who had which hold in which epoch."""

    def __init__(self) -> None:
        self.book = Book()
        self.confirmed = 0
        self.epochs: dict[tuple[str, int], str] = {}

    def step(self, kind: str, *facts: Any) -> None:
        book = self.book
        match kind, *facts:
            case ("ask", name, holder, queue_offset, take_over, runs):
                with suppress(HoldTaken):
                    book.ask(HoldRequest(name, holder, queue_offset, LEASE_MS, take_over=take_over), left_ms=int(runs))
            case ("end", name, reason):
                book.end(reason, name)
            case ("confirm", share):
                self.confirmed = max(self.confirmed, self.border(share))
                book.holds.confirm(self.confirmed)
            case ("cut", share):
                book.cut(max(self.confirmed, self.border(share)))
                self.epochs.clear()

    def border(self, share: float) -> int:
        borders = [0, *(header.next_log_offset for header, _ in self.book.log.batches)]
        return borders[round(share * (len(borders) - 1))]

    def check(self) -> None:
        once, twice = HoldTable(per_queue_max=4), HoldTable(per_queue_max=4)
        for stored in self.book.log.batches:
            follow_batch(once, *stored)
            follow_batch(twice, *stored)
            follow_batch(twice, *stored)
        for table in (once, twice):
            table.confirm(self.confirmed)
            assert table.newest(QUEUE) == self.book.holds.newest(QUEUE)
            assert table.confirmed(QUEUE) == self.book.holds.confirmed(QUEUE)
        for hold in self.book.holds.newest(QUEUE).values():
            if hold.epoch == 1:  # forgotten before, it began anew
                self.epochs = {key: known for key, known in self.epochs.items() if key[0] != hold.name}
            assert self.epochs.setdefault((hold.name, hold.epoch), hold.holder) == hold.holder
