"""The rules of virtual hosts, exchanges, bindings, users and permissions: what a command makes of them. Pure.

Every virtual host has a routing version that rises with each change that may alter where a publish lands; edges
say by which one they routed. It never falls, not even when a virtual host is removed and made again: `retired`
remembers the highest that was used.

What may not be is raised as the error that whoever asked gets. Whether a regular expression is one, and what a hash
is worth, is checked where it is asked for (`queues.access`): all nodes must decide alike, whatever library they have.

Rejected: the limits as settings (nodes with other settings would decide otherwise, and part for ever).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.topology import (
    ADMINISTRATOR,
    ClusterTopology,
    Permissions,
    User,
    VirtualHost,
    binding_key,
    encode,
    size_of,
)
from mirrorlog.cluster.state.topology_commands import (
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    FirstUserMade,
    PasswordRenewed,
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
from mirrorlog.errors import (
    AccessRefused,
    BadRequest,
    ExchangeExists,
    InUse,
    LimitReached,
    NoSuchQueue,
    NoSuchUser,
    NoSuchVirtualHost,
)
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, check_name, check_routing_key, qualified, split
from mirrorlog.wire.policies import ALTERNATE_EXCHANGE, Policy
from mirrorlog.wire.routing import (
    HEADERS,
    MATCHES,
    X_MATCH,
    Binding,
    Exchange,
    check_exchange,
    differences,
    next_version,
    no_such_exchange,
)

MAX_VIRTUAL_HOSTS: Final = 1_000
MAX_EXCHANGES: Final = 10_000
"""Declared ones, in all virtual hosts."""
MAX_BINDINGS: Final = 200_000
"""In all virtual hosts."""
MAX_BINDING_BYTES: Final = 24 * 1024 * 1024
"""Of all of them, about as a snapshot has them: 100,000 of usual length are half of it. With the other limits the state
stays within what one answer to a node that joins can carry (`seeds.JOINED_BYTES_MAX`, `peers.FRAME_BYTES_MAX`)."""
MAX_USERS: Final = 1_000
MAX_USER_BYTES: Final = 8 * 1024
"""Of one: tags, hash, permissions."""
MAX_POLICIES: Final = 1_000
"""In all virtual hosts, those of operators among them."""
MAX_BINDINGS_AT_ONCE: Final = 1_000
MAX_BINDING_BYTES_AT_ONCE: Final = 1024 * 1024
"""Of one entry in the cluster's log."""
RECOVERED_VERSIONS: Final = 1_024
"""More than a majority that is lost can have decided unseen, and well within what serial numbers of 16 bits tell."""
_RESERVED: Final = "amq."
_ARGUMENTS_MAX: Final = 64
_ARGUMENT_BYTES_MAX: Final = 8 * 1024
_EXPRESSION_CHARS_MAX: Final = 1_000
_HASH_CHARS_MAX: Final = 512
_TAGS_MAX: Final = 32
_V = TypeVar("_V")
_Target = tuple[bool, str]
"""Where a binding leads: (whether it is an exchange, its name)."""


def changed(topology: ClusterTopology, command: Command, queues: Collection[str]) -> ClusterTopology:
    """What `command`, one of `commands.TOPOLOGY`, makes of it. `queues`: the keys of those that are declared.

    Raises BadRequest, AccessRefused, ExchangeExists, InUse, LimitReached, NoSuchQueue, NoSuchExchange, NoSuchUser,
    NoSuchVirtualHost: then nothing changes.
    """
    return _HANDLERS[type(command)](topology, command, queues)


def without_queues(topology: ClusterTopology, keys: Iterable[str]) -> ClusterTopology:
    """After queues were deleted: nothing leads to them any more. One look at the bindings of each virtual host."""
    going: dict[str, set[_Target]] = {}
    for virtual_host, name in map(split, keys):
        going.setdefault(virtual_host, set()).add((False, name))
    for virtual_host in sorted(going):
        host = topology.virtual_hosts.get(virtual_host)
        if host is not None and (left := _swept(host, sorted(going[virtual_host]))) is not host:
            topology = _with_host(topology, virtual_host, left)
    return topology


