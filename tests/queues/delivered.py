"""One acking group on a master as a node drives it, over a log in a list: what is appended is followed, confirmed
later, and perhaps lost when another master comes. The ground on which delivery is tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mirrorlog.queues.changes import Change, GroupReset, Watermark, encode_changes
from mirrorlog.queues.delivery import Delivery, Given, LeaseWish, Reach, Rules, Settlement
from mirrorlog.queues.groups import GroupTable
from mirrorlog.queues.ledger import Ledger
from mirrorlog.queues.subscriber import Subscription
from mirrorlog.wire.frames import Grant, How
from tests.queues.statelog import StateLog

QUEUE = 7
RECORD_BYTES = 10
BATCH_RECORDS = 5


class Refusal(Exception):
    """The log takes nothing at the moment."""


@dataclass
class Stage:
    """Records are of `RECORD_BYTES`, in batches of `BATCH_RECORDS`. `end`: where what is published, and confirmed,
    ends. `given`: everything that was handed to anybody, in order."""

    rules: Rules = field(default_factory=Rules)
    end: int = 0
    now: float = 0.0
    epoch: int = 1
    refuses: bool = False
    begin: int = 0
    given: list[tuple[int, Grant]] = field(default_factory=list)
    leases: int = 0

    def __post_init__(self) -> None:
        self.log = StateLog()
        self.groups = GroupTable(per_queue_max=4)
        self.confirmed = 0
        self._watermarks: list[tuple[int, int]] = []
        self.append([GroupReset(group="", queue_offset=0)])
        self.confirm()
        self._make()

    def _make(self) -> None:
        self.found = min(self.ledger.watermark, self.end)
        self.given_now: set[int] = set()
        self.delivery = Delivery(
            "", self.ledger, self.rules, epoch=self.epoch, found_watermark=self.found, reach=self.reach, now=self.now,
        )  # fmt: skip

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

    # --- the log ---

    def append(self, changes: Iterable[Change]) -> int:
        """Where it ends. Raises Refusal."""
        changes = list(changes)
        if changes and self.refuses:
            raise Refusal
        if changes:
            header, batch = self.log.append(encode_changes(changes, queue_id=QUEUE))
            self.groups.apply(header, batch)
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
        for end, queue_offset in self._watermarks:
            assert end <= self.confirmed
            self.delivery.watermark_confirmed(queue_offset)
        self._watermarks = []

    def publish(self, count: int) -> None:
        self.end += count

    # --- as the deliverer does it ---

    def subscribe(self, number: int, records: int = 1000, size: int = 10**6, **options: object) -> None:
        self.delivery.subscribe(Subscription(number, records, size, **options))  # type: ignore[arg-type]

    def pump(self, turns: int = 100) -> list[tuple[int, Grant]]:
        """Give everybody what is there; what was given."""
        before = len(self.given)
        self.move_watermark()
        for _ in range(turns):
            if self.turn() is None:
                break
        self.move_watermark()
        return self.given[before:]

    def turn(self, bytes_max: int = 10**6) -> Given | None:
        given = self.delivery.grant(self.end, self.now, bytes_max=bytes_max)
        if given is None:
            return None
        if given.change is not None:
            if not self.try_append([given.change]):
                self.delivery.take_back(given)
                return None
            if hasattr(given.change, "lease"):
                self.delivery.lease_began(given.change.lease, given.change.lease_ms, self.now)
        self.given += [(given.number, grant) for grant in given.grants]
        if given.number in self.delivery.numbers:
            self.given_now.update(each for grant in given.grants for each in range(grant.first, grant.next))
        return given

    def move_watermark(self) -> None:
        change = self.delivery.watermark_wanted(self.end)
        if change is not None and self.try_append([change]):
            self._watermark_appended(change)

    def _watermark_appended(self, change: Watermark) -> None:
        self.delivery.watermark_appended(change.queue_offset)
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
        """Raises as `Delivery.settle`, or Refusal."""
        settlement = self.delivery.settle(
            number, self.epoch if epoch is None else epoch, how, ranges, delay_ms, again=again
        )
        watermark = self.delivery.watermark_wanted(self.end, self.delivery.freed(settlement))
        moves = bool(settlement.changes) and watermark is not None
        self.append([*settlement.changes, watermark] if moves and watermark else settlement.changes)
        if moves and watermark:
            self._watermark_appended(watermark)
        self.delivery.settled(settlement, self.now)
        return settlement

    def lease(self, number: int, records: int, lease_ms: int) -> None:
        self.leases += 1
        self.delivery.lease(LeaseWish(number, self.epoch << 32 | self.leases, "me", records, lease_ms))

    def gone(self, number: int) -> None:
        changes = self.delivery.gone(number)
        if not self.try_append(changes):
            self.delivery.not_counted(changes)

    def tick(self, seconds: float) -> list[int]:
        """Time passes; whose subscription ended by it."""
        self.now += seconds
        overdue = self.delivery.overdue(self.now)
        for number in overdue:
            self.gone(number)
        if self.try_append(self.delivery.expired(self.now)):
            self.delivery.expired_done()
        return overdue

    def fail_over(self, log_offset: int | None = None) -> None:
        """Another one masters the log, which ends at `log_offset` for it; by default where it is confirmed. It derives
        its state anew, and a mirror that cuts comes to the same."""
        cut = self.confirmed if log_offset is None else log_offset
        self.groups.drop_volatile()
        self.groups.cut(cut)
        was = self.facts()
        self.log.cut(cut)
        self.groups = GroupTable(per_queue_max=4)
        for header, batch in self.log.batches:
            self.groups.apply(header, batch)
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
