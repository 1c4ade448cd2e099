"""How long a queue is, what is refused and what goes: against a plain list of records."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from mirrorlog import versions
from mirrorlog.errors import QueueFull
from mirrorlog.queues.arguments import (
    REJECT_PUBLISH,
    lengths_of,
    message_ttl_ms,
    version_needed,
)
from mirrorlog.queues.delivery.group import GroupDelivery, Reach, Rules
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, LeaseRow, Ledger
from mirrorlog.queues.groups.ledger_chunk import Chunk
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.limits.length import DROP_HEAD, RANGES_MAX, LengthLimits, QueueLength, QueueLengthView, Sizes


def of(records: int | None = None, size: int | None = None, overflow: str = DROP_HEAD) -> QueueLength:
    return QueueLength(LengthLimits(records, size, overflow))


def filled(length: QueueLength, sizes: Iterable[int]) -> int:
    """Batches of one record; where they end."""
    at = 0
    for size in sizes:
        length.confirmed(at, at + 1, size)
        at += 1
    return at


def settle_all(ledger: Ledger, flat: list[int]) -> None:
    for first, until in zip(flat[::2], flat[1::2], strict=True):
        LedgerUpdate(ledger).settle(first, until)


# --- sizes ---


@pytest.mark.parametrize("seed", range(10))
def test_sizes_are_those_of_a_plain_list(seed: int) -> None:
    """Batches of all lengths, with gaps, told twice and dropped from the front: bytes of any stretch are those of its
    records, each with its share, short by less than two bytes for the two ends."""
    random = Random(seed)
    sizes, plain, at, low = Sizes(), dict[int, float](), 0, 0
    for _ in range(300):
        at += random.choice([0, 0, 0, 7])
        count, size = random.randint(1, 5), random.randint(96, 5000)
        sizes.add(at, at + count, size)
        if random.random() < 0.2:
            sizes.add(at, at + count, size)
        plain.update(dict.fromkeys(range(at, at + count), size / count))
        at += count
        if random.random() < 0.2:
            low = random.randint(low, at)
            sizes.drop(low)
        first = random.randint(low, at)
        until = random.randint(first, at + 3)
        exact = sum(plain.get(each, 0) for each in range(first, until))
        assert abs(sizes.between(first, until) - exact) < 2, seed
        if until > first + 1 and exact > 4:
            wanted = random.randint(1, int(exact) - 3) if exact > 5 else 1
            found = sizes.where(first, until, wanted)
            assert sizes.between(first, found) >= wanted, seed
            assert found == first + 1 or sizes.between(first, found - 1) < wanted, seed


def test_of_what_was_dropped_little_stays() -> None:
    """A hundred thousand batches go through a queue of ten."""
    sizes = Sizes()
    for at in range(100_000):
        sizes.add(at, at + 1, 100)
        sizes.drop(at - 9)
        assert len(sizes) <= 16
    assert sizes.between(99_990, 100_000) == 1000


# --- what counts ---


def test_what_is_in_hands_leased_or_settled_does_not_count_and_what_waits_does() -> None:
    """Ten records: one each is out, leased, settled and parked."""
    ledger = Ledger()
    ledger.take(0, 1)
    LedgerUpdate(ledger).lease(7, LeaseRow("h", 1000, 0), 2, 3)
    LedgerUpdate(ledger).settle(4, 5)
    LedgerUpdate(ledger).give_again(6, 7, counted=False, delay_ms=10)
    view = QueueLengthView(ledger, 0, 10)
    assert view.records() == 7
    assert list(view.ranges()) == [(1, 2), (3, 4), (5, 10)]


def test_what_a_loss_left_a_gap_of_and_what_is_below_the_begin_does_not_count() -> None:
    """Of [0, 2^33 + 10) the first five are gone with retention, and 2^33 of them were never there; with and without a
    group."""
    gap = (10, 10 + 2**33)
    for ledger in (None, Ledger()):
        view = QueueLengthView(ledger, 5, 2**33 + 20, (gap,))
        assert view.records() == 15
        assert list(view.ranges()) == [(5, 10), (2**33 + 10, 2**33 + 20)]
    ledger = Ledger()
    LedgerUpdate(ledger).settle(0, 7)
    assert QueueLengthView(ledger, 5, 20).records() == 13


def test_what_several_losses_left_gaps_of_does_not_count() -> None:
    """Records before, between and behind two gaps; with and without a group, with one that has settled some, and where
    it is looked at up to within a gap."""
    gaps = ((10, 10 + 2**33), (20 + 2**33, 2**34))
    ledger = Ledger()
    LedgerUpdate(ledger).settle(0, 2)
    for each, first in ((None, 0), (Ledger(), 0), (ledger, 2)):
        view = QueueLengthView(each, 0, 2**34 + 5, gaps)
        assert view.records() == 25 - first
        assert list(view.ranges()) == [(first, 10), gaps[0][1:] + gaps[1][:1], (2**34, 2**34 + 5)]
        assert QueueLengthView(each, 0, 15, gaps).records() == 10 - first
        assert list(QueueLengthView(each, 0, 15, gaps).ranges()) == [(first, 10)]


# --- refusing ---


def test_one_record_is_refused_exactly_above_the_limit() -> None:
    """Three fit; the fourth does not, until one is settled, or in hands; a limit of none takes none."""
    length, ledger = of(records=3, overflow=REJECT_PUBLISH), Ledger()
    for at in range(3):
        length.check(QueueLengthView(ledger, 0, at), 1, 100)
    with pytest.raises(QueueFull, match="3 records are ready, x-max-length is 3; nothing was stored") as full:
        length.check(QueueLengthView(ledger, 0, 3), 1, 100)
    assert (full.value.details, full.value.retriable) == ({"limit": "x-max-length", "most": 3}, True)
    ledger.take(0, 1)
    length.check(QueueLengthView(ledger, 0, 3), 1, 100)
    ledger.give_back(0, 1)
    LedgerUpdate(ledger).settle(2, 3)
    length.check(QueueLengthView(ledger, 0, 3), 1, 100)
    with pytest.raises(QueueFull):
        of(records=0, overflow=REJECT_PUBLISH).check(QueueLengthView(None, 0, 0), 1, 100)


def test_a_batch_is_taken_whole_when_its_first_record_fits() -> None:
    length = of(records=3, overflow=REJECT_PUBLISH)
    length.check(QueueLengthView(None, 0, 2), 50, 100)
    with pytest.raises(QueueFull):
        length.check(QueueLengthView(None, 0, 52), 1, 100)


def test_a_queue_without_a_limit_of_bytes_keeps_no_sizes() -> None:
    length = of(records=1, overflow=REJECT_PUBLISH)
    for at in range(100):
        length.arrived(at, at + 1, 100)
    assert (len(length.sizes), len(length._arriving)) == (0, 0)


def test_bytes_are_refused_exactly_above_the_limit_confirmed_or_not() -> None:
    """A thousand bytes: 600 confirmed, 300 on their way, and 100 more fit, 101 do not. What was refused by others
    behind this counts no more."""
    length = of(size=1000, overflow=REJECT_PUBLISH)
    filled(length, [200, 400])
    length.arrived(2, 3, 500)  # it was not appended
    length.arrived(2, 3, 300)
    length.check(QueueLengthView(None, 0, 3), 1, 100)
    with pytest.raises(QueueFull, match="900 bytes are ready and 101 more do not fit, x-max-length-bytes is 1000"):
        length.check(QueueLengthView(None, 0, 3), 1, 101)
    length.confirmed(2, 3, 300)
    length.check(QueueLengthView(None, 0, 3), 1, 100)
    ledger = Ledger()
    ledger.take(1, 2)
    length.check(QueueLengthView(ledger, 0, 3), 1, 500)
    with pytest.raises(QueueFull):
        length.check(QueueLengthView(ledger, 0, 3), 1, 501)


# --- dropping ---


@pytest.mark.parametrize("seed", range(30))
def test_what_is_dropped_is_what_a_list_would_drop(seed: int) -> None:
    """Records of one size each come, are taken, settled and returned at random; after each step the list drops its
    oldest ready ones until both limits hold. So does the queue, record by record, at whatever depth the exceptions
    are."""
    random = Random(seed)
    records_max = random.choice([None, 0, 1, 7, 40])
    bytes_max = random.choice([None, 0, 1000, 20_000])
    length, ledger = of(records_max, bytes_max), Ledger()
    sizes: list[int] = []
    ready: list[int] = []
    out: list[int] = []
    for _ in range(200):
        for _ in range(random.choice([0, 1, 1, 30])):
            sizes.append(random.randint(96, 900))
            ready.append(len(sizes) - 1)
            length.confirmed(len(sizes) - 1, len(sizes), sizes[-1])
        for each in random.sample(ready, min(len(ready), random.choice([0, 1, 5]))):
            ledger.take(each, each + 1)
            ready.remove(each)
            out.append(each)
        for each in random.sample(out, min(len(out), random.choice([0, 1, 5]))):
            out.remove(each)
            if random.random() < 0.7:
                LedgerUpdate(ledger).settle(each, each + 1)
                continue
            ledger.give_back(each, each + 1)
            ready = sorted([*ready, each])
        expected = list(ready)
        while expected and (
            (records_max is not None and len(expected) > records_max)
            or (bytes_max is not None and sum(sizes[each] for each in expected) > bytes_max)
        ):
            expected.pop(0)
        settle_all(ledger, length.to_drop(QueueLengthView(ledger, 0, len(sizes))))
        left = [at for first, until in QueueLengthView(ledger, 0, len(sizes)).ranges() for at in range(first, until)]
        assert left == expected, seed
        ready = expected


def test_what_lies_scattered_goes_in_parts() -> None:
    """Every second of 10,000 records is out: so many ranges at once, the oldest first, until it fits."""
    length, ledger = of(records=100), Ledger()
    for at in range(0, 10_000, 2):
        ledger.take(at, at + 1)
    parts = 0
    while ranges := length.to_drop(QueueLengthView(ledger, 0, 10_000)):
        assert len(ranges) <= 2 * RANGES_MAX
        settle_all(ledger, ranges)
        parts += 1
    assert (QueueLengthView(ledger, 0, 10_000).records(), parts) == (100, 5)


def test_bytes_that_lie_scattered_are_taken_in_proportion_behind_the_first_thousand() -> None:
    """The same with records of 100 bytes, of which 5,000 are ready: they are 500,000 bytes, within what one record
    is."""
    length, ledger = of(size=10_000), Ledger()
    end = filled(length, [100] * 10_000)
    for at in range(0, end, 2):
        ledger.take(at, at + 1)
    while ranges := length.to_drop(QueueLengthView(ledger, 0, end)):
        settle_all(ledger, ranges)
    assert QueueLengthView(ledger, 0, end).records() == 100


def test_a_queue_without_a_group_drops_its_first_records() -> None:
    assert of(records=3).to_drop(QueueLengthView(None, 5, 20)) == [5, 17]
    assert of(records=3).to_drop(QueueLengthView(None, 5, 8)) == []


# --- what a queue was declared with ---


def test_arguments_say_what_a_queue_may_have_and_what_does_not_fit_is_passed_over() -> None:
    """Also what an older version kept, of any shape."""
    assert lengths_of({}) is None
    assert lengths_of({"x-overflow": "reject-publish"}) is None
    assert lengths_of({"x-max-length": 0}) == LengthLimits(0, None, DROP_HEAD)
    both = {"x-max-length": 5, "x-max-length-bytes": 7, "x-overflow": "reject-publish"}
    assert lengths_of(both) == LengthLimits(5, 7, REJECT_PUBLISH)
    assert lengths_of({"x-max-length": "5", "x-max-length-bytes": -1}) is None
    assert lengths_of({"x-max-length": True}) is None
    assert lengths_of({"x-max-length": 5, "x-overflow": ["?"]}) == LengthLimits(5, None, DROP_HEAD)
    assert [message_ttl_ms({"x-message-ttl": each}) for each in (0, 9, -1, "9", None)] == [0, 9, None, None, None]
    assert [Rules.of({"x-max-priority": each}).priority_max for each in (0, 255, 256, "9", None)] == [0, 255, 255, 0, 0]


@pytest.mark.parametrize("name", ["x-message-ttl", "x-max-priority", "x-max-length", "x-max-length-bytes"])
def test_such_a_queue_needs_masters_that_keep_it(name: str) -> None:
    assert version_needed({name: 1}) == versions.GROUPS
    assert version_needed({"x-overflow": "drop-head"}) == versions.GROUPS


# --- what it takes ---


def test_what_is_in_hands_costs_no_step_however_scattered_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a million separate records are in hand, and behind them some are ready: the runs that a look at what
    to drop, at what a publish would be too much for, and at what a purge takes goes through are a few."""
    runs = Counter[str]()
    find, run_end = Chunk.find, Chunk.run_end

    def counted_find(chunk: Chunk, state: int, first: int, until: int) -> int:
        runs["find"] += 1
        return find(chunk, state, first, until)

    def counted_end(chunk: Chunk, first: int, until: int) -> int:
        runs["end"] += 1
        return run_end(chunk, first, until)

    count = 128 * CHUNK_RECORDS
    ledger = Ledger()
    ledger.take(0, count)
    for at in range(1, count, 2):
        LedgerUpdate(ledger).settle(at, at + 1)
    length, full = of(records=10), of(size=1000, overflow=REJECT_PUBLISH)
    full.confirmed(0, count + 20, 100 * (count + 20))
    delivery = GroupDelivery(
        "", ledger, Rules(), epoch=1, found_watermark=0, reach=lambda at, until, _: Reach(at, until, 1),
        next_lease=lambda: 1, now=0.0,
    )  # fmt: skip
    monkeypatch.setattr(Chunk, "find", counted_find)
    monkeypatch.setattr(Chunk, "run_end", counted_end)
    assert length.to_drop(QueueLengthView(ledger, 0, count + 20)) == [count, count + 10]
    with pytest.raises(QueueFull):
        full.check(QueueLengthView(ledger, 0, count + 20), 1, 100)
    change = delivery.purge(count + 20)
    assert change is not None
    assert change.ranges == [count, count + 20]
    assert sum(runs.values()) < 1000