def recovered(topology: ClusterTopology) -> ClusterTopology:
    """After a majority was lost, which may have decided more than is known here: every routing is newer than what edges
    can have heard of, also that of the default virtual host while nothing is known of it."""
    hosts = {name: topology.virtual_host(name) for name in topology.names}
    raised = {
        name: replace(host, version=next_version(host.version + RECOVERED_VERSIONS))
        for name, host in hosts.items()
        if host is not None
    }
    return replace(topology, virtual_hosts=raised, retired=next_version(topology.retired + RECOVERED_VERSIONS))


def _host_made(topology: ClusterTopology, command: VirtualHostMade, queues: Collection[str]) -> ClusterTopology:
    check_name("virtual host", command.name)
    if topology.virtual_host(command.name) is not None:
        return topology
    _check_limit("max_virtual_hosts", MAX_VIRTUAL_HOSTS, len(topology.names))
    made = VirtualHost(version=next_version(topology.retired))
    return replace(topology, virtual_hosts={**topology.virtual_hosts, command.name: made})


def _host_removed(topology: ClusterTopology, command: VirtualHostRemoved, queues: Collection[str]) -> ClusterTopology:
    name = command.name
    if name == DEFAULT_VIRTUAL_HOST:
        raise AccessRefused(f"the default virtual host {name} stays; it may be left empty")
    host = topology.virtual_hosts.get(name)
    if host is None:
        return topology
    if held := sum(split(key)[0] == name for key in queues):
        raise InUse(f"virtual host {name!r} has {held} queues; delete them first", queues=held)
    users = {user: _without_permission(facts, name) for user, facts in topology.users.items()}
    return replace(
        topology,
        virtual_hosts=_without(topology.virtual_hosts, name),
        users=users,
        users_version=topology.users_version + 1,
        retired=max(topology.retired, host.version),
        policies_version=topology.policies_version + bool(host.policies or host.operator_policies),
    )


def _host(topology: ClusterTopology, name: str) -> VirtualHost:
    host = topology.virtual_host(name)
    if host is None:
        raise NoSuchVirtualHost(f"there is no virtual host {name[:64]!r}; add it first")
    return host


def _with_host(topology: ClusterTopology, name: str, host: VirtualHost) -> ClusterTopology:
    """Every change of a virtual host may alter routes."""
    following = replace(host, version=next_version(host.version))
    return replace(topology, virtual_hosts={**topology.virtual_hosts, name: following})


def _declared(topology: ClusterTopology, command: ExchangeDeclared, queues: Collection[str]) -> ClusterTopology:
    host, name, exchange = _host(topology, command.virtual_host), command.name, command.exchange
    _check_not_default(name)
    check_name("exchange", name)
    known = host.exchange(name)
    if known is not None:
        if different := differences(known, exchange):
            raise ExchangeExists(f"exchange {name!r} is there with other properties: {'; '.join(different)}")
        return topology
    if name.startswith(_RESERVED):
        raise AccessRefused(f"exchange {name!r}: names that begin with {_RESERVED} are reserved")
    check_exchange(name, exchange)
    if exchange.alternate:
        check_name("alternate exchange", exchange.alternate)
    there_are = sum(len(each.exchanges) for each in topology.virtual_hosts.values())
    _check_limit("max_exchanges", MAX_EXCHANGES, there_are)
    return _with_host(topology, command.virtual_host, replace(host, exchanges={**host.exchanges, name: exchange}))


def _deleted(topology: ClusterTopology, command: ExchangeDeleted, queues: Collection[str]) -> ClusterTopology:
    host, name = _host(topology, command.virtual_host), command.name
    _check_not_default(name)
    if name.startswith(_RESERVED):
        raise AccessRefused(f"exchange {name!r} is reserved, and cannot be deleted")
    if name not in host.exchanges:
        return topology
    if command.if_unused and (used := len(host.bindings.get(name, ()))):
        raise InUse(f"exchange {name!r} has {used} bindings; unbind them first, or delete it all the same", used=used)
    return _with_host(topology, command.virtual_host, _swept(host, [(True, name)]))


