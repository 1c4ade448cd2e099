"""The copies of a queue: what their nodes say, asked of several. Thin; `copy_refusals` decides."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.copy_refusals import NO_ANSWER, DamagedRange, begin_of, is_elsewhere, judged, views_of
from mirrorlog.client.connection.masters import ask_master
from mirrorlog.errors import (
    BadBatch,
    InSyncReplicasNotEnough,
    LogCorrupt,
    MirrorlogError,
    OffsetOutOfRange,
    QueueMoving,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import FindOffset, FoundOffset, GetMetadata, Metadata, QueueInfo, SpanInfo

logger = logging.getLogger(__name__)

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


class Copies:
    """The copies of one queue, as one reader meets them: it remembers which mirrors lacked what was asked for."""

    def __init__(self, client: ClusterClient, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._lacking: set[str] = set()

    def lacks(self, node_id: str) -> bool:
        """Whether this mirror began late and lacked records that were asked for: it is to be tried last."""
        return node_id in self._lacking

    async def earliest(self, info: QueueInfo, node_id: str) -> int:
        """Where the queue begins, for a reader of any mirror that has met `node_id`, which gave `info`.

        While no other node answers it is where that one begins: nobody could say more.
        """
        if not info.begin or node_id == info.master:
            return info.begin
        whole = await self._begin_elsewhere(info, node_id)
        return info.begin if whole is None else min(info.begin, whole)

    async def first_at(self, append_time_us: int, *, any_copy: bool = True) -> int:
        """The first confirmed queue offset whose batch was appended at or after a time, µs UTC.

        By the master, once it knows what its predecessor confirmed: behind a failover it would else answer what it had
        as a mirror for the end of what is confirmed. `any_copy`: while no master can tell, by the mirror that finds the
        smallest (one that began late finds its own start offset); enough for who begins there, and not for who ends
        there. Of a queue that has moved, the oldest span with such a batch has it; while nobody answers for a span, it
        is not passed over. Raises NoSuchQueue, or why the master does not answer when nobody does."""
        asked = FindOffset(queue=self._queue, append_time_us=append_time_us, any_copy=False)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._client.request_timeout_ms / 1000
        backoff = Backoff(random.random)
        while True:
            newest: FoundOffset | None = None
            try:
                newest = await self._newest_first_at(asked, any_copy=any_copy)
                if not newest.log:
                    return newest.queue_offset
                return await self._first_of_spans(newest, asked, any_copy=any_copy)
            except (*NO_ANSWER, InSyncReplicasNotEnough) as error:
                passing = newest is not None or isinstance(error, QueueMoving)
                if not passing or loop.time() >= give_up_at or self._client.closed:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def judged(
        self, error: OffsetOutOfRange, info: QueueInfo, node_id: str, queue_offset: int
    ) -> OffsetOutOfRange:
        """What the refusal of a node means to a reader at `queue_offset`; see `copy_refusals.judged`. A master's is
        final."""
        begin = error.details.get("begin")
        if node_id == info.master or not isinstance(begin, int) or begin <= queue_offset:
            return error
        whole = await self._begin_elsewhere(info, node_id)
        if whole is not None and whole < begin:
            self._lacking.add(node_id)
        return judged(error, queue=self._queue, node_id=node_id, queue_offset=queue_offset, whole=whole)

    def met_bad(self, bad: DamagedRange, node_id: str, error: MirrorlogError) -> None:
        """The node sent bad bytes of the stretch, or refuses its own: it is not asked for it again, and named."""
        bad.bad.append(node_id)
        logger.warning(
            "bad_bytes_met queue=%s node=%s log_offset=%s queue_offset=%s reason=%r",
            self._queue, node_id, bad.log_offset, bad.queue_offset, str(error),
        )  # fmt: skip

    async def whole(self, bad: DamagedRange, node_ids: Iterable[str], ask: Callable[[str], Awaitable[_T]]) -> _T:
        """The stretch from the first of those nodes that has it whole; `ask` raises BadBatch for one that has not.

        Raises ConnectionLost while one that may have it cannot be asked, BadBatch when nobody has it, and what is the
        same on every copy: OffsetOutOfRange when it is freed, PositionLost when it is lost.
        """
        bad.unread.clear()
        for node_id in bad.left(node_ids):
            try:
                return await ask(node_id)
            except (BadBatch, LogCorrupt) as error:
                self.met_bad(bad, node_id, error)
            except OffsetOutOfRange as error:
                if not is_elsewhere(error):
                    raise
                bad.unread[node_id] = str(error)
            except MirrorlogError as error:
                bad.unread[node_id] = str(error)
        raise bad.refusal()

    async def _newest_first_at(self, asked: FindOffset, *, any_copy: bool) -> FoundOffset:
        """By the log that the queue is in. Raises as `first_at`."""
        try:
            return await ask_master(self._client, self._queue, asked, FoundOffset, insist=not any_copy)
        except (*NO_ANSWER, InSyncReplicasNotEnough) as error:
            if not any_copy:
                raise
            info = await self._client.queue_info(self._queue)
            found = await ask_all(self._client, info.mirrors, replace(asked, any_copy=True), FoundOffset)
            if not found:
                raise error
            # Who does not know yet that it has moved would have the older spans passed over.
            return min(found, key=lambda each: (not each.log, each.queue_offset))

    async def _first_of_spans(self, newest: FoundOffset, asked: FindOffset, *, any_copy: bool) -> int:
        """The first one that is within its span, of a queue that has moved; `newest`: by the log that it was in then.
        Raises QueueMoving when it is in another one by now, or why a span's nodes do not answer."""
        info = await self._client.queue_info(self._queue)
        if info.log_id != newest.log:
            raise QueueMoving(f"queue {self._queue!r} is moving to another log; try again in a moment")
        for span, following in pairwise(info.spans):
            if span.first == following.first:
                continue
            found = await self._span_first_at(span, replace(asked, log=span.log_id), any_copy=any_copy)
            if found < following.first:
                return max(span.first, found)
        return max(newest.queue_offset, info.spans[-1].first) if info.spans else newest.queue_offset

    async def _span_first_at(self, span: SpanInfo, asked: FindOffset, *, any_copy: bool) -> int:
        """By the span's log, as `first_at`."""
        try:
            return (await _ask_one(self._client, span.master, asked, FoundOffset)).queue_offset
        except (*NO_ANSWER, InSyncReplicasNotEnough):
            if not any_copy:
                raise
            found = await ask_all(self._client, span.mirrors, replace(asked, any_copy=True), FoundOffset)
            if not found:
                raise
            return min(each.queue_offset for each in found)

    async def _begin_elsewhere(self, info: QueueInfo, node_id: str) -> int | None:
        """Where the queue begins by what other nodes than `node_id` say; None when none of them knows. Asked are those
        of the log that it is in now: of a former one nobody can say it."""
        asked = GetMetadata(queues=[self._queue])
        of = info.spans[-1] if info.spans and info.log_id != info.spans[-1].log_id else info
        for asking in ([of.master], [mirror for mirror in of.mirrors if mirror != node_id]):
            views = views_of(self._queue, await ask_all(self._client, asking, asked, Metadata))
            if views:
                return begin_of(views)
        return None


async def ask_all(client: ClusterClient, node_ids: Iterable[str], message: Message, expect: type[_M]) -> list[_M]:
    """What those nodes answer that do, asked at once. Raises any other error that one of them gives."""

    async def ask(node_id: str) -> _M | None:
        try:
            return await _ask_one(client, node_id, message, expect)
        except NO_ANSWER:
            return None

    return [answer for answer in await asyncio.gather(*map(ask, node_ids)) if answer is not None]


async def _ask_one(client: ClusterClient, node_id: str, message: Message, expect: type[_M]) -> _M:
    connection = await client.reach(await client.node_address(node_id))
    return await connection.request(message, expect, timeout_ms=client.request_timeout_ms)
