"""Settlements: collected by kind, judged by their answers, told again where that may help."""

from __future__ import annotations

import pytest

from mirrorlog.client.subscription.settlements import (
    Judgement,
    SettlementBatch,
    SettlementKind,
    UnsentSettlements,
    judged,
    resumed,
)
from mirrorlog.client.subscription.unacked import RANGES_MAX, Granted
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    DiskFull,
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
    MasterChanged,
    MirrorlogError,
    NoSuchSubscription,
    NotGranted,
    NotMaster,
    OutcomeUnknown,
    Overloaded,
    Refused,
    SettledOtherwise,
)
from mirrorlog.wire.frames import How

GRANT = Granted(0, 100_000, session=1, epoch=3)


def settlement(how: How = How.ACK, *, session: int = 1, epoch: int = 3) -> SettlementBatch:
    made = SettlementBatch(SettlementKind(session, epoch, how), deadline=10.0)
    made.add(GRANT, 0, 1)
    return made


def test_what_is_settled_in_one_turn_leaves_as_joined_ranges() -> None:
    """Goal: few numbers on the wire. Method: acks in order, out of order, and of another kind."""
    pending = UnsentSettlements()
    for first in (0, 1, 2, 7, 5, 6):
        pending.add(SettlementKind(1, 3, How.ACK), GRANT, first, first + 1, deadline=1.0)
    pending.add(SettlementKind(1, 3, How.RETURN, 500), GRANT, 9, 10, deadline=1.0)
    acks, returns = pending.take()
    assert acks.flat_ranges == [0, 3, 5, 8]
    assert returns.flat_ranges == [9, 10]
    assert returns.kind.delay_ms == 500
    assert not pending
    assert pending.take() == []


def test_a_frame_has_a_limit() -> None:
    """Goal: a million scattered acks are several frames. Method: one record in two, one more than fits."""
    pending = UnsentSettlements()
    kind = SettlementKind(1, 3, How.ACK)
    for number in range(RANGES_MAX + 1):
        pending.add(kind, GRANT, 2 * number, 2 * number + 1, deadline=1.0)
    assert [len(each.ranges) for each in pending.take()] == [RANGES_MAX, 1]


@pytest.mark.parametrize(
    ("error", "verdict", "unknown"),
    [
        (None, Judgement.CONFIRMED, False),
        (ConnectionLost("gone"), Judgement.MOVED, True),
        (NotMaster("another"), Judgement.MOVED, False),
        (NoSuchSubscription("ended"), Judgement.MOVED, False),
        (MasterChanged("meanwhile"), Judgement.MOVED, True),
        (InSyncReplicasNotEnough("one is there"), Judgement.AGAIN, False),
        (Overloaded("full"), Judgement.AGAIN, False),
        (FlushSlaveTimeout("late"), Judgement.AGAIN, True),
        (NotGranted("not yours"), Judgement.FAILED, False),
        (BadRequest("no"), Judgement.FAILED, False),
    ],
)
def test_an_answer_says_what_is_to_be_done(error: MirrorlogError | None, verdict: Judgement, unknown: bool) -> None:
    """Goal: tried again where that may help, and it is known whether something may count. Method: one of each kind."""
    made = settlement()
    made.sent = True
    assert judged(made, error, session=1) is verdict
    assert made.unknown is unknown
    assert made.sent is False


def test_a_return_is_void_once_its_session_is_over() -> None:
    """Goal: what went back with a lost session needs no word. Method: NotGranted for an older session's return."""
    assert judged(settlement(How.RETURN), NotGranted("x"), session=2) is Judgement.VOID
    assert judged(settlement(How.RETURN), NotGranted("x"), session=1) is Judgement.FAILED
    assert judged(settlement(How.ACK), NotGranted("x"), session=2) is Judgement.FAILED


@pytest.mark.parametrize("how", [How.RETURN, How.RELEASE, How.EXTEND])
def test_a_return_that_is_logged_is_not_said_again(how: How) -> None:
    """Goal: a late confirm takes the record's next delivery from nobody. Method: a timeout of the copies; from then on
    no range is sent to that master. An answer that does not say how far it came ends it."""
    made = settlement(how)
    assert judged(made, FlushSlaveTimeout("late"), session=1) is Judgement.LOGGED
    assert made.flat_ranges == [0, 1]
    made.logged = True
    assert made.flat_ranges == []
    assert judged(made, OutcomeUnknown("the first part is logged"), session=1) is Judgement.FAILED
    assert judged(settlement(How.DEAD), FlushSlaveTimeout("late"), session=1) is Judgement.AGAIN


def test_a_return_is_told_to_one_later_master_at_most() -> None:
    """Goal: an attempt is not counted with each failover. Method: it was told again, without an answer; another epoch
    begins."""
    back, ack = settlement(How.RETURN), settlement(How.ACK)
    back.told_again = ack.told_again = True
    assert resumed([back, ack], epoch=5) == ([ack], [back])


def test_what_is_told_again_to_whom() -> None:
    """Goal: acks are always told again, returns to a new master only, extensions never. Method: all of them against the
    same epoch and a newer one."""
    ack, back, dead, more = (settlement(how) for how in (How.ACK, How.RETURN, How.DEAD, How.EXTEND))
    assert resumed([ack, back, dead, more], epoch=3) == ([ack, dead], [back, more])
    assert resumed([ack, back, dead, more], epoch=4) == ([ack, back, dead], [more])


