"""A node that looks for a cluster answers, and asks, only with the secret and over TLS where these are set."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme

from mirrorlog.cluster.membership.discovery import Looks, NoAnswer
from mirrorlog.cluster.membership.seeds import SeekingPort, look_at
from mirrorlog.config import LimitSettings
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.tls import client_context, server_context

SECRET = Credentials(b"0123456789abcdef")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """A secret and mutual TLS, under an authority of its own."""
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert(HOST)
    certificate, key, ca = (directory / name for name in ("certificate", "key", "ca"))
    authority.cert_pem.write_to_path(ca)
    key.touch(0o600)
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    return Credentials(
        SECRET.secret,
        accepting=server_context(certificate=certificate, key=key, ca=ca),
        dialling=client_context(certificate=certificate, key=key, ca=ca, check_hostname=False),
    )


async def answer(port_has: Credentials, asked_with: Credentials) -> Looks | str:
    """What a node that looks answers to one that asks; why not, if it does not."""
    own = Looks("run 1", "n1", f"{HOST}:{free_ports(1)[0]}", ())
    port = SeekingPort(own, LimitSettings(), port_has)
    await port.start(own.address)
    try:
        async with asyncio.timeout(10):
            found = await look_at(own.address, node="n2", run="run 2", credentials=asked_with)
    finally:
        await port.stop()
    assert isinstance(found, Looks | NoAnswer)
    return found.reason if isinstance(found, NoAnswer) else found


async def test_with_the_same_credentials_they_answer_each_other(secured: Credentials) -> None:
    """By asking with nothing, with a secret, and with a secret over TLS."""
    for each in (OPEN, SECRET, secured):
        assert isinstance(await answer(each, each), Looks)


async def test_with_others_they_do_not_and_say_why(secured: Credentials) -> None:
    """By asking with less, with more, and with another secret."""
    reasons = [
        ((SECRET, OPEN), "set the same cluster.secret"),
        ((OPEN, SECRET), "set the same cluster.secret"),
        ((SECRET, Credentials(b"fedcba9876543210")), "another cluster.secret"),
        ((SECRET, secured), "does not speak TLS"),
        ((secured, SECRET), "closed the connection"),
    ]
    for (here, there), reason in reasons:
        assert reason in str(await answer(here, there))
