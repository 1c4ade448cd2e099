"""Whether a client is told of an outage, and by whom."""

from __future__ import annotations

from mirrorlog.client.outage import is_outage, outage_of
from mirrorlog.client.resumption import Resumption
from mirrorlog.errors import LogUnavailable
from mirrorlog.wire.messages import Metadata, QueueOutage

DOWN = LogUnavailable("queue 'q' is on node n2 alone, which is down; start n2", node="n2", since=5, queue="q")


def answer(version: int, *queues: str) -> Metadata:
    outages = [QueueOutage(name=name, log_id="x", node="n2", since_us=5, reason=str(DOWN)) for name in queues]
    return Metadata(cluster_id="", cluster_name="", node_id="", nodes=[], queues=[], version=version, outages=outages)


def test_who_knows_most_says_whether_a_queue_is_out() -> None:
    """A node that is behind may think that a node is down that is back."""
    found = outage_of("q", [answer(3), answer(4, "p", "q")])
    assert found is not None
    assert is_outage(found)
    assert (found.details, str(found)) == (DOWN.details, str(DOWN))
    assert outage_of("q", [answer(3, "q"), answer(4)]) is None
    assert outage_of("q", [answer(4, "p")]) is None
    assert outage_of("q", []) is None
    assert not is_outage(LogUnavailable("the copy begins anew"))


def test_a_subscription_that_begins_ends_by_it_and_one_that_was_there_goes_on() -> None:
    """It may be a restart of the node."""
    begins = Resumption(now=0.0, patience_s=5.0, cancel_on_failover=False)
    begins.refused(DOWN, 0.0)
    assert begins.error is DOWN
    was_there = Resumption(now=0.0, patience_s=5.0, cancel_on_failover=False)
    was_there.subscribed("x", 1)
    was_there.lost(LogUnavailable("gone"), 1.0)
    was_there.refused(DOWN, 2.0)
    assert not was_there.over
    assert was_there.trouble(6.5) is DOWN
