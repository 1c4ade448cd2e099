"""The acking groups of a log: what counts when, what a cut takes back, what a checkpoint tells, what is refused."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadBatch, BadRequest, NoSuchGroup, Overloaded
from mirrorlog.queues.changes import (
    RANGES_PER_CHANGE,
    Change,
    GroupDeleted,
    GroupReset,
    RecordsLeased,
    Returned,
    Settled,
    Watermark,
    encode_change,
    encode_changes,
    split_ranges,
)
from mirrorlog.queues.checkpoint import GROUPS_BYTES_MAX
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    GroupState,
    LeasesState,
    LedgerChunk,
    State,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, LeaseRow, Ledger
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.groups.states import PIECE_RECORDS, restore_chunk
from mirrorlog.queues.groups.table import GroupTable
from tests.queues.ledgers import END, facts, random_change, random_range, table_facts
from tests.queues.statelog import Master, StateLog, Stored, follow_batch

QUEUE = 1
SMALLEST_MAX = 64 * 1024
"""The smallest `max_batch_bytes` that there can be."""


class Book:
    """The groups of a log of one queue, changed as a master does."""

    def __init__(self) -> None:
        self.log = StateLog()
        self.table = GroupTable(per_queue_max=3)

    def append(self, *changes: Change, queue_id: int = QUEUE) -> Stored:
        stored = self.log.append(encode_changes(changes, queue_id=queue_id))
        follow_batch(self.table, *stored)
        return stored

    def cut(self, log_offset: int) -> None:
        self.log.cut(log_offset)
        self.table.cut(log_offset)

    @property
    def ledger(self) -> Ledger:
        return self.table.find(QUEUE, "")


@pytest.fixture
def book() -> Book:
    """With the queue's own group, from its first record on."""
    book = Book()
    book.append(GroupReset(group="", queue_offset=0))
    return book


# --- changes ---


def test_what_is_settled_stays_settled(book: Book) -> None:
    """Settle some, by several ranges; return, park and lease them with others: they do not come back."""
    book.append(Settled(group="", ranges=[0, 2, 5, 7]))
    book.append(Returned(group="", ranges=[1, 9], counted=True, delay_ms=10))
    book.append(RecordsLeased(group="", lease=1, holder="x", ranges=[1, 9], lease_ms=10))
    told = facts(book.ledger, 10)
    assert told["runs"] == [(0, 2, 1), (2, 5, 4), (5, 7, 1), (7, 9, 4), (9, 10, 0)]
    assert told["attempts"] == [(2, 5, 1), (7, 9, 1)]


def test_a_lease_begins_anew_with_each_word_of_it_and_ends_with_its_last_record(book: Book) -> None:
    """Give two records, extend, give one more; settle two, return one: then it is not there, and cannot be extended."""
    first = book.append(RecordsLeased(group="", lease=7, holder="x", ranges=[0, 2], lease_ms=10))
    assert book.ledger.leases == {7: LeaseRow("x", 10, first[0].log_offset)}
    again = book.append(RecordsLeased(group="", lease=7, holder="x", ranges=[], lease_ms=20))
    assert book.ledger.leases == {7: LeaseRow("x", 20, again[0].log_offset)}
    book.append(RecordsLeased(group="", lease=7, holder="x", ranges=[4, 5], lease_ms=20))
    assert (list(book.ledger.lease_ranges(7)), book.ledger.lease_records(7)) == ([(0, 2), (4, 5)], 3)
    book.append(Settled(group="", ranges=[0, 2]))
    assert [at for at in (4, 0) if book.ledger.lease_has(7, at, at + 1)] == [4]
    book.append(Returned(group="", ranges=[4, 5]))
    book.append(RecordsLeased(group="", lease=7, holder="x", ranges=[], lease_ms=30))
    assert book.ledger.leases == {}


