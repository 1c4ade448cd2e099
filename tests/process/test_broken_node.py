"""A node whose own clock or flush loop has failed ends; one that lives on would leave everybody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.broker.node import BrokerNode
from mirrorlog.config import load_settings
from mirrorlog.errors import LogCorrupt, MirrorlogError
from mirrorlog.testing.ports import HOST, free_ports


def fail(*_: object) -> None:
    raise ValueError("a fault that nobody thought of")


def break_clock(node: BrokerNode) -> None:
    assert node._server is not None
    assert node._server._door is not None
    node._server._door.tick = fail  # type: ignore[method-assign]


def break_flush(node: BrokerNode) -> None:
    (log,) = node.logs
    assert log.maintenance is not None
    log.maintenance._flushed = fail
    log.publisher.append_change(_change(node), lambda error: None)


def _change(node: BrokerNode) -> bytearray:
    (log,) = node.logs
    batch = log.replica.queues.declare("q", {})
    assert batch is not None
    return batch


def break_following(node: BrokerNode) -> None:
    change = _change(node)
    (log,) = node.logs
    log.replica.queues.follow = fail  # type: ignore[method-assign]
    with pytest.raises(LogCorrupt, match="is stored but cannot be followed: a fault that nobody thought of"):
        log.publisher.append_change(change, lambda error: None)


@pytest.mark.parametrize("break_it", [break_clock, break_flush])
async def test_a_node_that_cannot_go_on_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, break_it: Callable[[BrokerNode], None]
) -> None:
    """Goal: a fault in the background is an exit, not a silence. Method: run a node in this loop, break its clock or
    what its flush tells, and await its end."""
    assert await exit_code_of(tmp_path, break_it) == MirrorlogError.exit_code
    assert "a fault that nobody thought of" in caplog.text


async def test_a_node_that_cannot_follow_its_own_log_ends(tmp_path: Path) -> None:
    """Goal: what is stored and what is derived from it never part. Method: let the registry fail at a batch that is
    appended already: whoever asked is told, and the node ends with the error's exit code."""
    assert await exit_code_of(tmp_path, break_following) == LogCorrupt.exit_code


def serves(node: BrokerNode) -> bool:
    """The cluster has let it in, and it masters its log."""
    return [log.state for log in node.logs] == [HostedState.MASTER]


async def exit_code_of(directory: Path, break_it: Callable[[BrokerNode], None]) -> int:
    """Run a node in this loop, break it once it serves, and await its end."""
    client, replication = free_ports(2)
    flags = [
        f"node.data_dir='{directory}/data'",
        "grpc.enabled=false",
        "http.enabled=false",
        "log.flush_interval_ms=20",
    ]
    flags += [f"client.bind='{HOST}:{client}'", f"replication.bind='{HOST}:{replication}'"]
    flags += ["log.segment_bytes=8388608"]
    node = BrokerNode(load_settings(overrides=flags, environment={}))
    running = asyncio.ensure_future(node.run())
    try:
        async with asyncio.timeout(10):
            while not serves(node):  # noqa: ASYNC110  (it has no event for this)
                await asyncio.sleep(0)
            break_it(node)
            return await running
    finally:
        node.stop()
        await asyncio.gather(running, return_exceptions=True)