def test_a_publish_does_not_go_through_what_is_on_its_way() -> None:
    """With a thousand batches that are not confirmed one more is looked at in as many steps as with none; and those
    that were refused by others behind this count no more."""

    class Seen(deque[tuple[int, int, int]]):
        steps = 0

        def __iter__(self) -> Iterator[tuple[int, int, int]]:
            for each in super().__iter__():
                Seen.steps += 1
                yield each

        def __reversed__(self) -> Iterator[tuple[int, int, int]]:
            for each in super().__reversed__():
                Seen.steps += 1
                yield each

    length = of(size=100_000, overflow=REJECT_PUBLISH)
    length._arriving = Seen()
    for at in range(1000):
        length.check(QueueLengthView(None, 0, at), 1, 100)
        length.arrived(at, at + 1, 100)
    assert Seen.steps <= 1000
    with pytest.raises(QueueFull, match="100000 bytes are ready"):
        length.check(QueueLengthView(None, 0, 1000), 1, 100)
    length.check(QueueLengthView(None, 0, 998), 1, 200)
    length.arrived(998, 999, 50)
    with pytest.raises(QueueFull, match="99850 bytes are ready"):
        length.check(QueueLengthView(None, 0, 999), 1, 151)
    filled(length, [100] * 998)
    with pytest.raises(QueueFull, match="99850 bytes are ready"):
        length.check(QueueLengthView(None, 0, 999), 1, 151)
