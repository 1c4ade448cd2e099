"""Publisher and topology without `await`: as `mirrorlog.client.publisher.publisher` and
`mirrorlog.client.publisher.topology`, over the loop of the client's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from mirrorlog.client.connection.let_go import warn_unclosed
from mirrorlog.client.producer.batch import Headers
from mirrorlog.client.publisher import publisher as awaited
from mirrorlog.client.publisher.publisher import Published, PublisherStats
from mirrorlog.client.publisher.topology import Topology as AwaitedTopology
from mirrorlog.client.sync.caller import Caller
from mirrorlog.commitlog.format.attributes import RecordOptions
from mirrorlog.errors import ConnectionLost, MirrorlogError
from mirrorlog.wire.messages.topology import Routing, UserInfo, VirtualHostInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.routing import Binding

_DELIVERY_MS: Final = 30_000
"""As of a producer."""

_T = TypeVar("_T")


class Publisher:
    """As `mirrorlog.client.Publisher`; use it with `with`. Several threads may publish through one. One that is let go
    without `close` is closed, with a ResourceWarning."""

    def __init__(self, client: Caller, make: Callable[[], awaited.Publisher], options: Mapping[str, Any]) -> None:
        """`make`: called on the loop's thread."""
        self._client = client
        self._make = make
        self._awaited: awaited.Publisher | None = None
        self._delivery_s = options.get("delivery_timeout_ms", _DELIVERY_MS) / 1000

    @property
    def stats(self) -> PublisherStats:
        return self._started.stats

    def start(self) -> Self:
        """Fetch the routing. Raises NoSuchExchange, AccessRefused for an internal one, NoSuchVirtualHost,
        ConnectionLost."""
        if self._awaited is None:

            async def begin() -> awaited.Publisher:
                made = self._make()
                made.kept = True
                return await made.start()

            self._awaited = self._client.call(begin, what="publisher")
        return self

    def close(self) -> None:
        """Flush, then close. Raises as `flush`. Idempotent."""
        if self._awaited is not None:
            self._client.call(self._awaited.close, what="close", more_s=self._delivery_s)

    def __del__(self) -> None:
        """Nobody has it any more: it is closed, as of `close`, without waiting."""
        publisher: awaited.Publisher | None = self.__dict__.get("_awaited")
        if publisher is None or not publisher.unclosed or self._client.thread.elsewhere:
            return
        what = f"a publisher to exchange {publisher.exchange!r}"
        unended = publisher.unended
        self._client.thread.call_soon(partial(self._client.awaited.let_go.go_on, what, publisher.close))
        warn_unclosed(self, what, unended)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    def publish(
        self,
        routing_key: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool | None = None,
        **asked: Unpack[RecordOptions],
    ) -> Published:
        """Publish one message and wait for its confirm from every queue that it is routed to."""
        publisher = self._started
        return self._client.change(
            lambda: publisher.publish(
                routing_key,
                value,
                key=key,
                headers=headers,
                timestamp=timestamp,
                mandatory=mandatory,
                **asked,
            ),
            what="publish",
            more_s=self._delivery_s,
        )

    def publish_many(self, messages: Iterable[tuple[str, bytes | None]]) -> list[Published]:
        """Publish (routing key, value) pairs and wait for all their confirms. Raises the first error once all have
        ended."""
        publisher, pairs = self._started, list(messages)
        failures: list[MirrorlogError] = []

        async def publish() -> list[Published]:
            handed, told = [], []
            for key, value in pairs:
                try:
                    handed.append(await publisher.hand_over(key, value))
                except MirrorlogError as error:
                    failures.append(error)
            for each in handed:
                try:
                    told.append(await each)
                except MirrorlogError as error:
                    failures.append(error)
            if failures:
                raise failures[0]
            return told

        return self._client.change(publish, what="publish_many", more_s=self._delivery_s)

    def flush(self) -> None:
        """Wait until every message handed over so far has ended. Raises the first error that nobody has heard of."""
        self._client.call(self._started.flush, what="flush", more_s=self._delivery_s)

    @property
    def _started(self) -> awaited.Publisher:
        if self._awaited is None:
            raise ConnectionLost("the publisher is not started; use it with `with`, or call start()")
        return self._awaited


