"""Requests to a queue's master, whoever that is by then. Thin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from mirrorlog.attempts import Attempts
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.finder import first_answer
from mirrorlog.client.connection.liveness import SILENCE_S, StallWatch
from mirrorlog.client.options import parse_server
from mirrorlog.errors import (
    ConnectionLost,
    InSyncReplicasNotEnough,
    InternalError,
    LogRecovering,
    LogUnavailable,
    MasterChanged,
    MirrorlogError,
    NodeStopping,
    NotLeader,
    NotMaster,
    OutcomeUnknown,
    RequestTimeout,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import Done

MOVED: Final = (ConnectionLost, RequestTimeout, NotMaster, MasterChanged)
"""After these the master is looked for again."""
REPLACED_PERHAPS: Final = (InSyncReplicasNotEnough, LogRecovering, LogUnavailable, NodeStopping)
"""A master that gives these may have been replaced without having heard of it: another one is looked for meanwhile."""

PLACED_TIMEOUT_MS: Final = 2_000
"""Then all nodes are asked anew: the one that hangs may have been replaced."""
_LAST_S: Final = 0.05
"""What the last attempt is left at least: with less it ends by the clock, and hides what the one before was told."""
# A node that is behind may name a master that has been replaced; then that one names the next.
_HOPS_MAX: Final = 2
_PLACED_LATER: Final = (NotMaster, OutcomeUnknown, NotLeader, ConnectionLost, InSyncReplicasNotEnough)
"""What ends when there is a master, it is reached, and its copies are there again; or a coordinator, where the cluster
has to decide. What may count already is asked again: only an answer can tell."""

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


async def ask_master(
    client: ClusterClient, queue: str, message: Message, expect: type[_M], *, insist: bool, awaits_copies: bool = False
) -> _M:
    """What the queue's master answers to a question; a new one is followed.

    `insist`: within `request_timeout_ms` it is asked again while there is no master, or none that is reached;
    `awaits_copies`: and while it has too few copies. Raises what the last one answered, NoSuchQueue, ConnectionLost,
    RequestTimeout, or NotMaster while there is none.
    """
    awaited = _awaited(awaits_copies)
    request = _Request(client, queue, message, Attempts(), client.request_timeout_ms)
    return await request.answer(expect, lambda error: insist and isinstance(error, awaited))


async def change_at_master(
    client: ClusterClient,
    queue: str,
    message: Message,
    expect: type[_M],
    *,
    once: bool = False,
    awaits_copies: bool = False,
    wait_ms: int = 0,
    telling: tuple[type[MirrorlogError], ...] = (),
    attempts: Attempts | None = None,
) -> _M:
    """As `ask_master` that insists, of what changes something, and bears being asked twice; else `once`: it is not
    asked again when an attempt may have counted.

    When one may have, and is asked again, whatever may pass is waited out: only an answer can tell. `wait_ms`: how long
    the node may keep its answer, beyond the time that any has; `telling`: see `Attempts.request`. Raises what the last
    one answered, NoSuchQueue, NotMaster, or ConnectionLost when none was reached: nothing was done; or OutcomeUnknown.
    """
    attempts, awaited = attempts or Attempts(), _awaited(awaits_copies)
    request = _Request(client, queue, message, attempts, client.request_timeout_ms + wait_ms, once=once)

    def passes(error: MirrorlogError) -> bool:
        return not once and error.retriable if attempts.in_doubt else isinstance(error, awaited)

    with attempts.request(telling=telling):
        return await request.answer(expect, passes)


async def remove_at_master(
    client: ClusterClient,
    queue: str,
    message: Message,
    missing: type[MirrorlogError],
    *,
    missing_ok: bool,
    awaits_copies: bool = False,
    telling: tuple[type[MirrorlogError], ...] = (),
) -> None:
    """As `change_at_master`, of what takes something away. Raises `missing` when that is not there, unless
    `missing_ok`; not where an attempt without an answer may have taken it away."""
    attempts, telling = Attempts(), (missing, *telling)
    try:
        await change_at_master(
            client, queue, message, Done, awaits_copies=awaits_copies, telling=telling, attempts=attempts
        )
    except missing:
        if not missing_ok and not attempts.in_doubt:
            raise


def _awaited(awaits_copies: bool) -> tuple[type[MirrorlogError], ...]:
    return (*MOVED, InSyncReplicasNotEnough) if awaits_copies else MOVED


# --- Of a queue that may have no place yet: any node knows the way to who decides -----------------------------------


async def ask_until_placed(client: ClusterClient, ask: Callable[[str], Coroutine[Any, Any, _T]]) -> _T:
    """Of the first node that answers; within `request_timeout_ms` again, while what keeps it ends by itself."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + client.request_timeout_ms / 1000
    backoff = Backoff(random.random)
    while True:
        # Asking twice, or two nodes at once, makes no second queue, and deletes no other one.
        asks = [partial(ask, address) for address in client.addresses()]
        try:
            return await first_answer(asks, head_start_s=SILENCE_S)
        except MirrorlogError as error:
            if not (isinstance(error, _PLACED_LATER) and client.connected) or loop.time() >= give_up_at:
                raise
        await asyncio.sleep(backoff.next_s())


