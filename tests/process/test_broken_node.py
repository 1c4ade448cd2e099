"""A node whose own clock or flush loop has failed ends; one that lives on would leave everybody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.broker.node import Node
from mirrorlog.config import load_settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing.ports import HOST, free_ports


def fail(*_: object) -> None:
    raise ValueError("a fault that nobody thought of")


def break_clock(node: Node) -> None:
    assert node._door is not None
    node._door.tick = fail  # type: ignore[method-assign]


def break_flush(node: Node) -> None:
    node._maintenance[0]._flushed = fail
    node._publishers[0].append_change(_change(node), lambda error: None)


def _change(node: Node) -> bytearray:
    (replica,) = node._replicas.values()
    batch = replica.queues.declare("q", {})
    assert batch is not None
    return batch


@pytest.mark.parametrize("break_it", [break_clock, break_flush])
async def test_a_node_that_cannot_go_on_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, break_it: Callable[[Node], None]
) -> None:
    """Goal: a fault in the background is an exit, not a silence. Method: run a node in this loop, break its clock or
    what its flush tells, and await its end."""
    client, replication = free_ports(2)
    flags = [f"node.data_dir='{tmp_path}/data'", "grpc.enabled=false", "log.flush_interval_ms=20"]
    flags += [f"client.bind='{HOST}:{client}'", f"replication.bind='{HOST}:{replication}'"]
    flags += ["log.segment_bytes=8388608"]
    node = Node(load_settings(overrides=flags, environment={}))
    running = asyncio.ensure_future(node.run())
    async with asyncio.timeout(10):
        while node._door is None or node._door._server is None:  # noqa: ASYNC110  (it has no event for this)
            await asyncio.sleep(0)
        break_it(node)
        assert await running == MirrorlogError.exit_code
    assert "a fault that nobody thought of" in caplog.text
