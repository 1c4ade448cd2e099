"""What a node has begun and does not come to: because who asked for it is gone, or because its process is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosting import Hosting
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.broker.node import BrokerNode
from mirrorlog.broker.server import Server
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.config import HaSettings, Settings
from mirrorlog.errors import MirrorlogError, PortTaken
from tests.ha.nodes import WAIT_S, cluster_settings, until


def settings_of_one(directory: Path) -> Settings:
    (settings,) = cluster_settings(directory, copies=1, ha=HaSettings())
    return settings


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[BrokerNode]:
    """A node that masters its log; stopped cleanly at the end."""
    node = BrokerNode(settings, ready=lambda line: None)
    run = asyncio.ensure_future(node.run())
    try:
        await until(lambda: run.done() or any(log.state is HostedState.MASTER for log in node.logs))
        assert not run.done(), run
        yield node
    finally:
        node.stop()
        await asyncio.wait_for(run, WAIT_S)


def hosting_of(node: BrokerNode) -> Hosting:
    assert node._hosting is not None
    return node._hosting


def placed(node: BrokerNode) -> tuple[str, LogFacts]:
    state = hosting_of(node).state
    assert state is not None
    ((log_id, facts),) = state.logs.items()
    return log_id, facts


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 13])
async def test_a_fence_comes_to_its_end_though_who_asked_is_gone(tmp_path: Path, turns: int) -> None:
    """Goal: a coordinator that dies while it hands a log over leaves nobody behind who neither masters the log nor lets
    anybody else. Method: ask a master to be fenced, as a coordinator does, and give up after some turns of the loop:
    the log is mastered again, in a later epoch."""
    async with running(settings_of_one(tmp_path)) as node:
        log_id, before = placed(node)
        asking = asyncio.ensure_future(hosting_of(node).fence(log_id, before.epoch + 1, gently=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (log,) = node.logs

        def mastered_anew() -> bool:
            return log.state is HostedState.MASTER and placed(node)[1].epoch > before.epoch

        await until(mastered_anew)


async def test_a_copy_that_is_gone_is_known_to_be_though_the_start_that_saw_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an empty copy in the place of one that was whole is a loss, and is declared. Method: take a stopped node's
    log away, let the next start end as soon as it has made an empty one, and start once more."""
    settings = settings_of_one(tmp_path)
    async with running(settings) as node:
        ((log_id, facts),) = [placed(node)]
        assert not facts.losses
    shutil.rmtree(settings.node.data_dir / "logs" / log_id)
    open_log: Callable[..., object] = Server.open_log

    async def open_and_die(self: Server, *args: object) -> HostedLog:
        await open_log(self, *args)  # type: ignore[misc]
        raise PortTaken("this start ends here")

    with monkeypatch.context() as patched:
        patched.setattr(Server, "open_log", open_and_die)
        with pytest.raises(MirrorlogError, match="this start ends here"):
            await BrokerNode(settings, ready=lambda line: None).run()
    assert (settings.node.data_dir / "logs" / log_id).exists()
    async with running(settings) as node:
        assert [loss.start for loss in placed(node)[1].losses] == [0]