def test_a_record_belongs_to_the_newest_lease(book: Book) -> None:
    """Lease a stretch, and its middle anew to another holder: the first has what is left."""
    book.append(RecordsLeased(group="", lease=1, holder="x", ranges=[0, 9], lease_ms=10))
    book.append(RecordsLeased(group="", lease=2, holder="y", ranges=[3, 5], lease_ms=10))
    assert list(book.ledger.lease_ranges(1)) == [(0, 3), (5, 9)]
    book.append(Settled(group="", ranges=[0, 9]))
    assert book.ledger.leases == {}


def test_the_watermark_is_where_it_was_put_last(book: Book) -> None:
    """Forward, and back, as a clean stop says the exact one."""
    book.append(Watermark(group="", queue_offset=4096))
    book.append(Watermark(group="", queue_offset=17))
    assert book.ledger.watermark == 17


def test_a_reset_forgets_all_and_an_end_the_group(book: Book) -> None:
    """Reset forward and back over what was settled, leased and given out; end it, twice; changes of what is not there
    change nothing."""
    book.append(
        Settled(group="", ranges=[3, 4]), RecordsLeased(group="", lease=1, holder="x", ranges=[5, 6], lease_ms=9)
    )
    for queue_offset in (100, 2):
        book.append(GroupReset(group="", queue_offset=queue_offset))
        assert facts(book.ledger, 200) == facts(Ledger(queue_offset), 200)
    book.append(GroupDeleted(group=""))
    book.append(GroupDeleted(group=""), Settled(group="", ranges=[0, 9]), Watermark(group="", queue_offset=3))
    assert book.table.get(QUEUE, "") is None
    assert list(book.table) == []
    with pytest.raises(NoSuchGroup):
        book.table.find(QUEUE, "")


def test_a_batch_of_several_changes_counts_once_however_often_it_comes(book: Book) -> None:
    """A batch that returns one record twice, counted, is two attempts; applied again it is two still; and so it is
    behind what came later."""
    again = Returned(group="", ranges=[0, 1], counted=True)
    stored = book.append(again, again)
    follow_batch(book.table, *stored)
    assert book.ledger.attempts(0, 1) == (2, 1)
    book.append(again)
    follow_batch(book.table, *stored)
    assert book.ledger.attempts(0, 1) == (3, 1)


@pytest.mark.parametrize("ranges", [[1], [5, 5], [5, 4], [0, 5, 4, 9], [-1, 3], [0, 2**63 + 1]])
def test_ranges_that_make_no_sense_are_no_change(book: Book, ranges: list[int]) -> None:
    """Half a range, an empty one, a backward one, two that overlap, numbers that are none."""
    with pytest.raises(BadBatch):
        book.append(Settled(group="", ranges=ranges))


def test_groups_and_queues_have_their_own_ledgers(book: Book) -> None:
    """Three groups in two queues: what one settles is the others' still; the lowest floor of each queue is told."""
    book.append(GroupReset(group="g", queue_offset=5))
    book.append(GroupReset(group="", queue_offset=7), queue_id=2)
    book.append(Settled(group="g", ranges=[5, 9]))
    floors = {(queue_id, group): ledger.floor for queue_id, group, ledger in book.table}
    assert floors == {(1, ""): 0, (1, "g"): 9, (2, ""): 7}
    assert book.table.floors([1, 2, 3]) == {1: 0, 2: 7}
    book.table.forget_queue(1)
    book.cut(0)
    assert list(book.table) == [], "what is forgotten does not come back, and what was cut is gone"


# --- limits and names ---


def test_a_queue_has_so_many_groups_of_both_sorts() -> None:
    """Three: two that ack and a stream's; a fourth is refused, those that are there can be reset."""
    book = Book()
    for group in ("", "g"):
        book.append(book.table.reset(QUEUE, group, 0, streams=["s"]))
    with pytest.raises(Overloaded, match="max_groups_per_queue"):
        book.table.reset(QUEUE, "h", 0, streams=["s"])
    book.append(book.table.reset(QUEUE, "g", 5, streams=["s"]))
    book.append(book.table.reset(QUEUE, "s", 5, streams=["s"], replace_stream=True))
    assert sorted(book.table.groups(QUEUE)) == ["", "g", "s"]
    book.append(book.table.delete(QUEUE, "g"))
    book.append(book.table.reset(QUEUE, "h", 0))


