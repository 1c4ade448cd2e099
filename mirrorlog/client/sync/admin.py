"""What is asked of a cluster, by calls that block: queues, offsets, positions, status; exchanges, bindings, users."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mirrorlog.client.admin import Admin
from mirrorlog.client.publisher.topology import Topology
from mirrorlog.client.sync.blocking import Face, changes, options_of, waits
from mirrorlog.wire.routing import Binding


class BlockingTopology(Face[Topology]):
    """As `mirrorlog.client.publisher.topology.Topology`, without `await`."""

    declare_exchange = changes(Topology.declare_exchange)
    check_exchange = waits(Topology.check_exchange)
    delete_exchange = changes(Topology.delete_exchange)

    bind = changes(Topology.bind)
    bind_exchange = changes(Topology.bind_exchange)
    unbind = changes(Topology.unbind)
    unbind_exchange = changes(Topology.unbind_exchange)
    routing = waits(Topology.routing)

    @options_of(Topology.bind_all)
    def bind_all(self, bindings: Iterable[Binding], **options: Any) -> None:
        """Many at once; all of each thousand or none."""
        every = list(bindings)
        self._client.change(lambda: self._of.bind_all(every, **options), what="bind_all", more_s=len(every) / 100)

    add_virtual_host = changes(Topology.add_virtual_host)
    delete_virtual_host = changes(Topology.delete_virtual_host)
    virtual_hosts = waits(Topology.virtual_hosts)

    set_user = changes(Topology.set_user)
    delete_user = changes(Topology.delete_user)
    set_permissions = changes(Topology.set_permissions)
    clear_permissions = changes(Topology.clear_permissions)
    set_user_limits = changes(Topology.set_user_limits)
    clear_user_limits = changes(Topology.clear_user_limits)
    users = waits(Topology.users)


class BlockingAdmin(Face[Admin]):
    """Made by `Client.admin`; as `mirrorlog.client.admin.Admin`, without `await`."""

    @property
    def topology(self) -> BlockingTopology:
        """Exchanges, bindings, virtual hosts, users."""
        return BlockingTopology(self._client, self._of.topology)

    declare = changes(Admin.declare)
    alter = changes(Admin.alter)
    cancel_move = changes(Admin.cancel_move)
    sync_queue = changes(Admin.sync_queue)
    cancel_sync_queue = changes(Admin.cancel_sync_queue)
    queue_sync = waits(Admin.queue_sync)
    delete_queue = changes(Admin.delete_queue)
    metadata = waits(Admin.metadata)
    queues = waits(Admin.queues)
    status = waits(Admin.status)

    find_offset = waits(Admin.find_offset)
    position = waits(Admin.position)
    commit_position = changes(Admin.commit_position)

    set_hold = changes(Admin.set_hold)
    end_hold = changes(Admin.end_hold)
    holds = waits(Admin.holds)

    groups = waits(Admin.groups)
    purge = changes(Admin.purge)
    redrive = changes(Admin.redrive)
    reset_groups = changes(Admin.reset_groups)
    delete_group = changes(Admin.delete_group)

    drain = changes(Admin.drain)
    forget_node = changes(Admin.forget_node)
    rebalance = changes(Admin.rebalance)
    copy_moves = waits(Admin.copy_moves)
    moves = waits(Admin.moves)
    connections = waits(Admin.connections)
    close_connection = changes(Admin.close_connection)
    pause_moving = changes(Admin.pause_moving)
    free_former = changes(Admin.free_former)
    promote = changes(Admin.promote)
    events = waits(Admin.events)
