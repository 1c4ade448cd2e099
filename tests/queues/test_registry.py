"""Queues and positions as a log tells them."""

from __future__ import annotations

import pytest

from mirrorlog import versions
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header, stamp
from mirrorlog.errors import BadBatch, BadRequest, NoSuchQueue, Overloaded, QueueExists
from mirrorlog.queues.arguments import check_declaration, version_needed
from mirrorlog.queues.changes import (
    EpochStarted,
    OffsetsJumped,
    PositionCommitted,
    QueueDeclared,
    decode_changes,
    encode_change,
)
from mirrorlog.queues.queue_table import IDS_PER_LOG, id_base_of, log_number_of
from mirrorlog.queues.registry import QueueRegistry
from tests.queues.statelog import follow_batch


class Book:
    """A registry fed as by a log: each batch stands after the one before it."""

    def __init__(self, *, queues_max: int = 100, groups_max: int = 100, id_base: int = 0) -> None:
        self.registry = QueueRegistry(queues_max=queues_max, groups_max=groups_max, id_base=id_base)
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.end = 0

    def append(self, batch: bytearray) -> BatchHeader:
        stamp(batch, log_offset=self.end, base_queue_offset=0, append_time_us=1, epoch=1, flags=0, seed=0)
        header = read_header(batch)
        follow_batch(self.registry, header, batch)
        self.batches.append((header, bytes(batch)))
        self.end = header.next_log_offset
        return header

    def declare(self, name: str, **arguments: object) -> BatchHeader:
        batch = self.registry.declare(name, arguments)
        assert batch is not None
        return self.append(batch)

    def declare_as_before(self, name: str, **arguments: object) -> BatchHeader:
        """As a version did that kept whatever arguments it was given."""
        queue_id = self.registry.queue_id_max + 1
        return self.append(encode_change(QueueDeclared(name=name, queue_id=queue_id, arguments=arguments)))

    def commit(self, name: str, group: str, queue_offset: int) -> BatchHeader:
        change = PositionCommitted(group=group, log_id="l", epoch=1, queue_offset=queue_offset)
        return self.append(self.registry.commit_position(name, change))

    def facts(self) -> object:
        """All that the registry says, as plain values."""
        return [(each.name, each.queue_id, each.arguments, each.positions) for each in self.registry]


def test_a_queue_counts_from_its_append() -> None:
    """Declare two queues: found by name and by id, with ids of their own that begin at 1."""
    book = Book()
    book.declare("a")
    book.declare("b", retention_ms=5)
    assert [(each.name, each.queue_id) for each in book.registry] == [("a", 1), ("b", 2)]
    assert book.registry.find("b").arguments == {"retention_ms": 5}
    assert book.registry.find_id(1).name == "a"
    assert book.registry.has_id(2)
    assert not book.registry.has_id(3)
    assert len(book.registry) == 2


def test_an_unknown_queue_is_named_with_what_to_do() -> None:
    """Ask for a queue that is not there, by name and by id."""
    registry = Book().registry
    with pytest.raises(NoSuchQueue, match="mqtool declare orders"):
        registry.find("orders")
    with pytest.raises(NoSuchQueue, match="id 9"):
        registry.find_id(9)