def test_what_a_settlement_ends_with_at_its_deadline() -> None:
    """Goal: unknown only if it may count. Method: never sent, on its way, refused for certain, answered unclearly."""
    never = settlement()
    assert type(never.given_up("its deadline came")) is Refused
    under_way = settlement()
    under_way.sent = True
    assert type(under_way.given_up("its deadline came")) is OutcomeUnknown
    refused = settlement()
    judged(refused, InSyncReplicasNotEnough("one is there"), session=1)
    assert type(refused.given_up("its deadline came")) is InSyncReplicasNotEnough
    unclear = settlement()
    judged(unclear, FlushSlaveTimeout("late"), session=1)
    judged(unclear, InSyncReplicasNotEnough("one is there"), session=1)
    assert type(unclear.given_up("its deadline came")) is OutcomeUnknown


class Waiter:
    """A future that counts how often it is told."""

    def __init__(self) -> None:
        self.told = 0

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        self.told += 1


def test_whoever_waits_is_told_once() -> None:
    """Goal: each waiter hears of the end. Method: two waiters, one end told twice."""
    waiters = [Waiter(), Waiter()]
    made = settlement()
    for each in waiters:
        made.hear(waiter=each)
    made.end(None)
    made.end(None)
    assert [each.told for each in waiters] == [1, 1]
    assert made.done
    assert made.heard


def test_what_is_refused_behind_a_lost_attempt_may_count_all_the_same() -> None:
    """Goal: a refusal of the second attempt is not the settlement's. Method: each kind, lost once, then refused; only
    of what settles for good it is told by somebody else's having the records that it does not count."""
    for how, expected in ((How.ACK, NotGranted), (How.RETURN, OutcomeUnknown)):
        made = settlement(how)
        judged(made, ConnectionLost("gone"), session=1)
        for error in (DiskFull("full"), BadRequest("no")):
            assert judged(made, error, session=1) is Judgement.FAILED
            assert type(made.failed(error)) is OutcomeUnknown
        assert type(made.failed(NotGranted("not yours"))) is expected
    fresh, full = settlement(), DiskFull("full")
    judged(fresh, full, session=1)
    assert fresh.failed(full) is full


def test_what_an_answer_has_no_place_for_is_told_once_more() -> None:
    """Goal: of each record it is known what stands, however many are settled otherwise. Method: ten records, whose
    answers name one run each and say of what is behind that it is unknown; somebody else has two; then the rest counts,
    is refused, or has no answer, and a node says the same again and again."""
    first = SettledOtherwise.of([(1, 2, "dead"), (3, 10, "unknown")], passed_over=2, elsewhere=[(2, 3), (5, 6)])
    second = SettledOtherwise.of([(4, 5, "dead"), (6, 10, "unknown")], passed_over=1, elsewhere=[(5, 6)])

    def told() -> SettlementBatch:
        made = settlement()
        made.add(GRANT, 2, 10)
        assert made.flat_ranges == [0, 1, 2, 10]
        assert made.goes_on(first)
        assert made.flat_ranges == [3, 10]
        assert made.goes_on(second)
        assert made.flat_ranges == [6, 10]
        return made

    made = told()
    made.error = made.confirmed()
    assert isinstance(made.error, SettledOtherwise)
    assert (made.error.runs, made.error.elsewhere, made.error.passed_over) == ([(1, 2), (4, 5)], [(2, 3), (5, 6)], 2)
    ends = [type(made.error_of(each, each + 1)) for each in (2, 3, 4, 5, 6, 9)]
    assert ends == [NotGranted, type(None), SettledOtherwise, NotGranted, type(None), type(None)]
    third = SettledOtherwise.of([(9, 10, "acked")])
    assert not told().goes_on(third)
    for end in (told().failed(third), told().failed(BadRequest("no")), told().given_up("late")):
        assert isinstance(end, SettledOtherwise)
        assert end.runs[:2] == [(1, 2), (4, 5)]
        assert end.runs[2] == ((9, 10) if end.untold is None else (6, 10))
    assert not told().goes_on(second)
    unnamed = told().failed(NotGranted.elsewhere_of(3, []))
    assert isinstance(unnamed, SettledOtherwise)
    assert type(unnamed.within(8, 9)) is OutcomeUnknown


def test_each_record_that_somebody_else_has_fails_alone() -> None:
    """Goal: nobody hears that nothing was settled of a record that was, and nobody the opposite. Method: a frame of
    three records, of which one is passed over; a node that says which, and one that does not; and all three."""
    made = settlement()
    made.add(GRANT, 1, 3)
    told = NotGranted.elsewhere_of(1, [(1, 2)])
    made.end(made.failed(told))
    assert [type(made.error_of(each, each + 1)) for each in range(3)] == [type(None), NotGranted, type(None)]
    assert type(made.error_of(0, 3)) is NotGranted
    assert [(first, following) for _, first, following in made.left()] == [(1, 2)]
    made.error = made.failed(NotGranted.elsewhere_of(1, []))
    assert {type(made.error_of(each, each + 1)) for each in range(3)} == {OutcomeUnknown}
    assert [(first, following) for _, first, following in made.left()] == [(0, 3)]
    every = NotGranted.elsewhere_of(3, [(0, 3)])
    assert made.failed(every) is every
    for error in (every, NotGranted.elsewhere_of(3, [])):  # nobody has to say which: all
        made.error = made.failed(error)
        assert {type(made.error_of(each, each + 1)) for each in range(3)} == {NotGranted}
