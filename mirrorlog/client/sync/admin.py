"""What is asked of a cluster, by calls that block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar

from mirrorlog.client import admin as awaited_admin
from mirrorlog.client.sync.caller import Caller, options_of
from mirrorlog.client.sync.publisher import Topology
from mirrorlog.wire.messages.groups import REDRIVE_MAX, GroupsFound, GroupsReset
from mirrorlog.wire.messages.operators import CopyPromoted, Events, Rebalanced
from mirrorlog.wire.messages.queues import HoldInfo, Metadata, Position, QueueInfo
from mirrorlog.wire.messages.status import Status

# Behind the deadlines of the calls themselves: they say more about what is wrong.
_MARGIN_S: Final = 5.0

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Admin:
    """Made by `Client.admin`; as `mirrorlog.client.admin.Admin`, whose methods say what each raises."""

    def __init__(self, client: Caller) -> None:
        self._client = client
        self._awaited = client.awaited.admin

    @property
    def topology(self) -> Topology:
        """Exchanges, bindings, virtual hosts, users."""
        return Topology(self._client, self._awaited.topology)

    def declare(self, name: str, arguments: Mapping[str, Any] | None = None) -> QueueInfo:
        """Make a queue, or find it with the same arguments."""
        return self._client.change(lambda: self._awaited.declare(name, arguments), what="declare")

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False, force: bool = False) -> int:
        """Delete a queue with all that belongs to it; how many records its own group had not settled."""
        return self._client.change(
            lambda: self._awaited.delete_queue(name, if_unused=if_unused, if_empty=if_empty, force=force),
            what="delete_queue",
        )

    def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes, and all queues or those named."""
        return self._client.call(lambda: self._awaited.metadata(queues), what="metadata")

    def queues(self) -> list[QueueInfo]:
        return self._client.call(self._awaited.queues, what="queues")

    def status(self, node_id: str | None = None) -> Status:
        """What a node knows of its logs; of any node when none is named."""
        return self._client.call(lambda: self._awaited.status(node_id), what="status")

    def find_offset(self, queue: str, time: datetime | int, *, any_copy: bool = True) -> int:
        """The first confirmed queue offset whose batch was appended at or after `time` (datetime or µs UTC)."""
        return self._client.call(lambda: self._awaited.find_offset(queue, time, any_copy=any_copy), what="find_offset")

    def position(self, queue: str, group: str) -> Position | None:
        """Where a group stands; None when it has never committed."""
        return self._client.call(lambda: self._awaited.position(queue, group), what="position")

    def commit_position(self, queue: str, group: str, position: Position) -> None:
        """Store where a group stands; returns when it is confirmed by all copies."""
        self._client.change(lambda: self._awaited.commit_position(queue, group, position), what="commit_position")

    @options_of(awaited_admin.Admin.set_hold)
    def set_hold(self, queue: str, name: str, **options: Any) -> HoldInfo:
        """Have a queue's records kept for a landing, or renew that; as `mirrorlog.client.admin.Admin.set_hold`."""
        return self._client.change(lambda: self._awaited.set_hold(queue, name, **options), what="set_hold")

    def end_hold(self, queue: str, name: str, *, holder: str = "") -> None:
        """Forget a landing's hold, if there is one."""
        self._client.change(lambda: self._awaited.end_hold(queue, name, holder=holder), what="end_hold")

    def holds(self, queue: str) -> list[HoldInfo]:
        """The holds of a queue, as its master knows them."""
        return self._client.call(lambda: self._awaited.holds(queue), what="holds")

    def groups(self, queue: str) -> GroupsFound:
        """The groups of a queue, of either kind, as its master knows them."""
        return self._client.call(lambda: self._awaited.groups(queue), what="groups")

    def purge(self, queue: str, group: str = "") -> int:
        """Settle every record of an acking group that is in nobody's hands; how many those were."""
        return self._client.change(lambda: self._awaited.purge(queue, group), what="purge")

    def redrive(self, queue: str, *, to: str = "", records_max: int = REDRIVE_MAX) -> int:
        """Send ready records back to where they died; as `mirrorlog.client.admin.Admin.redrive`."""
        return self._client.change(lambda: self._awaited.redrive(queue, to=to, records_max=records_max), what="redrive")

    @options_of(awaited_admin.Admin.reset_groups)
    def reset_groups(self, queue: str, groups: Sequence[str] | None = None, **options: Any) -> GroupsReset:
        """Have groups of a queue stand somewhere else; as `mirrorlog.client.admin.Admin.reset_groups`."""
        return self._client.change(lambda: self._awaited.reset_groups(queue, groups, **options), what="reset_groups")

    def delete_group(self, queue: str, group: str) -> None:
        """Forget a group of either kind, if there is one."""
        self._client.change(lambda: self._awaited.delete_group(queue, group), what="delete_group")

    def drain(self, node_id: str = "", *, draining: bool = True) -> str:
        """Let a node hand over what it masters, or let it master again; which node it was."""
        return self._client.change(lambda: self._awaited.drain(node_id, draining=draining), what="drain")

    def forget_node(self, node_id: str, *, force: bool = False) -> None:
        """Take a node out of the cluster for good."""
        self._client.change(lambda: self._awaited.forget_node(node_id, force=force), what="forget_node")

    def rebalance(self, *, dry_run: bool = False) -> Rebalanced:
        """Let every log be mastered by its home, as far as that can take it over."""
        return self._client.change(lambda: self._awaited.rebalance(dry_run=dry_run), what="rebalance")

    def promote(self, log: str, *, to: str = "", accept_loss: bool = False) -> CopyPromoted:
        """Master a log from a copy that may lack what was confirmed."""
        return self._client.change(lambda: self._awaited.promote(log, to=to, accept_loss=accept_loss), what="promote")

    def events(self, *, after: int = 0, wait_ms: int = 0, limit: int = 1_000, node_id: str | None = None) -> Events:
        """What happened in the cluster behind event number `after`, as a node came to know it."""
        return self._client.call(
            lambda: self._awaited.events(after=after, wait_ms=wait_ms, limit=limit, node_id=node_id),
            what="events",
            more_s=wait_ms / 1000,
        )
