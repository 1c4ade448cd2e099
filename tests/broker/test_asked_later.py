"""What waits until a master knows what is confirmed goes on as the request of whoever asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.session.queue_requests import Requests
from mirrorlog.cluster.decisions import asked_by, asker
from mirrorlog.errors import MirrorlogError


@pytest.mark.parametrize("confirmed_by", ["", "bob"])
async def test_a_request_that_waited_is_still_its_askers(confirmed_by: str) -> None:
    """Goal: what the cluster is asked for then names him, and nobody whose request brought the confirm. Method: ann
    asks of a master that does not know yet; another one's request, or a mirror's link, tells that it does."""
    requests: Any = Requests.__new__(Requests)
    requests._tasks = set()
    waiting: list[Callable[[MirrorlogError | None], None]] = []
    log: Any = SimpleNamespace(knows_confirmed=False, publisher=SimpleNamespace(when_confirmed=waiting.append))
    done = asyncio.Event()
    askers: list[str] = []

    def act() -> None:
        askers.append(asker())
        done.set()

    with asked_by("ann"):
        requests.once_known(log, lambda answer: None, act)
    with asked_by(confirmed_by):
        waiting[0](None)
    async with asyncio.timeout(10):
        await done.wait()
    assert askers == ["ann"]