@pytest.mark.parametrize(("group", "queue_offset"), [("a\nb", 0), ("g" * 256, 0), ("g", -1), ("g", 2**63)])
def test_a_reset_that_makes_no_sense_is_refused(group: str, queue_offset: int) -> None:
    """By its name or its place; the longest name and the last place are taken."""
    with pytest.raises(BadRequest):
        Book().table.reset(QUEUE, group, queue_offset)
    assert Book().table.reset(QUEUE, "g" * 255, 2**63 - 1).queue_offset == 2**63 - 1


def test_the_end_of_a_group_that_is_not_there_is_refused() -> None:
    """Of the queue's own, and of a named one."""
    with pytest.raises(NoSuchGroup, match="nobody has ever subscribed"):
        Book().table.delete(QUEUE, "")
    with pytest.raises(NoSuchGroup, match="no group 'g'"):
        Book().table.delete(QUEUE, "g")


def test_a_stream_groups_name_is_not_an_acking_groups_unless_it_is_replaced() -> None:
    """A position under a name; an acking group of that name is refused; a reset that says so makes it, and then the
    position is gone, on a copy too, and a new one is refused until the acking group is deleted."""
    master = Master()
    registry, groups = master.derived.registry, master.derived.groups
    registry._acking = lambda queue_id, group: groups.get(queue_id, group) is not None
    queue_id = master.declare("q")
    master.commit("q", "g", 3)
    began_at = master.checkpoint()[0][0].log_offset
    streams = registry.groups(queue_id)
    with pytest.raises(BadRequest, match="reads this queue as a stream"):
        groups.reset(queue_id, "g", 0, streams=streams)
    border = master.log.end
    reset = groups.reset(queue_id, "g", 0, streams=streams, replace_stream=True)
    master.append(encode_change(reset, queue_id=queue_id))
    assert registry.groups(queue_id) == []
    with pytest.raises(BadRequest, match="acknowledges what it reads"):
        master.commit("q", "g", 4)
    for each in (master.rebuilt(began_at), master.rebuilt(0)):
        assert each.registry.find("q").positions == each.registry.find("q").newest == {}
        assert each.groups.get(queue_id, "g") is not None
    registry.cut(border)
    groups.cut(border)
    assert (registry.groups(queue_id), groups.get(queue_id, "g")) == (["g"], None)
    master.log.cut(border)
    master.append(encode_change(reset, queue_id=queue_id))
    master.append(encode_change(groups.delete(queue_id, "g"), queue_id=queue_id))
    master.commit("q", "g", 4)
    master.confirm_all()
    assert registry.find("q").positions["g"].queue_offset == 4


# --- cut and confirm ---


def test_a_cut_takes_back_what_is_not_confirmed(book: Book) -> None:
    """Confirm one settlement, not the next, nor the end of the group; cut: as after the first, and nothing is out."""
    book.append(Settled(group="", ranges=[0, 2]))
    book.table.confirm(book.log.end)
    before, border = facts(book.ledger, END), book.log.end
    book.append(Settled(group="", ranges=[5, 6, 4096, 12288]))
    book.ledger.take(2, 10)
    lowered = book.table.lowered
    book.append(GroupDeleted(group=""))
    book.append(GroupReset(group="", queue_offset=50))
    book.cut(border)
    assert facts(book.ledger, END) == before
    assert (book.ledger.out, book.table.lowered > lowered) == (0, True)