async def ask_placed_at(
    client: ClusterClient,
    address: str,
    message: Message,
    expect: type[_M],
    attempts: Attempts,
    *,
    hops: int = _HOPS_MAX,
    timeout_ms: int = PLACED_TIMEOUT_MS,
) -> _M | MirrorlogError:
    """The answer, or the error that any node would answer. Raises what another node, or a later attempt, may answer
    otherwise."""
    try:
        connection = await client.reach(address)
        within_ms = min(client.request_timeout_ms, timeout_ms)
        with attempts.one():
            return await connection.request(message, expect, timeout_ms=within_ms)
    except (NotMaster, MasterChanged) as error:
        master = error.details.get("master")
        if not hops or not isinstance(master, str) or master == address:
            raise
        there = parse_server(master)
        return await ask_placed_at(client, there, message, expect, attempts, hops=hops - 1, timeout_ms=timeout_ms)
    except InternalError as error:
        return error
    except (*REPLACED_PERHAPS, NotLeader, ConnectionLost, OutcomeUnknown):
        raise
    except MirrorlogError as error:
        return error


class _Replaced(Exception):
    """The one who was asked is no longer the master, and who is is known. `answer`: what that one said."""

    def __init__(self, answer: MirrorlogError) -> None:
        super().__init__(answer)
        self.answer = answer


class _Request:
    """A request that follows the master. `once`: not sent again when an attempt may have counted."""

    def __init__(
        self,
        client: ClusterClient,
        queue: str,
        message: Message,
        attempts: Attempts,
        timeout_ms: int,
        *,
        once: bool = False,
    ) -> None:
        self._client = client
        self._queue = queue
        self._message = message
        self._attempts = attempts
        self._loop = asyncio.get_running_loop()
        self._give_up_at = self._loop.time() + timeout_ms / 1000
        self._once = once

    async def answer(self, expect: type[_M], passes: Callable[[MirrorlogError], bool]) -> _M:
        """After an error that `passes` it is asked again while there is time, the last time shortly before the end."""
        backoff = Backoff(random.random)
        while True:
            try:
                return await self._attempt(expect)
            except _Replaced as replaced:
                if self._once and self._attempts.in_doubt:
                    raise replaced.answer from None
            except MirrorlogError as error:
                spare_s = self._give_up_at - self._loop.time() - _LAST_S
                if not passes(error) or not self._client.connected or spare_s <= 0:
                    raise
                await asyncio.sleep(min(backoff.next_s(), spare_s))

    async def _attempt(self, expect: type[_M]) -> _M:
        """Raises _Replaced, or why there is no answer."""
        client = self._client
        connection, found = await client.master_of(self._queue)
        timeout_ms = max(1, int((self._give_up_at - self._loop.time()) * 1000))
        reason = f"{connection.address} answered nothing, and is no longer master of queue {self._queue!r}"
        try:
            with self._attempts.one():
                async with StallWatch(partial(client.has_moved, found), reason=reason):
                    return await connection.request(self._message, expect, timeout_ms=timeout_ms)
        except (*REPLACED_PERHAPS, *MOVED) as error:
            if await client.has_moved(found):
                raise _Replaced(error) from None
            raise
