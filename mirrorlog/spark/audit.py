"""The mirror audit: whether every node that holds a copy of a queue has the same bytes as the others.

    python -m mirrorlog.spark.audit flights --servers 127.0.0.1:7401,127.0.0.1:7402

Each copy is read from its own node, whole, in pieces that run side by side: as Spark tasks under spark-submit, else in
threads, for it needs no JVM. A piece comes back as a CRC-32C per range of queue offsets, over the batches as they are
stored (see `checks.copy_audit` for why not over records). Ranges that differ, or that a copy could not show, are read
again batch by batch, so that what is printed is the very batch.

A node checks no checksum when it serves from memory; the reader here does, and a node that knows its copy to be
damaged refuses to serve it. Both are told, as what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from mirrorlog.client import Client
from mirrorlog.client.connection.copy_refusals import newest_of, views_of
from mirrorlog.errors import BadInput, LogCorrupt, MirrorlogError, NoSuchQueue
from mirrorlog.spark import command_line
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.checks.buckets import BUCKET_OFFSETS, width
from mirrorlog.spark.checks.copy_audit import Audit, Copy, Finding, State, Sum, differing, merged, whole
from mirrorlog.spark.checks.copy_reading import Piece, Reading, read_piece
from mirrorlog.spark.options import parse_servers
from mirrorlog.spark.submitted import is_submitted
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, QueueInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnStep = Callable[[str], None]
Run = Callable[[Sequence[Piece]], Iterable[Reading]]
"""Reads pieces, side by side, and gives what each of them was, in any order."""

LOOKED_INTO_MAX: Final = 20
"""Ranges that are read again batch by batch."""

_PIECES_PER_COPY: Final = 4
_THREADS_MAX: Final = 8
# A mirror hears of a confirm within milliseconds, with the next answer of its master.
_CATCH_UP_S: Final = 5.0
_POLL_S: Final = 0.1

_BEHIND: Final = "it has not heard of more that is confirmed"
_ABSENT: Final = "the node knows no such queue"
_TOO_BAD: Final = "it has more bad batches than are looked into"
_LATE: Final = "{} begins at {}: what lies below was compared on the other copies"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is audited. `edges`: of the ranges that have a checksum, from the first queue offset to the last."""

    servers: tuple[str, ...]
    queue: str
    cluster_id: str
    master: str
    edges: tuple[int, ...]
    access: Access

    def piece(self, node: str, edges: Sequence[int], *, by_batch: bool = False) -> Piece:
        has_begin = edges[0] == self.edges[0]
        return Piece(
            self.servers, self.cluster_id, self.queue, node, tuple(edges), has_begin, by_batch, self.access
        )  # fmt: skip


def audit(
    servers: Sequence[str],
    queue: str,
    *,
    first: int | None = None,
    until: int | None = None,
    bucket_offsets: int = BUCKET_OFFSETS,
    access: Access = NO_ACCESS,
    spark: SparkSession | None = None,
    on_step: OnStep = lambda step: None,
) -> Audit:
    """Compare all copies of `queue`, from `first` (its begin) up to `until` (exclusive; what is confirmed now). Blocks.

    Raises BadInput, NoSuchQueue, ConnectionLost when no node answers. What is the matter with a copy is no error here:
    see `Audit.error`.
    """
    if bucket_offsets < 1:
        raise BadInput("a range has one queue offset at least")
    on_step(f"asking who has queue {queue!r}")
    seen = asyncio.run(_find(servers, queue, until, access))
    info, copies = seen.info, seen.copies
    begin = first if first is not None else info.begin
    end = until if until is not None else max([info.next, *(copy.next for copy in copies)])
    if not 0 <= begin <= end:
        raise BadInput(f"queue offset {begin} is not within 0 and {end}, where the audit ends")
    edges = _edges(begin, end, copies, width(end - begin, bucket_offsets))
    asked = _Asked(tuple(servers), queue, seen.cluster_id, info.master, edges, access)
    pieces = [piece for copy in copies for piece in _pieces(asked, copy)]
    on_step(f"reading {len(copies)} copies of queue {queue!r} in {len(pieces)} pieces")
    sums, stopped = _read(pieces, _in_threads if spark is None else _in_tasks(spark))
    findings = [
        *_closer(asked, differing(sums, info.master), stopped, sums, on_step),
        *(Finding(copy.node, max(copy.next, begin), end, State.BEHIND, _BEHIND) for copy in copies if copy.next < end),
        *(
            _absent(node, begin, end, seen.refused.get(node))
            for node in _holders(info) - {each.node for each in copies}
        ),
    ]
    notes = [_LATE.format(copy.node, copy.begin) for copy in copies if copy.begin > begin]
    wholes = tuple(whole(copy.node, sums) for copy in copies)
    return Audit(queue, begin, end, copies, wholes, tuple(merged(findings)), tuple(notes))


