"""Landings are listed and ended: on real nodes, and as text."""

from __future__ import annotations

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from mirrorlog.tools.common.output import page
from mirrorlog.tools.landing import landings_view
from mirrorlog.wire.messages.queues import HoldInfo
from tests.tools.conftest import Tool
from tests.tools.goldens import golden

HOLDS = [
    HoldInfo(
        queue="flights",
        name="lake",
        holder="host/boot/17/1/ab",
        epoch=3,
        queue_offset=336_700,
        lease_ms=60_000,
        left_ms=41_230,
        location="s3://lake/flights",
        tiered=True,
        next=336_776,
        lag=76,
        kept_bytes=104_857_600,
    ),
    HoldInfo(queue="flights", name="[bold]old", holder="x", epoch=1, queue_offset=9, lease_ms=1500, ended="expired"),
    HoldInfo(queue="trips", name="lake", holder="y", epoch=1, queue_offset=0, lease_ms=86_400_000),
]


def test_landings_are_printed_as_recorded() -> None:
    """Goal: the layout changes on purpose only. Method: one that runs, one that ended, and one that a mirror tells of,
    compared with the golden text."""
    text = page(landings_view(HOLDS))
    assert text == golden("landings.txt", text)


@pytest.mark.process
def test_a_landing_is_listed_until_it_is_ended(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: an operator sees who keeps records, and can let them go. Method: register, list in both forms and by queue,
    end it by name, and one that is not there."""
    with Client(*(node.client for node in cluster.nodes.values())) as client:
        for queue in ("landed", "elsewhere"):
            client.admin.declare(queue)
        client.admin.set_hold("landed", "lake", holder="me", queue_offset=0, lease_ms=600_000, location="/lake")
    assert "600 s" in mqtool("landings").out
    (hold,) = mqtool("landings", "landed", "--json").json
    assert (hold["queue"], hold["name"], hold["holder"], hold["epoch"]) == ("landed", "lake", "me", 1)
    assert 500_000 < hold["left_ms"] <= 600_000
    assert mqtool("landings", "elsewhere", "--json").json == []
    assert mqtool("landings", "nowhere").code == 5

    unknown = mqtool("landing-end", "landed", "ocean")
    assert (unknown.code, unknown.err) == (5, "mqtool: queue 'landed' has no landing 'ocean'; it has lake\n")
    ended = mqtool("landing-end", "landed", "lake")
    assert ended.out == "landing lake of queue landed ended; me held it from 0 on\n"
    assert mqtool("landings", "landed", "--json").json == []
    events = mqtool("events", "--json").out
    assert '"hold_set"' in events
    assert '"hold_ended"' in events