def _swept(host: VirtualHost, targets: Collection[_Target]) -> VirtualHost:
    """Without some queues or exchanges, and what goes with them: the bindings from them and to them, and with their
    last binding the exchanges that delete themselves. The same object when nothing led there and none is an exchange.

    By a list of what is still to go and not by recursion: a chain may be as long as there are exchanges, and how much
    of a node's stack is left must not decide what the cluster's state is.
    """
    leading = _leading(host, set(targets))
    exchanges, bindings, copied = dict(host.exchanges), dict(host.bindings), set[str]()
    gone_bytes, waiting = 0, [*targets]
    while waiting:
        going = waiting.pop()
        to_exchange, name = going
        if to_exchange:
            exchanges.pop(name, None)
            gone_bytes += sum(map(size_of, bindings.pop(name, {}).values()))
        for source, key in leading.get(going, ()):
            if source not in bindings:
                continue  # it went before, with its bindings
            if source not in copied:
                copied.add(source)
                bindings[source] = dict(bindings[source])
            left = cast(dict[str, Binding], bindings[source])
            gone_bytes += size_of(left.pop(key))
            if not left:
                del bindings[source]
                waiting += _deleting_itself(exchanges, source)
    if not gone_bytes and len(exchanges) == len(host.exchanges):
        return host
    return replace(host, exchanges=exchanges, bindings=bindings, binding_bytes=host.binding_bytes - gone_bytes)


def _leading(host: VirtualHost, targets: Set[_Target]) -> Mapping[_Target, list[tuple[str, str]]]:
    """(source, key) of the bindings to the targets and to any exchange, by where they lead: one look at each."""
    found: dict[_Target, list[tuple[str, str]]] = {}
    for source, by_key in host.bindings.items():
        for key, binding in by_key.items():
            if binding.to_exchange or (False, binding.destination) in targets:
                found.setdefault((binding.to_exchange, binding.destination), []).append((source, key))
    return found


def _deleting_itself(exchanges: Mapping[str, Exchange], name: str) -> list[_Target]:
    """It, if it does that with its last binding."""
    exchange = exchanges.get(name)
    return [(True, name)] if exchange is not None and exchange.auto_delete else []


def _check_not_default(name: str) -> None:
    if not name:
        raise AccessRefused("the default exchange (the empty name) is as it is: every queue is bound to it by its name")


def _bound(topology: ClusterTopology, command: Bound, queues: Collection[str]) -> ClusterTopology:
    host = _host(topology, command.virtual_host)
    if len(command.bindings) > MAX_BINDINGS_AT_ONCE:
        raise LimitReached(
            f"{len(command.bindings)} bindings at once are above the limit of {MAX_BINDINGS_AT_ONCE}",
            limit="max_bindings_at_once",
        )
    new: dict[str, dict[str, Binding]] = {}
    for binding in command.bindings:
        _check_binding(command.virtual_host, host, binding, queues)
        key = binding_key(binding)
        if key not in host.bindings.get(binding.source, {}):
            new.setdefault(binding.source, {})[key] = binding
    if not new:
        return topology
    more = sum(map(len, new.values()))
    there_are = sum(len(by_key) for each in topology.virtual_hosts.values() for by_key in each.bindings.values())
    _check_limit("max_bindings", MAX_BINDINGS, there_are, more)
    added = sum(size_of(binding) for by_key in new.values() for binding in by_key.values())
    _check_limit("max_binding_bytes_at_once", MAX_BINDING_BYTES_AT_ONCE, 0, added)
    held = sum(each.binding_bytes for each in topology.virtual_hosts.values())
    _check_limit("max_binding_bytes", MAX_BINDING_BYTES, held, added)
    merged = {source: {**host.bindings.get(source, {}), **by_key} for source, by_key in new.items()}
    bound = replace(host, bindings={**host.bindings, **merged}, binding_bytes=host.binding_bytes + added)
    return _with_host(topology, command.virtual_host, bound)


def _unbound(topology: ClusterTopology, command: Unbound, queues: Collection[str]) -> ClusterTopology:
    host, binding = _host(topology, command.virtual_host), command.binding
    _check_ends(binding)
    _check_arguments(binding.arguments)
    source, key = binding.source, binding_key(binding)
    there = host.bindings.get(source, {}).get(key)
    if there is None:
        return topology
    by_key = _without(host.bindings[source], key)
    bindings = {**host.bindings, source: by_key} if by_key else _without(host.bindings, source)
    left = replace(host, bindings=bindings, binding_bytes=host.binding_bytes - size_of(there))
    for target in _deleting_itself(host.exchanges, source) if not by_key else ():
        left = _swept(left, [target])
    return _with_host(topology, command.virtual_host, left)


