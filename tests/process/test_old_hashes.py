"""Passwords whose hashes are of fewer rounds than today's, on real nodes: a login renews them, and undoes no change."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import LoginFailed
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth import passwords
from mirrorlog.wire.auth.passwords import hashed
from tests.process.clusters import fast_cluster

ROUNDS_BEFORE = 210_000
TIMEOUT_MS = 30_000


def hashed_before(password: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As software before made it."""
    with monkeypatch.context() as patched:
        patched.setattr(passwords, "ROUNDS", ROUNDS_BEFORE)
        return hashed(password)


async def logs_in(server: str, password: str) -> bool:
    """Whether ann does, at this node."""
    try:
        async with Client(server, user="ann", password=password, connect_timeout_ms=TIMEOUT_MS) as client:
            await client.connection_to(server)
            return True
    except LoginFailed:
        return False


async def renewed(root: Client) -> list[str]:
    """Whose hashes were, as its node was told."""
    found = await root.admin.events()
    return [each.details["user"] for each in found.events if each.kind == "password_renewed"]


async def with_users(cluster: Cluster, ann: str) -> Client:
    """root, with today's hash, and ann with that one; a client of root's."""
    async with Client(*cluster.servers) as first:
        await first.admin.topology.set_user("root", password_hash=hashed("root"), tags=["administrator"])
    root = Client(cluster.servers[0], user="root", password="root", connect_timeout_ms=TIMEOUT_MS)
    await root.admin.topology.set_user("ann", password_hash=ann)
    return root


async def test_a_login_renews_a_hash_of_fewer_rounds_and_the_password_is_known_on_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: hashes become as dear as today's by use. Method: ann with a hash of before logs in at one node; the cluster
    tells that it was renewed, once, however often she logs in; every node knows her password, and no other one."""
    with fast_cluster(3) as cluster:
        async with await with_users(cluster, hashed_before("right", monkeypatch)) as root:
            assert not await logs_in(cluster.servers[0], "wrong")
            assert await renewed(root) == []
            assert await logs_in(cluster.servers[0], "right")
            async with asyncio.timeout(30):
                while not await renewed(root):  # noqa: ASYNC110 - nobody tells when
                    await asyncio.sleep(0.05)
            for server in cluster.servers:
                assert await logs_in(server, "right")
                assert not await logs_in(server, "wrong")
            assert await renewed(root) == ["ann"]


@pytest.mark.long
async def test_a_password_that_is_changed_while_its_hash_is_renewed_stays_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a login brings no old password back. Method: ann logs in at all nodes with a hash of before, each of which
    renews it, and she has another password as soon as the first has let her in; what they had begun ends. Nobody knows
    the old password then, everybody the new one."""
    with fast_cluster(3) as cluster:
        async with await with_users(cluster, hashed_before("old", monkeypatch)) as root:
            new = hashed("new")
            logins = [asyncio.ensure_future(logs_in(server, "old")) for server in cluster.servers]
            await asyncio.wait(logins, return_when=asyncio.FIRST_COMPLETED)
            await root.admin.topology.set_user("ann", password_hash=new)
            await asyncio.gather(*logins)
            for server in cluster.servers:
                # Behind what the same thread of the node was to hash.
                assert not await logs_in(server, "other")
                assert await logs_in(server, "new")
            await root.admin.topology.set_user("behind", password_hash=new)  # behind all that was proposed
            for server in cluster.servers:
                assert not await logs_in(server, "old")
                assert await logs_in(server, "new")
