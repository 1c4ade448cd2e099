"""Asking a queue's master, whoever that is by then. Thin."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from mirrorlog.client.backoff import Backoff
from mirrorlog.client.silence import Silence
from mirrorlog.errors import (
    ConnectionLost,
    InSyncReplicasNotEnough,
    LogRecovering,
    LogUnavailable,
    MasterChanged,
    NodeStopping,
    NotMaster,
    RequestTimeout,
)
from mirrorlog.wire.messages import Message

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

MOVED: Final = (ConnectionLost, RequestTimeout, NotMaster, MasterChanged)
"""After these the master is looked for again."""
REPLACED_PERHAPS: Final = (InSyncReplicasNotEnough, LogRecovering, LogUnavailable, NodeStopping)
"""A master that gives these may have been replaced without having heard of it: another one is looked for meanwhile."""

_M = TypeVar("_M", bound=Message)


async def ask_master(
    client: Client,
    queue: str,
    message: Message,
    expect: type[_M],
    *,
    insist: bool,
    awaits_copies: bool = False,
    wait_ms: int = 0,
) -> _M:
    """What the queue's master answers; a new one is followed. The message must bear being asked twice.

    `wait_ms`: how long the node may keep its answer, beyond the time that any has. `insist`: within
    `request_timeout_ms` it is tried again while there is no master, or none that is reached; `awaits_copies`: and while
    it has too few copies. Raises what the last one answered, NoSuchQueue, ConnectionLost, RequestTimeout, or NotMaster
    while there is none.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + (client.request_timeout_ms + wait_ms) / 1000
    backoff = Backoff(random.random)
    awaited = (*MOVED, InSyncReplicasNotEnough) if awaits_copies else MOVED
    while True:
        try:
            if (answer := await _ask_once(client, queue, message, expect, give_up_at)) is not None:
                return answer
        except awaited:
            if not insist or not client.connected or loop.time() >= give_up_at:
                raise
            await asyncio.sleep(backoff.next_s())


async def _ask_once(client: Client, queue: str, message: Message, expect: type[_M], give_up_at: float) -> _M | None:
    """None when the one who was asked is no longer the master, and who is is known."""
    connection, found = await client.master_of(queue)
    timeout_ms = max(1, int((give_up_at - asyncio.get_running_loop().time()) * 1000))
    reason = f"{connection.address} answered nothing, and is no longer master of queue {queue!r}"
    try:
        async with Silence(partial(client.has_moved, found), reason=reason):
            return await connection.request(message, expect, timeout_ms=timeout_ms)
    except (*REPLACED_PERHAPS, *MOVED):
        if await client.has_moved(found):
            return None
        raise
