"""Topology: declare exchanges, bind, and keep virtual hosts, users and permissions. Made by `Admin.topology`.

All of it is the cluster's metadata, so any node is asked; while there is no coordinator, or that node hangs or is cut
off, another one is asked, until `request_timeout_ms`. Asking twice is asking once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from mirrorlog import versions
from mirrorlog.attempts import Attempts
from mirrorlog.client.arguments import checked, refuse
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient, check_software
from mirrorlog.errors import (
    ConnectionLost,
    ExchangeExists,
    MirrorlogError,
    NoSuchExchange,
    NoSuchUser,
    NoSuchVirtualHost,
    NotLeader,
    OutcomeUnknown,
    RequestTimeout,
)
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.base import Message
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
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.policies import ApplyTo, NoSuchPolicy, Policy
from mirrorlog.wire.routing import Binding, Exchange, exchange_as

BINDINGS_AT_ONCE: Final = 1_000
TRY_MS: Final = 4_000
"""How long one node may take: longer than a change waits for one that is slow, and well below what clients wait."""

_M = TypeVar("_M", bound=Message)
_NOT_THERE: Final = (
    NoSuchBinding,
    NoSuchExchange,
    NoSuchPermissions,
    NoSuchPolicy,
    NoSuchUser,
    NoSuchVirtualHost,
)
_PASSING: Final = (NotLeader, ConnectionLost, RequestTimeout, OutcomeUnknown)


@checked(internal=("declare_as",))
class Topology:
    """Declares and binds exchanges, and keeps users. Every method raises what the node answers; names are those within
    `virtual_host`. What changes something raises ConnectionLost when no node was reached, and OutcomeUnknown when it
    may count or not: to ask once more is safe. What changes nothing raises ConnectionLost or RequestTimeout. What is
    changed is known on every node that is up when it returns, or was asked for 2 s ago.

    What takes something away raises NoSuch… when that is not there, unless `missing_ok`; not where an attempt without
    an answer may be what took it away."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r})"

    # --- exchanges ---

    async def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str = "",
        arguments: Mapping[str, Any] | None = None,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
    ) -> None:
        """Make an exchange (direct, fanout, topic or headers), or find it with the same properties. `alternate`: of
        another exchange, which gets what this one sends nowhere. `arguments`: `x-delayed-type`, one of these, for the
        kind `x-delayed-message`. Raises ExchangeExists naming the difference, AccessRefused for reserved names,
        BadRequest, LimitReached, NoSuchVirtualHost; UnsupportedVersion until all nodes are updated."""
        exchange = exchange_as(
            kind, durable=durable, auto_delete=auto_delete, internal=internal, alternate=alternate, arguments=arguments
        )
        await self.declare_as(name, exchange, virtual_host)

    async def declare_as(self, name: str, exchange: Exchange, virtual_host: str) -> None:
        """As `declare_exchange`."""
        asked = DeclareExchange(name=name, exchange=exchange, virtual_host=virtual_host)
        since = versions.EXCHANGE_ARGUMENTS if exchange.arguments else versions.FIRST
        await self._change(asked, telling=(ExchangeExists,), since=since)

    async def check_exchange(self, name: str, *, virtual_host: str = DEFAULT_VIRTUAL_HOST) -> None:
        """Raises NoSuchExchange when it is not there."""
        asked = DeclareExchange(name=name, exchange=Exchange(""), virtual_host=virtual_host, passive=True)
        await self._ask(asked, Done)

    async def delete_exchange(
        self,
        name: str,
        *,
        if_unused: bool = False,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        missing_ok: bool = False,
    ) -> None:
        """With all bindings from and to it. `if_unused`: raises InUse while a binding leads from it. Raises
        NoSuchExchange."""
        await self._remove(
            DeleteExchange(name=name, if_unused=if_unused, virtual_host=virtual_host, must_exist=not missing_ok)
        )

    # --- bindings ---

    async def bind(
        self,
        exchange: str,
        queue: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
    ) -> None:
        """From an exchange to a queue; one that is there already is left. Raises NoSuchExchange, NoSuchQueue."""
        await self.bind_all([Binding(exchange, queue, key, arguments=arguments or {})], virtual_host=virtual_host)

    async def bind_exchange(
        self,
        source: str,
        destination: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
    ) -> None:
        """From an exchange to another one."""
        binding = Binding(source, destination, key, to_exchange=True, arguments=arguments or {})
        await self.bind_all([binding], virtual_host=virtual_host)

    async def bind_all(self, bindings: Iterable[Binding], *, virtual_host: str = DEFAULT_VIRTUAL_HOST) -> None:
        """Many at once; all of each thousand or none."""
        every = list(bindings)
        if strange := [each for each in every if not isinstance(each, Binding)]:
            raise refuse("bindings", strange[0], "Binding")
        for first in range(0, len(every), BINDINGS_AT_ONCE):
            some = every[first : first + BINDINGS_AT_ONCE]
            await self._change(Bind(bindings=some, virtual_host=virtual_host))

    async def unbind(
        self,
        exchange: str,
        queue: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        missing_ok: bool = False,
    ) -> None:
        """Take that very binding away. Raises NoSuchBinding."""
        binding = Binding(exchange, queue, key, arguments=arguments or {})
        await self._remove(Unbind(binding=binding, virtual_host=virtual_host, must_exist=not missing_ok))

    async def unbind_exchange(
        self,
        source: str,
        destination: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        missing_ok: bool = False,
    ) -> None:
        """The same between two exchanges."""
        binding = Binding(source, destination, key, to_exchange=True, arguments=arguments or {})
        await self._remove(Unbind(binding=binding, virtual_host=virtual_host, must_exist=not missing_ok))

    async def routing(self, *, virtual_host: str = DEFAULT_VIRTUAL_HOST, version: int = 0) -> Routing:
        """All exchanges and bindings, unless `version` is what the node has."""
        return await self._ask(GetRouting(virtual_host=virtual_host, version=version), Routing)

    # --- policies ---

    async def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        priority: int = 0,
        apply_to: ApplyTo = "all",
        operator: bool = False,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
    ) -> None:
        """What holds for queues and exchanges whose names fit `pattern`, a regular expression that is searched for.
        `definition` has RabbitMQ's keys and ours (docs/use/policies.md). Of several the one with the highest priority
        counts, of equals the first by name. `operator`: it caps what others say. Raises BadRequest naming all that is
        wrong, LimitReached, NoSuchVirtualHost, AccessRefused; UnsupportedVersion until all nodes are updated."""
        policy = Policy(pattern=pattern, definition=dict(definition), apply_to=apply_to, priority=priority)
        await self._change(SetPolicy(name=name, policy=policy, virtual_host=virtual_host, operator=operator))

    async def clear_policy(
        self,
        name: str,
        *,
        operator: bool = False,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        missing_ok: bool = False,
    ) -> None:
        """Raises NoSuchPolicy."""
        await self._remove(
            ClearPolicy(name=name, virtual_host=virtual_host, operator=operator, must_exist=not missing_ok)
        )

    async def policies(self) -> Policies:
        """Of all virtual hosts, those of operators among them."""
        return await self._ask(ListPolicies(), Policies)

    # --- virtual hosts ---

    async def add_virtual_host(self, name: str) -> None:
        """Nothing when it is there."""
        await self._change(AddVirtualHost(name=name))

    async def delete_virtual_host(self, name: str, *, missing_ok: bool = False) -> None:
        """With its exchanges, bindings and permissions. Raises InUse while it has queues, NoSuchVirtualHost."""
        await self._remove(DeleteVirtualHost(name=name, must_exist=not missing_ok))

    async def virtual_hosts(self) -> list[VirtualHostInfo]:
        return (await self._ask(ListVirtualHosts(), VirtualHosts)).virtual_hosts

    # --- users ---

    async def set_user(self, name: str, *, password_hash: str | None = None, tags: Sequence[str] | None = None) -> None:
        """A new one, or another password and other tags; what is None stays as it was. `password_hash`: of
        `wire.passwords.hashed`: the password itself stays here."""
        given = None if tags is None else list(tags)
        await self._change(SetUser(name=name, password_hash=password_hash, tags=given))

    async def delete_user(self, name: str, *, missing_ok: bool = False) -> None:
        """Raises NoSuchUser."""
        await self._remove(DeleteUser(name=name, must_exist=not missing_ok))

    async def set_permissions(
        self, user: str, *, configure: str, write: str, read: str, virtual_host: str = DEFAULT_VIRTUAL_HOST
    ) -> None:
        """Regular expressions of names, searched as RabbitMQ does; an empty one matches nothing. Raises NoSuchUser."""
        asked = SetPermissions(user=user, configure=configure, write=write, read=read, virtual_host=virtual_host)
        await self._change(asked)

    async def clear_permissions(
        self, user: str, *, virtual_host: str = DEFAULT_VIRTUAL_HOST, missing_ok: bool = False
    ) -> None:
        """Raises NoSuchUser, NoSuchPermissions, NoSuchVirtualHost."""
        await self._remove(ClearPermissions(user=user, virtual_host=virtual_host, must_exist=not missing_ok))

    async def set_user_limits(
        self,
        user: str,
        *,
        max_connections: int | None = None,
        request_rate: int | None = None,
        publish_byte_rate: int | None = None,
        read_byte_rate: int | None = None,
    ) -> None:
        """What a user may take of each node, in the place of all limits that he had; None: without. Rates are requests
        and bytes a second: above one he waits, and nothing is refused. Of connections the newest is refused
        (Overloaded, `limit=user_connections`). Raises NoSuchUser, BadRequest; UnsupportedVersion until all nodes are
        updated."""
        limits = UserLimits(max_connections, request_rate, publish_byte_rate, read_byte_rate)
        await self._change(SetUserLimits(user=user, limits=limits))

    async def clear_user_limits(self, user: str) -> None:
        """None of them holds any more."""
        await self._change(SetUserLimits(user=user, limits=UserLimits()))

    async def users(self) -> list[UserInfo]:
        return (await self._ask(ListUsers(), Users)).users

    # --- inside ---

    async def _change(
        self, message: Message, *, telling: tuple[type[MirrorlogError], ...] = (), since: int = versions.FIRST
    ) -> None:
        attempts = Attempts()
        with attempts.request(telling=telling):
            await self._ask(message, Done, attempts, since)

    async def _remove(self, message: Message) -> None:
        attempts = Attempts()
        with attempts.request():
            try:
                await self._ask(message, Done, attempts)
            except _NOT_THERE:
                if not attempts.in_doubt:
                    raise

    async def _ask(
        self, message: Message, expect: type[_M], attempts: Attempts | None = None, since: int = versions.FIRST
    ) -> _M:
        """`since`: the version of the software that takes notice of all that is asked."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._client.request_timeout_ms / 1000
        backoff = Backoff(random.random)
        failed: Counter[str] = Counter()
        attempts = attempts or Attempts()
        while True:
            self._client.check_open()
            addresses = self._client.addresses()
            address = min(addresses, key=lambda each: failed[each])
            left_ms = int((give_up_at - loop.time()) * 1000)
            failure: MirrorlogError
            try:
                connection = await self._client.reach(address)
                check_software(connection, since, type(message).__name__)
                with attempts.one():
                    return await connection.request(message, expect, timeout_ms=max(1, min(left_ms, TRY_MS)))
            except _PASSING as error:
                failure = error
            failed[address] += 1
            # Each twice: a node may have closed a connection that it opens anew.
            all_gone = all(failed[each] > 1 for each in addresses) and not self._client.reached
            if loop.time() >= give_up_at or all_gone:
                raise failure
            if all(failed[each] for each in addresses):
                await asyncio.sleep(backoff.next_s())