def test_what_was_in_hand_is_free_after_a_cut(book: Book) -> None:
    """Give out ten, settle some of them, cut that: none is out, and all are free; also when nothing was to be cut."""
    border = book.log.end
    book.ledger.take(0, 10)
    book.append(Settled(group="", ranges=[3, 5]))
    assert book.ledger.out == 8
    book.cut(border)
    assert (book.ledger.out, book.ledger.ready(10)) == (0, 10)
    book.ledger.take(0, 10)
    book.cut(border)
    assert (book.ledger.out, list(book.ledger.chunk_ranges())) == (0, [])


def test_a_master_that_writes_a_checkpoint_still_knows_what_it_gave_out() -> None:
    """Give out some between settled ones, write a checkpoint: the same are out."""
    master = Master()
    queue_id = master.declare("q")
    master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=queue_id))
    master.append(encode_change(Settled(group="", ranges=[3, 5]), queue_id=queue_id))
    ledger = master.derived.groups.find(queue_id, "")
    ledger.take(0, 10)
    before = list(ledger.runs(0, 20))
    master.checkpoint()
    assert (list(ledger.runs(0, 20)), ledger.out) == (before, 8)


def test_what_is_confirmed_before_it_is_told_needs_nothing_to_take_it_back() -> None:
    """As at a start: the confirm comes first, and nothing is kept of a thousand changes; what stands above it is."""
    book, copy = Book(), GroupTable(per_queue_max=1)
    book.append(GroupReset(group="", queue_offset=0))
    for at in range(1000):
        book.append(Settled(group="", ranges=[at, at + 1]))
    border = book.log.end
    book.append(Settled(group="", ranges=[2000, 2001]))
    copy.confirm(border)
    for stored in book.log.batches:
        follow_batch(copy, *stored)
    assert len(copy._undo) == 1
    copy.cut(border)
    book.cut(border)
    assert table_facts(copy, END) == table_facts(book.table, END)


# --- random lives ---