def _holders(info: QueueInfo) -> set[str]:
    return {info.master, *info.mirrors} - {""}


def _absent(node: str, begin: int, end: int, error: MirrorlogError | None) -> Finding:
    state = State.DAMAGED if isinstance(error, LogCorrupt) else State.UNREAD
    return Finding(node, begin, end, state, _ABSENT if error is None else error.message)


def _edges(begin: int, end: int, copies: Sequence[Copy], offsets: int) -> tuple[int, ...]:
    """A copy has each range whole or not at all, so ranges also end where copies begin and end."""
    marks = {begin, end, *range(begin - begin % offsets + offsets, end, offsets)}
    marks |= {place for copy in copies for place in (copy.begin, copy.next) if begin < place < end}
    return tuple(sorted(marks))


def _pieces(asked: _Asked, copy: Copy) -> Iterator[Piece]:
    """All that a copy has, in a few pieces of whole ranges."""
    edges = [edge for edge in asked.edges if copy.begin <= edge <= copy.next]
    ranges = max(0, len(edges) - 1)
    marks = sorted({ranges * number // _PIECES_PER_COPY for number in range(_PIECES_PER_COPY + 1)})
    for start, stop in pairwise(marks):
        yield asked.piece(copy.node, edges[start : stop + 1])


# --- Reading --------------------------------------------------------------------------------------------------------


def _read(pieces: Sequence[Piece], run: Run) -> tuple[list[Sum], list[Reading]]:
    """All pieces; where a bad batch stops one, what is behind its range is read as another. The readings that stopped,
    those at a bad batch cut to its range."""
    sums: list[Sum] = []
    stopped: list[Reading] = []
    while pieces:
        readings = list(run(pieces))
        pieces = []
        for reading in readings:
            sums += reading.sums
            if reading.stopped is None:
                continue
            cut, rest = _cut(reading)
            stopped.append(cut)
            if rest is not None and len(stopped) < LOOKED_INTO_MAX:
                pieces.append(rest)
            elif rest is not None:
                first = rest.edges[0]
                unread = replace(reading.stopped, first=first, state=State.UNREAD, reason=_TOO_BAD)
                stopped.append(replace(reading, stopped=unread, passable=False))
    return sums, stopped


def _cut(reading: Reading) -> tuple[Reading, Piece | None]:
    """A reading that stopped at a bad batch, as that of its range alone, and the piece behind."""
    edges = reading.piece.edges
    number = bisect_right(edges, reading.at) - 1
    if not reading.passable or reading.stopped is None:
        return reading, None
    found = replace(reading.stopped, first=edges[number], next=edges[number + 1])
    behind = edges[number + 1 :]
    rest = replace(reading.piece, edges=behind, has_begin=False) if len(behind) > 1 else None
    return replace(reading, stopped=found), rest


def _in_threads(pieces: Sequence[Piece]) -> Iterable[Reading]:
    with ThreadPoolExecutor(min(len(pieces), _THREADS_MAX)) as threads:
        return list(threads.map(read_piece, pieces))


def _in_tasks(spark: SparkSession) -> Run:
    context = spark.sparkContext

    def run(pieces: Sequence[Piece]) -> Iterable[Reading]:
        readings: list[Reading] = context.parallelize(pieces, len(pieces)).map(read_piece).collect()
        return readings

    return run


@dataclass(frozen=True, slots=True)
class _Found:
    """`info`: the queue as its master has it. `refused`: why a node does not show its copy, by node id."""

    cluster_id: str
    info: QueueInfo
    copies: tuple[Copy, ...]
    refused: Mapping[str, MirrorlogError]


async def _find(servers: Sequence[str], queue: str, until: int | None, access: Access) -> _Found:
    """Every copy, once mirrors have heard of what is confirmed now; after a while, as they are."""
    give_up_at = time.monotonic() + _CATCH_UP_S
    async with Client(*servers, **access.client_options()) as client:
        while True:
            found, refused = await _ask(client, queue)
            views = views_of(queue, found)
            if not views:
                raise next(iter(refused.values()), NoSuchQueue(f"no queue {queue!r}; see: mqtool queues"))
            end = until if until is not None else max(each.next for each in views.values())
            if all(each.next >= end for each in views.values()) or time.monotonic() > give_up_at:
                newest = newest_of(views)
                info = views.get(newest.master, newest)
                copies = [Copy(node, node == info.master, each.begin, each.next) for node, each in views.items()]
                order = sorted(copies, key=lambda copy: (not copy.is_master, copy.node))
                return _Found(found[0].cluster_id, info, tuple(order), refused)
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


# --- Looking closer -------------------------------------------------------------------------------------------------


def _closer(
    asked: _Asked, differ: Sequence[Finding], stopped: Sequence[Reading], sums: Sequence[Sum], on_step: OnStep
) -> Iterator[Finding]:
    """What was found, as the very batches in which it is so, as far as another copy tells where those begin."""
    bad = [each.stopped for each in stopped if each.stopped is not None and each.passable]
    yield from (each.stopped for each in stopped if each.stopped is not None and not each.passable)
    for number, finding in enumerate([*differ, *bad]):
        witness = _witness(asked, finding, sums)
        if number >= LOOKED_INTO_MAX or witness is None:
            yield finding
            continue
        on_step(f"looking into {finding.node}, {finding.first} up to {finding.next}")
        yield from list(_by_batch(asked, finding, witness)) or [finding]


def _witness(asked: _Asked, finding: Finding, sums: Sequence[Sum]) -> str | None:
    """A node that showed these ranges as most do; the master, if it is one of them."""
    wrong = {(each.node, each.first) for each in differing(sums, asked.master)}
    nodes = [
        each.node
        for each in sums
        if each.first == finding.first and each.node != finding.node and (each.node, each.first) not in wrong
    ]
    return min(nodes, key=lambda node: (node != asked.master, node), default=None)


def _by_batch(asked: _Asked, finding: Finding, witness: str) -> Iterator[Finding]:
    """The batches of a range in which a copy is not as the witness, or bad."""
    right = read_piece(asked.piece(witness, (finding.first, finding.next), by_batch=True)).sums
    expected = {each.first: each for each in right}
    found: dict[int, Sum] = {}
    bad: dict[int, Finding] = {}
    at = finding.first
    while at < finding.next:
        reading = read_piece(asked.piece(finding.node, (at, finding.next), by_batch=True))
        found |= {each.first: each for each in reading.sums}
        if reading.stopped is None:
            break
        # Where the next batch begins only another copy can say.
        at = min((first for first in expected if first > reading.at), default=finding.next)
        if not reading.passable:
            at = finding.next  # it shows nothing any more
        bad[reading.at] = replace(reading.stopped, next=at)
    yield from bad.values()
    for first, each in expected.items():
        mine = found.get(first)
        passed_over = any(each.first <= first < each.next for each in bad.values())
        if not passed_over and (mine is None or mine.content != each.content):
            yield Finding(finding.node, first, each.next, State.DIFFERS, finding.reason)


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
    parser.add_argument("--from", dest="first", type=int, metavar="N", help="first queue offset; by default the begin")
    parser.add_argument(
        "--until", type=int, metavar="N", help="queue offset to end before; by default the confirmed end"
    )
    command_line.add_bucket(parser, default=BUCKET_OFFSETS)
    parser.add_argument("--out", type=Path, metavar="DIR", help="draw each queue's copies there: copies-QUEUE.png")
    command_line.add_access(parser)
    command_line.add_json(parser)
    return parser


def _work(options: argparse.Namespace) -> int:
    found = _run(options)
    _show(found, as_json=options.json)
    if options.out is not None:
        _draw(found, options.out)
    return max((wrong.exit_code for each in found if (wrong := each.error())), default=0)


def _run(options: argparse.Namespace) -> list[Audit]:
    servers, access = parse_servers(command_line.servers_of(options)), command_line.access_of(options)
    queues = command_line.queues_of(options)
    with command_line.status("asking the nodes") as on_step:
        spark = _session() if is_submitted() else None
        return [
            audit(
                servers, queue, first=options.first, until=options.until, bucket_offsets=options.bucket, access=access,
                spark=spark, on_step=on_step,
            )
            for queue in queues
        ]  # fmt: skip


def _session() -> SparkSession:
    from mirrorlog.spark.session import any_session

    return any_session("mirror audit")


def _draw(found: Sequence[Audit], folder: Path) -> None:
    """Raises MissingDependency without matplotlib, ConfigError when a picture cannot be written."""
    from mirrorlog.spark.analysis.copies import draw_copies
    from mirrorlog.spark.analysis.plots import save

    for each in found:
        # A queue's name may have what a file's may not.
        path = save(draw_copies(each), folder / f"copies-{quote(each.queue, safe='')}.png")
        print(path, file=sys.stderr)


def _show(found: Sequence[Audit], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([each.fields() for each in found], indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for each in found:
        console.print(each.view())


if __name__ == "__main__":
    sys.exit(main())
