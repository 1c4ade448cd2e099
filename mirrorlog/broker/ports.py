"""What parts of a node know of parts above them: protocols, so that no import points up.

Each stands for one class, which its docstring names; whoever is handed one need not know what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.delivery.group import Settlement
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Settle
from mirrorlog.wire.routing import RoutingTable


class Receiver(Protocol):
    """The connection that a subscription belongs to: a `ClientSession`."""

    @property
    def endpoint(self) -> Endpoint: ...

    def answer(self, frame_: bytes) -> None: ...

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None: ...


class ServesSubscriptions(Protocol):
    """The `Deliverer` of a log, as the connections see it whose subscriptions it serves; each method as there."""

    def writable(self, number: int) -> None: ...

    def held(self, number: int) -> None: ...

    def gone(self, number: int) -> None: ...

    def unsubscribe(self, number: int) -> None: ...

    def queue_of(self, number: int) -> int: ...

    def settle(self, settle: Settle, ranges: Sequence[int], receiver: Receiver, correlation_id: int) -> None: ...

    def settle_within(self, settle: Settle, ranges: Sequence[int], *, whole: bool = False) -> Within: ...

    def logged_within(self, within: Within) -> None: ...


class ActiveGroup(Protocol):
    """A `Work`: a group that somebody is given records of."""

    @property
    def key(self) -> tuple[int, str]:
        """The queue's id and the group's name."""


class Within(NamedTuple):
    """A settlement that is logged with other things."""

    deliverer: ServesSubscriptions
    work: ActiveGroup
    settlement: Settlement


class DeadLetterTransport(Protocol):
    """How records that leave a queue come to others: the node's `DeadLetterLinks`; each method as there."""

    async def table(self, virtual_host: str) -> RoutingTable: ...

    async def find(self, name: str) -> tuple[str, int] | None: ...

    async def hand_over(self, log_id: str, batch: bytes, *, name: str = "") -> None: ...


class Refusing(Protocol):
    """`refusal`: why data is refused for want of memory; empty while it is not."""

    @property
    def refusal(self) -> str: ...
