"""What a list of queues says of the node that it comes from."""

from __future__ import annotations

import pytest

from mirrorlog.tools.common.output import outage_fields, outages_view, page
from mirrorlog.tools.queue import queues_view, within
from mirrorlog.wire.messages.queues import Metadata, QueueInfo, QueueOutage
from mirrorlog.wire.names import qualified


@pytest.mark.parametrize(
    ("current", "begin", "noted"), [(True, 0, False), (True, 50, False), (False, 0, False), (False, 50, True)]
)
def test_a_mirrors_begin_is_told_as_its_own(current: bool, begin: int, noted: bool) -> None:
    """Goal: a mirror that began late does not pass for the queue. Method: a queue as its master, or a mirror, has it;
    only what may be less than there is gets the note."""
    queue = QueueInfo(
        name="q", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=["n2"], begin=begin, next=90, current=current
    )
    shown = page(queues_view([queue]))
    assert str(begin) in shown.split()
    assert ("as a mirror has it" in shown) == noted


def test_queues_that_cannot_be_asked_for_are_named_with_the_reason() -> None:
    """A line each below the table; nothing when there are none."""
    outages = [
        QueueOutage(name=name, log_id="x", node="n2", reason=f"queue {name!r} is on node n2 alone") for name in "ab"
    ]
    lines = [str(line).strip() for line in outages_view(outages)]
    assert lines == ["queue 'a' is on node n2 alone", "queue 'b' is on node n2 alone"]
    assert outages_view([]) == []


def test_of_a_virtual_host_only_its_own_are_told() -> None:
    """Goal: --vhost holds for what cannot be asked for, too. Method: one of each kind in two hosts."""
    keys = [qualified(vhost, name) for vhost in ("/", "shop") for name in "q"]
    queues = [
        QueueInfo(name=key, queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=9) for key in keys
    ]
    outages = [QueueOutage(name=key, log_id="x", node="n2", reason="down") for key in keys]
    metadata = Metadata(cluster_id="c", cluster_name="c", node_id="n1", nodes=[], queues=queues, outages=outages)
    found = within(metadata, "shop")
    assert [each.name for each in found.queues] == [each.name for each in found.outages] == [keys[1]]


def test_an_outage_is_told_to_programs_under_its_own_name() -> None:
    """Goal: nobody takes it for a queue that answers. Method: its fields."""
    outage = QueueOutage(name="q", log_id="x", node="n2", since_us=7, reason="queue 'q' is on node n2 alone")
    told = {"node": "n2", "since_us": 7, "reason": "queue 'q' is on node n2 alone"}
    assert outage_fields(outage) == {"name": "q", "log_id": "x", "outage": told}
