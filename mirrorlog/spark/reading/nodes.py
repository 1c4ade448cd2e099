"""What the nodes know of queues. Asked by a plan, over one client; thin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Final, Self

from mirrorlog.client import Client
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.copies import ask_all
from mirrorlog.client.connection.copy_refusals import begin_of, newest_of, views_of
from mirrorlog.client.connection.queue_metadata import is_known
from mirrorlog.errors import OffsetOutOfRange, PositionLost, RequestTimeout
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.plan import MASTER, QueueFacts, QueuePlace, QueueSpan, Seen, no_such_queue
from mirrorlog.wire.messages.queues import GetMetadata, Metadata

# A new master learns within a round trip what its predecessor confirmed, if its mirrors are there.
_CURRENT_S: Final = 5.0
# A queue that goes to another log is in none for some tens of milliseconds. Under a pattern nobody knows that it was
# one: a place may be there before its queue.
_MOVING_S: Final = 1.0
# Of a batch that planning looks at: nodes give one at least, however large.
_LOOK_BYTES: Final = 1
_LOOKS_AT_ONCE: Final = 16
_LOOK_S: Final = 30.0


def ask_nodes(servers: Sequence[str], queues: Sequence[str], access: Access = NO_ACCESS) -> list[QueueFacts]:
    """The queues in the order asked for. Blocks; not for use on an event loop.

    Raises ConnectionLost when no node answers, NoSuchQueue naming those that no node knows, ConfigError naming a file
    of `access` that is none.
    """
    with NodeLookup(servers, access) as lookup:
        found = lookup.facts(queues)
    if missing := sorted(set(queues) - {facts.name for facts in found}):
        raise no_such_queue(missing, lookup.silent)
    return found


class NodeLookup:
    """A `Lookup` of running nodes; use it with `with`. Not for use on an event loop."""

    def __init__(self, servers: Sequence[str], access: Access = NO_ACCESS, *, read_from: str = "master") -> None:
        self._servers = servers
        self._access = access
        self._read_from = read_from
        self.silent: Sequence[str] = ()
        self._runner = asyncio.Runner()
        self._client: Client

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._connect())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._runner.run(self._client.close())
        finally:
            self._runner.close()

    def facts(self, queues: Sequence[str] | None) -> list[QueueFacts]:
        """As of `Lookup`. A new master that does not know yet what is confirmed is waited for, some seconds; and a
        queue that is between two logs."""
        return self._runner.run(self._facts(None if queues is None else list(queues)))

    def times(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """As of `Lookup`."""
        return self._runner.run(self._times(wanted))

    def headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        """As of `Lookup`. Raises RequestTimeout for a node that does not get to know in time that it is confirmed."""
        return self._runner.run(self._headers_at(places))

    # --- on the loop ---

    async def _connect(self) -> None:
        self._client = await Client(*self._servers, **self._access.client_options()).connect()

    async def _facts(self, queues: list[str] | None) -> list[QueueFacts]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        backoff = Backoff(random.random)
        while True:
            answers = await self._ask(queues)
            if queues is None and (moving := _moving(answers)):
                # Who is asked for them by name tells of those that have come and are not opened yet.
                answers += await self._ask(moving)
            facts = _facts_of(queues, answers)
            known, moving = all(map(self._is_known, facts)), _moving(answers)
            waits_s = _MOVING_S if known and queues is None else _CURRENT_S
            if (known and not moving) or loop.time() >= began + waits_s:
                return facts
            await asyncio.sleep(backoff.next_s())

    def _is_known(self, facts: QueueFacts) -> bool:
        """Whether waiting would tell no more: who reads from mirrors needs no master to answer."""
        return facts.current or (bool(facts.silent_master) and self._read_from != MASTER)

    async def _ask(self, queues: list[str] | None) -> list[Metadata]:
        first = await self._client.metadata(queues)
        # All nodes: only the master knows the latest confirm at once, and it may be the one that is down.
        others = [node.node_id for node in first.nodes if node.node_id != first.node_id]
        answers = [first, *await ask_all(self._client, others, GetMetadata(queues=queues), Metadata)]
        answered = {answer.node_id for answer in answers}
        self.silent = [node.node_id for node in first.nodes if node.node_id not in answered]
        return answers

    async def _times(self, wanted: Mapping[str, int]) -> dict[str, int]:
        find, any_copy = self._client.admin.find_offset, self._read_from != MASTER
        return {queue: await find(queue, time_us, any_copy=any_copy) for queue, time_us in wanted.items()}

    async def _headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        turns = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def look(place: QueuePlace) -> Seen:
            async with turns:
                return await self._header_at(place)

        return list(await asyncio.gather(*map(look, places)))

    async def _header_at(self, place: QueuePlace) -> Seen:
        name, at = place.facts.name, place.queue_offset
        consumer = self._client.consumer(
            name,
            start=at,
            until=at + 1,
            read_from=self._read_from,
            max_bytes=_LOOK_BYTES,
            prefetch_bytes=0,
            outage_timeout_ms=self._client.request_timeout_ms,
        )
        try:
            async with asyncio.timeout(_LOOK_S), consumer:
                async for batch in consumer.batches():
                    return batch.header
            return None
        except PositionLost as lost:
            return lost
        except OffsetOutOfRange:
            return None
        except TimeoutError:
            raise RequestTimeout(f"queue {name!r}: record {at} did not come within {_LOOK_S:g} s") from None


def _facts_of(queues: Sequence[str] | None, answers: Sequence[Metadata]) -> list[QueueFacts]:
    """In the order asked for, or of all in the order of their names."""
    known = {info.name for answer in answers for info in answer.queues}
    return [_merged(queue, answers) for queue in (sorted(known) if queues is None else queues) if queue in known]


def _moving(answers: Sequence[Metadata]) -> list[str]:
    """The queues that are in a log by the one who knows most of the cluster, and that nobody describes, though nodes
    are up that hold it."""
    knows_most = max(answers, key=lambda answer: answer.version)
    told = {info.name for answer in answers for info in answer.queues}
    told |= {outage.name for outage in knows_most.outages}
    return [name for name in knows_most.placed if name not in told]


def _merged(queue: str, answers: Sequence[Metadata]) -> QueueFacts:
    """A confirm that one node knows of is a confirm; where it starts is the master's word."""
    views = views_of(queue, answers)
    newest = newest_of(views)
    master = newest.master
    leading = views.get(master, newest)
    return QueueFacts(
        cluster_id=answers[0].cluster_id,
        name=queue,
        incarnation=leading.incarnation,
        log_id=leading.log_id,
        queue_id=leading.queue_id,
        begin=begin_of(views),
        next=max(info.next for info in views.values() if info.incarnation == leading.incarnation),
        silent_master=None if master in views else master,
        epoch=newest.epoch,
        current=master in views and is_known(leading, told_by=master),
        mirrored=bool(newest.mirrors),
        spans=tuple(QueueSpan(span.log_id, span.first) for span in leading.spans),
        former_logs=tuple(leading.former_logs),
    )
