"""The mirror audit: whether every node that holds a copy of a queue has the same bytes as the others.

    python -m mirrorlog.spark.audit flights --servers 127.0.0.1:7401,127.0.0.1:7402

Each copy is read from its own node, whole, and all of them in step: what the nodes have at one queue offset is compared
while it is there, so what is named is the very batch, and no more of a copy is kept than a fetch. It needs no JVM.

What a queue that has moved has in a former log is compared among the nodes of that log.

A node checks no checksum when it serves from memory; the reader here does, and a node that knows its copy to be
damaged refuses to serve it. Both are told, as what they are. Rejected: checksums of ranges, for which a range that
differs has to be read a second time, batch by batch.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from mirrorlog.client import Client, ConsumedBatch, Consumer
from mirrorlog.client.connection.copy_refusals import newest_of, views_of
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadBatch, BadInput, LogCorrupt, MirrorlogError, NoSuchQueue, PositionLost
from mirrorlog.spark import command_line
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.checks.copies import Audit, AuditedCopy, CopyFinding, CopyState, Findings, StoredBatch, differing
from mirrorlog.spark.command_line import OnStep
from mirrorlog.spark.options import parse_servers
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, QueueInfo, SpanInfo

BAD_BATCHES_MAX: Final = 20
"""Of a copy, that are passed over one by one."""

_FETCH_BYTES: Final = 4 * 1024 * 1024
_ONE_BATCH: Final = 1
# A copy that its node refuses to serve is asked for so long.
_REQUEST_TIMEOUT_MS: Final = 5_000
# Without any batch; well above what the client itself waits.
_PATIENCE_S: Final = 20.0
# A mirror hears of a confirm within milliseconds, with the next answer of its master.
_CATCH_UP_S: Final = 5.0
_POLL_S: Final = 0.1

_BEHIND: Final = "it has not heard of more that is confirmed"
_ABSENT: Final = "the node knows no such queue"
_TOO_BAD: Final = "it has more bad batches than are looked into"
_FORMER: Final = "{} up to {} are in a former log of the queue, and were compared on {}"
_LATE: Final = "{} begins at {}: what lies below was compared on the other copies"


def audit(
    servers: Sequence[str],
    queue: str,
    *,
    first: int | None = None,
    until: int | None = None,
    access: Access = NO_ACCESS,
    on_step: OnStep = lambda step: None,
) -> Audit:
    """Compare all copies of `queue`, from `first` (its start) up to `until` (exclusive; the confirmed end). Blocks.

    Raises BadInput, NoSuchQueue, ConnectionLost when no node answers. What is the matter with a copy is no error here:
    see `Audit.error`.
    """
    return asyncio.run(_audit(servers, queue, first=first, until=until, access=access, on_step=on_step))


async def _audit(
    servers: Sequence[str], queue: str, *, first: int | None, until: int | None, access: Access, on_step: OnStep
) -> Audit:
    on_step(f"asking who has queue {queue!r}")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(*servers, **access.client_options()))
        seen = await _find(client, queue, until)
        begin = first if first is not None else seen.info.begin
        end = until if until is not None else max([seen.info.next, *(copy.next for copy in seen.copies)])
        if not 0 <= begin <= end:
            raise BadInput(f"queue offset {begin} is not within 0 and {end}, where the audit ends")
        on_step(f"reading {len(seen.copies)} copies of queue {queue!r}")
        reading = Client(
            *servers, cluster_id=seen.cluster_id, **access.client_options(), request_timeout_ms=_REQUEST_TIMEOUT_MS
        )
        reader = await stack.enter_async_context(reading)
        findings = Findings()
        former = [copy for span in _former(seen.info, begin, end) for copy in await _compared(reader, span, findings)]
        own_first = seen.info.spans[-1].first if seen.info.spans else 0
        begin_own = min(max(begin, own_first), end)
        readers = [_CopyReader(reader, queue, copy, begin_own, end) for copy in seen.copies]
        try:
            await _compare(readers, seen.info.master, findings)
        finally:
            for each in readers:
                await each.close()
    for each in readers:
        if each.copy.next < end:
            findings.add(CopyFinding(each.node, max(each.copy.next, begin_own), end, CopyState.BEHIND, _BEHIND))
    for node in sorted({seen.info.master, *seen.info.mirrors} - {"", *(each.node for each in readers)}):
        findings.add(_absent(node, begin_own, end, seen.refused.get(node)))
    late = [_LATE.format(copy.node, copy.begin) for copy in seen.copies if copy.begin > begin_own]
    moved = [_FORMER.format(copy.begin, copy.next, copy.node) for copy in former]
    return Audit(queue, begin, end, (*former, *(each.copy for each in readers)), findings.all(), (*moved, *late))


def _absent(node: str, begin: int, end: int, error: MirrorlogError | None) -> CopyFinding:
    state = CopyState.DAMAGED if isinstance(error, LogCorrupt) else CopyState.UNREAD
    return CopyFinding(node, begin, end, state, _ABSENT if error is None else error.message)


# --- Former logs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FormerSpan:
    """Queue offsets `first` up to `next` (exclusive) of a queue, in a log that it was in before."""

    queue: str
    nodes: SpanInfo
    first: int
    next: int


def _former(info: QueueInfo, begin: int, end: int) -> list[_FormerSpan]:
    """Those with anything from `begin` up to `end` (exclusive)."""
    spans = [
        _FormerSpan(info.name, span, max(begin, span.first), min(end, following.first))
        for span, following in pairwise(info.spans)
    ]
    return [each for each in spans if each.first < each.next]


async def _compared(client: Client, span: _FormerSpan, findings: Findings) -> list[AuditedCopy]:
    """The copies of a former log, after they were compared."""
    nodes = [node for node in (span.nodes.master, *span.nodes.mirrors) if node]
    copies = [AuditedCopy(node, node == span.nodes.master, span.first, span.next) for node in nodes]
    readers = [_CopyReader(client, span.queue, copy, span.first, span.next) for copy in copies]
    try:
        await _compare(readers, span.nodes.master, findings)
    finally:
        for each in readers:
            await each.close()
    return [each.copy for each in readers]


# --- The copies in step ---------------------------------------------------------------------------------------------


async def _compare(readers: Sequence[_CopyReader], master: str, findings: Findings) -> None:
    for each in readers:
        await each.advance()
    while places := [each.place for each in readers if each.place is not None]:
        at = min(places)
        there = [each for each in readers if each.place == at]
        good = {each.node: each.head if each.place == at else None for each in readers if each.should_show(at)}
        for finding in differing(at, good, master):
            findings.add(finding)
        # Where the batch behind a bad one begins only another copy can say.
        ends = [head.next for head in good.values() if head is not None] or [place for place in places if place > at]
        for each in there:
            if each.bad is None:
                await each.advance()
            else:
                await each.pass_bad(min(ends, default=each.until), findings)
    for each in readers:
        if each.stopped is not None:
            findings.add(each.stopped)


class _CopyReader:
    """One copy, batch by batch. `head`: the batch that it stands at; `bad`: why there is none that can be read there;
    `stopped`: why the node shows no more of it."""

    def __init__(self, client: Client, queue: str, copy: AuditedCopy, begin: int, end: int) -> None:
        self.copy = copy
        self.until = min(copy.next, end)
        self.head: StoredBatch | None = None
        self.bad: str | None = None
        self.stopped: CopyFinding | None = None
        self._client = client
        self._queue = queue
        self._at = max(begin, copy.begin)
        self._consumer: Consumer | None = None
        self._fetch_bytes = _FETCH_BYTES
        self._bad_count = 0

    @property
    def node(self) -> str:
        return self.copy.node

    @property
    def place(self) -> int | None:
        """Where it stands; None at its end."""
        if self.bad is not None:
            return self._at
        return None if self.head is None else self.head.first

    def should_show(self, at: int) -> bool:
        """Whether the copy can be held to what others have there."""
        if self.bad is not None or self.stopped is not None:
            return False
        return self.place == at or (self.copy.begin <= at < self.until)

    async def advance(self) -> None:
        """Go to the next batch."""
        self.head = None
        while self.stopped is None and self.bad is None and self._at < self.until:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    batch = await self._next()
            except PositionLost as lost:
                await self._move(max(self._at + 1, int(lost.details["go_on_at"])))  # no copy has anything there
            except BadBatch as error:
                if self._fetch_bytes == _ONE_BATCH:
                    self.bad = error.message
                else:
                    await self._move(self._at, _ONE_BATCH)  # to come to its very place
            except (MirrorlogError, TimeoutError) as error:
                self._stop(error)
            else:
                if batch is None:
                    return
                self._take(batch)
                return

    async def pass_bad(self, following: int, findings: Findings) -> None:
        """Note the bad batch, up to `following`, and go on there."""
        assert self.bad is not None
        findings.add(CopyFinding(self.node, self._at, following, CopyState.DAMAGED, self.bad))
        self.bad = None
        self._bad_count += 1
        await self._move(following)
        if self._bad_count >= BAD_BATCHES_MAX and following < self.until:
            self.stopped = CopyFinding(self.node, following, self.until, CopyState.UNREAD, _TOO_BAD)
        await self.advance()

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    async def _next(self) -> ConsumedBatch | None:
        if self._consumer is None:
            size = self._fetch_bytes
            self._consumer = await self._client.consumer(
                self._queue,
                start=self._at,
                until=self.until,
                read_from=self.node,
                max_bytes=size,
                prefetch_bytes=size,
                outage_timeout_ms=self._client.request_timeout_ms,
            ).start()
            self._batches = self._consumer.batches()
        return await anext(self._batches, None)

    async def _move(self, at: int, fetch_bytes: int = _FETCH_BYTES) -> None:
        await self.close()
        self._at, self._fetch_bytes = at, fetch_bytes

    def _take(self, batch: ConsumedBatch) -> None:
        header, size, crc = batch.header, len(batch.raw), crc32c(batch.raw)
        self._at = header.next_queue_offset
        self.head = StoredBatch(header.base_queue_offset, self._at, size, crc)
        self.copy = replace(
            self.copy,
            batches=self.copy.batches + 1,
            records=self.copy.records + header.record_count,
            size=self.copy.size + size,
            crc=crc32c(crc.to_bytes(4, "little"), self.copy.crc),
        )

    def _stop(self, error: MirrorlogError | TimeoutError) -> None:
        state = CopyState.DAMAGED if isinstance(error, LogCorrupt) else CopyState.UNREAD
        reason = error.message if isinstance(error, MirrorlogError) else f"nothing came for {_PATIENCE_S:g} s"
        self.stopped = CopyFinding(self.node, self._at, self.until, state, reason)


# --- Who has a copy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Holders:
    """`info`: the queue as its master has it. `refused`: why a node does not show its copy, by node id."""

    cluster_id: str
    info: QueueInfo
    copies: tuple[AuditedCopy, ...]
    refused: Mapping[str, MirrorlogError]


async def _find(client: Client, queue: str, until: int | None) -> _Holders:
    """Every copy, once mirrors have heard of what is confirmed now; after a while, as they are."""
    give_up_at = time.monotonic() + _CATCH_UP_S
    while True:
        found, refused = await _ask(client, queue)
        views = views_of(queue, found)
        if not views:
            raise next(iter(refused.values()), NoSuchQueue(f"no queue {queue!r}; see: mqtool queues"))
        end = until if until is not None else max(each.next for each in views.values())
        if all(each.next >= end for each in views.values()) or time.monotonic() > give_up_at:
            newest = newest_of(views)
            info = views.get(newest.master, newest)
            copies = [AuditedCopy(node, node == info.master, each.begin, each.next) for node, each in views.items()]
            order = sorted(copies, key=lambda copy: (not copy.is_master, copy.node))
            return _Holders(found[0].cluster_id, info, tuple(order), refused)
        await asyncio.sleep(_POLL_S)


async def _ask(client: Client, queue: str) -> tuple[list[Metadata], dict[str, MirrorlogError]]:
    """What each node says of the queue, and why it does not: the one that was asked first may have a bad copy."""
    nodes = [node.node_id for node in (await client.admin.metadata([])).nodes]
    question = GetMetadata(queues=[queue])

    async def ask(node: str) -> Metadata | MirrorlogError:
        try:
            connection = await client.reach(await client.node_address(node))
            return await connection.request(question, Metadata, timeout_ms=client.request_timeout_ms)
        except MirrorlogError as error:
            return error

    answers = await asyncio.gather(*map(ask, nodes))
    refused = {node: each for node, each in zip(nodes, answers, strict=True) if isinstance(each, MirrorlogError)}
    return [each for each in answers if isinstance(each, Metadata)], refused


# --- The command line -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 when all copies were seen whole and are equal, 15 when one differs or is damaged, 9 when one
    could not be read, else that of the error."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.audit",
        "Compare all copies of a queue by the bytes of their batches; print where they differ.\n"
        "Exit code 0: all equal; 15: one differs or is damaged; 9: one could not be read.",
        example="flights --servers 127.0.0.1:7401",
    )
    command_line.add_queue(parser)
    command_line.add_servers(parser)
    parser.add_argument(
        "--from", dest="first", type=int, metavar="N", help="first queue offset; by default where it starts"
    )
    parser.add_argument(
        "--until", type=int, metavar="N", help="queue offset to end before; by default the confirmed end"
    )
    command_line.add_access(parser)
    command_line.add_json(parser)
    return parser


def _work(options: argparse.Namespace) -> int:
    servers, access = parse_servers(command_line.servers_of(options)), command_line.access_of(options)
    queues = command_line.queues_of(options)
    with command_line.status("asking the nodes") as on_step:
        found = [
            audit(servers, queue, first=options.first, until=options.until, access=access, on_step=on_step)
            for queue in queues
        ]
    command_line.show(found, as_json=options.json)
    return max((wrong.exit_code for each in found if (wrong := each.error())), default=0)


if __name__ == "__main__":
    sys.exit(main())
