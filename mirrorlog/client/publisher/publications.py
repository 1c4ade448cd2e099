"""Messages of a publisher, each from its handing over to its end: which queues have it, and what it ends with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirrorlog.client.arguments import is_text, refuse
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.producer import Producer
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.errors import BadRequest, MirrorlogError, OutcomeUnknown, SentToDeadLetters, StaleRouting, Unroutable
from mirrorlog.wire.names import check_routing_key


@dataclass(frozen=True, slots=True)
class Published:
    """Where a message is now: by queue (names within the virtual host). None: it was unroutable, and dropped."""

    receipts: Mapping[str, Receipt]

    @property
    def routed(self) -> bool:
        return bool(self.receipts)


@dataclass(slots=True)
class QueuedMessage:
    routing_key: str
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp: int | None
    attributes: Attributes | None
    mandatory: bool
    also_keys: tuple[str, ...] = ()


@dataclass(slots=True)
class PublisherStats:
    """Messages since the publisher was made. `rerouted`: were refused because bindings had changed, and sent again."""

    published: int = 0
    confirmed: int = 0
    failed: int = 0
    unroutable: int = 0
    rerouted: int = 0
    refreshed: int = 0


@dataclass(slots=True, eq=False)
class Publication:
    """A message that was handed over: await it for where it is, or for what became of it."""

    message: QueuedMessage
    handed_over_at: float
    give_up_at: float
    deliveries: dict[str, tuple[Producer, Delivery]] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    stale: dict[str, StaleRouting] = field(default_factory=dict)
    failures: dict[str, MirrorlogError] = field(default_factory=dict)
    not_routed: MirrorlogError | None = None
    outcome: Published | MirrorlogError | None = None
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    heard: bool = False

    @property
    def nothing_left(self) -> bool:
        """Whether no queue was asked to store it, as far as that is known."""
        return not (self.deliveries or self.receipts)

    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> Published:
        """Raises what it ended with; BadRequest before the end."""
        outcome = self.outcome
        if outcome is None:
            raise BadRequest("the message has not ended yet; await it, or look at done() first")
        self.heard = True
        if isinstance(outcome, MirrorlogError):
            raise type(outcome)(outcome.message, **outcome.details)
        return outcome

    def __await__(self) -> Generator[Any, None, Published]:
        self.heard = True
        yield from self.ended().__await__()
        return self.result()

    async def ended(self) -> None:
        """Wait until it has, well or not; an error is not heard by that."""
        if self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter

    def when_ended(self, call: Callable[[Published | MirrorlogError], object]) -> None:
        """Have it called with what becomes of the message, now or at its end; an error is not heard by that."""
        if self.outcome is not None:
            call(self.outcome)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: self.outcome is not None and call(self.outcome))
        self.waiters.append(waiter)

    def leads_nowhere(self) -> bool:
        """By the routing that it was held against last."""
        return not (self.deliveries or self.receipts or self.stale or self.failures or self.not_routed)

    def conclusion(self, exchange: str) -> Published | MirrorlogError:
        """What it ends with, once every queue has answered that was asked."""
        if self.failures:
            return whole(self.receipts, self.failures)
        if self.not_routed is not None:
            return self.not_routed
        if self.receipts or not self.message.mandatory:
            return Published(self.receipts)
        return unroutable(exchange, self.message.routing_key, self.message.also_keys, "nothing was stored")

    def resolve(self, outcome: Published | MirrorlogError) -> None:
        self.outcome = outcome
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Further routing keys of a message. Raises BadInput."""
    if not isinstance(keys, list | tuple) or not all(map(is_text, keys)):
        raise refuse("also_keys", keys, "a list of str")
    for key in keys:
        check_routing_key(key)
    return tuple(keys)


def unroutable(exchange: str, key: str, also: Sequence[str], outcome: str) -> Unroutable:
    """What a mandatory message ends with that leads nowhere."""
    keys = " or ".join(map(repr, (key, *also)))
    return Unroutable(
        f"no binding of exchange {exchange!r} leads key {keys} to a queue; {outcome}", exchange=exchange, key=key
    )


def version_of(error: StaleRouting) -> int:
    version = error.details.get("version", 0)
    return version if isinstance(version, int) else 0


def _doubt(error: MirrorlogError) -> int:
    """Which of several a message ends with: the least first."""
    if isinstance(error, OutcomeUnknown):
        return 0
    return 2 if isinstance(error, SentToDeadLetters) else 1


def whole(receipts: Mapping[str, Receipt], failures: Mapping[str, MirrorlogError]) -> MirrorlogError:
    """What a message ends with that some queue did not confirm: what may be stored somewhere is not refused."""
    queue, error = min(failures.items(), key=lambda item: _doubt(item[1]))
    details = {**error.details, "queue": queue, "confirmed": list(receipts)}
    sent_on = [f"the dead letters of {each}" for each in failures if isinstance(failures[each], SentToDeadLetters)]
    there = [*receipts, *sent_on]
    if there and not isinstance(error, OutcomeUnknown | SentToDeadLetters):
        return OutcomeUnknown(f"stored in {', '.join(there)}, and not in queue {queue!r}: {error.message}", **details)
    return type(error)(f"queue {queue!r}: {error.message}", **details)
