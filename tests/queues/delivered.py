"""One acking group on a master as a node drives it, over a log in a list: what is appended is followed, confirmed
later, and perhaps lost when another master comes. The ground on which delivery is tried."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.queues.changes import Change, GroupReset, RecordsLeased, Returned, Settled, Watermark, encode_changes
from mirrorlog.queues.delivery.group import Dispatch, GroupDelivery, KeysRead, LeaseWish, Reach, Rules, Settlement
from mirrorlog.queues.delivery.settlement import EXPIRED
from mirrorlog.queues.delivery.subscribers import SubscriberOptions
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunTable
from mirrorlog.wire.frames import Grant, How
from tests.queues.statelog import StateLog, follow_batch

QUEUE = 7
RECORD_BYTES = 10
BATCH_RECORDS = 5


class Refusal(Exception):
    """The log takes nothing at the moment."""


@dataclass
class Stage:
    """Records are of `RECORD_BYTES`, in batches of `BATCH_RECORDS`. `end`: where what is published, and confirmed,
    ends. `back_us`: by which the clock of append times was set back. `given`: everything that was handed to anybody, in
    order."""

    rules: Rules = field(default_factory=Rules)
    end: int = 0
    now: float = 0.0
    epoch: int = 1
    refuses: bool = False
    begin: int = 0
    back_us: int = 0
    given: list[tuple[int, Grant]] = field(default_factory=list)
    leases: int = 0
    keys: list[int | None] = field(default_factory=list)
    """Of the records from the first one on, as far as they have one."""
    keyed_bytes: float = 0.0
    """Of each of them."""
    unread: bool = False
    expired: list[tuple[int, int, int]] = field(default_factory=list)
    """What was settled as expired, and where that ends in the log."""
    returned: list[tuple[int, int, int]] = field(default_factory=list)
    """The same of what was counted as returned."""

    def __post_init__(self) -> None:
        self.log = StateLog()
        self.runs = RunTable(runs_max=100_000, floors=self._floors)
        self.groups = GroupTable(per_queue_max=4)
        self.confirmed = 0
        self._watermarks: list[tuple[int, int]] = []
        self.append([GroupReset(group="", queue_offset=0)])
        self.confirm()
        self._make()

    def _make(self) -> None:
        self.found = min(self.ledger.watermark, self.end)
        self.given_now: set[int] = set()
        self.delivery = GroupDelivery(
            "", self.ledger, self.rules, epoch=self.epoch, found_watermark=self.found, reach=self.reach, now=self.now,
            next_lease=self._next_lease, runs=lambda: self.runs.of(QUEUE), appended=lambda: self.end,
            keys=self.read_keys,
        )  # fmt: skip
        self.clock()

    def _next_lease(self) -> int:
        self.leases += 1
        return self.epoch << 32 | self.leases

    def _floors(self, queue_ids: Collection[int]) -> dict[int, int]:
        return self.groups.whole_floors(queue_ids)

    @property
    def now_us(self) -> int:
        return round(self.now * 1_000_000) - self.back_us

    def clock(self) -> None:
        """A look begins."""
        self.delivery.clock(self.now, self.now_us)

    @property
    def ledger(self) -> Ledger:
        return self.groups.find(QUEUE, "")

    def reach(self, at: int, until: int, bytes_max: int) -> Reach:
        """Whole batches as far as they fit."""
        if at < self.begin:
            return Reach(self.begin, self.begin, 0)
        fits = min(until, at + max(1, bytes_max // RECORD_BYTES))
        border = fits // BATCH_RECORDS * BATCH_RECORDS
        stop = fits if fits == until or border <= at else border
        return Reach(at, stop, (stop - at) * RECORD_BYTES)

    def read_keys(self, at: int, until: int) -> KeysRead | None:
        if self.unread:
            return None
        end = min(until, (at // BATCH_RECORDS + 1) * BATCH_RECORDS)
        numbers = self.keys[at:end]
        found = [*numbers, *[None] * (end - at - len(numbers))] if any(numbers) else ()
        return KeysRead(end, found, self.keyed_bytes)

    # --- the log ---

    def append(self, changes: Iterable[Change]) -> int:
        """Where it ends. Raises Refusal."""
        changes = list(changes)
        if changes and self.refuses:
            raise Refusal
        if changes:
            header, batch = self.log.append(encode_changes(changes, queue_id=QUEUE))
            follow_batch(self.groups, header, batch)
            self.runs.follow(header)
        for change in changes:
            is_expired = isinstance(change, Settled) and change.why == EXPIRED
            if is_expired or (isinstance(change, Returned) and change.counted):
                pairs = zip(change.ranges[::2], change.ranges[1::2], strict=True)
                noted = self.expired if is_expired else self.returned
                noted += [(first, until, self.log.end) for first, until in pairs]
        return self.log.end

    def try_append(self, changes: Iterable[Change]) -> bool:
        try:
            self.append(changes)
        except Refusal:
            return False
        return True

    def confirm(self) -> None:
        """All of it."""
        self.confirmed = self.log.end
        self.groups.confirm(self.confirmed)
        self.runs.confirm(self.confirmed)
        for end, queue_offset in self._watermarks:
            assert end <= self.confirmed
            self.delivery.watermark_confirmed(queue_offset, self.end)
        self._watermarks = []

    def publish(self, count: int, **asked: Any) -> None:
        """`asked`: attributes; `queue_ttl_ms`."""
        queue_ttl_ms = asked.pop("queue_ttl_ms", None)
        self.runs.add(QUEUE, self.end, count, self.now_us, Attributes(**asked), queue_ttl_ms=queue_ttl_ms)
        self.end += count

    # --- as the deliverer does it ---

    def subscribe(self, number: int, records: int = 1000, size: int = 10**6, **options: object) -> None:
        self.delivery.subscribe(SubscriberOptions(number, records, size, **options))  # type: ignore[arg-type]

    def pump(self, turns: int = 100) -> list[tuple[int, Grant]]:
        """Give everybody what is there; what was given."""
        before = len(self.given)
        self.clock()
        self.move_watermark()
        for _ in range(turns):
            if self.turn() is None:
                break
        self.move_watermark()
        return self.given[before:]

    def turn(self, bytes_max: int = 10**6) -> Dispatch | None:
        given = self.delivery.grant(self.end, self.now, bytes_max=bytes_max)
        if given is None:
            return None
        if given.changes:
            if not self.try_append(list(given.changes)):
                self.delivery.giving.take_back(given)
                return None
            for change in given.changes:
                if isinstance(change, RecordsLeased):
                    self.delivery.endings.began(change.lease, change.lease_ms, self.now)
        self.given += [(given.number, grant) for grant in given.grants]
        if given.number in self.delivery.subscribers.numbers:
            self.given_now.update(each for grant in given.grants for each in range(grant.first, grant.next))
        return given

    def move_watermark(self) -> None:
        change = self.delivery.watermark_wanted(self.end)
        if change is not None and self.try_append([change]):
            self._watermark_appended(change)

    def _watermark_appended(self, change: Watermark) -> None:
        self.delivery.front.appended(change.queue_offset)
        self._watermarks.append((self.log.end, change.queue_offset))

    def settle(
        self,
        number: int,
        *ranges: int,
        how: int = How.ACK,
        delay_ms: int = 0,
        epoch: int | None = None,
        again: bool = False,
    ) -> Settlement:
        """Raises as `GroupDelivery.settle`, or Refusal."""
        settlement = self.delivery.settling.settle(
            number, self.epoch if epoch is None else epoch, how, ranges, delay_ms, again=again
        )
        watermark = self.delivery.watermark_wanted(self.end, self.delivery.freed(settlement))
        moves = bool(settlement.changes) and watermark is not None
        self.append([*settlement.changes, watermark] if moves and watermark else settlement.changes)
        if moves and watermark:
            self._watermark_appended(watermark)
        self.delivery.settling.settled(settlement, self.now)
        return settlement

    def lease(self, number: int, records: int, lease_ms: int, *, ordered: bool = False, apart: bool = False) -> None:
        self.delivery.lease(LeaseWish(number, "me", records, lease_ms, ordered, apart))

    def gone(self, number: int) -> None:
        self._left(self.delivery.gone(number))
        while self.delivery.subscribers.leaving:
            self._left(self.delivery.leave())

    def _left(self, changes: list[Change]) -> None:
        if not self.try_append(changes):
            self.delivery.front.not_counted(changes)

    def tick(self, seconds: float) -> list[int]:
        """Time passes; whose subscription ended by it."""
        self.now += seconds
        self.clock()
        overdue = self.delivery.subscribers.overdue(self.now)
        for number in overdue:
            self.gone(number)
        while self.delivery.due_at <= self.now:
            changes = self.delivery.expired(self.now)
            if not self.try_append(changes):
                break
            self.delivery.expired_done(changes)
            self.clock()
        return overdue

    def fail_over(self, log_offset: int | None = None) -> None:
        """Another one masters the log, which ends at `log_offset` for it; by default where it is confirmed. It derives
        its state anew, and a mirror that cuts comes to the same."""
        cut = self.confirmed if log_offset is None else log_offset
        self.groups.drop_volatile()
        self.groups.cut(cut)
        was = self.facts()
        self.log.cut(cut)
        self.runs.cut(cut, lambda _: self.end)
        self.groups = GroupTable(per_queue_max=4)
        for header, batch in self.log.batches:
            follow_batch(self.groups, header, batch)
        assert self.facts() == was
        self.epoch += 1
        self.log.epoch = self.epoch
        self.refuses = False
        self._watermarks = []
        self.confirmed = self.log.end
        self.groups.confirm(self.confirmed)
        self._make()

    def facts(self) -> object:
        ledger = self.ledger
        return ledger.floor, ledger.watermark, list(ledger.runs(0, self.end + 50)), dict(ledger.leases)


def records(given: Sequence[tuple[int, Grant]], number: int | None = None) -> list[int]:
    """Every record given, to that one or to all, in order."""
    return [
        each for to, grant in given if number in (None, to) for each in range(grant.first, grant.next)
    ]  # fmt: skip
