"""Admin: queues, offsets, groups' positions, nodes' status, and what operators ask of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec.structs import replace

from mirrorlog.attempts import Attempts
from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import NO_ANSWER
from mirrorlog.client.connection.masters import (
    ask_master,
    ask_placed_at,
    ask_until_placed,
    change_at_master,
    remove_at_master,
)
from mirrorlog.client.operator_admin import OperatorAdmin
from mirrorlog.client.producer.record import as_timestamp_us
from mirrorlog.client.publisher.topology import Topology
from mirrorlog.errors import (
    BadRequest,
    HoldTaken,
    InSyncReplicasNotEnough,
    MasterChanged,
    MirrorlogError,
    NoSuchGroup,
    NoSuchHold,
    NoSuchQueue,
    NotLeader,
    NotMaster,
    QueueExists,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import (
    REDRIVE_MAX,
    DeleteGroup,
    GroupsFound,
    GroupsReset,
    ListGroups,
    Purged,
    PurgeGroup,
    Redrive,
    Redriven,
    ResetGroups,
)
from mirrorlog.wire.messages.queues import (
    AlteredQueue,
    AlterQueue,
    CancelMove,
    CommitPosition,
    DeclareQueue,
    Deleted,
    DeleteQueue,
    Done,
    EndHold,
    FetchPosition,
    FoundPosition,
    HoldGranted,
    HoldInfo,
    HoldsFound,
    ListHolds,
    Metadata,
    Position,
    QueueInfo,
    QueueSync,
    SetHold,
    Stays,
    SyncQueue,
)
from mirrorlog.wire.names import split

_DELETE_TIMEOUT_MS: Final = 6_000
"""A node that hangs holds the first step of a deletion up for two seconds, and may have to be replaced."""

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
_A = TypeVar("_A", bound=Message)


@checked()
class Admin(OperatorAdmin):
    """Declares queues, and asks and changes what operators need. Made by `Client.admin`. Every method raises what the
    node answers. What changes something raises Refused, or ConnectionLost when no node was reached: nothing was done;
    or OutcomeUnknown when it may count or not. What changes nothing raises ConnectionLost or RequestTimeout."""

    @property
    def topology(self) -> Topology:
        """Exchanges, bindings, virtual hosts, users."""
        return Topology(self._client)

    async def declare(self, name: str, arguments: Mapping[str, Any] | None = None) -> QueueInfo:
        """Make a queue, or find it with the same arguments; within `request_timeout_ms` it waits for a log without a
        master, or with too few copies, to get them. With an empty name (in its virtual host) a node makes a name,
        another one each time.

        How long it lives: `auto-delete`: until its last subscriber goes; `x-expires`: until nobody has used it for so
        many ms; `durable` = False: no longer than the node that is asked runs; `exclusive`: as long as this client's
        connection to that node, and for this client alone. Raises QueueExists naming the difference, QueueExclusive,
        LogUnavailable naming the node that is down, Refused, or OutcomeUnknown."""
        message = DeclareQueue(name=name, arguments=dict(arguments or {}))
        if not split(name)[1]:
            return await self._declare_unnamed(message)
        return await self._declare_named(message, Attempts())

    async def _declare_named(self, message: DeclareQueue, attempts: Attempts) -> QueueInfo:
        with attempts.request(telling=(QueueExists,)):
            answer = await ask_until_placed(
                self._client, lambda address: ask_placed_at(self._client, address, message, Metadata, attempts)
            )
            if isinstance(answer, MirrorlogError):
                raise answer
        return answer.queues[0]

    async def _declare_unnamed(self, message: DeclareQueue) -> QueueInfo:
        """Asked once, for two answers would be two queues. Where it cannot be made the node tells the name all the
        same, under which it may be elsewhere."""
        attempts = Attempts()
        with attempts.request():
            connection = await self._client.any_connection()
            try:
                with attempts.one():
                    answer = await connection.request(message, Metadata, timeout_ms=self._client.request_timeout_ms)
            except (NotMaster, MasterChanged, NotLeader) as error:
                name = error.details.get("queue")
                if not isinstance(name, str):
                    raise
                return await self._declare_named(replace(message, name=name), attempts)
        return answer.queues[0]

    async def alter(
        self, name: str, arguments: Mapping[str, Any], *, dry_run: bool = False, sync: bool = False
    ) -> AlteredQueue:
        """Change where a queue is: `copies`, `nodes`, `flush`, `min_in_sync`, `queue-master-locator`; None takes one
        away. Returns when it is decided; the queue moves to another log, or its log gets other copies, while it is
        used. A move that does not come about is tried again, as `moves` tells, until `cancel_move`. Queues of one
        `x-log-group` go together. `dry_run`: only say what would be done and copied; `sync`: as `sync_queue` for all
        that go to another log.

        Raises BadRequest for what cannot be changed, NoSuchQueue, Refused: then nothing is changed; or OutcomeUnknown;
        may be asked again."""
        message = AlterQueue(name=name, arguments=dict(arguments), dry_run=dry_run, sync=sync)
        return await change_at_master(self._client, name, message, AlteredQueue)

    async def sync_queue(self, name: str) -> QueueSync:
        """Have what a queue that has moved has left in former logs copied to the log that it is in, where nothing of
        it is left then. Returns when that is decided, with what is to be done; it is done in the background, up to
        `cluster.move_bytes_per_s`, while the queue is used. Nothing happens where there is nothing to copy.

        Raises NoSuchQueue, Refused, or OutcomeUnknown; may be asked again."""
        return await change_at_master(self._client, name, SyncQueue(queue=name, wish="sync"), QueueSync)

    async def cancel_sync_queue(self, name: str) -> QueueSync:
        """No more of it is copied. What is copied stays, and `sync_queue` goes on from there. Raises as that."""
        return await change_at_master(self._client, name, SyncQueue(queue=name, wish="cancel"), QueueSync)

    async def queue_sync(self, name: str) -> QueueSync:
        """What a queue that has moved has left in former logs, and how far the copying of it is. Raises NoSuchQueue, or
        why nobody can say."""
        return await ask_master(self._client, name, SyncQueue(queue=name), QueueSync, insist=True)

    async def cancel_move(self, name: str) -> Stays:
        """Let a queue stay in the log that it is in, with those of its `x-log-group`: a move that has not come about is
        given up, and what the queue asks for becomes what that log has. Returns when that is decided, and the queue
        goes on. Raises Refused when it is elsewhere already, NoSuchQueue, or OutcomeUnknown; may be asked again."""
        return await change_at_master(self._client, name, CancelMove(name=name), Stays)

    async def delete_queue(
        self,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        force: bool = False,
        missing_ok: bool = False,
    ) -> int:
        """Delete a queue with its records, groups, positions and bindings; how many records its own group had not
        settled. Returns when all copies have that, and its name is free. Who publishes to it, reads it or is subscribed
        to it is told NoSuchQueue. A queue that is declared under its name afterwards is another one.

        `if_unused`: only while nobody is subscribed to any of its groups, nor waits for its records at its master;
        `if_empty`: only when every group that acks has settled everything, without such a group only while it has no
        records; `force`: also when a landing holds records. Raises InUse naming what keeps it, NoSuchQueue, Refused or
        OutcomeUnknown. It gives 0 where there is no such queue with `missing_ok`, or asked again after a lost answer.
        """
        message = DeleteQueue(name=name, if_unused=if_unused, if_empty=if_empty, force=force)
        attempts, deleted = Attempts(), None
        under_way: set[asyncio.Event] = set()

        async def ask(address: str) -> Deleted | MirrorlogError:
            nonlocal deleted
            ended = asyncio.Event()
            under_way.add(ended)
            try:
                answer = await ask_placed_at(
                    self._client, address, message, Deleted, attempts, timeout_ms=_DELETE_TIMEOUT_MS
                )
                if isinstance(answer, Deleted):
                    deleted = answer
            finally:
                under_way.discard(ended)
                ended.set()
            if isinstance(answer, NoSuchQueue):
                # Another node is slow with its answer: it may be the one that has deleted the queue, for this call.
                await asyncio.gather(*(each.wait() for each in under_way))
                return deleted or answer
            return answer

        with attempts.request():
            answer = await ask_until_placed(self._client, ask)
            if isinstance(answer, NoSuchQueue) and (missing_ok or attempts.in_doubt):
                return 0
            if isinstance(answer, MirrorlogError):
                raise answer
        return answer.records

    async def queues(self) -> list[QueueInfo]:
        """All of the cluster, by name; `metadata` says of which no node can tell."""
        return (await self._client.metadata(None)).queues

    async def find_offset(self, queue: str, time: datetime | int, *, any_copy: bool = True) -> int:
        """The first confirmed queue offset whose batch was appended at or after `time` (datetime or µs UTC).

        `any_copy`: while the master cannot tell, a mirror does, which may know less to be confirmed, and then finds a
        smaller one: right for who begins there. False for who ends there: the master's word, or why there is none.
        """
        return await Copies(self._client, queue).first_at(as_timestamp_us(time) or 0, any_copy=any_copy)

    async def position(self, queue: str, group: str, *, reader: str = "") -> Position | None:
        """Where a group stands; None when it has never committed. `reader`: as of `commit_position`."""
        message = FetchPosition(queue=queue, group=group, reader=reader)
        return (await self._ask_holder(queue, message, FoundPosition)).position

    async def commit_position(self, queue: str, group: str, position: Position, *, reader: str = "") -> None:
        """Store where a group stands; returns when it is confirmed by all copies. Raises Refused, ConnectionLost,
        NoSuchQueue, BadRequest or OutcomeUnknown. `reader`: a name of its own of who reads as this group, which then no
        other name does while this connection lasts: ExclusiveTaken."""
        message = CommitPosition(queue=queue, group=group, position=position, reader=reader)
        await change_at_master(self._client, queue, message, Done)

    # --- for landings ---

    async def set_hold(
        self,
        queue: str,
        name: str,
        *,
        holder: str,
        queue_offset: int,
        lease_ms: int,
        location: str = "",
        tiered: bool = False,
        take_over: bool = False,
        epoch: int = 0,
    ) -> HoldInfo:
        """Have the queue's records from `queue_offset` on kept for landing `name`, or renew that; confirmed when this
        returns. What lies below the answer's `begin` was gone before.

        `holder`: who asks; another one in every run of the landing. `lease_ms`: renew within this time, or the hold
        expires; it begins anew with every call, whatever else changes. The same holder's queue offset only rises; a
        smaller one is passed over. `epoch`: of the answer to the registration, for renewals: then one that lost the
        hold meanwhile is told. `location`: of the Delta table that has what is below; `tiered`: this may go from the
        log early, and readers find it there. `take_over`: take the hold from another holder whose lease runs.

        Raises HoldTaken naming the holder, or for a renewal whose hold has ended (details `ended`: why), BadRequest (a
        queue offset above the confirmed end; another table in place of one that readers look in), Overloaded,
        UnsupportedVersion in a cluster that is still being updated, NoSuchQueue, Refused, ConnectionLost,
        OutcomeUnknown.
        """
        message = SetHold(
            queue=queue,
            name=name,
            holder=holder,
            queue_offset=queue_offset,
            lease_ms=lease_ms,
            location=location,
            tiered=tiered,
            take_over=take_over,
            epoch=epoch,
        )
        # Who holds it now is so whatever became of an attempt.
        given = await change_at_master(
            self._client, queue, message, HoldGranted, awaits_copies=True, telling=(HoldTaken,)
        )
        return given.hold

    async def end_hold(self, queue: str, name: str, *, holder: str = "", missing_ok: bool = False) -> None:
        """Forget a landing's hold; confirmed when this returns. With `holder` only that one's: raises HoldTaken
        otherwise. Raises NoSuchHold where there is none, unless `missing_ok`; and as `set_hold`."""
        message = EndHold(queue=queue, name=name, holder=holder, must_exist=not missing_ok)
        await remove_at_master(
            self._client, queue, message, NoSuchHold, missing_ok=missing_ok, awaits_copies=True, telling=(HoldTaken,)
        )

    async def holds(self, queue: str) -> list[HoldInfo]:
        """The holds of a queue, those that ended by themselves too, as its master knows them."""
        return (await self._ask_current(queue, ListHolds(queue=queue), HoldsFound)).holds

    # --- for operators ---

    async def groups(self, queue: str) -> GroupsFound:
        """The groups of a queue, those that ack and those that commit positions, as its master knows them; while the
        log has too few copies, as right behind a failover, it waits for them within `request_timeout_ms`."""
        return await self._ask_current(queue, ListGroups(queue=queue), GroupsFound)

    async def purge(self, queue: str, group: str = "") -> int:
        """Settle every ready record of an acking group, that is with no consumer; how many those were. The queue's own
        group has the empty name. Returns when all copies have that. When the answer to a first attempt was lost, the
        number is that of the last one. Raises NoSuchQueue, Refused, ConnectionLost or OutcomeUnknown."""
        message = PurgeGroup(queue=queue, group=group)
        return (await change_at_master(self._client, queue, message, Purged)).records

    async def redrive(self, queue: str, *, to: str = "", records_max: int = REDRIVE_MAX) -> int:
        """Send ready records of a queue, the oldest first, back to the queue that each died in, or to `to`, a name in
        the same virtual host; how many leave. They arrive a moment later, each once; one that leads to no queue stays.
        Asked again after OutcomeUnknown, it sends more. Raises Refused, ConnectionLost, OutcomeUnknown, NoSuchQueue or
        BadRequest."""
        message = Redrive(queue=queue, records_max=records_max, to=to)
        return (await change_at_master(self._client, queue, message, Redriven, once=True)).records

    async def reset_groups(
        self,
        queue: str,
        groups: Sequence[str] | None = None,
        *,
        to: str | int | datetime | None = None,
        shift: int | None = None,
        offsets: Mapping[str, int] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> GroupsReset:
        """Have groups of a queue, of either kind, stand somewhere else, all of them or none; by default all there are.
        The queue's own group has the empty name. Returns what moved from where to where when all copies have that.

        `to`: "earliest", "latest", a queue offset, or a time: where the first batch stands that was appended then or
        later. Or `shift`: so many records forward, below 0 back. Or `offsets`: a queue offset for each group, as a dry
        run has told them. Where that is no record's place it is the nearest there is. `dry_run`: only tell. `force`:
        also while somebody is at a group: its subscriptions end (SubscriptionCancelled), and its leases.

        Raises InUse naming who is at it, NoSuchGroup (of streams, before the first commit: `commit_position` makes it),
        OffsetOutOfRange for a queue offset that is no place, BadRequest, NoSuchQueue, Refused,
        ConnectionLost or OutcomeUnknown; for a dry run RequestTimeout.
        """
        message = ResetGroups(
            queue=queue, groups=None if groups is None else list(groups), dry_run=dry_run, force=force,
            **_reset_target(to, shift, offsets),
        )  # fmt: skip
        if message.to == "shift" and not dry_run:
            # Asked twice, for the first answer was lost, it would move twice: where to is settled before.
            told = await self._ask_current(queue, replace(message, dry_run=True), GroupsReset)
            places = {each.group: each.target.queue_offset for each in told.groups}
            if not places:
                return replace(told, done=True)
            message = replace(message, to="each", value=0, offsets=places, groups=list(places))
        if dry_run:
            return await self._ask_current(queue, message, GroupsReset)
        return await change_at_master(self._client, queue, message, GroupsReset, awaits_copies=True)

    async def delete_group(self, queue: str, group: str, *, missing_ok: bool = False) -> None:
        """Forget a group of either kind; its subscriptions end. Returns when all copies have that. Raises NoSuchGroup
        where there is none, unless `missing_ok`; BadRequest for the queue's own group, NoSuchQueue, Refused,
        ConnectionLost or OutcomeUnknown."""
        message = DeleteGroup(queue=queue, group=group)
        await remove_at_master(self._client, queue, message, NoSuchGroup, missing_ok=missing_ok)

    async def _ask_current(self, queue: str, message: Message, expect: type[_M]) -> _M:
        """A question to the queue's master, as soon as it knows what is confirmed."""
        return await ask_master(self._client, queue, message, expect, insist=True, awaits_copies=True)

    async def _ask_holder(self, queue: str, message: Message, expect: type[_M]) -> _M:
        """Of the queue's master, or of a mirror while that cannot answer: it knows what is confirmed, a bit later.

        Raises why the first cannot answer.
        """
        try:
            return await self._ask_current(queue, message, expect)
        except (*NO_ANSWER, InSyncReplicasNotEnough) as error:
            failure = error
        for node_id in (await self._client.queue_info(queue)).mirrors:
            try:
                connection = await self._client.reach(await self._client.node_address(node_id))
                return await connection.request(
                    msgspec.structs.replace(message, any_copy=True), expect, timeout_ms=self._client.request_timeout_ms
                )
            except NO_ANSWER:
                pass
        raise failure


def _reset_target(
    to: str | int | datetime | None, shift: int | None, offsets: Mapping[str, int] | None
) -> dict[str, Any]:
    """As fields of ResetGroups. Raises BadRequest."""
    if [to, shift, offsets].count(None) != 2:
        raise BadRequest("a reset goes to one place: `to`, or `shift`, or `offsets`")
    if shift is not None:
        return {"to": "shift", "value": shift}
    if offsets is not None:
        return {"to": "each", "offsets": dict(offsets)}
    if isinstance(to, datetime):
        return {"to": "time", "value": as_timestamp_us(to)}
    if isinstance(to, int):
        return {"to": "offset", "value": to}
    if to not in ("earliest", "latest"):
        raise BadRequest(f'a reset is to "earliest", "latest", a queue offset or a datetime, not {to!r}')
    return {"to": to}


class AdminClient(ClusterClient):
    """A client for `admin` alone, connected while its block runs: it loads nothing that records need."""

    @property
    def admin(self) -> Admin:
        """As of a `Client`."""
        return Admin(self)

    async def __aenter__(self) -> Self:
        await self.any_connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await self._disconnect()
