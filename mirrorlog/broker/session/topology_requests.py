"""Requests about virtual hosts, exchanges, bindings and users: to the cluster's decision, and back when nodes know it.

Thin: `topology_rules` decides. A change is answered once every node that is up has applied it, so that a publish
behind the answer to a bind meets it wherever it goes; a node that is slow holds the answer up for two seconds at most.
Asking twice is asking once, so the cluster may be asked again while it elects a coordinator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from mirrorlog import versions
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.topology import NONE, ClusterTopology, User, VirtualHost, binding_key
from mirrorlog.cluster.state.topology_commands import (
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    Unbound,
    UserLimitsSet,
    UserRemoved,
    UserSet,
    VirtualHostMade,
    VirtualHostRemoved,
)
from mirrorlog.cluster.state.topology_rules import MAX_BINDING_BYTES_AT_ONCE
from mirrorlog.errors import LimitReached, NoSuchUser, NoSuchVirtualHost, NotCurrent
from mirrorlog.queues import policies
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import Encoded, encode
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.topology import (
    AddVirtualHost,
    Bind,
    ClearPermissions,
    ClearPolicy,
    DeclareExchange,
    DeleteExchange,
    DeleteUser,
    DeleteVirtualHost,
    GetRouting,
    ListPolicies,
    ListUsers,
    ListVirtualHosts,
    NoSuchBinding,
    NoSuchPermissions,
    PermissionInfo,
    Policies,
    Routing,
    SetPermissions,
    SetPolicy,
    SetUser,
    SetUserLimits,
    Unbind,
    UserInfo,
    Users,
    VirtualHostInfo,
    VirtualHosts,
)
from mirrorlog.wire.names import check_new, split
from mirrorlog.wire.policies import NoSuchPolicy, PolicyRow
from mirrorlog.wire.routing import Binding, Exchange, no_such_exchange

# What has changed in the routing of virtual hosts lately, for publishers that hold an older version. Pure.
#
# A virtual host may have a hundred thousand bindings and change many times a second (a queue for each answer that is
# waited for). A publisher that fetched all of it each time would do nothing else, and the node neither. So changes are
# kept, each from one version to the next, up to a number of them and of what is in them; who is further behind gets
# the whole. Each is found by comparing two states, whose parts that did not change are the same objects.
#
# Rejected: what the commands say (an exchange that deletes itself takes others along, and a state may be restored).


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

    def follow(self, topology: ClusterTopology) -> None:
        """What is known is this now."""
        before, self._known = self._known, topology
        if topology.virtual_hosts is before.virtual_hosts:
            return
        for name in self._changes.keys() - topology.virtual_hosts.keys():
            del self._changes[name]
        for name, host in topology.virtual_hosts.items():
            known = before.virtual_host(name) or _NO_HOST
            if known is not host and known.version != host.version:
                self._keep(name, _between(policies.governed(known), policies.governed(host)))

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


DECIDE_S: Final = 5.0
"""How long the cluster may take to decide; a coordinator that hangs is replaced within that."""
EVERYWHERE_S: Final = 2.0
"""How long the answer waits for nodes that are up and slow."""
ENCODED_MAX: Final = 16
"""Virtual hosts whose whole routing is kept as it is sent."""
NAMED_MAX: Final = 20
"""Of what is there, in a message that says what is not."""
COMMAND_BYTES_MAX: Final = 64 * 1024
"""Of any of these commands but those that bind: more than the largest user, binding or name takes."""
BINDINGS_BYTES_MAX: Final = MAX_BINDING_BYTES_AT_ONCE + COMMAND_BYTES_MAX


class RoutingRequests:
    """`handlers`: by request, what answers it. Each raises MirrorlogError as the answer."""

    def __init__(self, service: ClusterService) -> None:
        self._service = service
        self._history = RoutingHistory()
        self._encoded: dict[str, tuple[VirtualHost, Encoded]] = {}
        service.followed = self._history.follow
        self.handlers: Mapping[type[Message], Callable[[Any], Awaitable[Message] | Message]] = {
            DeclareExchange: self._declare,
            GetRouting: self._routing,
            ListVirtualHosts: self._virtual_hosts,
            ListUsers: self._users,
            ListPolicies: self._policies,
            **dict.fromkeys(_COMMANDS, self._change),
        }

    @property
    def _topology(self) -> ClusterTopology:
        return self._service.state.routing

    # --- changes ---

    async def _declare(self, asked: DeclareExchange) -> Message:
        if asked.passive:
            if self._host(asked.virtual_host).exchange(asked.name) is None:
                raise no_such_exchange(asked.name)
            return Done()
        if self._host(asked.virtual_host).exchange(asked.name) is None:
            check_new("exchange", asked.name)
        version = self._service.state.cluster_version
        older = versions.too_old(version, versions.EXCHANGE_ARGUMENTS, "an exchange with arguments")
        if older is not None and asked.exchange.arguments:
            raise older
        return await self._decide(
            ExchangeDeclared(virtual_host=asked.virtual_host, name=asked.name, exchange=asked.exchange)
        )

    async def _change(self, asked: Message) -> Message:
        if isinstance(asked, AddVirtualHost) and self._topology.virtual_host(asked.name) is None:
            check_new("virtual host", asked.name)
        if isinstance(asked, SetUser) and asked.name not in self._topology.users:
            check_new("user", asked.name)
        if isinstance(asked, SetPolicy):
            check_new("policy", asked.name)
        if getattr(asked, "must_exist", False) and self._service.in_touch():
            self._check_there(asked)
        return await self._decide(_COMMANDS[type(asked)](asked))

    def _check_there(self, asked: Message) -> None:
        """By what this node knows: what was answered before is known on every node. Raises as what is not there."""
        match asked:
            case DeleteVirtualHost(name=name):
                self._host(name)
            case DeleteUser(name=name):
                self._user(name)
            case ClearPermissions(user=name):
                self._host(asked.virtual_host)
                if asked.virtual_host not in self._user(name).permissions:
                    raise NoSuchPermissions(f"user {name!r} has no permissions in virtual host {asked.virtual_host}")
            case DeleteExchange() | Unbind() | ClearPolicy():
                _check_within(self._host(asked.virtual_host), asked)

    async def _decide(self, command: Command) -> Message:
        _check_size(command)
        outcome = await self._service.decisions.decide(command, timeout_s=DECIDE_S)
        if outcome.refusal:
            raise outcome.error
        await self._service.decisions.applied_everywhere(outcome.index, timeout_s=EVERYWHERE_S)
        return Done()

    # --- what is there ---

    def _routing(self, asked: GetRouting) -> Message:
        if asked.to_publish and not self._service.in_touch():
            raise NotCurrent("this node is not in touch with a majority of its cluster: bindings may have changed")
        host = self._host(asked.virtual_host)
        if host.version == asked.version or asked.only_version:
            return Routing(version=host.version, changed=False)
        if asked.to_publish and (changes := self._history.since(asked.virtual_host, asked.version)) is not None:
            return changes
        return self._whole(asked.virtual_host, host)

    def _whole(self, name: str, host: VirtualHost) -> Encoded:
        """All of it, encoded once for each version: all publishers of a virtual host ask for it when they start."""
        kept = self._encoded.get(name)
        if kept is None or kept[0] is not host:
            if len(self._encoded) >= ENCODED_MAX:
                del self._encoded[next(iter(self._encoded))]
            whole = Routing(
                version=host.version,
                exchanges=dict(policies.governed(host).exchanges),
                bindings=list(host.all_bindings()),
            )
            kept = self._encoded[name] = host, Encoded(data=encode(whole))
        return kept[1]

    def _virtual_hosts(self, asked: ListVirtualHosts) -> Message:
        topology, queues = self._topology, Counter(split(key)[0] for key in self._service.state.queues)
        found = [(name, topology.virtual_host(name)) for name in topology.names]
        return VirtualHosts(
            virtual_hosts=[_host_info(name, host, queues[name]) for name, host in found if host is not None]
        )

    def _users(self, asked: ListUsers) -> Message:
        return Users(users=[_user_info(name, user) for name, user in sorted(self._topology.users.items())])

    def _policies(self, asked: ListPolicies) -> Message:
        topology, within = self._topology, dict[str, list[str]]()
        for key in self._service.state.queues:
            virtual_host, name = split(key)
            within.setdefault(virtual_host, []).append(name)
        rows = [
            row
            for name, host in topology.virtual_hosts.items()
            for operator in (False, True)
            for row in _policy_rows(name, host, within.get(name, ()), operator=operator)
        ]
        rows.sort(key=lambda row: (row.virtual_host, row.operator, row.name))
        return Policies(policies=rows, version=topology.policies_version)

    def _host(self, name: str) -> VirtualHost:
        host = self._topology.virtual_host(name)
        if host is None:
            raise NoSuchVirtualHost(f"there is no virtual host {name[:64]!r}; add it first")
        return host

    def _user(self, name: str) -> User:
        user = self._topology.users.get(name)
        if user is None:
            raise NoSuchUser(f"there is no user {name[:64]!r}")
        return user


def _check_within(host: VirtualHost, asked: DeleteExchange | Unbind | ClearPolicy) -> None:
    match asked:
        case DeleteExchange(name=name) if host.exchange(name) is None:
            raise no_such_exchange(name)
        case Unbind(binding=binding) if binding_key(binding) not in host.bindings.get(binding.source, {}):
            raise _no_such_binding(binding)
        case ClearPolicy(name=name) if name not in (there := host.policies_of(operators=asked.operator)):
            have = ", ".join(sorted(there)[:NAMED_MAX]) or "none"
            where = f"virtual host {asked.virtual_host}"
            raise NoSuchPolicy(f"there is no policy {name[:64]!r} in {where}; there are {have}")


def _no_such_binding(binding: Binding) -> NoSuchBinding:
    what = "exchange" if binding.to_exchange else "queue"
    arguments = f" and arguments {binding.arguments}" if binding.arguments else ""
    return NoSuchBinding(
        f"exchange {binding.source!r} has no binding to {what} {binding.destination!r} with key {binding.key!r}"
        f"{arguments}"
    )


def _check_size(command: Command) -> None:
    """What cannot be decided well is not even proposed: every node would write it to its disk first. Raises
    LimitReached."""
    most = BINDINGS_BYTES_MAX if isinstance(command, Bound) else COMMAND_BYTES_MAX
    if (size := len(encode_command(command))) > most:
        raise LimitReached(
            f"what is asked for takes {size} bytes, above max_command_bytes ({most}); ask for less at a time",
            limit="max_command_bytes",
        )


_COMMANDS: Final[Mapping[type[Message], Callable[[Any], Command]]] = {
    DeleteExchange: lambda asked: ExchangeDeleted(
        virtual_host=asked.virtual_host, name=asked.name, if_unused=asked.if_unused
    ),
    Bind: lambda asked: Bound(virtual_host=asked.virtual_host, bindings=tuple(asked.bindings)),
    Unbind: lambda asked: Unbound(virtual_host=asked.virtual_host, binding=asked.binding),
    AddVirtualHost: lambda asked: VirtualHostMade(name=asked.name),
    DeleteVirtualHost: lambda asked: VirtualHostRemoved(name=asked.name),
    SetUser: lambda asked: UserSet(
        name=asked.name, password_hash=asked.password_hash, tags=None if asked.tags is None else tuple(asked.tags)
    ),
    DeleteUser: lambda asked: UserRemoved(name=asked.name),
    SetPermissions: lambda asked: PermissionsSet(
        user=asked.user, virtual_host=asked.virtual_host, configure=asked.configure, write=asked.write, read=asked.read
    ),
    ClearPermissions: lambda asked: PermissionsCleared(user=asked.user, virtual_host=asked.virtual_host),
    SetUserLimits: lambda asked: UserLimitsSet(user=asked.user, limits=asked.limits),
    SetPolicy: lambda asked: PolicySet(
        virtual_host=asked.virtual_host, name=asked.name, policy=asked.policy, operator=asked.operator
    ),
    ClearPolicy: lambda asked: PolicyCleared(virtual_host=asked.virtual_host, name=asked.name, operator=asked.operator),
}
"""Requests that are a command."""


def _host_info(name: str, host: VirtualHost, queues: int) -> VirtualHostInfo:
    return VirtualHostInfo(
        name=name,
        version=host.version,
        exchanges=len(host.exchanges),
        bindings=sum(map(len, host.bindings.values())),
        queues=queues,
    )


def _user_info(name: str, user: User) -> UserInfo:
    permissions = [
        PermissionInfo(virtual_host=host, configure=given.configure, write=given.write, read=given.read)
        for host, given in sorted(user.permissions.items())
    ]
    return UserInfo(name=name, tags=list(user.tags), permissions=permissions, limits=user.limits or UserLimits())


def _policy_rows(virtual_host: str, host: VirtualHost, queues: Iterable[str], *, operator: bool) -> list[PolicyRow]:
    """`queues`: the names of those within it."""
    there = host.operator_policies if operator else host.policies
    if not there:
        return []
    names = list(queues)
    counted = Counter(policies.chosen(there, name, "queues") for name in names)
    tied = policies.ties(there, names)
    return [
        PolicyRow(
            virtual_host=virtual_host,
            name=name,
            policy=policy,
            operator=operator,
            queues=counted[name],
            ties=tied.get(name, []),
        )
        for name, policy in there.items()
    ]
