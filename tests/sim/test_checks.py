"""The checks themselves, where a storm would take long to come by what they have to tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorlog.queues.changes import GroupReset, Settled, encode_change
from mirrorlog.wire.messages.status import LossStatus, PlacedLog
from sim.cluster_checks import Outside, losses_have_a_reason
from sim.cluster_coverage import Observer
from sim.cluster_logged import Ended, LoggedQueue, logged
from sim.cluster_moves import Places
from tests.queues.statelog import StateLog, data

LOSS = LossStatus(epoch=5, start=100)


def outside(
    *losses: LossStatus, flush: str = "memory", damage: Mapping[str, str] | None = None, copies_wanted: int = 1
) -> Outside:
    """A cluster with the queue q in one log, which has reported losses. `damage`: of each node's disk, in words; by
    default a loss of power of the first one."""
    log = PlacedLog(
        log_id="x", name="main", flush=flush, replicas=["a", "b"], master="a", epoch=9, version=1, in_sync=["a"],
        marked=[], copies=2, copies_wanted=copies_wanted, losses=list(losses),
    )  # fmt: skip
    history = SimpleNamespace(cluster=SimpleNamespace(logs=[log]), log_ids={"q": "x"})
    plan = SimpleNamespace(copies_wanted=copies_wanted, log_names=["main"])
    kinds = {node: frozenset(each.split()) for node, each in (damage or {"a": "power"}).items()}
    nothing = cast(Any, None)
    places = Places(lambda: 0.0, {}, print)
    return Outside(cast(Any, plan), cast(Any, history), Observer(), nothing, kinds, {}, places)


def test_what_stood_in_an_older_epoch_from_the_start_of_a_loss_on_is_reported() -> None:
    """How far copies that came back held the log says nothing of what stood behind that; by a loss without an end, and
    one with."""
    for end in (None, 150):
        found = outside(LossStatus(epoch=5, start=100, end=end))
        for log_offset, epoch, excused in ((100, 4, True), (400, 4, True), (99, 4, False), (400, 5, False)):
            assert found.excused("q", queue_offset=7, log_offset=log_offset, epoch=epoch) is excused


@pytest.mark.parametrize(
    ("flush", "damage", "copies_wanted", "excused"),
    [
        ("memory", {"a": "power"}, 1, True),
        ("memory", {"a": "power"}, 2, False),
        ("disk", {"a": "power"}, 1, False),
        ("disk", {"a": "power flip"}, 1, True),
        ("disk", {"a": "power flip", "b": "power"}, 2, False),
        ("disk", {"a": "fsync", "b": "restore power"}, 2, True),
    ],
)
def test_a_report_excuses_what_so_much_damage_can_cost(
    flush: str, damage: Mapping[str, str], copies_wanted: int, excused: bool
) -> None:
    """A disk log is not damaged by a loss of power, whatever it reports; by a record behind the start of a loss."""
    found = outside(LOSS, flush=flush, damage=damage, copies_wanted=copies_wanted)
    assert found.excused("q", queue_offset=7, log_offset=200, epoch=4) is excused


def test_a_report_has_a_reason() -> None:
    """As many disks as a confirm needs were damaged or lost power, also of a disk log; by one disk, and two."""
    for flush in ("memory", "disk"):
        losses_have_a_reason(outside(LOSS, flush=flush))
        losses_have_a_reason(outside(flush=flush, copies_wanted=2))
        with pytest.raises(AssertionError, match=r"losses have a reason: .* only a was damaged"):
            losses_have_a_reason(outside(LOSS, flush=flush, copies_wanted=2))


def test_only_what_all_groups_had_settled_may_be_plain_to_a_group_that_is_made_there() -> None:
    """Four records. A group that has settled two stands there alone when another one is made, at the first of them: the
    queue's own could still be made, and need all. Then it is, and settles three; the last one is made at the second
    record, which all have settled by then."""
    log = StateLog()
    log.append(data(1, count=4))
    for change in (
        GroupReset(group="early", queue_offset=0),
        Settled(group="early", ranges=[0, 2]),
        GroupReset(group="before", queue_offset=0),
        Settled(group="before", ranges=[0, 4]),
        GroupReset(group="", queue_offset=0),
        Settled(group="", ranges=[0, 3]),
        GroupReset(group="late", queue_offset=1),
    ):
        log.append(encode_change(change, queue_id=1))
    batches = [(header.log_offset, batch) for header, batch in log.batches]
    found = logged(batches)[1]
    names = ("early", "before", "", "late")
    plain = {group: [offset for offset in range(4) if found.may_be_plain(group, offset)] for group in names}
    assert plain == {"early": [], "before": [], "": [], "late": [1]}


def test_a_record_stands_as_what_it_was_settled_as_since_the_last_reset_of_its_group() -> None:
    """A record dies in two groups. One of them is set back and acknowledges it; of the other one, and of all that was
    ever settled, nothing is forgotten."""
    log = StateLog()
    log.append(data(1, count=4))
    for change in (
        GroupReset(group="", queue_offset=0),
        GroupReset(group="other", queue_offset=0),
        Settled(group="", ranges=[2, 3], why="dead"),
        Settled(group="other", ranges=[2, 3], why="dead"),
        GroupReset(group="", queue_offset=0),
        Settled(group="", ranges=[0, 4]),
    ):
        log.append(encode_change(change, queue_id=1))
    found = logged([(header.log_offset, batch) for header, batch in log.batches])[1]
    stands = {group: [each[1:4] for each in ended] for group, ended in found.stands.items()}
    assert stands == {"": [(0, 4, "acked")], "other": [(2, 3, "dead")]}
    assert [each.why for each in found.ended] == ["dead", "dead", "acked"]


def test_a_reset_in_a_later_log_forgets_what_was_settled_in_a_former_one() -> None:
    """Found by seed 54: a group was deleted, and made anew, in the log that its queue had come to; what was settled
    before still stood, and an ack of the new one was taken to contradict it. Method: what each log says, put together
    copy by copy, as all of them are."""
    former = LoggedQueue(stands={"g": [Ended("g", 41, 42, "dead", 1)]})
    of_a_copy, whole = LoggedQueue(), LoggedQueue()
    of_a_copy.go_on(LoggedQueue(stands={"g": [Ended("g", 40, 41, "acked", 2)]}, reset={"g"}))
    for stay in (former, of_a_copy):
        whole.go_on(stay)
    assert whole.stands == {"g": [Ended("g", 40, 41, "acked", 2)]}
