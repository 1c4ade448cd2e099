"""Sends what a subscription's user settles, and stays with it until it has ended. Thin; `settlements` decides.

One timer for all deadlines, since they come in the order in which settlements leave; one for what is tried again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from mirrorlog.client.arguments import refuse
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.options import check_delay
from mirrorlog.client.subscription.session import GrantSession
from mirrorlog.client.subscription.settlements import (
    FINAL,
    Judgement,
    SettlementBatch,
    SettlementKind,
    UnsentSettlements,
    judged,
    resumed,
)
from mirrorlog.client.subscription.unacked import Granted, Unacked
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NotGranted
from mirrorlog.wire.frames import How

_AUTO_ACK: Final = "what a subscription with auto_ack gives out is settled already"


class SettlementSender:
    """Sends the settlements of one subscription. `level`: the confirm level asked for; `timeout_s`: by then a
    settlement has ended."""

    def __init__(
        self, unacked: Unacked, *, level: int, timeout_s: float, auto_ack: bool, changed: Callable[[], None]
    ) -> None:
        """`auto_ack`: nothing is left to settle. `changed`: called when something may be given out that was kept
        back."""
        self._loop = asyncio.get_running_loop()
        self._unacked = unacked
        self._level = level
        self._auto_ack = auto_ack
        self._timeout_s = timeout_s
        self._changed = changed
        self._pending = UnsentSettlements()
        self._unanswered: dict[SettlementBatch, None] = {}
        self._session: GrantSession | None = None
        self._flush_due = False
        self._deadline: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        # Since the last confirm.
        self._backoff: Backoff | None = None
        self._drained: dict[asyncio.Future[None], None] = {}
        self._failure: MirrorlogError | None = None
        # Why nothing is settled, or not any more.
        self._over: MirrorlogError | None = BadRequest(_AUTO_ACK) if auto_ack else None

    # --- settling ---

    async def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int, multiple: bool
    ) -> None:
        """Settle these records, with all that was given out before them if `multiple`, and wait until that has ended,
        by its deadline. Raises the first error of them; NotGranted, BadRequest, or why nothing is settled any more."""
        settlements = self.add(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)
        of = None if multiple else (first, following)
        waiters: list[asyncio.Future[None]] = []
        for each in settlements:
            if each.done:
                each.hear(of)
            else:
                waiter: asyncio.Future[None] = self._loop.create_future()
                each.hear(of, waiter)
                waiters.append(waiter)
        for waiter in waiters:
            await waiter
        for each in settlements:
            if each.error is None:
                continue
            error = each.error if of is None else each.error_of(*of)
            if error is not None:
                raise type(error)(error.message, **error.details)

    def add(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int, multiple: bool
    ) -> list[SettlementBatch]:
        """Those that it leaves with; at once or when the loop turns. Raises as `settle`."""
        if self._over is not None:
            raise type(self._over)(self._over.message, **self._over.details)
        if delay_ms:
            check_delay(delay_ms)
        if multiple is not True and multiple is not False:
            raise refuse("multiple", multiple, "bool")
        kind = SettlementKind(granted.session, granted.epoch, how, delay_ms)
        deadline = self._loop.time() + self._timeout_s
        if multiple:
            parts = self._unacked.settle_up_to(granted, following)
            if not parts:
                raise NotGranted(f"what was given out up to queue offset {following - 1} was settled before")
            left = {self._pending.add(kind, each, *cut, deadline=deadline): None for each, cut in parts}
            settlements = list(left)
        else:
            if how != How.EXTEND:
                self._unacked.settle(granted, first, following)
            settlements = [self._pending.add(kind, granted, first, following, deadline=deadline)]
        if kind.session != self._unacked.session:
            self._flush()  # it may concern what is given out next
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return settlements

    def check_used(self) -> None:
        """Raises BadRequest where there is nothing to settle."""
        if self._auto_ack:
            raise BadRequest(_AUTO_ACK)

    async def drained(self) -> None:
        """Wait until everything settled so far has ended, well or not."""
        while self._pending or self._unanswered:
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

    def resumed(self, session: GrantSession) -> None:
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

    def _flush(self) -> None:
        self._flush_due = False
        for each in self._pending.take():
            self._unanswered[each] = None
            if each.kind.session != self._unacked.session:
                self._keep_back(each)
            self._send(each)
        if self._deadline is None:
            self._arm()

    def _keep_back(self, settlement: SettlementBatch) -> None:
        if settlement.kind.how in FINAL:
            settlement.kept_back = True
            self._unacked.withhold(settlement, settlement.ranges)

    def _send_unsent(self) -> None:
        self._again = None
        for each in list(self._unanswered):
            if not each.sent:
                self._send(each)

    def _send(self, settlement: SettlementBatch) -> None:
        session = self._session
        if session is None:
            return
        kind = settlement.kind
        again = kind.session != self._unacked.session
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

    def _answered(self, settlement: SettlementBatch, session: GrantSession, error: MirrorlogError | None) -> None:
        if settlement.done:
            return
        if error is not None and session is not self._session:
            settlement.last_error = error  # it was told again since, or will be
            return
        verdict = judged(settlement, error, session=self._unacked.session)
        if verdict in (Judgement.CONFIRMED, Judgement.VOID):
            self._backoff = None
            self._end(settlement, settlement.confirmed())
        elif verdict is Judgement.FAILED:
            assert error is not None
            if settlement.goes_on(error):
                self._send(settlement)
            else:
                self._end(settlement, settlement.failed(error))
        elif verdict in (Judgement.AGAIN, Judgement.LOGGED):
            settlement.logged = settlement.logged or verdict is Judgement.LOGGED
            self._try_again()
        else:
            assert error is not None
            session.end(error if error.retriable else ConnectionLost(str(error)))

    def _try_again(self) -> None:
        if self._again is None:
            self._backoff = self._backoff or Backoff(random.random)
            self._again = self._loop.call_later(self._backoff.next_s(), self._send_unsent)

    def _end(self, settlement: SettlementBatch, error: MirrorlogError | None) -> None:
        self._unanswered.pop(settlement, None)
        settlement.error = error
        if error is not None:
            if settlement.kind.how != How.EXTEND:
                for part in settlement.left():
                    self._unacked.reopen(*part)
            self._failure = self._failure or settlement.unheard()
        if settlement.kept_back:
            known = None if error is None else settlement.not_settled
            if self._unacked.release(settlement, settled=error is None or known is not None, but=known or ()):
                self._changed()
        settlement.end(error)
        if self._drained and not self._unanswered and not self._pending:
            for waiter in self._drained:
                if not waiter.done():
                    waiter.set_result(None)

    def _arm(self) -> None:
        oldest = next(iter(self._unanswered), None)
        if oldest is not None:
            self._deadline = self._loop.call_at(oldest.deadline, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        now = self._loop.time()
        for each in list(self._unanswered):
            if each.deadline > now:
                break
            self._end(each, each.given_up("its deadline came"))
        self._arm()
