"""A group that is ordered by key: of each key one record at a time, the lowest that is not settled, whoever has it:
rules one by one, and all of them together against a plain model, with another master at any step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mirrorlog.errors import ExclusiveTaken
from mirrorlog.queues.delivery.group import LeaseClaim, Rules
from mirrorlog.queues.delivery.keys import BYTES_MAX, KEYS_MAX
from mirrorlog.queues.groups.ledger import State
from mirrorlog.wire.frames import How
from tests.queues.delivered import Stage, records

FEW = 40


def stage(*keys: int | None, **rules: object) -> Stage:
    """A record of each of these keys, and a confirmed watermark."""
    made = Stage(Rules(**rules))  # type: ignore[arg-type]
    made.keys += keys
    made.publish(len(keys))
    made.delivery.front.appended(1000)
    made.delivery.front.confirmed(1000)
    return made


def consumed(*keys: int | None, consumers: int = 2, **rules: object) -> Stage:
    """With consumers 1, 2, …"""
    made = stage(*keys, **rules)
    for number in range(1, consumers + 1):
        made.subscribe(number, ordered=True)
    return made


def test_of_each_key_the_first_record_alone_goes_out() -> None:
    it = consumed(5, 6, 5, 5, 6, 7)
    assert sorted(records(it.pump())) == [0, 1, 5]
    assert {records(it.given, 1) != [], records(it.given, 2) != []} == {True}, "the keys are shared"


def test_the_next_of_a_key_goes_out_when_the_one_before_is_settled_to_whoever_has_his_turn() -> None:
    it = consumed(5, 5, 5, consumers=1)
    for offset in range(3):
        assert records(it.pump()) == [offset]
        it.settle(1, offset, offset + 1)
    assert it.pump() == []


@pytest.mark.parametrize("how", [How.RETURN, How.RELEASE])
@pytest.mark.parametrize("delay_ms", [0, 500])
def test_what_is_returned_comes_again_before_what_stands_behind_it(how: How, delay_ms: int) -> None:
    """While it waits for its delay its key waits with it, and no other key does."""
    it = consumed(5, 5, 6, consumers=1)
    it.pump()
    it.settle(1, 0, 1, how=how, delay_ms=delay_ms)
    it.settle(1, 2, 3)
    if delay_ms:
        assert it.pump() == []
        it.tick(1)
    assert records(it.pump()) == [0]
    it.settle(1, 0, 1)
    assert records(it.pump()) == [1]


def test_what_a_consumer_had_that_is_gone_comes_first_again() -> None:
    it = consumed(5, 5, 6, 6, consumers=1)
    it.pump()
    it.settle(1, 0, 1)
    it.pump()
    it.gone(1)
    it.subscribe(2, ordered=True)
    assert records(it.pump()) == [1, 2]


def test_a_rejected_record_frees_its_key() -> None:
    it = consumed(5, 5, consumers=1)
    it.pump()
    it.settle(1, 0, 1, how=How.DEAD)
    assert records(it.pump()) == [1]


def test_records_without_a_key_have_no_order() -> None:
    it = consumed(None, 5, None, 5, None, consumers=1)
    assert records(it.pump()) == [0, 1, 2, 4]


def test_a_lease_has_one_record_of_a_key_and_its_end_brings_that_one_back() -> None:
    it = stage(5, 5, 6)
    it.lease(10, 10, 1000, ordered=True)
    assert records(it.pump()) == [0, 2]
    it.lease(11, 10, 1000, ordered=True)
    assert it.pump() == []
    it.tick(2)
    assert records(it.pump()) == [0, 2]


def test_a_lease_that_another_master_finds_keeps_its_key() -> None:
    it = stage(5, 5, 6)
    it.lease(10, 1, 10_000, ordered=True)
    it.pump()
    it.fail_over(it.log.end)
    it.subscribe(1, ordered=True)
    it.pump()
    it.confirm()
    assert records(it.pump()) == [2]
    ((lease, _),) = it.ledger.leases.items()
    done = it.delivery.leases.settle([LeaseClaim(0, 1, lease)], How.ACK, end=it.end)
    it.append(done.changes)
    it.delivery.settling.settled(done, it.now)
    assert records(it.pump()) == [1]


def test_consumers_that_want_no_order_and_those_that_want_it_do_not_mix() -> None:
    it = consumed(5, 5, consumers=1)
    with pytest.raises(ExclusiveTaken, match="in order by key"):
        it.subscribe(2)
    with pytest.raises(ExclusiveTaken, match="in order by key"):
        it.lease(3, 1, 1000)
    it.pump()
    it.gone(1)
    it.subscribe(2)
    assert records(it.pump()) == [0, 1], "whoever comes when nobody is there says how it is"
    with pytest.raises(ExclusiveTaken, match="queue alone"):
        it.subscribe(1, ordered=True)


def test_leases_that_run_say_how_a_group_is_consumed() -> None:
    it = stage(5, 5)
    it.lease(10, 1, 1000, ordered=True)
    it.pump()
    with pytest.raises(ExclusiveTaken, match="leases that run"):
        it.subscribe(1)
    it.tick(2)
    it.subscribe(1)
    assert records(it.pump()) == [0, 1]


def test_what_waits_for_its_key_expires_when_its_turn_comes_and_a_purge_takes_it() -> None:
    it = stage()
    it.subscribe(1, ordered=True)
    it.keys += [5, 5, 5, 6]
    it.publish(4, ttl_ms=100)
    assert records(it.pump()) == [0, 3]
    it.tick(1)
    it.settle(1, 0, 1)
    it.tick(1)
    assert it.pump() == []
    assert [(first, until) for first, until, _ in it.expired] == [(1, 2), (2, 3)]
    it.keys += [7, 7, 7]
    it.publish(3)
    assert records(it.pump()) == [4]
    purged = it.delivery.purge(it.end)
    assert purged is not None
    assert purged.ranges == [5, 7]
    it.append([purged])
    it.delivery.purge_done(purged)
    it.keys += [7]
    it.publish(1)
    it.settle(1, 4, 5)
    assert records(it.pump()) == [7]


def test_a_delayed_record_has_its_key_wait_and_priorities_are_those_of_the_first_ones() -> None:
    it = stage(priority_max=5)
    it.subscribe(1, ordered=True)
    it.keys += [5, 5, 6, 7, 7]
    it.publish(1, delay_ms=1000)
    it.publish(2)
    it.publish(1)
    it.publish(1, priority=3)
    assert records(it.pump()) == [2, 3]
    it.settle(1, 3, 4)
    assert records(it.pump()) == [4]
    it.tick(2)
    assert records(it.pump()) == [0]


def test_so_many_records_are_met_ahead_and_no_more() -> None:
    """A key with very many records holds up what stands behind these, and memory is bounded."""
    it = consumed(*[5] * (KEYS_MAX + 2), 6, consumers=1)
    it.delivery.front.appended(2 * KEYS_MAX)
    it.delivery.front.confirmed(2 * KEYS_MAX)
    it.pump()
    while it.delivery.behind:
        it.pump()
    assert records(it.given) == [0]
    assert it.delivery.keys.waiting == KEYS_MAX - 1
    for offset in range(4):
        it.settle(1, offset, offset + 1)
        it.pump()
    assert KEYS_MAX + 2 in records(it.given)


def test_so_many_bytes_are_met_ahead_and_no_more() -> None:
    """Goal: grants stay among batches that a consumer has. Records of a sixteenth of the bound: some are met, all
    keys of them go out, and what follows is met as these are settled."""
    made = stage(*range(1, 101))
    made.keyed_bytes = BYTES_MAX / 16
    made.subscribe(1, ordered=True)
    made.pump()
    met = made.delivery.keys.met
    assert 16 <= met < 100
    assert records(made.given) == list(range(met))
    made.settle(1, 0, met)
    made.pump()
    assert met < made.delivery.keys.met <= 100


def test_nothing_goes_out_while_keys_are_read() -> None:
    it = stage(5, 5, 6)
    it.unread = True
    it.subscribe(1, ordered=True)
    assert it.pump() == []
    it.unread = False
    assert records(it.pump()) == [0, 2]


def test_what_was_to_leave_and_stays_is_the_first_of_its_key_again() -> None:
    it = consumed(5, 5, 5, consumers=1)
    it.pump()
    it.settle(1, 0, 1)
    it.pump()
    it.delivery.keys.meet_again([(2, 3)])
    it.settle(1, 1, 2)
    assert records(it.pump()) == [2]


class OrderMachine(RuleBasedStateMachine):
    """Everything that consumers and leases can do, the log and the clock; another master at any step."""

    @initialize(priorities=st.booleans())
    def begin(self, priorities: bool) -> None:
        self.stage = stage(priority_max=2 if priorities else 0)
        self.hands: dict[int, set[int]] = {}
        self.last = 0

    def unsettled(self, key: int | None) -> list[int]:
        return [
            at
            for at, each in enumerate(self.stage.keys)
            if each == key and next(self.stage.ledger.runs(at, at + 1))[2] != State.SETTLED
        ]

    def leased(self) -> set[int]:
        return {
            each
            for lease in self.stage.ledger.leases
            for run in self.stage.ledger.lease_ranges(lease)
            for each in range(*run)
        }

    @rule(
        keys=st.lists(st.sampled_from([1, 1, 2, 3, None]), max_size=8), priority=st.integers(0, 2), delay=st.booleans()
    )
    def publish(self, keys: list[int | None], priority: int, delay: bool) -> None:
        if keys and self.stage.end < FEW:
            self.stage.keys += keys
            self.stage.publish(len(keys), priority=priority, delay_ms=300 if delay else 0, ttl_ms=5000)

    @rule(records_max=st.integers(1, 5))
    def subscribe(self, records_max: int) -> None:
        self.last += 1
        self.stage.subscribe(self.last, records_max, ordered=True)
        self.hands[self.last] = set()

    @rule(records_max=st.integers(1, 3))
    def lease(self, records_max: int) -> None:
        self.last += 1
        self.stage.lease(self.last, records_max, 400, ordered=True)

    @rule(confirms=st.booleans())
    def pump(self, confirms: bool) -> None:
        self.stage.clock()
        self.stage.move_watermark()
        if confirms:
            self.stage.confirm()
        while True:
            held, free = self.leased().union(*self.hands.values()), set(range(self.stage.end))
            given = self.stage.turn()
            if given is None:
                return
            for grant in given.grants:
                for at in range(grant.first, grant.next):
                    key = self.stage.keys[at]
                    assert at in free - held
                    assert key is None or self.unsettled(key)[0] == at, "not the first of its key"
                    assert key is None or not held & set(self.unsettled(key)), "somebody else has one of its key"
                    held.add(at)
                    if given.number in self.hands:
                        self.hands[given.number].add(at)

    @precondition(lambda self: any(self.hands.values()))
    @rule(
        data=st.data(), how=st.sampled_from([How.ACK, How.ACK, How.RETURN, How.RELEASE, How.DEAD]), delay=st.booleans()
    )
    def settle(self, data: st.DataObject, how: How, delay: bool) -> None:
        number = data.draw(st.sampled_from(sorted(each for each in self.hands if self.hands[each])))
        at = data.draw(st.sampled_from(sorted(self.hands[number])))
        waits = 200 if delay and how in (How.RETURN, How.RELEASE) else 0
        self.stage.settle(number, at, at + 1, how=how, delay_ms=waits)
        self.hands[number].discard(at)

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.hands)))
        self.stage.gone(number)
        del self.hands[number]

    @precondition(lambda self: self.stage.ledger.leases)
    @rule(data=st.data(), how=st.sampled_from([How.ACK, How.RETURN]))
    def settle_lease(self, data: st.DataObject, how: How) -> None:
        lease = data.draw(st.sampled_from(sorted(self.stage.ledger.leases)))
        first = min(self.stage.ledger.lease_ranges(lease))[0]
        done = self.stage.delivery.leases.settle([LeaseClaim(first, first + 1, lease)], how, end=self.stage.end)
        self.stage.append(done.changes)
        self.stage.delivery.settling.settled(done, self.stage.now)

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 6.0]))
    def tick(self, seconds: float) -> None:
        for number in self.stage.tick(seconds):
            del self.hands[number]

    @rule(confirmed=st.booleans())
    def fail_over(self, confirmed: bool) -> None:
        if confirmed:
            self.stage.confirm()
        self.stage.fail_over()
        self.hands = {}

    @rule()
    def all_is_consumed(self) -> None:
        """Whoever settles all that he gets gets all there is, each key's in order."""
        self.subscribe(100)
        for _ in range(4 * FEW):
            self.tick(1.0)
            self.stage.move_watermark()
            self.stage.confirm()
            self.pump(True)
            for number in self.hands:
                for at in sorted(self.hands[number]):
                    self.stage.settle(number, at, at + 1)
                self.hands[number].clear()
            if self.stage.ledger.floor >= self.stage.end:
                break
        assert self.stage.ledger.floor >= self.stage.end, "something is never given out"
        assert self.stage.delivery.keys.waiting == 0


OrderMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_story_keeps_each_key_in_order = OrderMachine.TestCase
