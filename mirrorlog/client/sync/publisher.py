"""The publisher that blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Self

from mirrorlog.client.arguments import checked
from mirrorlog.client.publisher.publications import Published, PublisherStats
from mirrorlog.client.publisher.publisher import Publisher
from mirrorlog.client.sync.blocking import Calls, ClosedFace, changes, seconds, waits
from mirrorlog.errors import Closed, MirrorlogError

_DELIVERY_MS: Final = 30_000
"""As of a producer."""


@checked()
class BlockingPublisher(ClosedFace[Publisher]):
    """As `mirrorlog.client.Publisher`; use it with `with`. Several threads may publish through one. One that is let go
    without `close` is closed, with a ResourceWarning."""

    def __init__(self, client: Calls, exchange: str, options: Mapping[str, Any]) -> None:
        """Use `Client.publisher`. Raises BadRequest for a wrong option."""
        of = client.made(lambda: client.awaited.publisher(exchange, **options), what="publisher")
        super().__init__(client, of, longer_s=seconds(options, "delivery_timeout_ms", _DELIVERY_MS))
        of.kept = True

    @property
    def stats(self) -> PublisherStats:
        return self._awaited.stats

    def start(self) -> Self:
        """Fetch the routing. Raises NoSuchExchange, AccessRefused for an internal one, NoSuchVirtualHost,
        ConnectionLost."""
        if not self._of.started:
            self._client.call(self._of.start, what="publisher")
        return self

    def close(self) -> None:
        """Flush, then close. Raises as `flush`. Idempotent."""
        if self._of.started:
            self._client.call(self._of.close, what="close", more_s=self._longer_s)

    publish = changes(Publisher.publish)

    def publish_many(self, messages: Iterable[tuple[str, Any]]) -> list[Published]:
        """Publish (routing key, value) pairs and wait for all their confirms. Raises the first error once all have
        ended."""
        publisher, pairs = self._awaited, list(messages)
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

        return self._client.change(publish, what="publish_many", more_s=self._longer_s)

    flush = waits(Publisher.flush)

    @property
    def _awaited(self) -> Publisher:
        if not self._of.started:
            raise Closed("the publisher is not started; use it with `with`, or call start()")
        return self._of

    def _unfinished(self) -> tuple[str, Callable[[], Coroutine[Any, Any, None]], str]:
        return f"a publisher to exchange {self._of.exchange!r}", self._of.close, self._of.unended
