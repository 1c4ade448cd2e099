"""The first administrator, when the cluster fails while he is made. With a scripted cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorlog import versions
from mirrorlog.broker.membership import founder as first_admin
from mirrorlog.broker.membership.founder import FirstAdmin
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, Outcome
from mirrorlog.cluster.state.topology import Permissions
from mirrorlog.errors import RequestTimeout
from mirrorlog.wire.auth import passwords


class Cluster:
    """Decides `decides` commands, of the last of which nobody hears; and then none before `decides` is set again."""

    def __init__(self) -> None:
        self.state = ClusterState("id", "name", cluster_version=versions.OWN)
        self.decides = 0
        self.failed = asyncio.Event()
        self.decisions = self

    async def up_to_date(self) -> None:
        """It always is."""

    async def decide(self, command: Command, *, timeout_s: float) -> Outcome:
        if self.decides:
            self.state, outcome = applied(self.state, self.state.version + 1, command)
            self.decides -= 1
            if self.decides:
                return outcome
        self.failed.set()
        raise RequestTimeout("nobody answers")


def named(file: Path) -> FirstAdmin:
    node = SimpleNamespace(first_admin="ann", first_admin_file=file)
    made = FirstAdmin.of(cast(Any, SimpleNamespace(node=node)))
    assert made is not None
    return made


@pytest.mark.parametrize("decided", [0, 1])
async def test_an_attempt_that_failed_half_way_is_finished_by_the_next_run(
    decided: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: there is never an administrator without permissions whom nobody repairs. Method: a run whose node is gone
    once it has heard nothing of its first command, which was decided or was not; then a run in a cluster that works."""
    monkeypatch.setattr(passwords, "ROUNDS", 10)
    monkeypatch.setattr(first_admin, "AGAIN_S", 0.0)
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("right")
    cluster = Cluster()
    cluster.decides = decided
    run = asyncio.ensure_future(named(file).make(cast(ClusterService, cluster)))
    await cluster.failed.wait()
    run.cancel()
    await asyncio.wait([run])
    cluster.decides = 100
    await named(file).make(cast(ClusterService, cluster))
    (ann,) = cluster.state.routing.users.values()
    assert passwords.matches("right", ann.password_hash)
    assert (ann.tags, ann.permissions) == (("administrator",), {"/": Permissions(".*", ".*", ".*")})
