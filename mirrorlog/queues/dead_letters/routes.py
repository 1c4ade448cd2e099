"""Where the records of a piece go, by name: what is known of each record is read once, however many queues it is for.

Queues are taken by the order of their names: a piece for more of them than one change may name goes on behind the last
name that was (`Addressed.more`), and whatever is bound or declared in between, none has it twice.

Pure; steps per record and per queue, so it is done on a helper thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadRequest, NoSuchExchange
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN, Forwarding
from mirrorlog.queues.dead_letters.message import Death, circle, died_in, routing_key_of
from mirrorlog.wire.names import check_name
from mirrorlog.wire.routing import RoutingTable


class Routes(NamedTuple):
    """Of the first `records`. `by_name`: queue names within the virtual host, ascending, and the queue offsets for
    each; `nowhere`: those that no name is left for."""

    records: int
    by_name: list[tuple[str, list[int]]]
    nowhere: list[int]


def routes(
    records: Sequence[tuple[int, Record]],
    forwarding: Forwarding,
    death: Death,
    table: RoutingTable,
    *,
    pairs_max: int,
    behind: str | None = None,
) -> Routes:
    """Of as many records as make `pairs_max` pairs of record and queue, one at least. `behind`: only queues behind that
    name, and of all of them."""
    by_name, nowhere = dict[str, list[int]](), list[int]()
    names = _Names()
    count = pairs = 0
    for at, record in records:
        found = names.usable(_names(record, forwarding, death, table))
        if behind is None and count and pairs + len(found) > pairs_max:
            break
        count += 1
        pairs += len(found)
        for name in found if behind is None else [name for name in found if name > behind]:
            by_name.setdefault(name, []).append(at)
        if not found:
            nowhere.append(at)
    return Routes(count, sorted(by_name.items()), nowhere)


class _Names:
    """Which of them could be a queue's, each looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def usable(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._is_usable(name)]

    def _is_usable(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _is_name(name)
        return known


def _names(record: Record, forwarding: Forwarding, death: Death, table: RoutingTable) -> Iterable[str]:
    """The queues that it is to go to, but those in which it has died since it was rejected last."""
    key = forwarding.routing_key
    if forwarding.reason == REDRIVEN:
        name = died_in(record) if key is None else key
        return () if name is None else (name,)
    own = routing_key_of(record) if key is None else key
    try:
        names = table.route(forwarding.exchange, own, dict(record.headers))
    except NoSuchExchange:
        return ()
    known = circle(record, death)
    return [name for name in names if not known.has(name)]


def _is_name(name: str) -> bool:
    """Anybody may have written it: one with a separator would lead into another virtual host."""
    try:
        check_name("queue", name)
    except BadRequest:
        return False
    return True
