"""What operators ask of a cluster: nodes, masters, copies, events. `Admin` has all of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.attempts import Attempts
from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.finder import first_answer
from mirrorlog.client.connection.liveness import SILENCE_S
from mirrorlog.client.options import check_timeout
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    MirrorlogError,
    NoSuchLog,
    NotLeader,
    Refused,
    RequestTimeout,
    UnsupportedVersion,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.connections import (
    CloseConnection,
    ConnectionInfo,
    ConnectionsFound,
    ListConnections,
    NoSuchConnection,
)
from mirrorlog.wire.messages.operators import (
    CopyMoves,
    CopyPromoted,
    Drained,
    DrainNode,
    Events,
    ForgetNode,
    FormerFreed,
    FormerKept,
    FreeFormer,
    GetCopyMoves,
    GetEvents,
    NoSuchNode,
    PauseMoving,
    PromoteCopy,
    Rebalance,
    Rebalanced,
)
from mirrorlog.wire.messages.queues import Done, ListMoves, Metadata, MoveOfQueue, MovesFound, NodeInfo
from mirrorlog.wire.messages.status import GetStatus, Status

_FREE_TIMEOUT_MS: Final = 60_000  # removing large files takes its time
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class ClusterConnections:
    """`rows`: by name and node; `untold`: by node, why it tells none; `more`: a node has more than it was asked for."""

    rows: list[ConnectionInfo]
    untold: dict[str, MirrorlogError]
    more: bool = False


@checked()
class OperatorAdmin:
    """See `Admin`, which raises as all of these do."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r})"

    async def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes, and all queues of the cluster or those named, whichever node is asked."""
        return await self._client.metadata(queues)

    async def status(self, node_id: str | None = None) -> Status:
        """What a node knows of its logs; of any node when none is named."""
        if node_id is not None:
            return await self._status_of(await self._client.node_address(node_id))
        asks = [partial(self._status_of, address) for address in self._client.addresses()]
        return await first_answer(asks, head_start_s=SILENCE_S)

    async def _status_of(self, address: str) -> Status:
        connection = await self._client.connection_to(address)
        return await connection.request(GetStatus(), Status, timeout_ms=self._client.request_timeout_ms)

    async def drain(self, node_id: str = "", *, draining: bool = True, empty: bool = False) -> str:
        """Let a node, by default the one that answers, hand over what it masters, or let it master again. `empty`: its
        copies go to others too, and no start of it ends that. Returns the node once that is decided; the logs follow,
        one after the other. Raises Refused, ConnectionLost, OutcomeUnknown, UnsupportedVersion or BadRequest."""
        drained = await self._change_by_any(DrainNode(node=node_id, draining=draining, empty=empty), Drained)
        if empty and draining and not drained.leaving:
            raise UnsupportedVersion(f"the node that answers is older: {drained.node} drains, and keeps its copies")
        return drained.node

    async def forget_node(self, node_id: str, *, force: bool = False) -> None:
        """Take a node out of the cluster for good. Raises Refused while it is up, unless it is forced, and while it
        holds the last copy of a log that may be whole; ConnectionLost, OutcomeUnknown or BadRequest."""
        await self._ask_coordinator(ForgetNode(node=node_id, force=force), Done)

    async def rebalance(self, *, dry_run: bool = False) -> Rebalanced:
        """Let every log be mastered by its home, as far as that can take it over; decided when this returns. Raises
        Refused, ConnectionLost or OutcomeUnknown."""
        return await self._change_by_any(Rebalance(dry_run=dry_run), Rebalanced)

    async def copy_moves(self) -> CopyMoves:
        """Which logs go to other nodes, now and then, and why. Raises NotLeader, ConnectionLost or RequestTimeout."""
        return await self._ask_coordinator(GetCopyMoves(), CopyMoves)

    async def moves(self, *, node_timeout_ms: int | None = None) -> MovesFound:
        """Queues that are on their way to another log, or shall go there and have not begun: by name, as the masters of
        their logs tell it. Of one whose log's master does not answer there is a row with the reason, from the others;
        what has not begun that node alone knows, so there is a row without a queue for it. `node_timeout_ms`: how long
        one node may take, by default `request_timeout_ms`. Raises what the last node answers when none can tell."""
        found, failed = await self._told_by_each(self._moves_at, node_timeout_ms)
        silent = await self._mastering(failed) if failed else ()
        return MovesFound(moves=all_moves(found, failed, silent), paused=any(each.paused for each in found))

    async def _mastering(self, nodes: Collection[str]) -> list[str]:
        """Those of them that master a log, as far as one may know."""
        try:
            view = (await self.status()).cluster
        except MirrorlogError:
            view = None
        masters = {log.master for log in view.logs} if view is not None else set(nodes)
        return [node for node in nodes if node in masters]

    async def _moves_at(self, node: NodeInfo, timeout_ms: int) -> MovesFound:
        link = await self._client.connection_to(node.client)
        return await link.request(ListMoves(), MovesFound, timeout_ms=timeout_ms)

    async def _told_by_each(
        self, ask: Callable[[NodeInfo, int], Awaitable[_M]], node_timeout_ms: int | None
    ) -> tuple[list[_M], dict[str, MirrorlogError]]:
        """What the nodes answer, and by node why others do not. `ask`: one of them, which may take so many ms. Raises
        what the last node answers when none can tell."""
        if node_timeout_ms is not None:
            check_timeout("node_timeout_ms", node_timeout_ms)
        limit_ms = self._client.request_timeout_ms if node_timeout_ms is None else node_timeout_ms
        failed: dict[str, MirrorlogError] = {}

        async def answer(node: NodeInfo) -> list[_M]:
            try:
                async with asyncio.timeout(None if node_timeout_ms is None else limit_ms / 1000):
                    return [await ask(node, limit_ms)]
            except MirrorlogError as error:
                failed[node.node_id] = error
            except TimeoutError:
                failed[node.node_id] = RequestTimeout(f"no answer within {limit_ms} ms")
            return []

        told = await asyncio.gather(*(answer(node) for node in (await self.metadata([])).nodes))
        found = [each for answers in told for each in answers]
        if not found:
            raise next(iter(failed.values()), ConnectionLost("no node of the cluster is known"))
        return found, dict(sorted(failed.items()))

    async def pause_moving(self, paused: bool = True) -> None:
        """Let no log go to other nodes any more, or let them go on; what is lost is replaced all the same. Raises
        Refused, ConnectionLost, OutcomeUnknown or UnsupportedVersion."""
        await self._change_by_any(PauseMoving(paused=paused), Done)

    async def free_former(self, log: str = "") -> list[FormerFreed]:
        """Free what nodes hold of logs that they are not named for any more (`Status.former`), or that of one log (name
        or id). By node, also one that does not answer: what was freed, and what was not, with the reason. Raises
        NoSuchLog without a copy of the log, Refused when each is one that the cluster names, ConnectionLost."""
        nodes = (await self.metadata([])).nodes
        answers = await asyncio.gather(*(self._free_former(node, log) for node in nodes))
        if not log or any(answer.freed or _formers(answer) for answer in answers):
            return [replace(answer, kept=_formers(answer)) for answer in answers]
        if named := [kept for answer in answers for kept in answer.kept if kept.named]:
            raise Refused(named[0].reason)
        raise NoSuchLog(f"no node that answers holds a former copy of {log!r}; mqtool free-former --dry-run lists them")

    async def _free_former(self, node: NodeInfo, log: str) -> FormerFreed:
        try:
            link = await self._client.connection_to(node.client)
            return await link.request(FreeFormer(log=log), FormerFreed, timeout_ms=_FREE_TIMEOUT_MS)
        except MirrorlogError as error:
            return FormerFreed(node=node.node_id, kept=[FormerKept(log_id="", name="", reason=error.message)])

    async def connections(
        self, *, user: str | None = None, name: str = "", most: int | None = None, node_timeout_ms: int | None = None
    ) -> ClusterConnections:
        """The open connections of clients, by name: everybody's for the tags `administrator` and `monitoring`, else
        one's own. `user`: only his; `name`: only those of that name; `most`: so many of each node, `more` says whether
        there are others; `node_timeout_ms`: as in `moves`. Raises what the last node answers when none can tell."""

        async def ask(node: NodeInfo, timeout_ms: int) -> ConnectionsFound:
            """In as many answers as it takes."""
            link, asked, rows = await self._telling(node), ListConnections(user=user, name=name), list[ConnectionInfo]()
            while True:
                limit = asked.limit if most is None else min(asked.limit, most - len(rows))
                found = await link.request(replace(asked, limit=limit), ConnectionsFound, timeout_ms=timeout_ms)
                rows += found.connections
                if not found.more or len(rows) == most:
                    return replace(found, connections=rows)
                asked = replace(asked, after=rows[-1].name)

        told, untold = await self._told_by_each(ask, node_timeout_ms)
        rows = sorted((row for each in told for row in each.connections), key=lambda row: (row.name, row.node))
        return ClusterConnections(rows, untold, any(each.more for each in told))

    async def close_connection(self, name: str, reason: str = "", *, node_id: str = "", since_us: int = 0) -> str:
        """Close a client's connection, whichever node has it; the node. Its client is told ConnectionClosed with the
        reason, and may connect again. `node_id`: of nodes that have one of that name (within their machines) the one
        that is meant; `since_us`: only if it is the one that has been there since then. Needs the tag `administrator`.

        Raises NoSuchConnection, BadRequest when several nodes have one, AccessRefused, ConnectionLost when it may be
        one of a node that does not answer."""
        if not node_id:
            found = await self.connections(name=name)
            nodes = sorted({row.node for row in found.rows})
            if len(nodes) > 1:
                raise BadRequest(f"nodes {', '.join(nodes)} have a connection {name!r} each; say which one is meant")
            if not nodes and found.untold:
                why = "; ".join(f"{node}: {error}" for node, error in found.untold.items())
                raise ConnectionLost(f"no node that answers has a connection {name!r}; {why}")
            if not nodes:
                raise NoSuchConnection(f"no node has a connection {name!r}")
            node_id = nodes[0]
        info = {node.node_id: node for node in (await self.metadata([])).nodes}.get(node_id)
        if info is None:
            raise NoSuchNode(f"no node {node_id!r} in this cluster")
        link, asked = await self._telling(info), CloseConnection(name=name, reason=reason, since_us=since_us)
        attempts = Attempts()
        with attempts.request(), attempts.one():
            await link.request(asked, Done, timeout_ms=self._client.request_timeout_ms)
        return node_id

    async def _telling(self, node: NodeInfo) -> Connection:
        """To a node that can be asked about its connections. Raises UnsupportedVersion, ConnectionLost."""
        link = await self._client.connection_to(node.client)
        if versions.version_of(link.welcome.start_id) < versions.CONNECTIONS:
            raise UnsupportedVersion(f"node {node.node_id} runs older software, which does not tell its connections")
        return link

    async def promote(self, log: str, *, to: str = "", accept_loss: bool = False) -> CopyPromoted:
        """Master a log (name or id) from a copy that may lack what was confirmed; without `accept_loss` nothing is
        done, and what would be is told. Raises Refused while the cluster can promote without a loss, NoSuchLog,
        BadRequest, ConnectionLost or OutcomeUnknown."""
        return await self._ask_coordinator(PromoteCopy(log=log, to=to, accept_loss=accept_loss), CopyPromoted)

    async def events(
        self, *, after: int = 0, wait_ms: int = 0, limit: int = 1_000, node_id: str | None = None
    ) -> Events:
        """What happened in the cluster behind event number `after`, as a node, by default any, came to know it; the
        numbers are of that node's run. With nothing to tell it answers after `wait_ms`, or when there is."""
        message = GetEvents(after=after, wait_ms=wait_ms, limit=limit)
        if node_id is not None:
            connection = await self._client.connection_to(await self._client.node_address(node_id))
        else:
            connection = await self._client.any_connection()
        return await connection.request(message, Events, timeout_ms=self._client.request_timeout_ms + wait_ms)

    async def _change_by_any(self, message: Message, expect: type[_M]) -> _M:
        """Of any node, once: it knows the way to who decides."""
        attempts = Attempts()
        with attempts.request():
            connection = await self._client.any_connection()
            with attempts.one():
                return await connection.request(message, expect, timeout_ms=self._client.request_timeout_ms)

    async def _ask_coordinator(self, message: Message, expect: type[_M]) -> _M:
        """Of the node that coordinates, whose view of who is gone counts; while there is none, or another one is
        elected, it is waited for. Raises NotLeader, ConnectionLost, OutcomeUnknown."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._client.request_timeout_ms / 1000
        backoff = Backoff(random.random)
        attempts = Attempts()
        with attempts.request():
            while True:
                try:
                    connection = await self._client.connection_to(await self._coordinator())
                    with attempts.one():
                        return await connection.request(message, expect, timeout_ms=self._client.request_timeout_ms)
                except (NotLeader, ConnectionLost):
                    if loop.time() >= give_up_at or attempts.in_doubt:
                        raise
                await asyncio.sleep(backoff.next_s())

    async def _coordinator(self) -> str:
        """Its client address, as the node that answers knows it."""
        view = (await self.status()).cluster
        nodes = view.nodes if view is not None else []
        for node in nodes:
            if view is not None and node.node_id == view.coordinator:
                return node.client
        raise NotLeader("no coordinator is known; a majority of the nodes must reach each other")

    # --- inside ---


def all_moves(
    found: Sequence[MovesFound], failed: Mapping[str, MirrorlogError], silent: Iterable[str] = ()
) -> list[MoveOfQueue]:
    """By queue, what its log's master says; else that it moves, and why nobody can say more. `failed`: by node, why it
    does not answer; `silent`: those of them that master logs, and may know of moves that have not begun. Pure."""
    rows: dict[str, MoveOfQueue] = {}
    for row in (row for each in found for row in each.moves):
        known = rows.get(row.queue)
        # A node that is behind may know of a move that is over: the one with the highest number is.
        if known is None or (row.told, row.number) > (known.told, known.number):
            rows[row.queue] = row
    why = "".join(f"; node {node}: {error}" for node, error in failed.items())
    unknown = [
        MoveOfQueue(
            queue="",
            source="",
            target="",
            stage="unknown",
            reason=f"node {node}: {failed[node]}; what shall move from the logs that it masters is not known",
        )
        for node in silent
    ]
    return unknown + [
        row if row.told else replace(row, reason=f"nobody who answers masters log {row.source}{why}")
        for _, row in sorted(rows.items())
    ]


def _formers(answer: FormerFreed) -> list[FormerKept]:
    """What was not freed of them; not copies that the cluster names, which are none."""
    return [kept for kept in answer.kept if not kept.named]