def _policy_set(topology: ClusterTopology, command: PolicySet, queues: Collection[str]) -> ClusterTopology:
    known = _host(topology, command.virtual_host).policies_of(operators=command.operator)
    check_name("policy", command.name)
    command.policy.check_size()
    if command.name not in known:
        hosts = topology.virtual_hosts.values()
        there_are = sum(len(each.policies) + len(each.operator_policies) for each in hosts)
        _check_limit("max_policies", MAX_POLICIES, there_are)
    return _with_policies(topology, command, {**known, command.name: command.policy})


def _policy_cleared(topology: ClusterTopology, command: PolicyCleared, queues: Collection[str]) -> ClusterTopology:
    known = _host(topology, command.virtual_host).policies_of(operators=command.operator)
    return _with_policies(topology, command, _without(known, command.name))


def _with_policies(
    topology: ClusterTopology, command: PolicySet | PolicyCleared, policies: Mapping[str, Policy]
) -> ClusterTopology:
    host = _host(topology, command.virtual_host)
    known = host.policies_of(operators=command.operator)
    if policies == known:
        return topology
    changed = host.with_policies(policies, operators=command.operator)
    both = [each for each in (known.get(command.name), policies.get(command.name)) if each is not None]
    if any(ALTERNATE_EXCHANGE in each.definition for each in both):  # what nothing takes lands elsewhere now
        changed = replace(changed, version=next_version(host.version))
    hosts = {**topology.virtual_hosts, command.virtual_host: changed}
    return replace(topology, virtual_hosts=hosts, policies_version=topology.policies_version + 1)


def _check_ends(binding: Binding) -> None:
    """Both are names: a key of another virtual host's queue is none."""
    _check_not_default(binding.source)
    check_name("exchange", binding.source)
    if binding.to_exchange:
        _check_not_default(binding.destination)
    check_name("exchange" if binding.to_exchange else "queue", binding.destination)


def _check_binding(virtual_host: str, host: VirtualHost, binding: Binding, queues: Collection[str]) -> None:
    _check_ends(binding)
    source = host.exchange(binding.source)
    if source is None:
        raise no_such_exchange(binding.source)
    if binding.to_exchange:
        if host.exchange(binding.destination) is None:
            raise no_such_exchange(binding.destination)
    elif qualified(virtual_host, binding.destination) not in queues:
        raise NoSuchQueue(f"there is no queue {binding.destination[:64]!r} to bind; declare it first")
    check_routing_key(binding.key)
    _check_arguments(binding.arguments)
    match = binding.arguments.get(X_MATCH, MATCHES[0])
    if source.kind == HEADERS and match not in MATCHES:
        raise BadRequest(f"argument {X_MATCH!r} is one of {', '.join(MATCHES)}, not {match!r:.64}")


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    if len(arguments) > _ARGUMENTS_MAX:
        raise BadRequest(f"{len(arguments)} arguments of a binding are above the limit of {_ARGUMENTS_MAX}")
    for name, value in arguments.items():
        if value is not None and not isinstance(value, str | int | float | bytes):
            raise BadRequest(f"argument {name[:64]!r} of a binding is text, bytes, a number, a flag or nothing")
    if len(encode(arguments)) > _ARGUMENT_BYTES_MAX:
        raise BadRequest(f"the arguments of a binding are above the limit of {_ARGUMENT_BYTES_MAX} bytes")


def _user_set(topology: ClusterTopology, command: UserSet, queues: Collection[str]) -> ClusterTopology:
    check_name("user", command.name)
    _check_hash_size(command.password_hash or "")
    given = command.tags or ()
    if len(given) > _TAGS_MAX:
        raise BadRequest(f"{len(given)} tags of user {command.name!r} are above the limit of {_TAGS_MAX}")
    for tag in given:
        check_name("tag", tag)
    known = topology.users.get(command.name)
    if known is None:
        _check_limit("max_users", MAX_USERS, len(topology.users))
    before = known or User(born=topology.users_version + 1)
    password_hash = before.password_hash if command.password_hash is None else command.password_hash
    tags = before.tags if command.tags is None else command.tags
    return _with_user(topology, command.name, replace(before, password_hash=password_hash, tags=tags))


def _first_user_made(topology: ClusterTopology, command: FirstUserMade, queues: Collection[str]) -> ClusterTopology:
    if topology.users:
        return topology
    made = _user_set(
        topology, UserSet(name=command.name, password_hash=command.password_hash, tags=(ADMINISTRATOR,)), queues
    )
    allowed = replace(made.users[command.name], permissions={DEFAULT_VIRTUAL_HOST: Permissions(".*", ".*", ".*")})
    return replace(made, users={command.name: allowed})


