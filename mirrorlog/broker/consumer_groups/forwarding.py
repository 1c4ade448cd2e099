"""How records of a group leave for other queues: as dead letters, or because somebody redrives them. Thin:
`queues.departures` numbers them, and `broker.departures` carries them."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.replica import Replica
from mirrorlog.errors import Overloaded
from mirrorlog.queues.arguments import dead_letters_of
from mirrorlog.queues.changes import Change
from mirrorlog.queues.dead_letters.forwarding import HELD, REDRIVEN, Departure, DepartureNumbers
from mirrorlog.queues.delivery.outcomes import REASONS, deaths
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.ranges import Range


class GroupForwarding:
    """Of the groups of one log."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._numbers = DepartureNumbers(replica.departures, self._is_open)

    def die(self, queue_id: int, group: str, ranges: Sequence[Range], why: str) -> list[Change]:
        """The changes by which records of a group end that nobody has acknowledged: they are settled, or leave."""
        queues = self._replica.queues
        own = group == OWN_GROUP and queues.has_id(queue_id)
        way = dead_letters_of(queues.find_id(queue_id).arguments) if own else None
        if way is None or not ranges:
            return deaths(group, ranges, why)
        return [
            self._numbers.departing(
                queue_id, group, _flat(ranges), REASONS[why], at_us=now_us(),
                exchange=way.exchange, routing_key=way.routing_key,
            )
        ]  # fmt: skip

    def check_room(self, queue_id: int, to: str) -> None:
        """Before a redrive; `to`: see `redriven`. Raises Overloaded when no more may leave."""
        if self._numbers.is_full(queue_id):
            raise Overloaded(
                f"{len(self._replica.departures.of(queue_id).departures)} departures of this queue wait "
                "(max_departures); mqtool doctor says for whom",
                limit="max_departures",
            )
        if not self._replica.departures.of(queue_id).has_room_for(to):
            raise Overloaded(
                "records of this queue leave for many others by name; ask again when some have arrived (mqtool doctor "
                "says for whom they wait)",
                limit="names of departures",
            )

    def redriven(self, queue_id: int, ranges: Sequence[Range], to: str) -> Change:
        """The change by which records of the queue's own group leave. `to`: a queue; empty: where each came from."""
        return self._numbers.departing(
            queue_id, OWN_GROUP, _flat(ranges), REDRIVEN, at_us=now_us(), exchange="", routing_key=to or None
        )

    def holding(self, queue_id: int, group: str, ranges: Sequence[Range]) -> Change:
        """The change by which records that were to leave, and cannot, are held."""
        return self._numbers.departing(
            queue_id, group, _flat(ranges), HELD, at_us=now_us(), exchange="", routing_key=None
        )

    def departing(self, queue_id: int, group: str) -> int:
        """How many records of a group leave for other queues."""
        ledger = self._replica.groups.get(queue_id, group)
        there = {each.number for each in self._replica.departures.of(queue_id).departures if each.group == group}
        return sum(map(ledger.lease_records, there)) if ledger is not None else 0

    def _is_open(self, queue_id: int, departure: Departure) -> bool:
        ledger = self._replica.groups.get(queue_id, departure.group)
        return ledger is not None and ledger.lease_records(departure.number) > 0


def _flat(ranges: Sequence[Range]) -> list[int]:
    return [border for each in ranges for border in each]
