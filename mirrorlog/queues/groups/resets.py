"""Where groups stand after a reset, and whether it may be made. Pure.

A target is always a place where a record is or comes next: not below the queue's start offset, not beyond what is
confirmed, not in a gap that a loss has left. A queue offset that a person took from somewhere is refused when it is no
such place, for he is wrong about something; everything relative is brought to the nearest place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from mirrorlog.commitlog.index.gaps import Gaps, gap_at
from mirrorlog.errors import BadRequest, InUse, OffsetOutOfRange
from mirrorlog.queues.groups.table import NAME_CHARS_MAX
from mirrorlog.wire.messages.groups import ResetGroups

ACKING: Final = "acking"
STREAM: Final = "stream"

_NUMBER_MAX: Final = (1 << 63) - 1


class ResetTo(StrEnum):
    """What a group is reset to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"
    EACH = "each"


class Times(Protocol):
    """Where the memory finds a time; see `QueueIndex`."""

    def is_past_time(self, queue_id: int, append_time_us: int) -> bool: ...

    def find_time(self, queue_id: int, append_time_us: int) -> int: ...


class PastTimes(Protocol):
    """The same of the past; see `PastKeeper.find_time`."""

    async def find_time(self, queue_id: int, append_time_us: int) -> int | None: ...


class Place(NamedTuple):
    """Of a queue: where it begins, where the next confirmed record will stand, and its gaps."""

    begin: int
    next: int
    gaps: Gaps

    def nearest(self, queue_offset: int) -> int:
        """Where a group can stand that is closest to there, behind a gap rather than before it."""
        place = min(max(queue_offset, self.begin), self.next)
        gap = gap_at(self.gaps, place)
        return gap[1] if gap is not None else place


class ResetPosition(NamedTuple):
    """A group that is to be reset. `kind`: stream or acking; `queue_offset`: its position, or floor; `active`: who is
    at it, empty when nobody is."""

    group: str
    kind: str
    queue_offset: int
    active: str


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Where groups are to stand. `value`, `offsets`: as of ResetGroups; a time that was looked up is no time any
    more: see `at_time`."""

    to: ResetTo
    value: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    exact: bool = True

    @staticmethod
    def of(message: ResetGroups) -> ResetRequest:
        """Raises BadRequest."""
        try:
            to = ResetTo(message.to)
        except ValueError:
            raise BadRequest(f"a reset is to one of {', '.join(ResetTo)}, not {message.to[:64]!r}") from None
        if message.groups is not None and not message.groups:
            raise BadRequest("no group is named; name some, or ask for all of the queue")
        if any(len(group) > NAME_CHARS_MAX for group in message.groups or ()):
            raise BadRequest(f"a group's name has at most {NAME_CHARS_MAX} characters")
        low = -_NUMBER_MAX if to is ResetTo.SHIFT else 0
        for number in (message.value, *message.offsets.values()):
            if not low <= number <= _NUMBER_MAX:
                raise BadRequest(f"{number} is not within {low} and {_NUMBER_MAX}")
        if to is ResetTo.EACH and (message.groups is None or set(message.groups) - message.offsets.keys()):
            raise BadRequest("a reset of each group to its own queue offset names the groups, and gives one for each")
        return ResetRequest(to, message.value, message.offsets)

    @property
    def needs_time(self) -> bool:
        """Whether `at_time` is to be asked first."""
        return self.to is ResetTo.TIME

    async def at_time(self, times: Times, past: PastTimes, queue_id: int) -> ResetRequest:
        """The same to the queue offset that the time stands for: of the first batch that was appended then or later."""
        found = None
        if times.is_past_time(queue_id, self.value):
            found = await past.find_time(queue_id, self.value)
        there = times.find_time(queue_id, self.value)
        return replace(self, to=ResetTo.OFFSET, value=there if found is None else min(found, there), exact=False)

    def target(self, standing: ResetPosition, place: Place) -> int:
        """Where that group is to stand. Raises OffsetOutOfRange."""
        match self.to:
            case ResetTo.EARLIEST:
                wanted = place.begin
            case ResetTo.LATEST:
                wanted = place.next
            case ResetTo.SHIFT:
                wanted = _shifted(standing.queue_offset, self.value, place.gaps)
            case ResetTo.EACH:
                wanted = self.offsets[standing.group]
            case _:
                wanted = self.value
                self._check(place)
        return place.nearest(wanted)

    def _check(self, place: Place) -> None:
        if self.exact and not place.begin <= self.value <= place.next:
            raise OffsetOutOfRange(
                f"queue offset {self.value} is not within {place.begin} and {place.next}, where the queue begins and "
                "what is confirmed ends",
                begin=place.begin,
                next=place.next,
            )


def check_idle(standings: list[ResetPosition]) -> None:
    """Raises InUse naming the groups that somebody is at."""
    active = [f"{each.group!r} ({each.active})" for each in standings if each.active]
    if active:
        more = f" and {len(active) - 3} more" if len(active) > 3 else ""
        raise InUse(
            f"active: group {', '.join(active[:3])}{more}; stop who reads there, or force the reset",
            groups=[each.group for each in standings if each.active][:100],
        )


def _shifted(queue_offset: int, records: int, gaps: Gaps) -> int:
    """So many records on, or back: gaps are not counted among them."""
    within = gap_at(gaps, queue_offset)
    at = within[1] if within is not None else queue_offset
    wanted = at + records
    for first, following in gaps:
        if at < first <= wanted:
            wanted += following - first
    for first, following in reversed(gaps):
        if wanted < following <= at:
            wanted -= following - first
    return wanted
