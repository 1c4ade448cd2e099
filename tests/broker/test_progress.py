"""What is told of work that goes on for a while: at its begin, now and then, and at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mirrorlog.broker.hosting.in_sync_keeper import InSyncKeeper, MirrorFills
from mirrorlog.broker.log.progress import Milestones
from mirrorlog.cluster.state.events import Event, line_of

MIB = 1024 * 1024
NOBODY: frozenset[str] = frozenset()


def test_progress_is_told_each_tenth_or_after_ten_seconds_and_never_without_any() -> None:
    """Goal: a few lines for a short work, no old news of a long one. Method: shares that grow in steps of all sizes,
    with the clock standing, and then slowly with the clock going."""
    milestones = Milestones(100.0)
    assert [percent for percent in (0, 5, 10, 15, 19, 40, 50, 100) if milestones.due(percent, 100.0)] == [
        10,
        40,
        50,
        100,
    ]
    slow = Milestones(0.0)
    assert [now for now in range(0, 60, 4) if slow.due(now / 10, float(now))] == [12, 24, 36, 48]
    assert not slow.due(4.8, 1000.0)


def test_a_mirror_that_is_filled_is_told_of_from_begin_to_end() -> None:
    """Goal: an operator sees that a copy is made, how far it is, and how that ended. Method: one that comes into sync,
    one whose link goes, one that lacks next to nothing."""
    fills = MirrorFills("main")
    at = {"b": 0, "c": 4 * MIB, "d": 8 * MIB - 10}
    begun = fills.look(0.0, end=8 * MIB, reached=at, members=NOBODY)
    assert [line_of(each) for each in begun] == [
        "mirror_sync_begun log=main node=b offset=0 left_bytes=8388608",
        "mirror_sync_begun log=main node=c offset=4194304 left_bytes=4194304",
    ]
    assert fills.look(1.0, end=8 * MIB, reached={**at, "b": 1000}, members=NOBODY) == []
    (half,) = fills.look(2.0, end=10 * MIB, reached={"b": 5 * MIB, "c": 4 * MIB}, members=NOBODY)
    assert half.text == "log main: the mirror on b has 50 % of what it lacked, 5242880 bytes are left"
    ended = fills.look(3.0, end=10 * MIB, reached={}, members=frozenset({"b"}))
    assert [(each.kind, each.node, each.details["in_sync"], each.details["bytes"]) for each in ended] == [
        ("mirror_sync_ended", "b", True, 10 * MIB),
        ("mirror_sync_ended", "c", False, 0),
    ]
    assert ended[0].text == "log main: the mirror on b is filled no more: it is in sync"
    assert fills.look(4.0, end=10 * MIB, reached={}, members=NOBODY) == []


def test_the_end_of_a_mastership_is_the_end_of_what_it_fills() -> None:
    """Goal: nothing that was told to have begun stays open. Method: a mastership ends as one copy has become whole,
    which it did not hear, and another one has not; once more, with nothing to tell."""
    fills = MirrorFills("main")
    fills.look(0.0, end=8 * MIB, reached={"b": 0, "c": 0, "d": 8 * MIB}, members=NOBODY)
    fills.look(1.0, end=8 * MIB, reached={"b": MIB, "c": MIB, "d": 8 * MIB}, members=NOBODY)
    assert [line_of(event) for event in fills.ended(8 * MIB, members=frozenset({"b"}))] == [
        "mirror_sync_ended log=main node=b bytes=8388608 in_sync=True",
        "mirror_sync_ended log=main node=c bytes=1048576 in_sync=False",
    ]
    assert fills.ended(8 * MIB, members=NOBODY) == []


def test_whether_a_mirror_came_into_sync_the_cluster_says_when_a_mastership_ends() -> None:
    """Goal: a mirror whose becoming whole makes it the master is told to be in sync. Method: a keeper that tells of one
    that it fills, and whose mastership has not heard yet what the cluster has decided."""
    told: list[Event] = []
    mastership = SimpleNamespace(
        name="main", own="a", at_rest=False, awaited=None, in_sync=NOBODY, filling={"b": MIB},
        progress=SimpleNamespace(held=lambda node: SimpleNamespace(written=8 * MIB)),
        wish=lambda now: None, catch_up=lambda now: (),
    )  # fmt: skip
    cluster = SimpleNamespace(log_facts=lambda log_id: SimpleNamespace(in_sync={"a": "run", "b": "run"}))
    keeper = InSyncKeeper(
        "id", 1, cast(Any, mastership), cast(Any, cluster), lambda answers: None, tell=told.append
    )  # fmt: skip
    keeper.tick(0.0)
    assert [event.kind for event in told] == ["mirror_sync_begun"]
    assert [line_of(event) for event in keeper.left_open()] == [
        "mirror_sync_ended log=main node=b bytes=7340032 in_sync=True"
    ]
    assert keeper.left_open() == []
