"""The first user of a cluster, on a real node: all have to log in again, and no queue goes because of that alone."""

from __future__ import annotations

import time

from mirrorlog.client import Client
from mirrorlog.wire.auth.passwords import hashed
from tests.process.clusters import fast_cluster
from tests.process.test_queue_lifetimes import AUTO, gone

RETURN_S = 3.0


async def test_queues_wait_for_subscribers_that_have_to_log_in() -> None:
    """Goal: an auto-delete queue waits for those who were sent away, as behind a failover. Method: absence counts at
    once (a queue whose subscriber left is gone); then there is a first user, and the other queue's subscriber has no
    login of this cluster: it goes, but not before he had the time to come back."""
    settings = {"limits.subscriber_return_ms": round(RETURN_S * 1000)}
    with fast_cluster(1, min_in_sync=1, settings=settings) as cluster:
        cluster.wait_in_sync()
        async with (
            Client(*cluster.servers, user="root", password="secret") as known,
            Client(*cluster.servers, user="nobody", password="of this cluster") as unknown,
        ):
            for name in ("left", "lost"):
                await known.admin.declare(name, AUTO)
            async with known.subscribe("left"):
                pass
            await gone(known, "left")
            await unknown.subscribe("lost").start()
            began = time.monotonic()
            await known.admin.topology.set_user("root", password_hash=hashed("secret"), tags=["administrator"])
        async with Client(*cluster.servers, user="root", password="secret") as root:
            await gone(root, "lost")
            assert time.monotonic() - began >= RETURN_S