def test_declaring_again_is_nothing_or_names_the_difference() -> None:
    """Declare again with the same arguments, with another value, with one more and with one less."""
    book = Book()
    book.declare("q", flush="disk", retention_ms=3)
    assert book.registry.declare("q", {"retention_ms": 3, "flush": "disk"}) is None
    for arguments, difference in (
        ({"flush": "memory", "retention_ms": 3}, "with flush='disk', asked for with flush='memory'"),
        (
            {"flush": "disk", "retention_ms": 3, "retention_bytes": 1},
            "without retention_bytes, asked for with retention_bytes=1",
        ),
        ({"flush": "disk"}, "with retention_ms=3, asked for without retention_ms"),
    ):
        with pytest.raises(QueueExists, match=difference):
            book.registry.declare("q", arguments)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\0", "tab\t", "del\x7f"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    """Declare, and commit for a group, with names that are empty, too long or hold control characters."""
    book = Book()
    with pytest.raises(BadRequest, match="1 to 255 characters"):
        book.registry.declare(name, {})
    book.declare("q")
    with pytest.raises(BadRequest, match="1 to 255 characters"):
        book.commit("q", name, 1)


def test_limits_are_named() -> None:
    """Go one beyond each limit: queues, groups of a queue, arguments of a queue."""
    book = Book(queues_max=1, groups_max=1)
    with pytest.raises(BadRequest, match="101 arguments"):
        book.registry.declare("q", {str(number): 1 for number in range(101)})
    book.declare("q")
    with pytest.raises(Overloaded, match=r"limits\.max_queues"):
        book.registry.declare("r", {})
    book.commit("q", "g", 1)
    book.registry.confirm(book.end)
    book.commit("q", "g", 2)
    with pytest.raises(Overloaded, match=r"limits\.max_groups_per_queue"):
        book.commit("q", "h", 1)


def test_a_position_counts_from_its_confirm() -> None:
    """Commit two positions and confirm them one by one: each is seen only when its batch is confirmed whole."""
    book = Book()
    book.declare("q")
    first = book.commit("q", "g", 10)
    second = book.commit("q", "g", 20)
    positions = book.registry.find("q").positions
    book.registry.confirm(first.next_log_offset - 8)
    assert positions == {}
    book.registry.confirm(first.next_log_offset)
    assert positions["g"].queue_offset == 10
    book.registry.confirm(second.next_log_offset)
    assert positions["g"].queue_offset == 20


def test_a_cut_takes_back_what_it_removed() -> None:
    """Cut behind the first queue: the later queue and the unconfirmed positions are gone, and their id is free."""
    book = Book()
    book.declare("kept")
    book.commit("kept", "g", 1)
    book.registry.confirm(book.end)
    cut = book.end
    book.declare("lost")
    book.commit("kept", "g", 2)
    book.registry.cut(cut)
    book.registry.confirm(10**9)
    assert [each.name for each in book.registry] == ["kept"]
    assert book.registry.find("kept").positions["g"].queue_offset == 1
    book.end = cut
    book.declare("other")
    assert book.registry.find("other").queue_id == 2


def test_applying_again_changes_nothing() -> None:
    """Apply each batch of a history a second time, by itself: queues keep their positions, and nothing new appears."""
    book = Book()
    book.declare("q", flush="disk")
    book.commit("q", "g", 7)
    book.append(encode_change(EpochStarted(epoch=3, node_id="n2", start_id="s")))
    book.registry.confirm(book.end)
    before = repr(book.facts())
    for header, batch in book.batches:
        follow_batch(book.registry, header, batch)
        book.registry.confirm(book.end)
        assert repr(book.facts()) == before


def test_a_rebuild_gives_the_same_registry() -> None:
    """Feed a fresh registry with the same batches: it says the same."""
    book, again = Book(), Book()
    for name in ("a", "b", "c"):
        book.declare(name)
        book.commit(name, "g", 5)
    book.registry.confirm(book.end)
    for header, batch in book.batches:
        follow_batch(again.registry, header, batch)
    again.registry.confirm(book.end)
    assert repr(again.facts()) == repr(book.facts())


def test_no_id_that_may_have_been_lost_is_given_out_again() -> None:
    """Goal: who still holds the id of a lost queue never meets another one under it. Method: a leap past 40 ids, once
    more past fewer, past all there can be; and a cut, which takes the leap along, for another master counts without."""
    base = id_base_of(3)
    book, again = Book(id_base=base), QueueRegistry(queues_max=9, groups_max=9, id_base=base)
    book.declare("first")
    assert book.registry.id_past(40) == base + 40
    assert book.registry.id_past(IDS_PER_LOG + 9) == base + IDS_PER_LOG - 1
    leap_at = book.end
    for past in (40, 7):
        book.append(_leap(book.registry.id_past(past)))
    assert book.registry.ids_assigned == 40
    assert book.registry.is_gone(base + 40)
    book.declare("second")
    assert book.registry.find("second").queue_id == base + 41
    for header, batch in book.batches:
        follow_batch(again, header, batch)
    assert again.queue_id_max == base + 41
    for registry in (book.registry, again):
        registry.cut(leap_at)
        assert registry.queue_id_max == base + 1
    full = Book()
    full.append(_leap(full.registry.id_past(IDS_PER_LOG)))
    with pytest.raises(Overloaded, match="given out all"):
        full.declare("q")


def _leap(queue_id_max: int) -> bytearray:
    return encode_change(OffsetsJumped(epoch=2, lost_from=0, go_on_at=1 << 33, queue_id_max=queue_id_max))


def test_data_batches_say_nothing_about_queues() -> None:
    """Apply a data batch whose value looks like a declaration."""
    book = Book()
    change = decode_changes(encode_change(QueueDeclared(name="q", queue_id=1)))
    assert change == [QueueDeclared(name="q", queue_id=1)]
    book.append(encode_batch([Record(b"\x81\xa4type\xadQueueDeclared")], queue_id=1))
    assert len(book.registry) == 0


def test_a_change_of_a_newer_software_is_left_out() -> None:
    """Decode a batch with a change whose name is not known here: it is passed over, a mirror goes on."""
    batch = encode_batch([Record(b"\x81\xa4type\xa6Nobody")], queue_id=0, kind=Kind.CONTROL)
    assert decode_changes(batch) == []


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x81\xa4type\xadQueueDeclared", b"\x81\xa4type\xa1\xff", b"\x91" * 5000]
)
def test_what_is_no_change_is_a_bad_batch(value: bytes) -> None:
    """Decode values that are no changes, or known ones with fields missing: always the same class."""
    with pytest.raises(BadBatch, match="does not fit"):
        decode_changes(encode_batch([Record(value)], queue_id=0, kind=Kind.CONTROL))


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [nested(9), nested(5000), {1: 2}, {"a": nested(8)}, object()])
def test_an_argument_is_plain_and_not_deep(value: object) -> None:
    """Declare with an argument that some decoder would refuse: nothing is encoded, and the queue is not there."""
    registry = QueueRegistry(queues_max=10, groups_max=10)
    with pytest.raises(BadRequest, match="nested at most 8"):
        registry.declare("q", {"x": value})
    assert registry.get("q") is None
    # One that is plain comes as far as to its name.
    for plain in (1, "t", True, None, 1.5, [1, {"g": b"\xff"}], nested(8)):
        with pytest.raises(BadRequest, match="'x' is not known"):
            registry.declare("q", {"x": plain})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"flush": "never"}, "'flush' is 'never', it must be 'memory' or 'disk'"),
        ({"flush": None}, "'flush' is None"),
        ({"retention_ms": 0}, "'retention_ms' is 0, it must be a whole number from 1"),
        ({"retention_ms": "7d"}, "'retention_ms' is '7d'"),
        ({"retention_bytes": 1.5}, r"'retention_bytes' is 1\.5"),
        ({"retention_bytes": True}, "'retention_bytes' is True"),
        ({"retention_bytes": 2**63}, "to 9223372036854775807"),
        ({"tier_keep_ms": -1}, "'tier_keep_ms' is -1, it must be a whole number from 0"),
        ({"tier_keep_ms": False}, "'tier_keep_ms' is False"),
        ({"copies": 0}, "'copies' is 0, it must be a whole number from 1 to 255"),
        ({"copies": 256}, "from 1 to 255"),
        ({"copies": True}, "'copies' is True"),
        ({"copies": "2"}, "'copies' is '2'"),
        ({"min_in_sync": 17}, "'min_in_sync' is 17, it must be a whole number from 1 to 16"),
        ({"nodes": []}, r"'nodes' is \[\], it must be a list of 1 to 16 names of nodes"),
        ({"nodes": "n1"}, "'nodes' is 'n1', it must be a list"),
        ({"nodes": ["n1", "n1"]}, "each once"),
        ({"nodes": ["n 1"]}, "names of nodes"),
        ({"nodes": [f"n{number}" for number in range(17)]}, "of 1 to 16 names"),
        ({"nodes": ["n1"], "copies": 1}, "'nodes' and 'copies' both say how many"),
        ({"queue-master-locator": "nearest"}, "it must be 'min-masters', 'client-local' or 'random'"),
    ],
)
def test_an_argument_that_means_something_is_checked(argument: dict[str, object], message: str) -> None:
    """Declare with values that no server could follow: refused with what it must be."""
    registry = QueueRegistry(queues_max=10, groups_max=10)
    with pytest.raises(BadRequest, match=message):
        registry.declare("q", argument)


def test_every_known_argument_is_kept() -> None:
    """Declare with every known argument, at both ends of what it may be."""
    book = Book()
    for name, arguments in (
        ("small", {"flush": "memory", "copies": 1, "retention_ms": 1, "retention_bytes": 1}),
        ("large", {"flush": "disk", "copies": 255, "retention_ms": 2**63 - 1, "retention_bytes": 2**63 - 1}),
        ("none", {"retention_ms": -1, "retention_bytes": -1}),
        ("tiered", {"tier_keep_ms": 0}),
    ):
        book.declare(name, **arguments)
        assert book.registry.find(name).arguments == arguments


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("retentions", "there are flush, copies, .*, tier_keep_ms, retention, .*; did you mean retention"),
        ("retention_byte", "did you mean retention_bytes"),
        ("Flush", "did you mean flush"),
        (
            "color",
            "'color' is not known; there are flush, copies, nodes, min_in_sync, queue-master-locator, "
            "x-queue-master-locator, retention_ms, retention_bytes, tier_keep_ms, retention, "
            "x-single-active-consumer, x-consumer-timeout, x-delivery-limit, ",
        ),
        ("", "'' is not known"),
        ("x-max-age", "'x-max-age' is not known yet"),
        ("x-" + "y" * 1_000_000, "^.{0,900}$"),
        ("r" * 1_000_000, "^.{0,900}$"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(name: str, message: str) -> None:
    """Declare with it, alone and beside a known one, and for a queue that is there without it: the error names the
    known ones and the nearest, is short whatever it was given, and nothing is encoded."""
    book = Book()
    book.declare("there")
    for queue, others in (("new", {}), ("new", {"retention_ms": 1}), ("there", {})):
        with pytest.raises(BadRequest, match=message):
            book.registry.declare(queue, {**others, name: 1})
    assert [queue.name for queue in book.registry] == ["there"]


def test_arguments_about_another_brokers_stores_are_kept_and_make_no_other_queue() -> None:
    """Goal: programs that say what RabbitMQ needs, and those that do no more, share a queue. Method: declare with some,
    again without, with others, and with one that counts; what is told is what came first."""
    book = Book()
    first = {"x-queue-type": "quorum", "x-max-length": 5, "x-quorum-initial-group-size": 3, "x-ha-policy": ["all"]}
    book.declare("q", **first)
    for again in ({"x-max-length": 5}, {"x-max-length": 5, "x-queue-type": "classic", "x-queue-mode": "lazy"}):
        assert book.registry.declare("q", again) is None
    with pytest.raises(QueueExists, match="with x-max-length=5, asked for with x-max-length=6"):
        book.registry.declare("q", {**first, "x-max-length": 6})
    assert book.registry.find("q").arguments == first
    with pytest.raises(BadRequest, match="no number, text"):
        book.registry.declare("other", {"x-queue-type": object()})


def test_a_queue_that_has_unknown_arguments_is_found_with_them() -> None:
    """Apply a declaration of an older version, declare it again alike and otherwise: it is the same queue, and a
    difference is named."""
    book = Book()
    book.declare_as_before("old", color="red")
    assert book.registry.find("old").arguments == {"color": "red"}
    assert book.registry.declare("old", {"color": "red"}) is None
    with pytest.raises(QueueExists, match="with color='red', asked for with color='blue'"):
        book.registry.declare("old", {"color": "blue"})


def test_groups_are_counted_before_their_confirm() -> None:
    """Commit for more groups than a queue may have while none is confirmed: the first one too many is refused."""
    book = Book(groups_max=2)
    book.declare("q")
    book.commit("q", "a", 1)
    book.commit("q", "b", 1)
    book.commit("q", "a", 2)
    with pytest.raises(Overloaded):
        book.commit("q", "c", 1)


def test_the_ids_of_a_log_carry_its_number() -> None:
    """Declare in the logs 0 and 255, cut all away, declare again: ids of their own log, from 1."""
    for number in (0, 255):
        book = Book(id_base=id_base_of(number))
        for _ in range(2):
            book.declare("a")
            book.declare("b")
            ids = [queue.queue_id for queue in book.registry]
            assert ids == [number << 24 | 1, number << 24 | 2]
            assert {log_number_of(queue_id) for queue_id in ids} == {number}
            book.registry.cut(0)


def test_a_log_that_has_given_out_all_ids_refuses_queues() -> None:
    """Give out the last id by hand: no id of another log follows it."""
    book = Book(id_base=id_base_of(3))
    last = id_base_of(3) + IDS_PER_LOG - 1
    book.append(encode_change(QueueDeclared(name="last", queue_id=last)))
    with pytest.raises(Overloaded, match="all of its 16777215 queue ids"):
        book.registry.declare("one more", {})


# --- work ---


def test_queues_of_work_are_known_as_long_as_they_are_declared() -> None:
    """Declared with it, with the default, with what an older version took; and cut."""
    book = Book()
    book.declare("a", retention="limits")
    border = book.end
    book.declare("b", retention="work")
    book.declare_as_before("c", retention=7)
    assert book.registry.works(set()) == {2}
    with pytest.raises(BadRequest, match=r"'retention' is 'all', it must be 'limits' or 'work'"):
        book.declare("d", retention="all")
    book.registry.cut(border)
    assert book.registry.works(set()) == set()


def test_a_queue_of_work_needs_a_cluster_that_has_groups() -> None:
    """By its arguments; the others need nothing."""
    assert version_needed({"retention": "work", "flush": "disk"}) == versions.GROUPS
    assert version_needed({"x-delivery-limit": 5}) == versions.GROUPS
    assert version_needed({"retention": "limits"}) == version_needed({}) == versions.FIRST


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x-single-active-consumer": 1}, "must be true or false"),
        ({"x-consumer-timeout": 0}, "from 1 to 31622400000$"),
        ({"x-consumer-timeout": -1}, "from 1 to"),
        ({"x-consumer-timeout": True}, "whole number"),
        ({"x-delivery-limit": 255}, "from 0 to 254, or -1 for no limit"),
        ({"x-delivery-limit": -2}, "from 0 to 254"),
        ({"x-delivery-limit": "5"}, "whole number"),
    ],
)
def test_what_an_argument_of_delivery_does_not_take_is_refused(arguments: dict[str, object], message: str) -> None:
    """By each; the least and the most are taken."""
    with pytest.raises(BadRequest, match=message):
        Book().registry.declare("q", arguments)
    for name, taken in (
        ("x-single-active-consumer", (True, False)),
        ("x-consumer-timeout", (1, 31_622_400_000)),
        ("x-delivery-limit", (-1, 0, 254)),
    ):
        for value in taken:
            assert Book().registry.declare("q", {name: value})


def test_a_queue_with_a_name_that_no_new_one_may_have_goes_on_with_it() -> None:
    """It was declared by an older node: declared again it is there, and its groups commit. A new one is refused."""
    book = Book()
    book.declare_as_before("orders\u202egnp")
    assert book.registry.declare("orders\u202egnp", {}) is None
    book.commit("orders\u202egnp", "g", 7)
    with pytest.raises(BadRequest, match=r"U\+202E"):
        book.registry.declare("others\u202egnp", {})
    with pytest.raises(BadRequest, match=r"U\+2028"):
        book.commit("orders\u202egnp", "g\u2028", 7)


def test_a_queue_that_has_a_place_is_not_judged_as_a_new_one_before_its_log_is_asked() -> None:
    """Goal: what was made with such a name can be declared again. Method: a name that no new queue is given."""
    check_declaration("zero\u200bwidth", {"x-log-group": "g"}, placed=True)
    with pytest.raises(BadRequest, match="cannot be seen"):
        check_declaration("zero\u200bwidth", {}, placed=False)
    with pytest.raises(BadRequest, match="control characters"):
        check_declaration("a\nb", {}, placed=True)
