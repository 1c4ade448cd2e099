"""Fetches what stands at a queue offset: from the chosen copy, from another one where bytes are bad, or a table. Thin.

Every batch is checked against its checksums before any of it is given out; what is bad, or refused as bad by its node,
is asked of another copy (`copy_refusals`), unless a node was named to be read from. What the log has no more comes from
the Delta table of a tiered landing (`tier`). When the node goes away, it is asked again over another connection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from mirrorlog.client.connection.buffers import BufferPool
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import DamagedRange, is_elsewhere, refused
from mirrorlog.client.connection.liveness import SILENCE_S, StallWatch
from mirrorlog.client.consumer.prefetcher import FetchedBatches
from mirrorlog.client.consumer.records import ClosedBatch, is_of_log, proven_batches, sound_batches
from mirrorlog.client.consumer.replica_choice import ReplicaChoice, is_mute
from mirrorlog.client.consumer.tier import Tiers
from mirrorlog.commitlog.format.header import HEADER_SIZE, place_of
from mirrorlog.errors import (
    BadBatch,
    ConnectionLost,
    LogCorrupt,
    NotCurrent,
    OffsetOutOfRange,
    PositionLost,
    ProtocolError,
)
from mirrorlog.wire.messages.queues import QueueInfo

# What a batch may have on any node that was not told otherwise: a node whose limit is lower now may hold such ones.
_BODY_BYTES: Final = 8 * 1024 * 1024

_T = TypeVar("_T")


class QueueFetcher:
    """Fetches for one reader. `epoch`: of what it has read last, 0 when that was in another log than this one.
    `served_by`: the node that answered last, or the location of the table that did."""

    def __init__(
        self,
        client: ClusterClient,
        queue: str,
        choice: ReplicaChoice,
        copies: Copies,
        tiers: Tiers,
        *,
        epoch: Callable[[str], int],
        max_bytes: int,
        max_wait_ms: int,
    ) -> None:
        self.served_by: str | None = None
        self._client = client
        self._queue = queue
        self._choice = choice
        self._copies = copies
        self._tiers = tiers
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._buffers = BufferPool()
        # Where the next fetch begins when what stands there was bad.
        self._bad: DamagedRange | None = None

    async def fetch(self, queue_offset: int) -> FetchedBatches:
        """What stands at an offset: from the log; what it has no more, from the table that has it."""
        if (more := await self._tiers.go_on(queue_offset)) is not None:
            return more
        try:
            return await self._fetch_logged(queue_offset)
        except PositionLost:
            raise
        except OffsetOutOfRange as error:
            begin = error.details.get("begin")
            if not isinstance(begin, int) or begin <= queue_offset or is_elsewhere(error):
                raise
            return await self._fetch_landed(queue_offset, begin, error)

    async def _fetch_landed(self, queue_offset: int, begin: int, error: OffsetOutOfRange) -> FetchedBatches:
        # The tables may have come since this reader was told of the queue.
        asked, _ = await self._choice.insist(self._choice.ask)
        info = replace(asked, begin=begin)
        if not self._tiers.known(info):
            raise error
        cluster_id = await self.cluster_id()
        answer = await self._tiers.answer(info, cluster_id, queue_offset, until=begin, epoch=self._epoch(info.log_id))
        if answer is None:
            raise await self._tiers.lowest(info, cluster_id, error, queue_offset)
        self.served_by = answer.address
        return answer

    async def cluster_id(self) -> str:
        return (await self._choice.connected()).welcome.cluster_id

    async def _fetch_logged(self, queue_offset: int) -> FetchedBatches:
        """From the node that is read from, or, where bad bytes have come from it, from another one."""
        bad = self._bad
        if bad is None or bad.queue_offset != queue_offset:
            found = await self._choice.insist(lambda: self._fetch_once(queue_offset))
            if isinstance(found, FetchedBatches):
                return found
            bad = self._bad = found
        try:
            return await self._choice.insist(lambda: self._fetch_elsewhere(bad))
        except ConnectionLost:
            if self._client.closed:
                raise
            raise bad.verdict() from None
        finally:
            if self._bad is bad:
                self._bad = None

    def _refused_bad(self, queue_offset: int, error: LogCorrupt, node_id: str) -> DamagedRange:
        """What that node has found bad in its own copy, by then."""
        self._choice.failed(node_id)
        bad = refused(self._queue, queue_offset, error, size=self._max_bytes)
        self._copies.met_bad(bad, node_id, error)
        return bad

    async def _fetch_elsewhere(self, bad: DamagedRange) -> FetchedBatches:
        """From another node than those that are bad there. Raises BadBatch, or ConnectionLost, as `Copies.whole`."""
        if self._choice.names_node:
            raise bad.verdict("; with read_from master, mirror or nearest another copy is asked for it")
        return await self._copies.whole(bad, await self._choice.others(), partial(self._fetch_sound, bad))

    async def _fetch_sound(self, bad: DamagedRange, node_id: str) -> FetchedBatches:
        """That stretch from one node. Raises BadBatch when it begins with bad bytes there, too."""
        connection = await self._client.reach(await self._client.node_address(node_id))
        misplaced = partial(is_mute, connection)
        answer = await self._fetch_from(connection, bad.queue_offset, max_bytes=max(bad.size, 1), misplaced=misplaced)
        if not answer.batch_count:
            raise NotCurrent(f"node {node_id} does not show queue offset {bad.queue_offset} yet")
        self._checked(answer, 1)
        return answer

    async def _fetch_once(self, queue_offset: int) -> FetchedBatches | DamagedRange:
        """What comes, or what its node refuses as bad while others have copies: those are asked at once."""
        self._choice.aim(queue_offset)
        connection = await self._choice.connected()
        misplaced = partial(self._choice.is_misplaced, connection)
        try:
            return await self._fetch_from(connection, queue_offset, max_bytes=self._max_bytes, misplaced=misplaced)
        except LogCorrupt as error:
            if not self._choice.has_others(connection.welcome.node_id):
                raise
            return self._refused_bad(queue_offset, error, connection.welcome.node_id)

    async def _fetch_from(
        self, connection: Connection, queue_offset: int, *, max_bytes: int, misplaced: Callable[[], Awaitable[bool]]
    ) -> FetchedBatches:
        watch = self.silence(connection, misplaced, self._max_wait_ms / 1000)

        def room(size: int) -> memoryview:
            watch.broken()
            return self._buffers.take(size)

        info, node_id = self._choice.info, connection.welcome.node_id
        try:
            async with watch:
                facts, content = await connection.fetch(
                    queue_id=info.queue_id,
                    epoch=self._epoch(info.log_id),
                    queue_offset=queue_offset,
                    max_bytes=max_bytes,
                    wait_ms=self._max_wait_ms,
                    timeout_ms=self._client.request_timeout_ms,
                    room=room,
                )
        except PositionLost as lost:
            raise lost_there(lost, info, queue_offset) from None  # it is in the log, so every copy says the same
        except OffsetOutOfRange as error:
            raise await self._copies.judged(error, info, node_id, queue_offset) from None
        self.served_by = node_id
        body_bytes_max = max(connection.welcome.limits.max_batch_bytes, _BODY_BYTES)
        answer = FetchedBatches(
            content, facts.batch_count, queue_offset, connection.address, body_bytes_max, node_id, info.log_id
        )
        return await self._told_log(answer)

    async def _told_log(self, answer: FetchedBatches) -> FetchedBatches:
        """The answer with the log that it is from. A node that holds several logs of a queue may know before this
        reader does that it has moved, or that its old records were copied."""
        if not answer.batch_count or is_of_log(answer.content, answer.log_id):
            return answer
        known = await self._choice.logs_now()
        found = (log_id for log_id in known if log_id != answer.log_id and is_of_log(answer.content, log_id))
        return dataclasses.replace(answer, log_id=next(found, answer.log_id))

    def proven(self, answer: FetchedBatches) -> list[ClosedBatch]:
        found = self._checked(answer, answer.batch_count)
        if found[-1].next <= answer.queue_offset:
            raise ProtocolError(f"{answer.address} answered with records below queue offset {answer.queue_offset}")
        return found

    def _checked(self, answer: FetchedBatches, count: int) -> list[ClosedBatch]:
        return proven_batches(
            answer.content, count, queue=self._queue, log_id=answer.log_id, body_bytes_max=answer.body_bytes_max
        )

    def sound_part(self, answer: FetchedBatches, error: BadBatch) -> list[ClosedBatch] | None:
        """What is good in front of the bad batch, which is asked of another copy next; None when there is none."""
        info = self._choice.info
        if not answer.node_id or not {info.master, *info.mirrors} - {"", answer.node_id}:
            return None
        sound, _ = sound_batches(
            answer.content,
            answer.batch_count,
            queue=self._queue,
            log_id=answer.log_id,
            body_bytes_max=answer.body_bytes_max,
        )
        rest = answer.content[sum(len(batch.raw) for batch in sound) :]
        self._bad = DamagedRange(
            self._queue,
            queue_offset=max(answer.queue_offset, sound[-1].next if sound else 0),
            size=len(rest),
            log_offset=place_of(rest) if len(rest) >= HEADER_SIZE else 0,
            why=str(error),
        )
        self._copies.met_bad(self._bad, answer.node_id, error)
        return sound

    def silence(
        self, connection: Connection, misplaced: Callable[[], Awaitable[bool]], wait_s: float = 0.0
    ) -> StallWatch:
        """Around a request that may take `wait_s` without anything being wrong."""
        reason = f"{connection.address} answers nothing; queue {self._queue!r} is read elsewhere"
        return StallWatch(misplaced, after_s=wait_s + SILENCE_S, reason=reason)


def lost_there(lost: PositionLost, info: QueueInfo, queue_offset: int) -> PositionLost:
    """What a node says that is lost from this queue offset on, no further than the queue has records in that log: nodes
    of software before cluster version 7 do not look at where the next log begins."""
    border, go_on_at = info.next_log_at(queue_offset), lost.details.get("go_on_at")
    if border is None or not isinstance(go_on_at, int) or go_on_at <= border:
        return lost
    return PositionLost(
        f"{lost.message}; but from {border} on records are in another log: go on there",
        **{**lost.details, "go_on_at": border},
    )
