"""Whether more records of a queue may leave it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.consumer_groups.deliveries import GroupForwarding
from mirrorlog.errors import Overloaded
from mirrorlog.queues.changes import ForwardingStarted
from mirrorlog.queues.dead_letters.forwarding import NONE, REDRIVEN


def test_redrives_to_many_long_names_wait_for_one_another_and_one_to_a_name_that_is_there_does_not() -> None:
    """All that leaves a queue is one state of a checkpoint, which has to fit the smallest batch."""
    there, names = NONE, [f"{number:03}" + "n" * 252 for number in range(40)]
    replica: Any = SimpleNamespace(forwardings=SimpleNamespace(of=lambda _: there))
    forwardings = GroupForwarding(replica)
    begun = 0
    while there.has_room_for(names[begun]):
        forwardings.check_room(1, names[begun])
        begun += 1
        there = there.follow(
            ForwardingStarted(
                group="", departure=begun, ranges=[0, 1], reason=REDRIVEN, at_us=1, exchange="",
                routing_key=names[begun - 1],
            )
        )  # fmt: skip
    assert 20 < begun < 40
    with pytest.raises(Overloaded, match="for many others by name"):
        forwardings.check_room(1, names[begun])
    forwardings.check_room(1, names[0])
    forwardings.check_room(1, "")
