"""Names that read as others, or cannot be seen, are not given to anything new. A real node."""

from __future__ import annotations

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import BadRequest
from mirrorlog.wire.auth.passwords import hashed
from tests.process.clusters import fast_cluster

HIDDEN = ["orders\u202egnp", "a\u2028b", "a\u2029b", "zero\u200bwidth", "\ufeffbom", "join\u200ded", "left\u2066iso"]


@pytest.mark.process
async def test_what_cannot_be_seen_is_in_no_new_name() -> None:
    """Goal: nobody makes a queue, group, exchange, virtual host or user that looks like another one. Method:
    directions, separators and joiners in each kind of name; then letters of many scripts, which are taken."""
    with fast_cluster(1) as cluster:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            for name in HIDDEN:
                for made in (
                    client.admin.declare(name),
                    client.admin.topology.declare_exchange(name, "topic"),
                    client.admin.topology.add_virtual_host(name),
                    client.admin.topology.set_user(name, password_hash=hashed("a password")),
                    client.lease("q", group=name, max_records=1, lease_ms=1000, wait_ms=0),
                ):
                    with pytest.raises(BadRequest, match=r"U\+[0-9A-F]{4} cannot be seen"):
                        await made
                with pytest.raises(BadRequest, match=r"U\+[0-9A-F]{4} cannot be seen"):
                    async with client.subscribe("q", group=name):
                        pass
            for name in ("größe", "注文", "заказы", "طلبات", "ความ", "🚀"):
                assert (await client.admin.declare(name)).name == name
                await client.admin.topology.declare_exchange(name, "topic")
