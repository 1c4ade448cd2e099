"""Sends what a subscription's user settles, and stays with it until it has ended. Thin; `settlements` decides.

One timer for all deadlines, since they come in the order in which settlements leave; one for what is tried again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.subscription.session import Session
from mirrorlog.client.subscription.settlements import FINAL, Gathering, Kind, Settlement, Verdict, judged, resumed
from mirrorlog.client.subscription.unacked import Granted, Range, Unacked
from mirrorlog.errors import ConnectionLost, MirrorlogError, NotGranted
from mirrorlog.wire.frames import How


class Settling:
    """Of one subscription. `level`: the confirm level asked for; `timeout_s`: by then a settlement has ended."""

    def __init__(self, hand: Unacked, *, level: int, timeout_s: float, changed: Callable[[], None]) -> None:
        """`changed`: called when something may be given out that was kept back."""
        self._loop = asyncio.get_running_loop()
        self._hand = hand
        self._level = level
        self._timeout_s = timeout_s
        self._changed = changed
        self._gathering = Gathering()
        self._unanswered: dict[Settlement, None] = {}
        self._session: Session | None = None
        self._flush_due = False
        self._deadline: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._backoff = Backoff(random.random)
        self._drained: dict[asyncio.Future[None], None] = {}
        self._failure: MirrorlogError | None = None
        # Why nothing is settled any more.
        self._over: MirrorlogError | None = None

    # --- settling ---

    def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int, multiple: bool
    ) -> list[Settlement]:
        """Those that it leaves with; at once or when the loop turns. Raises NotGranted, or why it is over."""
        if self._over is not None:
            raise type(self._over)(self._over.message, **self._over.details)
        kind = Kind(granted.session, granted.epoch, how, delay_ms)
        deadline = self._loop.time() + self._timeout_s
        if multiple:
            parts = self._hand.settle_up_to(granted, following)
            if not parts:
                raise NotGranted(f"what was given out up to queue offset {following - 1} was settled before")
            left = {self._gathering.add(kind, each, *cut, deadline=deadline): None for each, cut in parts}
            settlements = list(left)
        else:
            if how != How.EXTEND:
                self._hand.settle(granted, first, following)
            settlements = [self._gathering.add(kind, granted, first, following, deadline=deadline)]
        if kind.session != self._hand.session:
            self._flush()  # it may concern what is given out next
        elif not self._flush_due:
            self._leave_soon()
        return settlements

    async def ended(self, settlements: list[Settlement], of: Range | None = None) -> None:
        """Wait until they have, each by its deadline. Raises the first error among them. `of`: which of their records
        is asked about; all of them without."""
        waiters: list[asyncio.Future[None]] = []
        for each in settlements:
            if each.done:
                each.hear(of)
                continue
            waiter: asyncio.Future[None] = self._loop.create_future()
            each.listen(partial(_resolve, waiter), of)
            waiters.append(waiter)
        for waiter in waiters:
            await waiter
        for each in settlements:
            error = each.error if of is None else each.error_of(*of)
            if error is not None:
                raise type(error)(error.message, **error.details)

    async def drained(self) -> None:
        """Wait until everything settled so far has ended, well or not."""
        while self._gathering or self._unanswered:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drained[waiter] = None
            try:
                await waiter
            finally:
                self._drained.pop(waiter, None)

    def take_failure(self) -> MirrorlogError | None:
        """The first error, since the last call, that nobody has heard of."""
        failure, self._failure = self._failure, None
        return failure

    def waits(self, longer_than_s: float) -> bool:
        """Whether something that was settled so long ago has not ended."""
        oldest = next(iter(self._unanswered), None)
        return oldest is not None and self._loop.time() > oldest.deadline - self._timeout_s + longer_than_s

    # --- sessions ---

    def resumed(self, session: Session) -> None:
        """There is a session: what is unanswered is told again, before anything is given out that it concerns."""
        self._session = session
        again, void = resumed(list(self._unanswered), epoch=session.epoch)
        for each in void:
            self._end(each, None)
        for each in again:
            self._keep_back(each)
        self._send_unsent()

    def lost(self) -> None:
        """The session is over; another one is looked for, and is told what this one has not answered."""
        self._session = None
        for each in self._unanswered:
            each.unknown = each.unknown or each.sent
            each.sent = each.logged = False

    def end(self, error: MirrorlogError) -> None:
        """Nothing is settled any more: what has not ended does so now. The first reason counts."""
        if self._over is None:
            self._over = error
        self._session = None
        self._flush()
        for each in list(self._unanswered):
            each.last_error = each.last_error or error
            self._end(each, each.given_up("the subscription ended"))
        for timer in (self._deadline, self._again):
            if timer is not None:
                timer.cancel()

    # --- inside ---

    def _leave_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        for each in self._gathering.take():
            self._unanswered[each] = None
            if each.kind.session != self._hand.session:
                self._keep_back(each)
            self._send(each)
        self._arm()

    def _keep_back(self, settlement: Settlement) -> None:
        if settlement.kind.how in FINAL:
            self._hand.withhold(settlement, settlement.ranges)

    def _send_unsent(self) -> None:
        self._again = None
        for each in list(self._unanswered):
            if not each.sent:
                self._send(each)

    def _send(self, settlement: Settlement) -> None:
        session = self._session
        if session is None:
            return
        kind = settlement.kind
        again = kind.session != self._hand.session
        settlement.told_again = settlement.told_again or again
        try:
            session.connection.settle(
                settlement.flat_ranges,
                subscription=session.number,
                # What is logged already concerns no grant: the master's own epoch will do.
                epoch=session.epoch if settlement.logged else kind.epoch,
                how=kind.how,
                level=self._level,
                delay_ms=kind.delay_ms,
                again=again,
                done=partial(self._answered, settlement, session),
            )
        except ConnectionLost as error:
            settlement.last_error = error  # the session ends, and the next one sends it
        else:
            settlement.sent = True

    def _answered(self, settlement: Settlement, session: Session, error: MirrorlogError | None) -> None:
        if settlement.done:
            return
        if error is not None and session is not self._session:
            settlement.last_error = error  # it was told again since, or will be
            return
        verdict = judged(settlement, error, session=self._hand.session)
        if verdict in (Verdict.CONFIRMED, Verdict.VOID):
            self._backoff.reset()
            self._end(settlement, settlement.confirmed())
        elif verdict is Verdict.FAILED:
            assert error is not None
            if settlement.goes_on(error):
                self._send(settlement)
            else:
                self._end(settlement, settlement.failed(error))
        elif verdict in (Verdict.AGAIN, Verdict.LOGGED):
            settlement.logged = settlement.logged or verdict is Verdict.LOGGED
            self._try_again()
        else:
            assert error is not None
            session.end(error if error.retriable else ConnectionLost(str(error)))

    def _try_again(self) -> None:
        if self._again is None:
            self._again = self._loop.call_later(self._backoff.next_s(), self._send_unsent)

    def _end(self, settlement: Settlement, error: MirrorlogError | None) -> None:
        self._unanswered.pop(settlement, None)
        settlement.error = error
        if error is not None:
            if settlement.kind.how != How.EXTEND:
                for part in settlement.left():
                    self._hand.reopen(*part)
            self._failure = self._failure or settlement.unheard()
        known = settlement.not_settled
        if self._hand.release(settlement, settled=error is None or known is not None, but=known or ()):
            self._changed()
        settlement.end(error)
        if not self._unanswered and not self._gathering:
            for waiter in self._drained:
                _resolve(waiter, None)

    def _arm(self) -> None:
        oldest = next(iter(self._unanswered), None)
        if self._deadline is None and oldest is not None:
            self._deadline = self._loop.call_at(oldest.deadline, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        now = self._loop.time()
        for each in list(self._unanswered):
            if each.deadline > now:
                break
            self._end(each, each.given_up("its deadline came"))
        self._arm()


def _resolve(waiter: asyncio.Future[None], _: MirrorlogError | None) -> None:
    if not waiter.done():
        waiter.set_result(None)
