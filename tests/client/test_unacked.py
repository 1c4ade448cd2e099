"""Unacknowledged records: each is given out once, settled once, and kept back while an older ack is on its way."""

from __future__ import annotations

import gc
import random

import pytest

from mirrorlog.client.subscription.unacked import Granted, Range, Unacked
from mirrorlog.errors import NotGranted


def granted(unacked: Unacked, first: int, following: int, *, epoch: int = 1) -> Granted:
    grant = Granted(first, following, session=unacked.session, epoch=epoch)
    unacked.grant(grant)
    return grant


def give(unacked: Unacked, count: int) -> list[tuple[Granted, int]]:
    """Give out so many records, one by one, as far as there are any."""
    found = []
    while len(found) < count and (head := unacked.head()) is not None:
        unacked.giving(head)
        found.append((head, head.given))
        head.given += 1
    return found


def waiting(unacked: Unacked) -> list[int]:
    return [offset for grant in unacked.waiting for offset in range(grant.given, grant.next)]


def test_records_are_given_out_in_the_order_of_the_grants() -> None:
    """Goal: a requeued record comes when it is granted, not by its number. Method: two grants, the lower one later."""
    unacked = Unacked()
    granted(unacked, 5, 7)
    granted(unacked, 1, 2)
    assert [offset for _, offset in give(unacked, 9)] == [5, 6, 1]
    assert unacked.head() is None


def test_a_record_is_settled_once() -> None:
    """Goal: a second settlement is refused, in order and out of order. Method: three records, each way."""
    unacked = Unacked()
    grant = granted(unacked, 0, 3)
    give(unacked, 3)
    unacked.settle(grant, 0, 1)
    unacked.settle(grant, 2, 3)
    for first in (0, 2):
        with pytest.raises(NotGranted, match=f"queue offset {first} was settled before"):
            unacked.settle(grant, first, first + 1)
    with pytest.raises(NotGranted, match="queue offset 2"):
        unacked.settle(grant, 1, 3)
    assert unacked.unsettled() == [(grant, (1, 2))]


def test_what_could_not_be_settled_may_be_tried_again() -> None:
    """Goal: after a failed ack the record is the user's still. Method: settle all, reopen one, settle it."""
    unacked = Unacked()
    grant = granted(unacked, 0, 2)
    give(unacked, 2)
    unacked.settle(grant, 0, 2)
    assert unacked.unsettled() == []
    unacked.reopen(grant, 1, 2)
    assert unacked.unsettled() == [(grant, (1, 2))]
    unacked.settle(grant, 1, 2)
    assert unacked.unsettled() == []


def test_multiple_settles_all_that_was_given_out_before_it() -> None:
    """Goal: `multiple` follows the order of giving out, and passes over what is settled or was not given out. Method:
    grants in an order that is not that of the offsets."""
    unacked = Unacked()
    later = granted(unacked, 10, 13)
    earlier = granted(unacked, 0, 3)
    give(unacked, 5)
    unacked.settle(later, 11, 12)
    assert unacked.settle_up_to(earlier, 1) == [(later, (10, 11)), (later, (12, 13)), (earlier, (0, 1))]
    assert unacked.unsettled() == [(earlier, (1, 2))]
    assert unacked.settle_up_to(later, 13) == []
    assert waiting(unacked) == [2]


def test_multiple_on_a_record_of_a_lost_session_settles_those_of_that_session() -> None:
    """Goal: the user may still settle what he holds from before. Method: one record each before and after a loss."""
    unacked = Unacked()
    before = granted(unacked, 0, 2)
    give(unacked, 2)
    unacked.lose()
    after = granted(unacked, 0, 2, epoch=2)
    give(unacked, 1)
    assert unacked.settle_up_to(before, 2) == [(before, (0, 2))]
    assert unacked.unsettled() == [(after, (0, 1))]


def test_multiple_on_a_record_of_two_sessions_ago_settles_those_of_that_session() -> None:
    """Goal: two losses in a row, as in a failover with a reconnect, lose no ack. Method: something is given out in
    each of three sessions; settle the first one's, one of them again after it failed."""
    unacked = Unacked()
    first = granted(unacked, 0, 3)
    give(unacked, 3)
    unacked.lose()
    second = granted(unacked, 0, 2, epoch=2)
    give(unacked, 1)
    unacked.lose()
    third = granted(unacked, 0, 1, epoch=3)
    give(unacked, 1)
    assert unacked.settle_up_to(first, 2) == [(first, (0, 2))]
    unacked.reopen(first, 1, 2)
    assert unacked.settle_up_to(first, 3) == [(first, (1, 3))]
    assert unacked.settle_up_to(second, 1) == [(second, (0, 1))]
    assert unacked.unsettled() == [(third, (0, 1))]


def test_what_nobody_holds_of_a_lost_session_is_forgotten() -> None:
    """Goal: a user who waits for records to come again costs no memory. Method: a session is lost whose records its
    user lets go; another one of which he keeps the last."""
    unacked = Unacked()
    gone, kept = 0, 0
    for epoch in range(101, 104):
        for first in range(3):
            granted(unacked, first, first + 1, epoch=epoch)
        held = give(unacked, 3)
        unacked.lose()
        if epoch == 102:
            last = held[-1][0]
    del held
    gc.collect()
    alive = [each for each in gc.get_objects() if type(each) is Granted and each.peers is not None]
    gone, kept = (sum(each.epoch == epoch for each in alive) for epoch in (101, 102))
    assert (gone, kept) == (0, 3)
    assert len(unacked.settle_up_to(last, 3)) == 3


