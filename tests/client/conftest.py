"""One cluster for the tests that do it no harm; those that do start their own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """Three copies, all needed for a confirm; nobody stops its nodes."""
    with fast_cluster(3) as cluster:
        cluster.wait_in_sync()
        yield cluster


@pytest.fixture
async def client(shared_cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(*shared_cluster.servers) as connected:
        yield connected


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Names that no other test uses."""
    return lambda: f"q{next(_NUMBERS)}"


@pytest.fixture
async def queue(client: Client, new_name: Callable[[], str]) -> str:
    """A queue of its own for the test."""
    return (await client.admin.declare(new_name())).name