class Life:
    """A master that writes checkpoints, piece by piece, while its groups change, in the way that a seed gives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master = Master()
        self.queue_ids = [self.master.declare(name) for name in "ab"]
        self.began: list[int] = []
        self.complete: list[int] = []
        self.writer = None

    def live(self, steps: int) -> list[Stored]:
        for _ in range(steps):
            self.random.choice([self.change, self.change, self.change, self.write, self.write, self.give_out])()
        return self.master.log.batches

    def change(self) -> None:
        queue_id, group = self.random.choice(self.queue_ids), self.random.choice(["", "g"])
        table = self.master.derived.groups
        changes: list[Change] = []
        if table.get(queue_id, group) is None or self.random.random() < 0.03:
            changes.append(table.reset(queue_id, group, self.random.choice([0, 0, 3, 5000])))
        else:
            ledger = table.get(queue_id, group)
            floor = 0 if ledger is None else ledger.floor
            changes += [
                random_change(self.random, group, self.master.log.end, floor)
                for _ in range(self.random.choice([1, 1, 3]))
            ]
        self.master.append(encode_changes(changes, queue_id=queue_id))

    def give_out(self) -> None:
        for _, _, ledger in self.master.derived.groups:
            ledger.take(*random_range(self.random))
            ledger.give_back(*random_range(self.random))

    def write(self) -> None:
        """Some pieces; now and then the rest is never written, as when a master goes."""
        if self.writer is None or self.random.random() < 0.05:
            self.writer = self.master.derived.writer(
                queues_per_batch=self.random.choice([1, 2, 9]), producers_per_batch=1
            )
            self.began.append(self.master.log.end)
        for _ in range(self.random.choice([1, 1, 2, 5])):
            batch = self.writer.next_batch(self.master.log.end)
            if batch is None:
                self.complete.append(self.began[-1])
                self.writer = None
                return
            self.master.append(batch)


@pytest.mark.parametrize("seed", range(25))
def test_every_copy_says_what_the_master_says(seed: int) -> None:
    """Goal: copies agree, wherever they began, whatever they met twice and whatever was cut and came again. Method: a
    random life with checkpoints among its changes. Copies that begin with it, with each complete checkpoint, without
    checkpoints, and that meet every batch twice, say in the end what the master says. Copies are cut at random places,
    above what is confirmed and within checkpoints too, and say then what one says that never was further."""
    life = Life(seed)
    batches = life.live(120)
    expected = table_facts(life.master.derived.groups, END)
    for began_at in [0, *life.complete]:
        copy = GroupTable(per_queue_max=4)
        mine = life.master.log.since(began_at)
        feed(copy, mine, twice=life.random.random() < 0.5)
        assert table_facts(copy, END) == expected, (seed, began_at)
        check_cuts(life.random, mine, seed)
    plain = GroupTable(per_queue_max=4)
    feed(plain, [stored for stored in batches if stored[0].kind == 3])
    assert table_facts(plain, END) == expected, seed


def check_cuts(random: Random, batches: list[Stored], seed: int) -> None:
    """A copy of these goes on, is confirmed and cut, and goes on again."""
    copy, at, confirmed = GroupTable(per_queue_max=4), 0, 0
    for _ in range(12):
        on = random.randrange(at, len(batches) + 1)
        feed(copy, batches[at:on])
        confirmed = random.choice([confirmed, random.randrange(confirmed, on + 1)])
        copy.confirm(batches[confirmed - 1][0].next_log_offset if confirmed else batches[0][0].log_offset)
        at = random.randrange(confirmed, on + 1)
        copy.cut(batches[at][0].log_offset if at < len(batches) else batches[-1][0].next_log_offset)
        never_further = GroupTable(per_queue_max=4)
        feed(never_further, batches[:at])
        assert table_facts(copy, END) == table_facts(never_further, END), seed
        assert copy._partial == never_further._partial, seed


def feed(table: GroupTable, batches: list[Stored], *, twice: bool = False) -> None:
    for header, batch in batches:
        for _ in range(1 + twice):
            follow(table, header, batch)


def follow(table: GroupTable, header: BatchHeader, batch: bytes) -> None:
    if header.kind == 4:
        table.restore(header, decode_checkpoint(batch))
    else:
        follow_batch(table, header, batch)


# --- checkpoints ---


def test_a_checkpoint_of_many_exceptions_comes_in_small_pieces() -> None:
    """Ten chunks, each with records settled, returned, parked and leased one by one, by holders with the longest
    names: no batch is above its limit but one that has one chunk, and a copy that begins there knows all of it."""
    master = Master()
    queue_id = master.declare("q")
    master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=queue_id))
    count = 10 * CHUNK_RECORDS
    every_other = [each for at in range(0, count, 2) for each in (at + 1, at + 2)]
    for ranges in split_ranges(every_other):
        master.append(encode_change(Settled(group="", ranges=ranges), queue_id=queue_id))
    for number in range(300):
        change = RecordsLeased(
            group="", lease=number, holder="\U0001f600" * 255, ranges=[number * 100, number * 100 + 9], lease_ms=1
        )
        master.append(encode_change(change, queue_id=queue_id))
    worst = [each for at in range(0, CHUNK_RECORDS, 2) for each in (count + at, count + at + 1)]
    parked = Returned(group="", ranges=worst, counted=True, delay_ms=2**40)
    master.append(encode_change(parked, queue_id=queue_id))
    batches = master.checkpoint()
    assert all(header.length <= GROUPS_BYTES_MAX or header.record_count == 1 for header, _ in batches)
    assert GROUPS_BYTES_MAX < max(header.length for header, _ in batches) < SMALLEST_MAX
    copy = master.rebuilt(batches[0][0].log_offset)
    until = count + 2 * CHUNK_RECORDS
    assert table_facts(copy.groups, until) == table_facts(master.derived.groups, until)


def test_a_hundred_thousand_random_acks_are_15_kb_of_checkpoint() -> None:
    """A bit for each record, and little else."""
    random = Random(5)
    master = Master()
    queue_id = master.declare("q")
    master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=queue_id))
    ledger = master.derived.groups.find(queue_id, "")
    for at in range(1, 100_000, 2):
        LedgerUpdate(ledger).settle(at, at + 1 + random.randrange(2))
    assert sum(header.length for header, _ in master.checkpoint()) < 17_000


def test_a_chunk_that_is_settled_whole_while_a_checkpoint_comes_to_it_is_told_of() -> None:
    """Every other record of two chunks is settled when the group's state is written; then the others of the first, and
    the floor passes it; then the checkpoint goes on. A copy that begins there has both."""
    master = Master()
    queue_id = master.declare("q")
    odd = [each for at in range(0, 2 * CHUNK_RECORDS, 2) for each in (at + 1, at + 2)]
    even = [each for at in range(0, CHUNK_RECORDS, 2) for each in (at, at + 1)]
    master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=queue_id))
    for ranges in split_ranges(odd):
        master.append(encode_change(Settled(group="", ranges=ranges), queue_id=queue_id))
    writer, began_at = master.derived.writer(queues_per_batch=1, producers_per_batch=1), master.log.end
    states: list[State] = []
    while not any(isinstance(state, GroupState) for state in states):
        master.append(writer.next_batch(master.log.end))
        states = decode_checkpoint(master.log.batches[-1][1])
    for ranges in split_ranges(even):
        master.append(encode_change(Settled(group="", ranges=ranges), queue_id=queue_id))
    while (batch := writer.next_batch(master.log.end)) is not None:
        master.append(batch)
    expected = table_facts(master.derived.groups, END)
    assert expected[queue_id, ""]["floor"] == CHUNK_RECORDS
    assert table_facts(master.rebuilt(began_at).groups, END) == expected


def test_what_the_floor_passed_since_a_checkpoint_began_is_told_as_settled() -> None:
    """Records 100 to 1999 are settled before those in front of them. A checkpoint tells where the group stands; then
    the first hundred are settled, the floor jumps to 2000, and nothing of that chunk is special any more. A copy that
    begins there knows all of it as settled, whichever piece the floor stands in."""
    for settled in (500, 1024, 2000, 4000):
        book, copy = Book(), GroupTable(per_queue_max=1)
        book.append(GroupReset(group="", queue_offset=0))
        book.append(Settled(group="", ranges=[100, settled]))
        parts = book.table.parts()
        follow_checkpoint(book, copy, [book.table.state(next(parts))])
        follow_batch(copy, *book.append(Settled(group="", ranges=[0, 100])))
        follow_checkpoint(book, copy, [book.table.state(part) for part in parts])
        assert copy.find(QUEUE, "").floor == settled
        assert table_facts(copy, END) == table_facts(book.table, END)


def follow_checkpoint(book: Book, copy: GroupTable, states: list[State | None]) -> None:
    """Append a batch of a checkpoint, which the copy follows."""
    told = [state for state in states if state is not None]
    header, _ = book.log.append(encode_checkpoint([encode_state(state) for state in told]))
    copy.restore(header, told)


def test_a_group_that_goes_before_a_checkpoint_comes_to_it_leaves_nothing(book: Book) -> None:
    """Ask for what there is to tell; delete the group, or reset it, before it is told: there is nothing to tell."""
    for change in (GroupDeleted(group=""), GroupReset(group="", queue_offset=0)):
        book.append(GroupReset(group="", queue_offset=0))
        part = next(book.table.parts())
        assert book.table.state(part) == GroupState(queue_id=QUEUE, group="", floor=0, watermark=0, known_from=0)
        book.append(change)
        assert book.table.state(part) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"first": 1, "next": 1025},
        {"next": 2 * PIECE_RECORDS},
        {"settled": b"\0"},
        {"attempts": b"\0"},
        {"parked": [(0, 5000, 1, 1)]},
        {"parked": [(5, 5, 1, 1)]},
        {"leased": [(-1, 5, 1)]},
        {"leased": [(0, 5, 1), (4, 6, 2)]},
        {"settled": b"\1" + bytes(127), "leased": [(0, 5, 1)]},
    ],
)
def test_a_chunk_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    """Not a chunk, not so many bits, rows outside, empty, over one another, or of what is settled."""
    good = LedgerChunk(queue_id=1, group="", first=0, next=PIECE_RECORDS, settled=bytes(128))
    restore_chunk(LedgerUpdate(Ledger()), good)
    with pytest.raises(ValueError, match=r"no chunk|cannot wait"):
        restore_chunk(LedgerUpdate(Ledger()), msgspec.structs.replace(good, **bad))


def test_a_bad_chunk_in_a_log_is_a_bad_batch() -> None:
    """Of a group that a checkpoint has begun to tell of."""
    log, table = StateLog(), GroupTable(per_queue_max=1)
    states: list[State] = [
        GroupState(queue_id=1, group="", floor=0, watermark=0),
        LedgerChunk(queue_id=1, group="", first=0, next=7, settled=b"\1"),
    ]
    header, _ = log.append(encode_checkpoint([encode_state(state) for state in states]))
    with pytest.raises(BadBatch, match="no chunk"):
        table.restore(header, states)


def test_a_checkpoint_that_was_left_is_told_anew() -> None:
    """Begin one, tell of a group, and never end it; the next one tells another story of the group, and ends: that is
    what counts. Of a group that is known, neither changes anything."""
    log, table = StateLog(), GroupTable(per_queue_max=2)

    def say(*states: State) -> None:
        header, _ = log.append(encode_checkpoint([encode_state(state) for state in states]))
        table.restore(header, states)

    say(CheckpointBegan(queue_id_max=1))
    say(GroupState(queue_id=1, group="", floor=5, watermark=5))
    say(CheckpointBegan(queue_id_max=1))
    assert table.get(1, "") is None
    say(GroupState(queue_id=1, group="", floor=7, watermark=9))
    say(LeasesState(queue_id=1, group="", leases={1: ("x", 1, 1)}))
    say(CheckpointEnded(began_at=0, producer_epoch_floor=0))
    say(GroupState(queue_id=1, group="", floor=8, watermark=8))
    assert (table.find(1, "").floor, table.find(1, "").watermark, table.find(1, "").leases) == (7, 9, {})


def test_a_checkpoint_says_what_is_void() -> None:
    """A group that was reset, told by a checkpoint alone, and by the change alone."""
    log, table, later = StateLog(), GroupTable(per_queue_max=2), GroupTable(per_queue_max=2)
    header, batch = log.append(encode_change(table.reset(1, "g", 5, void=7 << 32), queue_id=1))
    follow_batch(table, header, batch)
    state = table.state(next(table.parts()))
    assert state == GroupState(queue_id=1, group="g", floor=5, watermark=5, void=7 << 32, known_from=5)
    header, _ = log.append(encode_checkpoint([encode_state(state)]))
    later.restore(header, [state])
    assert (table.find(1, "g").void, later.find(1, "g").void) == (7 << 32, 7 << 32)


# --- bytes ---


def test_ranges_are_split_as_one_change_takes_them() -> None:
    """More than twice as many as fit: three changes, each with whole ranges, each within a batch, all of it there."""
    high = 2**62
    flat = [high + each for each in range(2 * (2 * RANGES_PER_CHANGE + 1))]
    parts = list(split_ranges(flat))
    assert [len(part) // 2 for part in parts] == [RANGES_PER_CHANGE, RANGES_PER_CHANGE, 1]
    assert [each for part in parts for each in part] == flat
    longest = RecordsLeased(group="g" * 255, lease=2**63, holder="\U0001f600" * 255, ranges=parts[0], lease_ms=2**62)
    assert len(encode_change(longest, queue_id=1)) < SMALLEST_MAX
    assert list(split_ranges([])) == []
