"""Forty guessers from an address keep nobody else out who comes from there."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from tests.attacks.guessed_logins import guess
from tests.attacks.target import Target
from tests.process.clusters import eventually

USERS = ("ann", "bob", "cid")


def guess_until(ended: threading.Event, target: Target) -> int:
    """How many were tried."""
    tried = 0
    while not ended.is_set():
        tried += asyncio.run(guess(target, time.monotonic() + 2, random.Random(1), names=("ann",)))
    return tried


@pytest.mark.long
def test_who_knows_his_password_gets_in_while_forty_guess() -> None:
    """Goal: guessers wait for themselves. Method: forty guess at one of three users; each of the three logs in for the
    first time meanwhile, with one attempt that must not be refused."""
    with Cluster(1) as one, ThreadPoolExecutor(1) as thread:
        address = one.servers[0]
        with Client(address) as client:
            client.admin.topology.set_user("root", password_hash=hashed("root"), tags=["administrator"])
        with Client(address, user="root", password="root") as root:
            for name in USERS:
                root.admin.topology.set_user(name, password_hash=hashed(name))
            target = Target(client=(address,), replication=())
            ended = threading.Event()
            guessing = thread.submit(guess_until, ended, target)

            def connected() -> bool:
                counts = root.admin.status("n1").counts
                return counts is not None and counts.open["client"] > 30

            try:
                eventually(connected, "they have begun")
                for name in USERS:
                    with Client(address, user=name, password=name, connect_timeout_ms=30_000) as client:
                        client.admin.metadata()
                assert not guessing.done(), "they have gone on meanwhile"
            finally:
                ended.set()
            assert guessing.result() > 0
