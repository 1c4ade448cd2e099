"""What has changed in the routing of virtual hosts lately, for publishers that hold an older version. Pure.

A virtual host may have a hundred thousand bindings and change many times a second (a queue for each answer that is
waited for). A publisher that fetched all of it each time would do nothing else, and the node neither. So changes are
kept, each from one version to the next, up to a number of them and of what is in them; who is further behind gets the
whole. Each is found by comparing two states, whose parts that did not change are the same objects.

Rejected: what the commands say (an exchange that deletes itself takes others along, and a state may be restored).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from mirrorlog.cluster.topology import NONE, Topology, VirtualHost
from mirrorlog.wire.messages import Routing
from mirrorlog.wire.routing import Binding, Exchange

CHANGES_MAX: Final = 1_000
"""Kept of each virtual host."""
PARTS_MAX: Final = 20_000
"""Exchanges and bindings in those of one virtual host: a megabyte or two."""

_NO_HOST: Final = VirtualHost(version=0)


class _Change(NamedTuple):
    """Bindings by (source, key of `topology.binding_key`); None: gone. The same of exchanges by name."""

    before: int
    after: int
    exchanges: Mapping[str, Exchange | None]
    bindings: Mapping[tuple[str, str], tuple[Binding, bool]]

    @property
    def parts(self) -> int:
        return len(self.exchanges) + len(self.bindings)


class RoutingHistory:
    """Of one node."""

    def __init__(self) -> None:
        self._known = NONE
        self._changes: dict[str, deque[_Change]] = {}

    def follow(self, topology: Topology) -> None:
        """What is known is this now."""
        before, self._known = self._known, topology
        if topology.virtual_hosts is before.virtual_hosts:
            return
        for name in self._changes.keys() - topology.virtual_hosts.keys():
            del self._changes[name]
        for name, host in topology.virtual_hosts.items():
            known = before.virtual_host(name) or _NO_HOST
            if known is not host and known.version != host.version:
                self._keep(name, _between(known, host))

    def since(self, virtual_host: str, version: int) -> Routing | None:
        """All that has changed since that version; None when it is not kept."""
        host = self._known.virtual_host(virtual_host)
        kept = [each for each in self._changes.get(virtual_host, ()) if each.before >= version]
        if host is None or not kept or kept[0].before != version or kept[-1].after != host.version:
            return None
        exchanges = {name: exchange for each in kept for name, exchange in each.exchanges.items()}
        first = {key: binding for each in reversed(kept) for key, binding in each.bindings.items()}
        last = {key: binding for each in kept for key, binding in each.bindings.items()}
        return Routing(
            version=host.version,
            since=version,
            exchanges={name: exchange for name, exchange in exchanges.items() if exchange is not None},
            deleted=[name for name, exchange in exchanges.items() if exchange is None],
            bindings=[binding for binding, there in last.values() if there],
            # Those that whoever asks has: what was gone first was there at his version. One that is back is in both
            # lists, for its exchange may have been made anew meanwhile.
            unbound=[binding for binding, there in first.values() if not there],
        )

    def _keep(self, name: str, change: _Change) -> None:
        changes = self._changes.setdefault(name, deque())
        if changes and changes[-1].after != change.before:
            changes.clear()
        changes.append(change)
        while len(changes) > CHANGES_MAX or (changes and sum(each.parts for each in changes) > PARTS_MAX):
            changes.popleft()


def _between(before: VirtualHost, after: VirtualHost) -> _Change:
    exchanges: dict[str, Exchange | None] = dict.fromkeys(before.exchanges.keys() - after.exchanges.keys())
    exchanges |= {
        name: exchange for name, exchange in after.exchanges.items() if before.exchanges.get(name) != exchange
    }
    bindings: dict[tuple[str, str], tuple[Binding, bool]] = {}
    for source in before.bindings.keys() | after.bindings.keys():
        old, new = before.bindings.get(source, {}), after.bindings.get(source, {})
        if old is not new:
            bindings |= {(source, key): (old[key], False) for key in old.keys() - new.keys()}
            bindings |= {(source, key): (new[key], True) for key in new.keys() - old.keys()}
    return _Change(before.version, after.version, exchanges, bindings)
