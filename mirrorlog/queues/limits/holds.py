"""Holds: what landings keep in the log, by queue and name (decision 0032).

A hold keeps its queue's records from a queue offset on. Holds come from the queue's own log: a change is *newest* from
its append and *confirmed* from its confirm, and `cut` undoes what a truncation removed, as with groups' positions.
Applying a batch twice equals applying it once (invariant 8). What the master frees goes by the newest: a decision that
is appended behind a change is confirmed behind it, or not at all.

A hold that was released is forgotten. One that expired, or kept too much, stays known as *ended*: it keeps nothing, but
its epoch goes on from there, its landing can be told, and readers of what it has tiered find the table.

A table is a *tier*, where readers look and for which the log lets records go, once a landing has landed something there
under its name: from `landed_from`, where it was registered first, to its queue offset. Before, there may be no table.

Pure: batches in, state out; deciding gives the change to append. How long a lease has run is the keeper's to know, for
it is measured on the master's clock alone (invariant 13).

Rejected: the lease's end as a time in the log (clocks of two nodes differ); a hold without a lease (a landing that is
given up would keep the log for ever, and nobody would know whose it was).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import ClassVar, Final, NamedTuple, get_args

import msgspec

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadRequest, HoldTaken, Overloaded
from mirrorlog.queues.changes import Change, HoldEnded, HoldSet, StateGone
from mirrorlog.queues.checkpoint_states import HoldRow, HoldsState, State

RELEASED: Final = "released"
EXPIRED: Final = "expired"
TOO_MUCH: Final = "too-much"
"""Why a hold ended: it was asked for; its lease ran out; it kept more than `log.hold_bytes`."""

LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 366 * 24 * 3600 * 1000
LOCATION_CHARS_MAX: Final = 4096
TEXT_CHARS_MAX: Final = 255

_TEXT: Final = re.compile(rf"[^\x00-\x1f\x7f]{{1,{TEXT_CHARS_MAX}}}")
_LOCATION: Final = re.compile(rf"[^\x00-\x1f\x7f]{{0,{LOCATION_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class Hold:
    """`queue_offset`: records below are not needed by this landing. `ended`: why it keeps nothing any more, or empty.
    The other fields as of `HoldSet`; `landed_from` of entries that are older than it is 0."""

    name: str
    holder: str
    epoch: int
    queue_offset: int
    lease_ms: int
    location: str = ""
    tiered: bool = False
    ended: str = ""
    landed_from: int = 0

    @property
    def live(self) -> bool:
        """Whether it keeps anything."""
        return not self.ended

    @property
    def is_tier(self) -> bool:
        """Whether its location is where readers find what the log has no more, also after its end."""
        return self.tiered and self.queue_offset > self.landed_from


class HoldRequest(NamedTuple):
    """What a landing asks for. `epoch`: the one it was given, 0 when it registers. With an epoch it renews, or hands
    over (`take_over`, another `holder`), the live hold of that epoch, and is refused when there is none."""

    name: str
    holder: str
    queue_offset: int
    lease_ms: int
    location: str = ""
    tiered: bool = False
    take_over: bool = False
    epoch: int = 0


class _Unconfirmed(NamedTuple):
    """What becomes true when everything below `log_offset` is confirmed. `hold`: None for one that is forgotten."""

    log_offset: int
    queue_id: int
    name: str
    hold: Hold | None


_Holds = dict[int, dict[str, Hold]]


class HoldTable:
    """The holds of one log. `per_queue_max`: of one queue, ended ones among them."""

    follows: ClassVar[frozenset[type]] = frozenset({HoldSet, HoldEnded, *get_args(StateGone)})

    def __init__(self, *, per_queue_max: int) -> None:
        self._per_queue_max = per_queue_max
        self._newest: _Holds = {}
        self._confirmed: _Holds = {}
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self.lowered = 0
        """Counts the changes by which a queue may have come to keep more than before: whoever decided what to free
        before one of them has to look again."""

    # --- asking ---

    def newest(self, queue_id: int) -> Mapping[str, Hold]:
        """A queue's holds by name, as appended."""
        return self._newest.get(queue_id, {})

    def confirmed(self, queue_id: int) -> Mapping[str, Hold]:
        """A queue's holds by name, as confirmed."""
        return self._confirmed.get(queue_id, {})

    def live(self) -> Iterator[tuple[int, Hold]]:
        """All that keep something, with their queue's id, as appended."""
        for queue_id, holds in self._newest.items():
            yield from ((queue_id, hold) for hold in holds.values() if hold.live)

    def floors(self) -> dict[int, int]:
        """The smallest queue offset that is kept, by queue id, of the queues in which anything is."""
        found: dict[int, int] = {}
        for queue_id, hold in self.live():
            found[queue_id] = min(hold.queue_offset, found.get(queue_id, hold.queue_offset))
        return found

    def tiered(self) -> set[int]:
        """The ids of the queues of which a landing that holds, and has landed something, says that this may go."""
        return {queue_id for queue_id, hold in self.live() if hold.is_tier}

    def states(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Queue ids with the names of some of their holds, of which `state` makes a value of a checkpoint."""
        for queue_id, holds in list(self._newest.items()):
            yield from ((queue_id, [name]) for name in list(holds))

    def state(self, queue_id: int, names: Sequence[str]) -> HoldsState | None:
        """These holds of a queue as appended up to now, for a checkpoint; None when all are gone."""
        there = self.newest(queue_id)
        rows = [_row(there[name]) for name in names if name in there]
        return HoldsState(queue_id=queue_id, holds=rows) if rows else None

    # --- deciding ---

    def set(self, queue_id: int, wish: HoldRequest, *, next_confirmed: int, left_ms: int) -> HoldSet | None:
        """The change that gives a landing what it asks for; None when it has it, and only its lease begins anew.

        `left_ms`: of the lease of whoever has the hold now, not above 0 when it has run out. The same holder moves its
        queue offset forward only; another one begins where it asks to. Raises HoldTaken naming who has the hold,
        BadRequest, or Overloaded.
        """
        _check(wish, next_confirmed)
        there = self.newest(queue_id)
        old = there.get(wish.name)
        if old is None and len(there) >= self._per_queue_max:
            raise Overloaded(
                f"this queue has {self._per_queue_max} holds (limits.max_holds_per_queue), ended ones among them; end "
                "those that nobody wants with: mqtool landing-end",
                limit="max_holds_per_queue",
            )
        if wish.epoch:
            _check_renewal(wish, old, left_ms)
        if old is not None:
            _check_tier(wish, old)
        epoch, queue_offset = 1 if old is None else old.epoch + 1, wish.queue_offset
        if old is not None and old.live and not (wish.take_over and wish.holder != old.holder):
            if wish.holder == old.holder:
                epoch, queue_offset = old.epoch, max(old.queue_offset, wish.queue_offset)
            elif left_ms > 0:
                raise taken(old, left_ms)
        hold = Hold(
            wish.name,
            wish.holder,
            epoch,
            queue_offset,
            wish.lease_ms,
            wish.location,
            wish.tiered,
            landed_from=_landed_from(wish, old, epoch=epoch, queue_offset=queue_offset),
        )
        return None if hold == old else _change_of(hold)

    def end(self, queue_id: int, name: str, reason: str, *, holder: str = "") -> HoldEnded | None:
        """The change that ends a hold; None when there is nothing to end. `holder`: only if that one has it. Raises
        HoldTaken."""
        hold = self.newest(queue_id).get(name)
        if hold is None or (reason != RELEASED and not hold.live):
            return None
        if holder and holder != hold.holder:
            raise taken(hold, 0)
        return HoldEnded(name=name, epoch=hold.epoch, reason=reason)

    # --- following the log ---

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended."""
        for change in changes:
            if isinstance(change, HoldSet):
                self._appended(header, header.queue_id, change.name, _hold_of(change))
            elif isinstance(change, HoldEnded):
                self._ended(header, change)
            elif isinstance(change, StateGone):
                for name in list(self.newest(change.queue_id)):
                    self._appended(header, change.queue_id, name, None)

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended, which says again what stood before it."""
        for state in states:
            if isinstance(state, HoldsState):
                for row in state.holds:
                    self._appended(header, state.queue_id, row.name, Hold(*msgspec.structs.astuple(row)))

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while self._unconfirmed and self._unconfirmed[0].log_offset <= log_offset:
            _put(self._confirmed, self._unconfirmed.popleft())

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        undone = set()
        while self._unconfirmed and self._unconfirmed[-1].log_offset > log_offset:
            undone.add(self._unconfirmed.pop().queue_id)
        if not undone:
            return
        self.lowered += 1
        for queue_id in undone:
            self._newest.pop(queue_id, None)
            if queue_id in self._confirmed:
                self._newest[queue_id] = dict(self._confirmed[queue_id])
        for change in self._unconfirmed:
            if change.queue_id in undone:
                _put(self._newest, change)

    def forget_queues(self, queue_ids: Collection[int]) -> None:
        """Queues are gone, for good."""
        for queue_id in queue_ids:
            self._newest.pop(queue_id, None)
            self._confirmed.pop(queue_id, None)
        self._unconfirmed = deque(each for each in self._unconfirmed if each.queue_id not in queue_ids)

    # --- inside ---

    def _ended(self, header: BatchHeader, change: HoldEnded) -> None:
        hold = self.newest(header.queue_id).get(change.name)
        if hold is not None and hold.epoch == change.epoch:
            ended = None if change.reason == RELEASED else replace(hold, ended=change.reason)
            self._appended(header, header.queue_id, change.name, ended)

    def _appended(self, header: BatchHeader, queue_id: int, name: str, hold: Hold | None) -> None:
        old = self.newest(queue_id).get(name)
        if hold == old:
            return  # it stands before this in the log already, and is confirmed before it
        if hold is not None and hold.live and (old is None or not old.live or hold.queue_offset < old.queue_offset):
            self.lowered += 1
        change = _Unconfirmed(header.next_log_offset, queue_id, name, hold)
        self._unconfirmed.append(change)
        _put(self._newest, change)


def _put(holds: _Holds, change: _Unconfirmed) -> None:
    there = holds.setdefault(change.queue_id, {})
    if change.hold is not None:
        there[change.name] = change.hold
    else:
        there.pop(change.name, None)
        if not there:
            del holds[change.queue_id]


def _check(wish: HoldRequest, next_confirmed: int) -> None:
    for what, text in (("name", wish.name), ("holder", wish.holder)):
        if not _TEXT.fullmatch(text):
            raise BadRequest(f"a landing's {what} has 1 to {TEXT_CHARS_MAX} characters and no control characters")
    if not _LOCATION.fullmatch(wish.location):
        raise BadRequest(f"a location has at most {LOCATION_CHARS_MAX} characters and no control characters")
    if wish.tiered and not wish.location:
        raise BadRequest("a tiered landing says where its records are: give its location")
    if not LEASE_MS_MIN <= wish.lease_ms <= LEASE_MS_MAX:
        raise BadRequest(f"lease_ms {wish.lease_ms} is not within {LEASE_MS_MIN} and {LEASE_MS_MAX}")
    if not 0 <= wish.queue_offset <= next_confirmed:
        raise BadRequest(
            f"queue offset {wish.queue_offset} is not within 0 and {next_confirmed}, the end of what is confirmed"
        )


def _check_renewal(wish: HoldRequest, old: Hold | None, left_ms: int) -> None:
    """What has ended is not revived by who has not heard of it: its records may have gone."""
    if old is None or not old.live:
        raise gone(wish, old)
    if old.epoch != wish.epoch:
        raise taken(old, left_ms)


def _check_tier(wish: HoldRequest, old: Hold) -> None:
    """The log may have let go what is in the table: readers must go on finding it."""
    if old.is_tier and not (wish.tiered and wish.location == old.location):
        raise BadRequest(
            f"landing {wish.name!r} has tiered this queue's records up to {old.queue_offset} to {old.location}, where "
            "readers look for what the log has no more; give the new landing a name of its own, or forget that table "
            f"first: mqtool landing-end QUEUE {wish.name}"
        )


def _landed_from(wish: HoldRequest, old: Hold | None, *, epoch: int, queue_offset: int) -> int:
    """Goes on over renewals, other holders and ends, as the table does. Another location begins anew, and so does a
    landing that is set back behind its own beginning, for its table was made anew; and one that has landed nothing, and
    comes again where the queue begins by now."""
    if old is None or old.location != wish.location:
        return queue_offset
    if epoch != old.epoch and old.queue_offset <= old.landed_from:
        return queue_offset
    return min(old.landed_from, queue_offset)


def taken(hold: Hold, left_ms: int) -> HoldTaken:
    """The refusal of whoever does not have the hold; `left_ms`: of its lease."""
    left = f", {left_ms / 1000:.1f} s of its lease are left" if left_ms > 0 else ""
    return HoldTaken(
        f"landing {hold.name!r} is held by {hold.holder!r} in epoch {hold.epoch}{left}; wait for its end, or take it "
        "over",
        holder=hold.holder,
        epoch=hold.epoch,
        left_ms=max(0, left_ms),
    )


def gone(wish: HoldRequest, ended: Hold | None) -> HoldTaken:
    """The refusal of a renewal whose hold has ended; None: it was released."""
    reason = f"it ended in epoch {ended.epoch} ({ended.ended})" if ended is not None else "it was ended (landing-end)"
    return HoldTaken(
        f"landing {wish.name!r} has no hold of epoch {wish.epoch} any more: {reason}; register again, as for the first "
        "time, to hold what is there",
        holder=ended.holder if ended is not None else "",
        epoch=ended.epoch if ended is not None else 0,
        left_ms=0,
        ended=ended.ended if ended is not None else RELEASED,
    )


def _hold_of(change: HoldSet) -> Hold:
    return Hold(
        change.name,
        change.holder,
        change.epoch,
        change.queue_offset,
        change.lease_ms,
        change.location,
        change.tiered,
        landed_from=change.landed_from,
    )


def _change_of(hold: Hold) -> HoldSet:
    return HoldSet(
        name=hold.name,
        holder=hold.holder,
        epoch=hold.epoch,
        queue_offset=hold.queue_offset,
        lease_ms=hold.lease_ms,
        location=hold.location,
        tiered=hold.tiered,
        landed_from=hold.landed_from,
    )


def _row(hold: Hold) -> HoldRow:
    return HoldRow(*astuple(hold))
