"""Tiered records, which a queue's log has no more, from the Delta tables that its landings have named. Thin:
`tier_table` reads.

A reader that is refused an offset below the queue's start offset is served from here up to that offset, and goes on in
the log. What comes from a table has the form of a node's answer, so that prefetching, seeking and the end of reading
are the same on both sides of the border. A table changes while it is read: when it does not go as far as it should, or
a file of it is gone or broken, the tables are opened anew, and the first one that has what follows is gone on with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from mirrorlog.errors import BadRequest, MirrorlogError, MissingDependency, OffsetOutOfRange, TierNotAllowed
from mirrorlog.wire.messages.queues import QueueInfo, TierInfo

if TYPE_CHECKING:
    from mirrorlog.client.consumer.prefetcher import FetchedBatches
    from mirrorlog.client.consumer.tier_table import TierBatches, TierTable

logger = logging.getLogger(__name__)

_BODY_BYTES_MAX: Final = 2**28


TierChoice = bool | Mapping[str, str] | Sequence[str] | None
"""As a user says which tables are followed: all, none, those at some places, those whose places are elsewhere from
here; None: all, or with a login none."""


class TierOptions(Struct, frozen=True):
    """Which tables a reader follows. `used`: False reads logs alone. `allowed`: the places of the tables that are
    followed, None for any: a location is the word of another user of the cluster, and is opened with this program's
    rights. `places`: where some of them are from here. `storage`: options of their storage, as deltalake takes them."""

    used: bool = True
    allowed: tuple[str, ...] | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tiers: TierChoice, storage: Mapping[str, str] | None, *, has_login: bool = False) -> TierOptions:
        """As a user gives them. Raises BadRequest."""
        options = dict(storage or {})
        if tiers is None:
            return cls(allowed=() if has_login else None, storage=options)
        if isinstance(tiers, bool):
            return cls(used=tiers, storage=options)
        if isinstance(tiers, str) or not isinstance(tiers, Mapping | Sequence):
            raise BadRequest(f"tiers {tiers!r:.80} is neither True, False, a list of places nor a mapping of them")
        from mirrorlog.wire.locations import check_place  # with its patterns and urllib: for those who name places

        places = dict(tiers) if isinstance(tiers, Mapping) else {}
        return cls(allowed=tuple(check_place(each) for each in tiers), places=places, storage=options)

    def located(self, location: str) -> str:
        """Where the table of that location is, as seen from here. Raises TierNotAllowed."""
        from mirrorlog.wire.locations import below, is_within

        if self.allowed is not None and not is_within(location, self.allowed):
            raise TierNotAllowed(
                f"older records are said to be in the table {location:.256}, and this reader follows no location that "
                "it was not given: list its place, tiers=[PLACE], or read the log alone, tiers=False",
                location=location,
            )
        inner = {place: rest for place in self.places if (rest := below(location, place)) is not None}
        if inner:
            place = min(inner, key=lambda each: len(inner[each]))
            location = self.places[place].rstrip("/") + inner[place] if inner[place] else self.places[place]
        location = location.removeprefix("delta://")
        return location.removeprefix("file:") if location.startswith("file:/") and location[6:7] != "/" else location


class Tiers:
    """The tables of one queue, for one reader."""

    def __init__(self, options: TierOptions) -> None:
        self._options = options
        self._walk: _Walk | None = None

    def known(self, info: QueueInfo) -> list[TierInfo]:
        """Those that are to be asked for what is below the queue's start offset."""
        return info.tiers if self._options.used and info.begin else []

    async def begin(self, info: QueueInfo, cluster_id: str) -> int:
        """The first queue offset that a table, or the log, has. Raises TierUnreachable, TierBroken,
        MissingDependency."""
        begins = [info.begin]
        for tier in self.known(info):
            table = await self._open(tier, info, cluster_id)
            begins.append(await asyncio.to_thread(table.begin))
        return min(begins)

    async def find_time(self, append_time_us: int, found: int, info: QueueInfo, cluster_id: str) -> int:
        """The first queue offset of that append time (µs UTC) that a table or the log has; `found`: the log's. Raises
        as `begin`."""
        for tier in self.known(info) if found <= info.begin else ():
            table = await self._open(tier, info, cluster_id)
            at = await asyncio.to_thread(table.find_time, append_time_us)
            if at < min(found, table.next):
                found = at
        return found

    async def go_on(self, queue_offset: int) -> FetchedBatches | None:
        """What follows in the table that the last answer came from; None at its border, and for another offset."""
        walk, self._walk = self._walk, None  # one that is given up is not gone on with
        if walk is None or walk.at != queue_offset:
            return None
        try:
            return await self._next(walk)
        except MirrorlogError as error:
            # A file may have been compacted away: it is opened anew. Or another table has what this one lacks; if none
            # has, `answer` says why.
            logger.info("tier_left table=%r queue_offset=%s reason=%r", walk.location, queue_offset, str(error))
            return None

    async def answer(
        self, info: QueueInfo, cluster_id: str, queue_offset: int, *, until: int, epoch: int
    ) -> FetchedBatches | None:
        """Records from `queue_offset` on, and below `until`; None when no table has them. Raises as `begin`, when no
        other table serves."""
        walk = await self._begun(info, cluster_id, queue_offset, until, epoch)
        return await self._next(walk) if walk is not None else None

    async def _next(self, walk: _Walk) -> FetchedBatches | None:
        at = walk.at
        found = await asyncio.to_thread(walk.next)
        if found is None:
            return None
        self._walk = walk
        content = memoryview(found.content)
        from mirrorlog.client.consumer.prefetcher import FetchedBatches

        return FetchedBatches(content, found.count, at, walk.location, _BODY_BYTES_MAX, log_id=walk.log_id)

    async def lowest(
        self, info: QueueInfo, cluster_id: str, error: OffsetOutOfRange, queue_offset: int
    ) -> OffsetOutOfRange:
        """What is said to a reader of an offset that is nowhere: where the tables begin, if that is above it."""
        begin = await self.begin(info, cluster_id)
        if not queue_offset < begin < error.details["begin"]:
            return error
        return OffsetOutOfRange(
            f"queue offset {queue_offset} is not kept; the first record is {begin}, in a Delta table",
            **{**error.details, "begin": begin},
        )

    async def _begun(self, info: QueueInfo, cluster_id: str, queue_offset: int, until: int, epoch: int) -> _Walk | None:
        failure: MirrorlogError | None = None
        for tier in info.tiers:
            try:
                table = await self._open(tier, info, cluster_id)
                walk = _Walk(table, queue_offset, table.batches(queue_offset, until, epoch=epoch))
                if await asyncio.to_thread(walk.peek):
                    return walk
            except MirrorlogError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    async def _open(self, tier: TierInfo, info: QueueInfo, cluster_id: str) -> TierTable:
        try:
            from mirrorlog.client.consumer.tier_table import TierTable
        except ImportError as error:
            raise MissingDependency(
                f"older records of queue {info.name!r} are in the table {tier.location}; to read them install "
                f"deltalake and pyarrow ({error}): pip install deltalake pyarrow; or read the log alone, tiers=False"
            ) from None
        location = self._options.located(tier.location)
        return await asyncio.to_thread(lambda: TierTable(location, info, cluster_id, self._options.storage))


class _Walk:
    """A walk over a table, from `at` on. Blocking."""

    def __init__(self, table: TierTable, at: int, batches: Iterator[TierBatches]) -> None:
        self.at = at
        self.location, self.log_id = table.location, table.log_id
        self._batches = batches
        self._peeked: TierBatches | None = None

    def peek(self) -> bool:
        """Whether there is anything."""
        self._peeked = next(self._batches, None)
        return self._peeked is not None

    def next(self) -> TierBatches | None:
        found, self._peeked = self._peeked, None
        found = found if found is not None else next(self._batches, None)
        if found is not None:
            self.at = found.next
        return found
