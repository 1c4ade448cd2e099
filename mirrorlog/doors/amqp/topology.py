"""Queues, exchanges and bindings of AMQP as those of the cluster: what is declared, found, bound and deleted. Thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mirrorlog.client import Client
from mirrorlog.doors.amqp.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
    inequivalent,
    locked,
    no_exchange,
    no_queue,
    quoted,
)
from mirrorlog.errors import (
    AccessRefused,
    ExchangeExists,
    InUse,
    NoSuchExchange,
    NoSuchQueue,
    QueueExclusive,
    QueueExists,
)
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.names import qualified, split
from mirrorlog.wire.policies import means_nothing
from mirrorlog.wire.routing import DELAYED, DELAYED_TYPE, KINDS, PREDEFINED, Exchange, exchange_as

RESERVED: Final = "amq."
_DURABLE: Final = "durable"
_AUTO_DELETE: Final = "auto-delete"
_EXCLUSIVE: Final = "exclusive"
_OWN: Final = (_DURABLE, _AUTO_DELETE, _EXCLUSIVE)
_ALTERNATE: Final = "alternate-exchange"
_TYPE: Final = "x-queue-type"


class DeclaredQueue(NamedTuple):
    """`name`: within its virtual host."""

    name: str
    messages: int
    consumers: int


class AmqpTopology:
    """Of one connection's virtual host. All of it raises AmqpError, and MirrorlogError what has no text of
    RabbitMQ's."""

    def __init__(self, client: Client, virtual_host: str) -> None:
        self._client = client
        self._host = virtual_host

    # --- queues ---

    async def declare_queue(
        self, name: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any]
    ) -> DeclaredQueue:
        """With an empty name the cluster makes one."""
        if name.startswith(RESERVED) and await self._known(name) is None:
            text = f"queue name '{name}' contains reserved prefix 'amq.*'"
            raise AmqpError(ACCESS_REFUSED, text)
        asked = self._arguments(durable, exclusive, auto_delete, arguments)
        try:
            info = await self._client.admin.declare(qualified(self._host, name), asked)
        except QueueExists:
            raise await self._difference(name, asked) from None
        except QueueExclusive:
            raise locked(name, self._host) from None
        return await self._found(info)

    async def check_queue(self, name: str) -> DeclaredQueue:
        """A passive declaration."""
        info = await self._known(name)
        if info is None:
            raise no_queue(name, self._host)
        return await self._found(info)

    async def delete_queue(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """How many messages went with it; none where there is no such queue, as in RabbitMQ."""
        try:
            return await self._client.admin.delete_queue(
                qualified(self._host, name), if_unused=if_unused, if_empty=if_empty
            )
        except NoSuchQueue:
            return 0
        except QueueExclusive:
            raise locked(name, self._host) from None
        except InUse as error:
            what = "not empty" if if_empty and "subscri" not in error.message else "in use"
            raise AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._host}' {what}") from None

    async def purge_queue(self, name: str) -> int:
        try:
            return await self._client.admin.purge(qualified(self._host, name))
        except NoSuchQueue:
            raise no_queue(name, self._host) from None
        except QueueExclusive:
            raise locked(name, self._host) from None

    # --- exchanges ---

    async def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any],
    ) -> None:
        if kind not in KINDS and kind != DELAYED:
            raise AmqpError(COMMAND_INVALID, f"unknown exchange type '{kind}'")
        delayed = {DELAYED_TYPE: arguments[DELAYED_TYPE]} if DELAYED_TYPE in arguments and kind == DELAYED else {}
        asked = exchange_as(
            kind, durable=durable, auto_delete=auto_delete, internal=internal,
            alternate=str(arguments.get(_ALTERNATE) or ""), arguments=delayed,
        )  # fmt: skip
        try:
            await self._client.admin.topology.declare_as(name, asked, self._host)
        except ExchangeExists as error:
            raise await self._exchange_difference(name, asked, error) from None
        except AccessRefused as error:
            if name.startswith(RESERVED):
                text = f"exchange name '{name}' contains reserved prefix 'amq.*'"
                raise AmqpError(ACCESS_REFUSED, text) from None
            raise error

    async def check_exchange(self, name: str) -> None:
        """A passive declaration."""
        try:
            await self._client.admin.topology.check_exchange(name, virtual_host=self._host)
        except NoSuchExchange:
            raise no_exchange(name, self._host) from None

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Nothing where there is no such exchange, as in RabbitMQ."""
        if not name or name.startswith(RESERVED):
            raise AmqpError(ACCESS_REFUSED, f"operation not permitted on the {self._named(name)}")
        try:
            await self._client.admin.topology.delete_exchange(
                name, if_unused=if_unused, virtual_host=self._host, missing_ok=True
            )
        except InUse:
            text = f"exchange '{name}' in vhost '{self._host}' in use"
            raise AmqpError(PRECONDITION_FAILED, text) from None

    # --- bindings ---

    async def bind(
        self, source: str, destination: str, key: str, arguments: Mapping[str, Any], *, to_exchange: bool
    ) -> None:
        self._check_ends(source, destination, to_exchange=to_exchange)
        topology = self._client.admin.topology
        bind = topology.bind_exchange if to_exchange else topology.bind
        try:
            await bind(source, destination, key, dict(arguments), virtual_host=self._host)
        except (NoSuchExchange, NoSuchQueue) as error:
            raise self._no_end(error, source, destination, to_exchange=to_exchange) from None

    async def unbind(
        self, source: str, destination: str, key: str, arguments: Mapping[str, Any], *, to_exchange: bool
    ) -> None:
        """Nothing where there is no such binding, as in RabbitMQ."""
        self._check_ends(source, destination, to_exchange=to_exchange)
        topology = self._client.admin.topology
        unbind = topology.unbind_exchange if to_exchange else topology.unbind
        try:
            await unbind(source, destination, key, dict(arguments), virtual_host=self._host, missing_ok=True)
        except (NoSuchExchange, NoSuchQueue) as error:
            raise self._no_end(error, source, destination, to_exchange=to_exchange) from None

    # --- inside ---

    def _named(self, exchange: str) -> str:
        return f"exchange '{exchange}' in vhost '{self._host}'" if exchange else "default exchange"

    def _check_ends(self, source: str, destination: str, *, to_exchange: bool) -> None:
        if not source or (to_exchange and not destination):
            raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")

    def _no_end(
        self, error: NoSuchExchange | NoSuchQueue, source: str, destination: str, *, to_exchange: bool
    ) -> AmqpError:
        if isinstance(error, NoSuchQueue):
            return no_queue(destination, self._host)
        other = to_exchange and repr(destination) in error.message and source != destination
        return no_exchange(destination if other else source, self._host)

    def _arguments(
        self, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        kind = arguments.get(_TYPE, "classic")
        if kind == "stream":
            raise AmqpError(NOT_IMPLEMENTED, "streams: every queue here can be read as one, by the native client")
        if kind not in ("classic", "quorum"):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg 'x-queue-type' for queue: unknown type '{kind}'")
        asked = dict(arguments)
        if strange := next((name for name in _OWN if name in asked), None):
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{strange}': it is a flag of the method")
        if not durable:
            asked[_DURABLE] = False
        if auto_delete:
            asked[_AUTO_DELETE] = True
        if exclusive:
            asked[_EXCLUSIVE] = True
        return asked

    async def _known(self, name: str) -> QueueInfo | None:
        try:
            return await self._client.queue_info(qualified(self._host, name))
        except NoSuchQueue:
            return None
        except QueueExclusive:
            raise locked(name, self._host) from None

    async def _found(self, info: QueueInfo) -> DeclaredQueue:
        messages, consumers = await self._counts(info)
        return DeclaredQueue(split(info.name)[1], messages, consumers)

    async def _counts(self, info: QueueInfo) -> tuple[int, int]:
        """Of the queue's own group; before there is one all is ready."""
        try:
            groups = (await self._client.admin.groups(info.name)).groups
        except QueueExclusive:
            raise locked(split(info.name)[1], self._host) from None
        own = next((each for each in groups if not each.group and each.kind != "stream"), None)
        return (info.next - info.begin, 0) if own is None else (own.ready, own.subscribers)

    async def _difference(self, name: str, asked: Mapping[str, Any]) -> AmqpError:
        """Why a queue is another one than was asked for."""
        info = await self._known(name)
        there: Mapping[str, Any] = {} if info is None else info.arguments
        defaults = {_DURABLE: True, _AUTO_DELETE: False, _EXCLUSIVE: False}
        for argument in (*_OWN, *sorted({*asked, *there} - set(_OWN))):
            received = asked.get(argument, defaults.get(argument))
            current = there.get(argument, defaults.get(argument))
            if received == current or means_nothing(argument):
                continue
            if argument == _EXCLUSIVE:
                return locked(name, self._host)
            if argument in defaults:
                shown = argument.replace("-", "_")
                words = {"received": f"'{str(received).lower()}'", "current": f"'{str(current).lower()}'"}
            else:
                shown, words = argument, {"received": quoted(received), "current": quoted(current)}
            return inequivalent(shown, "queue", name, self._host, **words)
        return AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._host}' is being declared otherwise")

    async def _exchange_difference(self, name: str, asked: Exchange, error: ExchangeExists) -> AmqpError:
        routing = await self._client.admin.topology.routing(virtual_host=self._host)
        there = {**PREDEFINED, **routing.exchanges}.get(name)
        if there is None:
            return AmqpError(PRECONDITION_FAILED, error.message)
        for argument, received, current in (
            ("type", asked.type, there.type),
            ("durable", asked.durable, there.durable),
            ("auto_delete", asked.auto_delete, there.auto_delete),
            ("internal", asked.internal, there.internal),
        ):
            if received != current:
                words = {"received": f"'{str(received).lower()}'", "current": f"'{str(current).lower()}'"}
                return inequivalent(argument, "exchange", name, self._host, **words)
        words = {"received": quoted(asked.alternate or None), "current": quoted(there.alternate or None)}
        return inequivalent(_ALTERNATE, "exchange", name, self._host, **words)
