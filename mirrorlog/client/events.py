"""What happens to a client between its calls: to its user's function, and to the log (`mirrorlog.client.events`, info).

    def told(event: ClientEvent) -> None:
        if isinstance(event, Blocked):
            slow_down(event.queue)

    client = Client("127.0.0.1:7401", on_event=told)

It is called on the client's loop, of the blocking client on its thread: it is to return soon, and to call nothing of
the client that waits. What it raises is logged, and harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct

logger = logging.getLogger(__name__)

_QUEUES_MAX: Final = 10_000


class Connected(Struct, frozen=True):
    """To a node. `node_address`: `host:port`."""

    node_address: str


class Disconnected(Struct, frozen=True):
    """From a node, though the client was not closed; it connects again by itself."""

    node_address: str
    reason: str


class FailedOver(Struct, frozen=True):
    """The queue has another master than before, or the same one in a later epoch. `node`: its id."""

    queue: str
    node: str
    epoch: int


class Blocked(Struct, frozen=True):
    """Records for the queue have waited here for a moment because the node grants no more (flow control)."""

    queue: str
    reason: str


class Unblocked(Struct, frozen=True):
    """Records for the queue leave again."""

    queue: str


ClientEvent = Connected | Disconnected | FailedOver | Blocked | Unblocked
OnEvent = Callable[[ClientEvent], object]


class ClientEvents:
    """Tells events of one client. `on_event`: the user's function."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._masterships: dict[str, tuple[str, int]] = {}

    def tell(self, event: ClientEvent) -> None:
        facts = " ".join(f"{name}={getattr(event, name)!r}" for name in event.__struct_fields__)
        logger.info("client_%s %s", type(event).__name__.lower(), facts)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            logger.exception("client_callback_failed event=%s", type(event).__name__)

    def found(self, queue: str, *, master: str, log_id: str, epoch: int) -> None:
        """A queue was looked for: whether it has another mastership than when it was found before."""
        if not master:
            return
        mastership = log_id, epoch
        known = self._masterships.get(queue)
        if known is not None and (known == mastership or (known[0] == mastership[0] and known[1] > mastership[1])):
            return
        if known is None and len(self._masterships) >= _QUEUES_MAX:
            self._masterships.clear()
        self._masterships[queue] = mastership
        if known is not None:
            self.tell(FailedOver(queue, master, epoch))