def _password_renewed(topology: ClusterTopology, command: PasswordRenewed, queues: Collection[str]) -> ClusterTopology:
    known = topology.users.get(command.user)
    if known is None or not command.seen or known.password_hash != command.seen:
        return topology
    _check_hash_size(command.password_hash)
    return _with_user(topology, command.user, replace(known, password_hash=command.password_hash))


def _check_hash_size(password_hash: str) -> None:
    if len(password_hash) > _HASH_CHARS_MAX:
        raise BadRequest(f"a password hash has up to {_HASH_CHARS_MAX} characters")


def _user_removed(topology: ClusterTopology, command: UserRemoved, queues: Collection[str]) -> ClusterTopology:
    if command.name not in topology.users:
        return topology
    return _with_users(topology, _without(topology.users, command.name))


def _permissions_set(topology: ClusterTopology, command: PermissionsSet, queues: Collection[str]) -> ClusterTopology:
    user = _user(topology, command.user)
    _host(topology, command.virtual_host)
    for expression in (command.configure, command.write, command.read):
        if len(expression) > _EXPRESSION_CHARS_MAX:
            raise BadRequest(f"a permission's expression has up to {_EXPRESSION_CHARS_MAX} characters")
    given = Permissions(command.configure, command.write, command.read)
    permissions = {**user.permissions, command.virtual_host: given}
    return _with_user(topology, command.user, replace(user, permissions=permissions))


def _permissions_cleared(
    topology: ClusterTopology, command: PermissionsCleared, queues: Collection[str]
) -> ClusterTopology:
    user = _user(topology, command.user)
    return _with_user(topology, command.user, _without_permission(user, command.virtual_host))


def _limits_set(topology: ClusterTopology, command: UserLimitsSet, queues: Collection[str]) -> ClusterTopology:
    user = _user(topology, command.user)
    command.limits.check()
    return _with_user(topology, command.user, replace(user, limits=command.limits or None))


def _user(topology: ClusterTopology, name: str) -> User:
    if name not in topology.users:
        raise NoSuchUser(f"there is no user {name[:64]!r}")
    return topology.users[name]


def _without_permission(user: User, virtual_host: str) -> User:
    if virtual_host not in user.permissions:
        return user
    return replace(user, permissions=_without(user.permissions, virtual_host))


def _with_user(topology: ClusterTopology, name: str, user: User) -> ClusterTopology:
    if topology.users.get(name) == user:
        return topology
    if (size := len(encode(user))) > MAX_USER_BYTES:
        raise LimitReached(
            f"user {name!r} with permissions would take {size} bytes, above max_user_bytes ({MAX_USER_BYTES})",
            limit="max_user_bytes",
        )
    return _with_users(topology, {**topology.users, name: user})


def _with_users(topology: ClusterTopology, users: Mapping[str, User]) -> ClusterTopology:
    """Whoever adds the first user must be able to add the second: from then on everybody logs in."""
    if users and not any(ADMINISTRATOR in each.tags and each.password_hash for each in users.values()):
        raise InUse(
            f"without a user that has a password and the tag {ADMINISTRATOR} nobody could change users any more; "
            "set one first"
        )
    return replace(topology, users=users, users_version=topology.users_version + 1)


def _check_limit(limit: str, most: int, there_are: int, more: int = 1) -> None:
    if there_are + more > most:
        raise LimitReached(f"{there_are} are there and {more} more are above {limit} ({most})", limit=limit)


def _without(facts: Mapping[str, _V], name: str) -> dict[str, _V]:
    return {each: value for each, value in facts.items() if each != name}


_HANDLERS: Final[Mapping[type[Command], Callable[[ClusterTopology, Any, Collection[str]], ClusterTopology]]] = {
    VirtualHostMade: _host_made,
    VirtualHostRemoved: _host_removed,
    ExchangeDeclared: _declared,
    ExchangeDeleted: _deleted,
    Bound: _bound,
    Unbound: _unbound,
    UserSet: _user_set,
    FirstUserMade: _first_user_made,
    PasswordRenewed: _password_renewed,
    UserRemoved: _user_removed,
    PermissionsSet: _permissions_set,
    PermissionsCleared: _permissions_cleared,
    UserLimitsSet: _limits_set,
    PolicySet: _policy_set,
    PolicyCleared: _policy_cleared,
}
