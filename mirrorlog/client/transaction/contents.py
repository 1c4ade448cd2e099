"""What a transaction is of: records, messages to exchanges, and settlements; and which batches they become. Pure.

There is one batch for each queue and set of attributes. Where a message to an exchange goes is asked for when it is
committed, and again when bindings have changed meanwhile: until then it is a message, and no record of any queue.
Records of one queue keep the order in which they were handed over, whichever way they came to it. What is settled is
taken from its subscriptions when it is committed, and given back when it does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.publisher.publications import Published, unroutable
from mirrorlog.client.subscription.settlements import FINAL
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.subscription.unacked import Granted, Range, joined
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadRequest, NotGranted, Unroutable
from mirrorlog.wire.frames import How
from mirrorlog.wire.routing import RoutingTable


@dataclass(slots=True, eq=False)
class Routed:
    """A message that a transaction publishes to an exchange; where it is once that is committed."""

    exchange: str
    routing_key: str
    mandatory: bool
    also_keys: tuple[str, ...] = ()
    _published: Published | None = None

    def result(self) -> Published:
        """By queue, as of `Publisher.publish`. Raises BadRequest before the commit has ended well."""
        if self._published is None:
            raise BadRequest("the transaction of this message is not committed")
        return self._published

    def landed(self, receipts: Mapping[str, Receipt]) -> None:
        """It is committed; `receipts`: by queue, none when it led to none."""
        self._published = Published(receipts)

    def unroutable(self) -> Unroutable:
        """What a mandatory one ends with that leads nowhere."""
        return unroutable(self.exchange, self.routing_key, self.also_keys, "nothing of the transaction was stored")


@dataclass(frozen=True, slots=True, eq=False)
class SentRecord:
    """A record for `queue`, whose receipt is number `place` of the commit's; or a message that is `routed`."""

    record: Record
    attributes: Attributes | None
    queue: str = ""
    place: int = -1
    routed: Routed | None = None


@dataclass(slots=True)
class RecordGroup:
    """Records of one queue that ask for the same: a batch."""

    queue: str
    attributes: Attributes | None
    sent: list[SentRecord] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        return [each.record for each in self.sent]


Route = Callable[[SentRecord], Sequence[str]]
"""The queues that a message leads to, each once."""


def grouped(sent: Iterable[SentRecord], route: Route) -> list[RecordGroup]:
    """The batches that these become. Raises Unroutable."""
    groups: dict[tuple[str, Attributes | None], RecordGroup] = {}
    for each in sent:
        for queue in (each.queue,) if each.routed is None else route(each):
            group = groups.setdefault((queue, each.attributes), RecordGroup(queue, each.attributes))
            group.sent.append(each)
    return list(groups.values())


def routed_by(table: RoutingTable, sent: SentRecord) -> tuple[str, ...]:
    """The queues, by their names within the virtual host, that a message leads to by these bindings."""
    message, headers = sent.routed, sent.record.headers
    assert message is not None
    if message.exchange not in table.exchanges:
        return ()  # that is said when it is known to be so
    return table.route(message.exchange, message.routing_key, dict(headers) if headers else {}, also=message.also_keys)


def receipts_of(
    sent: Sequence[SentRecord], groups: Sequence[RecordGroup], ranges: Sequence[Callable[[int], Receipt]]
) -> tuple[list[Receipt], dict[Routed, dict[str, Receipt]]]:
    """Where everything is. `ranges`: of each batch, the receipt of its record number so and so. Those of what was sent,
    in that order; those of each message to an exchange, by queue."""
    by_place: dict[int, Receipt] = {}
    by_message: dict[Routed, dict[str, Receipt]] = {each.routed: {} for each in sent if each.routed is not None}
    for group, receipt in zip(groups, ranges, strict=True):
        for index, each in enumerate(group.sent):
            if each.routed is None:
                by_place[each.place] = receipt(index)
            else:
                by_message[each.routed][group.queue] = receipt(index)
    return [by_place[place] for place in range(len(by_place))], by_message


@dataclass(slots=True, eq=False)
class SettledPart:
    """What is settled, in one way, of a subscription's grants of one session. It keeps back its records while it is
    under way."""

    subscription: Subscription
    session: int
    epoch: int
    how: How = How.ACK
    delay_ms: int = 0
    parts: list[tuple[Granted, int, int]] = field(default_factory=list)

    @property
    def ranges(self) -> list[Range]:
        return joined((first, following) for _, first, following in self.parts)


def settle(taken: Sequence[SettledPart]) -> None:
    """Nobody else settles them meanwhile, and nothing of what ends is given out again. Raises NotGranted, and nothing
    has changed then."""
    done: list[SettledPart] = []
    marked: list[tuple[Subscription, Granted, int, int]] = []
    try:
        for each in taken:
            for granted, first, following in each.parts:
                each.subscription.unacked.settle(granted, first, following)
                marked.append((each.subscription, granted, first, following))
            if each.how in FINAL:
                each.subscription.unacked.withhold(each, each.ranges)
            done.append(each)
    except NotGranted:
        for each in done:
            if each.subscription.unacked.release(each, settled=False):
                each.subscription.wake()
        for subscription, granted, first, following in marked:
            subscription.unacked.reopen(granted, first, following)
        raise


def release(taken: Sequence[SettledPart], *, settled: bool) -> None:
    """The commit has ended; whether it counts."""
    for each in taken:
        if not settled:
            for part in each.parts:
                each.subscription.unacked.reopen(*part)
        if each.subscription.unacked.release(each, settled=settled):
            each.subscription.wake()
