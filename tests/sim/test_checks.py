"""The checks themselves, where a storm would take long to come by what they have to tell apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mirrorlog.wire.messages import LossStatus, PlacedLog
from sim.cluster_checks import Outside


def outside(*losses: LossStatus) -> Outside:
    """A cluster with the queue q in one log, which has lost something."""
    log = PlacedLog(
        log_id="x", name="main", flush="memory", replicas=["a"], master="a", epoch=9, version=1, in_sync=["a"],
        marked=[], copies=1, copies_wanted=1, losses=list(losses),
    )  # fmt: skip
    history = SimpleNamespace(cluster=SimpleNamespace(logs=[log]), log_ids={"q": "x"})
    nothing = cast(Any, None)
    return Outside(nothing, cast(Any, history), nothing, nothing, {}, {})


def test_what_stood_in_an_older_epoch_from_the_start_of_a_loss_on_is_reported() -> None:
    """How far copies that came back held the log says nothing of what stood behind that; by a loss without an end, and
    one with."""
    for end in (None, 150):
        found = outside(LossStatus(epoch=5, start=100, end=end))
        for log_offset, epoch, excused in ((100, 4, True), (400, 4, True), (99, 4, False), (400, 5, False)):
            assert found.excused("q", log_offset=log_offset, epoch=epoch) is excused
