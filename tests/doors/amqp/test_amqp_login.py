"""Who may what over AMQP: logins over TLS, virtual hosts, and rights, as the cluster's users have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from mirrorlog.client import Client
from mirrorlog.doors.amqp.connection import read_login
from mirrorlog.doors.amqp.state import SaidLogin
from mirrorlog.errors import LoginFailed
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.topology import Login
from tests.doors.amqp.clients import connected
from tests.process.clusters import fast_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node whose ports speak TLS, with two users."""
    with fast_cluster(1, amqp=True, tls="server") as started:
        asyncio.run(give_users(started))
        yield started


async def give_users(cluster: Cluster) -> None:
    async with Client(*cluster.servers, tls=cluster.tls) as client:
        await client.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
    async with Client(*cluster.servers, tls=cluster.tls, user="admin", password="a") as client:
        topology = client.admin.topology
        await topology.set_permissions("admin", configure=".*", write=".*", read=".*")
        await topology.set_user("reader", password_hash=hashed("r"))
        await topology.set_permissions("reader", configure="", write="", read="^q$")
        await topology.add_virtual_host("other")


def options(cluster: Cluster, user: str, password: str) -> dict[str, object]:
    assert cluster.tls is not None
    return {
        "credentials": pika.PlainCredentials(user, password),
        "ssl_options": pika.SSLOptions(cluster.tls, "127.0.0.1"),
    }


def test_each_has_the_rights_of_his_login(cluster: Cluster) -> None:
    """Goal: the cluster decides, not the door. Method: one declares and publishes; another reads, and may no more."""
    with connected(cluster, **options(cluster, "admin", "a")) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="admin"))
    with connected(cluster, **options(cluster, "reader", "r")) as connection:
        channel = connection.channel()
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        with pytest.raises(ChannelClosedByBroker, match="403"):
            channel.queue_declare("mine")
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(ChannelClosedByBroker, match="403"):
            channel.basic_publish("", "q", b"y")


def test_strangers_are_refused(cluster: Cluster) -> None:
    """Goal: 403 for a login that is none, 530 for a virtual host without rights. Method: both."""
    wrong = pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED - Login was refused")
    with wrong, connected(cluster, **options(cluster, "admin", "b")):
        pass
    elsewhere = pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED")
    with elsewhere, connected(cluster, **options(cluster, "reader", "r"), virtual_host="other"):
        pass


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\0u\0p"), ("AMQPLAIN", b"\x05LOGINS\0\0\0\x01u\x08PASSWORDS\0\0\0\x01p")],
)
def test_both_mechanisms_say_a_login(mechanism: str, response: bytes) -> None:
    """Goal: PLAIN, and AMQPLAIN of older clients. Method: their bytes, whole and cut."""
    assert read_login(SaidLogin(mechanism, response, {})) == Login(user="u", password="p")
    for wrong in (response[:-2], b"", b"\0"):
        with pytest.raises(LoginFailed):
            read_login(SaidLogin(mechanism, wrong, {}))
    with pytest.raises(LoginFailed, match="EXTERNAL"):
        read_login(SaidLogin("EXTERNAL", response, {}))
