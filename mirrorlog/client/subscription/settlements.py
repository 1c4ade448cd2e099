"""Settlements on their way: collected, sent together, sent again where that may help, ended by their deadline. Pure.

What a user settles in one turn of the loop leaves in one frame for each (session, what is done, delay), with ranges
that touch joined. A frame counts as a whole or not at all, so what was refused, or settles for good, is sent again as
it was. A return is not, once its master has logged it: the same consumer may have the record again by then, and that
delivery would go back, and be counted. Its confirm is waited for by a frame without ranges. For the same reason a later
master is told of it once, however many follow.

A settlement ends in one of five ways: confirmed; refused, and nothing of it counts; in part, when some of it is
settled otherwise, or somebody else's, and the rest counts; unknown at its deadline; or void, when its records went back
by themselves with the session that had them, which is what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from mirrorlog.attempts import leaves_doubt, outcome_of
from mirrorlog.client.connection.masters import MOVED, REPLACED_PERHAPS
from mirrorlog.client.producer.batch import EndWaiter
from mirrorlog.client.subscription.unacked import RANGES_MAX, Granted, Range, common, count, joined, without
from mirrorlog.errors import (
    ConnectionLost,
    FlushDiskTimeout,
    FlushSlaveTimeout,
    MirrorlogError,
    NoSuchSubscription,
    NotGranted,
    OutcomeUnknown,
    Overloaded,
    Refused,
    SettledOtherwise,
    SlaveNotAvailable,
)
from mirrorlog.wire.frames import How

FINAL: Final = frozenset({How.ACK, How.DEAD})
"""Whose records are not to be given out again."""

_LATE: Final = (FlushSlaveTimeout, FlushDiskTimeout, SlaveNotAvailable)
"""It is logged, and its confirm did not come in time."""


class SettlementKind(NamedTuple):
    """What settlements share that travel in one frame. `session`: see `Granted`; `how`: see `frames.How`.

    A named tuple because one is made for each record that is settled.
    """

    session: int
    epoch: int
    how: int
    delay_ms: int = 0


class SettlementBatch:
    """The settlements of one frame. `parts`: what it settles of which grant; `deadline`: of the loop's clock. `logged`:
    by the present master, whose copies have not confirmed it yet; `told_again`: to another session than its own;
    `kept_back`: its records are given to nobody until it has ended."""

    __slots__ = (
        "_otherwise", "_ranges", "_waiters",
        "deadline", "done", "error", "heard", "heard_of", "kept_back", "kind", "last_error", "logged", "parts", "sent",
        "told_again", "unknown",
    )  # fmt: skip

    def __init__(self, kind: SettlementKind, deadline: float, *parts: tuple[Granted, int, int]) -> None:
        self.kind = kind
        self.deadline = deadline
        self.parts = list(parts)
        self.done = False
        self.error: MirrorlogError | None = None
        # Whether somebody has heard, or will, how it ended; and those of its records of which somebody will.
        self.heard = False
        self.heard_of: list[Range] = []
        self.sent = False
        # An attempt ended without an answer that says that nothing was settled.
        self.unknown = False
        self.logged = False
        self.told_again = False
        self.kept_back = False
        self.last_error: MirrorlogError | None = None
        self._ranges: list[Range] | None = None
        # What was answered so far, when that did not name all.
        self._otherwise: SettledOtherwise | None = None
        self._waiters: list[EndWaiter] = []

    @property
    def ranges(self) -> list[Range]:
        """Joined; asked for when nothing is added any more."""
        if self._ranges is None:
            parts = self.parts
            self._ranges = [parts[0][1:]] if len(parts) == 1 else joined(part[1:] for part in parts)
        return self._ranges

    @property
    def flat_ranges(self) -> list[int]:
        """As a frame has them: what an answer has not told yet; none once it is only its confirm that is asked for."""
        if self.logged:
            return []
        ranges = self.ranges
        if self._otherwise is not None and (untold := self._otherwise.untold) is not None:
            ranges = [cut for each in ranges for cut in common(*each, [untold])]
        return list(chain.from_iterable(ranges))

    def add(self, granted: Granted, first: int, following: int) -> None:
        """More of the same kind. What follows the last part is joined with it at once."""
        if self.parts:
            last, last_first, last_next = self.parts[-1]
            if last is granted and last_next == first:
                self.parts[-1] = granted, last_first, following
                return
        self.parts.append((granted, first, following))

    def hear(self, of: Range | None = None, waiter: EndWaiter | None = None) -> None:
        """Somebody will hear how it ends, or what these records of it end with (`error_of`). `waiter`: is told once, by
        `end`."""
        if of is None:
            self.heard = True
        else:
            self.heard_of.append(of)
        if waiter is not None:
            self._waiters.append(waiter)

    def error_of(self, first: int, following: int) -> MirrorlogError | None:
        """What these records of it ended with: one that is settled otherwise, or somebody else's, fails, and not what
        was told with it."""
        return self.error.within(first, following) if isinstance(self.error, NotGranted) else self.error

    @property
    def not_settled(self) -> list[Range] | None:
        """Which records of it, having failed, are not settled, by what is known; None: that may be all of them."""
        error = self.error
        if not isinstance(error, NotGranted) or (error.passed_over and not error.elsewhere):
            return None
        return error.elsewhere if error.passed_over or isinstance(error, SettledOtherwise) else None

    def left(self) -> list[tuple[Granted, int, int]]:
        """What of it, having failed, may be settled again: not what is settled, be it otherwise."""
        known = self.not_settled
        if known is not None:
            return [(granted, *cut) for granted, low, high in self.parts for cut in common(low, high, known)]
        otherwise = self.error.runs if isinstance(self.error, SettledOtherwise) else []
        return [(granted, *cut) for granted, low, high in self.parts for cut in without(low, high, otherwise)]

    def unheard(self) -> MirrorlogError | None:
        """What it ended with that nobody hears of."""
        if self.heard or self.error is None:
            return None
        if not isinstance(self.error, NotGranted):
            return None if self.heard_of else self.error
        heard = joined(self.heard_of)
        parts = (cut for _, first, following in self.parts for cut in without(first, following, heard))
        return next((error for cut in parts if (error := self.error_of(*cut)) is not None), None)

    def end(self, error: MirrorlogError | None) -> None:
        """Tell whoever waits."""
        self.done, self.error = True, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def given_up(self, why: str) -> MirrorlogError:
        """What it ends with when no answer is waited for any more, and `why` not."""
        if self._otherwise is not None:
            return self._otherwise
        reason = self.last_error or ConnectionLost("no answer came")
        if self.sent or self.unknown:
            message = f"{why} and the settlement is not confirmed, it may count or not"
            return outcome_of(reason, in_doubt=True, message=message)
        if isinstance(reason, Refused) and reason.retriable and not leaves_doubt(reason):
            return type(reason)(reason.message, **reason.details)
        return Refused(f"{why} before the settlement was sent, nothing was settled; last: {reason}")

    def goes_on(self, error: MirrorlogError) -> bool:
        """Whether `error`, which was answered, does not name all that is settled otherwise: then what it left out is to
        be told once more, which changes nothing, and is answered."""
        if not isinstance(error, SettledOtherwise):
            return False
        before = self._otherwise
        now = error if before is None else before.went_on(error)
        if now.untold is None or (before is not None and now.untold == before.untold):
            return False
        self._otherwise = now
        return True

    def confirmed(self) -> MirrorlogError | None:
        """What it ends with when all that was told last counts."""
        return None if self._otherwise is None else self._otherwise.went_on(None)

    def failed(self, error: MirrorlogError) -> MirrorlogError:
        """What it ends with when `error` was answered, and it is not tried again. That somebody else has the records
        says of what settles for good that it does not count: else nobody would have been given them."""
        if self._otherwise is not None:
            if isinstance(error, SettledOtherwise) or (isinstance(error, NotGranted) and error.passed_over):
                return self._otherwise.went_on(error)
            return self._otherwise
        if type(error) is NotGranted and (unknown := error.unnamed) is not None:
            if error.passed_over < count(self.ranges):
                return unknown
            error = NotGranted.elsewhere_of(error.passed_over, self.ranges)
        if self.kind.how in FINAL and isinstance(error, NotGranted):
            return error
        return outcome_of(error, in_doubt=self.unknown, message="the settlement may count or not")


class UnsentSettlements:
    """What was settled since the loop turned, by kind: not sent yet."""

    __slots__ = ("_closed", "_open")

    def __init__(self) -> None:
        self._open: dict[SettlementKind, SettlementBatch] = {}
        self._closed: list[SettlementBatch] = []

    def __bool__(self) -> bool:
        return bool(self._open or self._closed)

    def add(
        self, kind: SettlementKind, granted: Granted, first: int, following: int, *, deadline: float
    ) -> SettlementBatch:
        """The settlement that it leaves with."""
        settlement = self._open.get(kind)
        if settlement is None:
            settlement = self._open[kind] = SettlementBatch(kind, deadline, (granted, first, following))
            return settlement
        settlement.add(granted, first, following)
        if len(settlement.parts) >= RANGES_MAX:
            self._closed.append(self._open.pop(kind))
        return settlement

    def take(self) -> list[SettlementBatch]:
        """All of them, to be sent now."""
        taken = [*self._closed, *self._open.values()]
        self._closed, self._open = [], {}
        return taken


class Judgement(Enum):
    """What an answer means to the settlement that it came to."""

    CONFIRMED = "confirmed"
    FAILED = "failed"
    AGAIN = "again"
    """After a pause, to the same node."""
    LOGGED = "logged"
    """It has happened; after a pause the same node is asked for its confirm."""
    MOVED = "moved"
    """To whoever is master then."""
    VOID = "void"


def judged(settlement: SettlementBatch, error: MirrorlogError | None, *, session: int) -> Judgement:
    """`session`: the present one. What was tried is noted in the settlement."""
    settlement.sent = False
    if error is None:
        return Judgement.CONFIRMED
    settlement.last_error = error
    settlement.unknown = settlement.unknown or leaves_doubt(error)
    if isinstance(error, NotGranted) and settlement.kind.session != session and settlement.kind.how not in FINAL:
        return Judgement.VOID
    if isinstance(error, (*MOVED, NoSuchSubscription)):
        return Judgement.MOVED
    if isinstance(error, _LATE) and settlement.kind.how not in FINAL:
        return Judgement.LOGGED
    if isinstance(error, (*REPLACED_PERHAPS, Overloaded)):
        return Judgement.AGAIN
    return Judgement.AGAIN if isinstance(error, OutcomeUnknown) and settlement.kind.how in FINAL else Judgement.FAILED


def resumed(
    settlements: Iterable[SettlementBatch], *, epoch: int
) -> tuple[list[SettlementBatch], list[SettlementBatch]]:
    """Those to be sent again in a session of that epoch, and those that are void.

    Within one epoch the master gave back what the lost session had, so a return has happened. A newer epoch knows
    nothing of sessions: what may have been logged is told again; a return, which counts each time, once.
    """
    again: list[SettlementBatch] = []
    void: list[SettlementBatch] = []
    for each in settlements:
        back = each.kind.epoch == epoch or each.kind.how == How.EXTEND or each.told_again
        (void if back and each.kind.how not in FINAL else again).append(each)
    return again, void