def test_what_was_not_given_out_cannot_be_settled() -> None:
    """Goal: a grant that waits is nobody's to settle. Method: settle up to it."""
    unacked = Unacked()
    grant = granted(unacked, 0, 1)
    with pytest.raises(NotGranted, match="not given out"):
        unacked.settle_up_to(grant, 1)


def test_a_lost_session_forgets_what_was_not_given_out() -> None:
    """Goal: what comes again comes under its new grant alone. Method: lose a session with records waiting."""
    unacked = Unacked()
    granted(unacked, 0, 4)
    give(unacked, 1)
    unacked.lose()
    assert unacked.head() is None
    assert unacked.unseen() == []
    assert unacked.unsettled() == []


def test_what_an_older_ack_concerns_is_kept_back_until_that_has_ended() -> None:
    """Goal: what is acknowledged is not given out again; what could not be is. Method: an ack kept from before a loss
    meets grants that wait and grants that come."""
    unacked = Unacked()
    unacked.withhold("settled", [(1, 3)])
    unacked.withhold("failed", [(5, 6)])
    granted(unacked, 0, 4)
    granted(unacked, 4, 7)
    assert waiting(unacked) == [0, 3, 4, 6]
    assert not unacked.release("settled", settled=True)
    assert waiting(unacked) == [0, 3, 4, 6]
    unacked.release("failed", settled=False)
    assert waiting(unacked) == [0, 3, 4, 5, 6]
    granted(unacked, 1, 2)
    assert waiting(unacked)[-1] == 1


def test_keeping_back_cuts_a_grant_that_is_being_given_out() -> None:
    """Goal: what was given out of it can be settled, what is behind is kept back. Method: cut it in the middle."""
    unacked = Unacked()
    grant = granted(unacked, 0, 5)
    give(unacked, 2)
    unacked.withhold("by", [(3, 4)])
    assert (grant.given, grant.next) == (2, 2)
    assert waiting(unacked) == [2, 4]
    unacked.settle(grant, 0, 2)
    assert [offset for _, offset in give(unacked, 5)] == [2, 4]
    assert unacked.unseen() == [(3, 4)]


def test_what_is_not_there_any_more_is_passed_over() -> None:
    """Goal: records that were freed block nothing. Method: skip within, at the end of, and beyond a grant."""
    unacked = Unacked()
    grant = granted(unacked, 0, 4)
    unacked.skip(grant, 2)
    assert waiting(unacked) == [2, 3]
    assert [offset for _, offset in give(unacked, 1)] == [2]
    unacked.skip(grant, 9)
    assert unacked.head() is None
    assert unacked.unsettled() == [(grant, (2, 3))]


@pytest.mark.parametrize("seed", range(100))
def test_any_order_of_events_keeps_the_books(seed: int) -> None:
    """Goal: what waits, what is out and what is settled are a partition of what was granted. Method: random grants,
    gifts, settlements, failures and losses against plain sets."""
    print(f"seed={seed}")
    chance = random.Random(seed)
    unacked = Unacked()
    free = list(range(200))
    queue: list[int] = []
    out: list[tuple[Granted, int]] = []
    settled: list[tuple[Granted, int]] = []
    for _ in range(300):
        event = chance.randrange(10)
        if event < 3 and free:
            first = free.pop(chance.randrange(len(free)))
            granted(unacked, first, first + 1)
            queue.append(first)
        elif event < 6:
            given = give(unacked, chance.randint(1, 5))
            assert [offset for _, offset in given] == queue[: len(given)]
            del queue[: len(given)]
            out += given
        elif event < 8 and out:
            which, offset = out.pop(chance.randrange(len(out)))
            unacked.settle(which, offset, offset + 1)
            settled.append((which, offset))
        elif event == 8 and settled:
            which, offset = settled.pop(chance.randrange(len(settled)))
            unacked.reopen(which, offset, offset + 1)
            out.append((which, offset))
        elif event == 9 and chance.random() < 0.1:
            unacked.lose()
            free += queue + [offset for _, offset in out]
            queue, out, settled = [], [], []
        assert waiting(unacked) == queue
        held = sorted(offset for _, cut in unacked.unsettled() for offset in range(*cut))
        assert held == sorted(offset for _, offset in out)


def test_marks_tell_every_gap() -> None:
    """Goal: what is left is found whatever the order of the acks. Method: all subsets of six records."""
    for mask in range(64):
        grant = Granted(10, 16, session=0, epoch=1)
        grant.given = 16
        for at in reversed(range(6)):
            if mask >> at & 1:
                grant.settle(10 + at, 11 + at)
        left: list[Range] = grant.open_below(16)
        assert {offset for cut in left for offset in range(*cut)} == {10 + at for at in range(6) if not mask >> at & 1}
        assert sum(following - first for first, following in grant.open_below(grant.given)) == 6 - mask.bit_count()


def test_what_is_let_go_comes_in_the_order_in_which_it_was_granted() -> None:
    """Goal: urgent records stay in front. Method: one of a high number is granted first, then lower ones, some of which
    an ack that fails has kept back."""
    unacked = Unacked()
    unacked.withhold("ack", [(12, 14), (500, 501)])
    for first, following in ((900, 902), (10, 15), (500, 501), (3, 4)):
        granted(unacked, first, following)
    assert waiting(unacked) == [900, 901, 10, 11, 14, 3]
    unacked.release("ack", settled=False)
    assert waiting(unacked) == [900, 901, 10, 11, 12, 13, 14, 500, 3]