class Topology:
    """As `mirrorlog.client.publisher.topology.Topology`, whose methods say what each raises."""

    def __init__(self, client: Caller, of: AwaitedTopology) -> None:
        self._client = client
        self._awaited = of

    def declare_exchange(self, name: str, kind: str = "direct", **options: Any) -> None:
        """Make an exchange, or find it with the same properties."""
        self._client.change(lambda: self._awaited.declare_exchange(name, kind, **options), what="declare_exchange")

    def check_exchange(self, name: str, *, virtual_host: str = DEFAULT_VIRTUAL_HOST) -> None:
        """Raises NoSuchExchange when it is not there."""
        self._client.call(lambda: self._awaited.check_exchange(name, virtual_host=virtual_host), what="check_exchange")

    def delete_exchange(self, name: str, **options: Any) -> None:
        """With all bindings from and to it."""
        self._client.change(lambda: self._awaited.delete_exchange(name, **options), what="delete_exchange")

    def bind(
        self, exchange: str, queue: str, key: str = "", arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """From an exchange to a queue."""
        self._client.change(lambda: self._awaited.bind(exchange, queue, key, arguments, **options), what="bind")

    def bind_exchange(
        self, source: str, destination: str, key: str = "", arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """From an exchange to another one."""
        self._client.change(
            lambda: self._awaited.bind_exchange(source, destination, key, arguments, **options), what="bind_exchange"
        )

    def bind_all(self, bindings: Iterable[Binding], **options: Any) -> None:
        """Many at once; all of each thousand or none."""
        every = list(bindings)
        self._client.change(lambda: self._awaited.bind_all(every, **options), what="bind_all", more_s=len(every) / 100)

    def unbind(
        self, exchange: str, queue: str, key: str = "", arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Take that very binding away."""
        self._client.change(lambda: self._awaited.unbind(exchange, queue, key, arguments, **options), what="unbind")

    def unbind_exchange(
        self, source: str, destination: str, key: str = "", arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """The same between two exchanges."""
        self._client.change(
            lambda: self._awaited.unbind_exchange(source, destination, key, arguments, **options),
            what="unbind_exchange",
        )

    def routing(self, **options: Any) -> Routing:
        """All exchanges and bindings."""
        return self._client.call(lambda: self._awaited.routing(**options), what="routing")

    def add_virtual_host(self, name: str) -> None:
        self._client.change(lambda: self._awaited.add_virtual_host(name), what="add_virtual_host")

    def delete_virtual_host(self, name: str) -> None:
        self._client.change(lambda: self._awaited.delete_virtual_host(name), what="delete_virtual_host")

    def virtual_hosts(self) -> list[VirtualHostInfo]:
        return self._client.call(self._awaited.virtual_hosts, what="virtual_hosts")

    def set_user(self, name: str, *, password_hash: str | None = None, tags: Sequence[str] | None = None) -> None:
        """A new one, or another password and other tags; what is None stays as it was."""
        self._client.change(
            lambda: self._awaited.set_user(name, password_hash=password_hash, tags=tags), what="set_user"
        )

    def delete_user(self, name: str) -> None:
        self._client.change(lambda: self._awaited.delete_user(name), what="delete_user")

    def set_permissions(self, user: str, *, configure: str, write: str, read: str, **options: Any) -> None:
        """Regular expressions of names."""
        self._client.change(
            lambda: self._awaited.set_permissions(user, configure=configure, write=write, read=read, **options),
            what="set_permissions",
        )

    def clear_permissions(self, user: str, **options: Any) -> None:
        self._client.change(lambda: self._awaited.clear_permissions(user, **options), what="clear_permissions")

    def set_user_limits(self, user: str, **limits: int | None) -> None:
        """What a user may take of each node: see `Topology.set_user_limits`."""
        self._client.change(lambda: self._awaited.set_user_limits(user, **limits), what="set_user_limits")

    def clear_user_limits(self, user: str) -> None:
        self._client.change(lambda: self._awaited.clear_user_limits(user), what="clear_user_limits")

    def users(self) -> list[UserInfo]:
        return self._client.call(self._awaited.users, what="users")
