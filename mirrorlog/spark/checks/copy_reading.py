"""Reading one node's copy of a queue into checksums by range of queue offsets. Runs in tasks, or in threads."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from mirrorlog.client import Client, ConsumedBatch
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadBatch, LogCorrupt, MirrorlogError, PositionLost, RequestTimeout
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.checks.copy_audit import Finding, State, Sum

_FETCH_BYTES: Final = 4 * 1024 * 1024
_ONE_BATCH: Final = 1
# A copy that its node refuses to serve is asked for so long.
_REQUEST_TIMEOUT_MS: Final = 5_000
# Without any batch; well above what the client itself waits.
_PATIENCE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Piece:
    """The batches of `queue` on `node` whose first record stands at `edges[0]` up to `edges[-1]` (exclusive).

    `edges`, rising: where ranges with a checksum of their own begin and end; with `by_batch` each batch is a range, and
    is fetched alone, so that damage shows its place. `has_begin`: the batch that `edges[0]` is in belongs to the piece,
    though it may begin before.
    """

    servers: tuple[str, ...]
    cluster_id: str
    queue: str
    node: str
    edges: tuple[int, ...]
    has_begin: bool
    by_batch: bool = False
    access: Access = NO_ACCESS


@dataclass(frozen=True, slots=True)
class Reading:
    """What a piece was. `sums`: of the ranges that were read whole. `stopped`: what was not read, and why.

    `at`: the queue offset at which it stopped. `passable`: the batch there is bad, and others behind it may be good.
    """

    piece: Piece
    sums: tuple[Sum, ...]
    at: int
    stopped: Finding | None = None
    passable: bool = False


@dataclass(slots=True)
class _Range:
    """A range as far as it was read."""

    first: int
    next: int
    batches: int = 0
    records: int = 0
    size: int = 0
    crc: int = 0

    def add(self, batch: ConsumedBatch) -> None:
        self.batches += 1
        self.records += batch.header.record_count
        self.size += len(batch.raw)
        self.crc = crc32c(batch.raw, self.crc)


@dataclass(slots=True)
class _Reader:
    """`at`: how far it has come; `ranges`: by their first queue offset."""

    piece: Piece
    at: int = field(init=False)
    ranges: dict[int, _Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = self.piece.edges[0]

    async def read(self, client: Client) -> None:
        """To the end of the piece, over declared gaps, in which no copy has anything."""
        while self.at < self.piece.edges[-1]:
            try:
                async with aclosing(self._batches(client)) as batches:
                    async for batch in batches:
                        self._take(batch)
                return
            except PositionLost as lost:
                self.at = max(self.at + 1, int(lost.details["go_on_at"]))

    async def _batches(self, client: Client) -> AsyncGenerator[ConsumedBatch]:
        size = _ONE_BATCH if self.piece.by_batch else _FETCH_BYTES
        async with client.consumer(
            self.piece.queue,
            start=self.at,
            until=self.piece.edges[-1],
            read_from=self.piece.node,
            max_bytes=size,
            prefetch_bytes=size,
        ) as consumer:
            batches = consumer.batches()
            while (batch := await asyncio.wait_for(anext(batches, None), _PATIENCE_S)) is not None:
                yield batch

    def _take(self, batch: ConsumedBatch) -> None:
        edges = self.piece.edges
        first, self.at = batch.header.base_queue_offset, batch.header.next_queue_offset
        if first < edges[0] and not self.piece.has_begin:
            return  # the piece before has it
        place = max(first, edges[0])
        number = bisect_right(edges, place) - 1
        start, end = (place, self.at) if self.piece.by_batch else (edges[number], edges[number + 1])
        self.ranges.setdefault(start, _Range(start, end)).add(batch)

    def _passed(self, at: int) -> list[_Range]:
        """What was read whole. A range without a batch is one, so that it is seen to lack what others have there."""
        if self.piece.by_batch:
            return list(self.ranges.values())
        ends = pairwise(self.piece.edges)
        return [self.ranges.get(first, _Range(first, following)) for first, following in ends if following <= at]

    def reading(self, error: MirrorlogError | None = None) -> Reading:
        """What has come of it. A range in which the reading stopped has no sum."""
        at = self.at if error is not None else self.piece.edges[-1]
        node = self.piece.node
        sums = tuple(
            Sum(node, each.first, each.next, each.batches, each.records, each.size, each.crc)
            for each in self._passed(at)
        )
        if error is None:
            return Reading(self.piece, sums, at)
        state = State.DAMAGED if isinstance(error, BadBatch | LogCorrupt) else State.UNREAD
        stopped = Finding(node, at, self.piece.edges[-1], state, error.message)
        return Reading(self.piece, sums, at, stopped, passable=isinstance(error, BadBatch))


def read_piece(piece: Piece) -> Reading:
    """Blocks; not for use on an event loop. What ends it is in the result, never raised."""
    return asyncio.run(_read(piece))


async def _read(piece: Piece) -> Reading:
    reader = _Reader(piece)
    try:
        async with Client(
            *piece.servers,
            cluster_id=piece.cluster_id,
            **piece.access.client_options(),
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        ) as client:
            await reader.read(client)
    except TimeoutError:
        return reader.reading(RequestTimeout(f"nothing came for {_PATIENCE_S:g} s"))
    except MirrorlogError as error:
        return reader.reading(error)
    return reader.reading()
