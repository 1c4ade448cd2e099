"""What a producer may have unconfirmed in a queue, as the master counts it and as the producer does."""

from __future__ import annotations

import random

import pytest

from mirrorlog.client.producer.pipeline import Allowance
from mirrorlog.errors import Overloaded
from mirrorlog.queues.limits.credit import BATCHES, BYTES, LINE, LOG_BYTES, Credits, Key
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, CREDIT_ENDED, Confirm, Credit

ONE = Key("connection 1", 7, 100)
OTHER_QUEUE = Key("connection 1", 7, 101)
OTHER = Key("connection 2", 8, 100)


class Log:
    """A log that appends, and whose copies follow when told."""

    def __init__(
        self, *, bytes_max: int = 100, batches_max: int = 10, log_bytes_max: int = 1000, line_max: int = 10**6
    ) -> None:
        self.credits = Credits(
            bytes_max=bytes_max, batches_max=batches_max, log_bytes_max=log_bytes_max, line_max=line_max
        )
        self.end = self.confirmed = 0
        self.now = 0.0

    @property
    def distance(self) -> int:
        return self.end - self.confirmed

    def publish(self, key: Key, size: int, *, quiet: bool = False) -> int:
        """Where it ends."""
        self.credits.check(key, distance=self.distance, now=self.now)
        self.end += size
        self.credits.appended(key, end=self.end, size=size, quiet=quiet, distance=self.distance, now=self.now)
        return self.end

    def confirm(self, offset: int) -> dict[Key, int]:
        """Who is told, and what each is granted."""
        self.confirmed = offset
        told = self.credits.confirmed(offset, distance=self.distance, now=self.now)
        assert len({each.key for each in told}) == len(told)
        assert all(each.confirmed == offset for each in told)
        return {each.key: each.granted for each in told}

    def limit(self, key: Key, size: int = 1) -> str:
        """Which limit refuses it."""
        with pytest.raises(Overloaded) as refused:
            self.publish(key, size)
        return str(refused.value.details["limit"])


def test_a_producer_has_credit_per_queue() -> None:
    """Use up one producer's credit in one queue: refused by name; its other queue and the other producer go on."""
    log = Log()
    log.publish(ONE, 60)
    log.publish(ONE, 60)
    assert log.limit(ONE) == BYTES
    log.publish(OTHER_QUEUE, 60)
    log.publish(OTHER, 60)


def test_what_is_confirmed_counts_no_more() -> None:
    """A refused producer is told as soon as it has room, and may publish."""
    log = Log()
    first = log.publish(ONE, 100)
    assert log.limit(ONE) == BYTES
    assert log.credits.blocked == 1
    assert log.confirm(first) == {ONE: 100}
    assert not log.credits.blocked
    log.publish(ONE, 100)


def test_batches_are_limited_as_bytes_are() -> None:
    log = Log(batches_max=3)
    for _ in range(3):
        log.publish(ONE, 1)
    assert log.limit(ONE) == BATCHES


def test_who_has_nothing_open_may_send_a_batch_above_its_credit() -> None:
    """A batch larger than the credit goes alone, or it never would."""
    log = Log(bytes_max=10, log_bytes_max=1000)
    end = log.publish(ONE, 90)
    assert log.limit(ONE) == BYTES
    log.confirm(end)
    log.publish(ONE, 90)


def test_a_log_far_ahead_of_its_copies_grants_less_and_at_its_limit_nothing() -> None:
    """The grant by the distance of end and confirmed offset: all of it, half, a tenth, nothing; nobody is let past."""
    grants = Log().credits
    assert [grants.granted(each) for each in (0, 500, 750, 950, 1000, 5000)] == [100, 100, 50, 10, 0, 0]
    log = Log()
    for number in range(10):
        log.publish(Key("connection", number, 100), 100)
    assert log.limit(Key("new", 99, 100)) == LOG_BYTES
    assert Key("new", 99, 100) in log.confirm(600)
    assert {each.blocked_by for each in log.credits.told()} == {BYTES}  # each of the others at its own credit
    log.publish(Key("new", 99, 100), 100)


def test_a_producer_whose_confirms_tell_is_sent_nothing_besides() -> None:
    """At level `all` the confirm says it; one below is told when what it has is confirmed, and not at each step."""
    log = Log(bytes_max=1000, log_bytes_max=100_000)
    assert log.confirm(log.publish(ONE, 10, quiet=True)) == {}
    first, second = log.publish(OTHER, 10), log.publish(OTHER, 10)
    assert log.confirm(first) == {}
    assert log.confirm(second) == {OTHER: 1000}


def test_an_account_that_never_empties_is_told_at_a_quarter_of_bytes_or_batches() -> None:
    """Two producers without an id share an account: one whose confirms tell always has something open."""
    log = Log(bytes_max=1000, batches_max=8, log_bytes_max=100_000)
    log.publish(ONE, 1, quiet=True)
    told = []
    for _ in range(4):
        end = log.publish(ONE, 1)
        log.publish(ONE, 1, quiet=True)
        told.append(ONE in log.confirm(end))
    assert told == [False, True, False, True]


def test_what_was_not_told_is_told_though_the_last_confirm_tells_itself() -> None:
    """The account empties by a batch of the one whose confirms tell: the other one is told all the same."""
    log = Log(bytes_max=1000, batches_max=100, log_bytes_max=100_000)
    first = log.publish(ONE, 1)
    second = log.publish(ONE, 1, quiet=True)
    assert log.confirm(first) == {}
    assert log.confirm(second) == {ONE: 1000}


def test_a_connection_that_goes_takes_its_accounts_along() -> None:
    """What it has in the log is confirmed later, and nobody is told."""
    log = Log()
    end = log.publish(ONE, 100)
    log.publish(OTHER, 1)
    assert log.limit(ONE) == BYTES
    log.credits.forget("connection 1")
    log.credits.forget("connection 1")
    assert (len(log.credits), log.credits.blocked) == (1, 0)
    assert log.confirm(end + 1) == {OTHER: 100}


def test_accounts_of_a_connection_do_not_pile_up() -> None:
    """A new producer id for each of 10,000 publishes: no more than some of them are remembered."""
    log = Log(log_bytes_max=10**9)
    for number in range(10_000):
        log.confirm(log.publish(Key("connection", number, 1), 1))
    assert len(log.credits) <= 64


def test_a_producer_that_is_held_for_a_second_is_told_of_once() -> None:
    log = Log()
    end = log.publish(ONE, 100)
    log.now = 0.9
    assert log.credits.blocked_long(log.now) == []
    log.now = 1.0
    (held,) = log.credits.blocked_long(log.now)
    assert (held.key, held.blocked_by, held.size, held.batches, held.refused) == (ONE, BYTES, 100, 1, False)
    assert log.credits.blocked_long(2.0) == []
    log.confirm(end)
    log.publish(ONE, 100)
    log.now = 3.0
    assert len(log.credits.blocked_long(log.now)) == 1


@pytest.mark.parametrize("quiet", [False, True])
def test_who_was_granted_nothing_is_told_when_there_is_something_again(quiet: bool) -> None:
    """Goal: nobody waits for a word that never comes. Method: one batch of a producer, others and the node itself fill
    the log; the copies come past that one batch, and then to the end."""
    log, idle = Log(), Key("idle", 1, 1)
    first = log.publish(idle, 10, quiet=quiet)
    for number in range(16):
        log.publish(Key("others", number, 2), 60)
    log.end += 120
    assert log.confirm(first).get(idle, 0) == 0
    assert log.confirm(log.end)[idle] == 100
    assert not log.credits.blocked


@pytest.mark.parametrize("granted", [0, 1])
def test_a_producer_with_nothing_open_may_send_whatever_it_was_told(granted: int) -> None:
    """Goal: it is the node's to refuse, as it says. Tell a producer with nothing open that it has no credit."""
    allowance = Allowance(10, 10, confirms_tell=True)
    allowance.told(Credit(1, 0, granted, 1, 10))
    assert allowance.open
    allowance.sent(10)
    assert not allowance.open


def test_refused_producers_of_one_connection_are_remembered_up_to_a_number() -> None:
    """Goal: a new producer id for each refused publish uses up nothing. Send 5,000 at a full log: each is refused, so
    many are remembered and told when there is room, and another connection is held and told as ever."""
    log = Log()
    for number in range(10):
        log.publish(Key("full", number, 1), 100)
    for number in range(5_000):
        assert log.limit(Key("asks", number, 1)) == LOG_BYTES
    assert len(log.credits) <= 10 + 1_024
    assert log.limit(Key("other", 1, 1)) == LOG_BYTES
    told = log.confirm(log.end)
    assert Key("other", 1, 1) in told
    assert sum(key.owner == "asks" for key in told) == 1_024
    for number in range(10):
        log.publish(Key("asks", 4_000 + number, 1), 100)
    assert log.limit(Key("asks", 1, 1)) == LOG_BYTES
    assert Key("asks", 1, 1) in log.confirm(log.end)  # the former ones are forgotten


def test_a_producer_that_was_forgotten_with_a_small_grant_is_told_when_it_sends_again() -> None:
    """Goal: no producer stays at a small grant. Method: one is told of half of it while the log is far ahead; its
    connection's idle accounts are forgotten; it publishes again when all is confirmed."""
    log = Log()
    first = log.publish(ONE, 10, quiet=True)
    log.end += 750
    assert log.confirm(first) == {ONE: 50}
    log.confirm(log.end)
    for number in range(100):
        log.confirm(log.publish(Key(ONE.owner, 1000 + number, 1), 1, quiet=True))
    assert log.confirm(log.publish(ONE, 10, quiet=True)) == {ONE: 100}
    assert log.confirm(log.publish(ONE, 10, quiet=True)) == {}
    assert len(log.credits) <= 64


def test_a_log_has_so_many_open_batches_and_no_more() -> None:
    """Goal: what is remembered for small batches is bounded. A batch of each of ten producers, at a limit of ten; each
    refusal names the limit, and a confirm of one lets one in."""
    log = Log(line_max=10)
    ends = [log.publish(Key("connection", number, 1), 1) for number in range(10)]
    assert log.limit(ONE) == LINE
    assert ONE in log.confirm(ends[0])
    log.publish(ONE, 1)
    assert log.limit(OTHER) == LINE
    assert OTHER in log.confirm(log.end)


def test_a_confirm_looks_at_what_it_covers_and_not_at_all_that_are_held() -> None:
    """Goal: a thousand held producers cost nothing at each confirm. Method: count the looks at held accounts while the
    copies come from far behind in 1,000 steps."""
    log = Log(bytes_max=1_000, log_bytes_max=100_000, batches_max=10**6)
    for number in range(100):
        log.publish(Key("full", number, 1), 1_000)
    for number in range(500):
        log.limit(Key("held", number, 2))
    looks = 0
    limit_of = log.credits._limit

    def counted(*arguments: object) -> str:
        nonlocal looks
        looks += 1
        return limit_of(*arguments)  # type: ignore[arg-type]

    log.credits._limit = counted  # type: ignore[assignment, method-assign]
    told: set[Key] = set()
    for offset in range(100, 100_001, 100):
        told |= log.confirm(offset).keys()
    assert {Key("held", number, 2) for number in range(500)} <= told
    assert looks < 10 * 600
    assert not log.credits.blocked


def test_the_end_of_a_mastership_is_told_once_to_whoever_counts_on_it() -> None:
    """Goal: a producer that is held learns that its master is none any more. One that is held, one with something open,
    one whose batches are all confirmed: the first two are told, and count nothing from there on; later masterships of
    the same node count anew."""
    log = Log()
    log.publish(ONE, 100)
    log.limit(ONE)
    log.publish(OTHER, 10, quiet=True)
    idle = Log()
    idle.confirm(idle.publish(ONE, 10))
    assert idle.credits.ended() == []
    told = log.credits.ended()
    assert {(each.key, each.confirmed, each.granted) for each in told} == {
        (ONE, CREDIT_ENDED, 100),
        (OTHER, CREDIT_ENDED, 100),
    }
    assert (log.credits.ended(), log.credits.blocked, len(log.credits)) == ([], 0, 0)
    allowance = Allowance(100, 10, confirms_tell=False)
    for at in (0, 100):
        allowance.sent(100)
        allowance.confirmed(Confirm(at, 0, 1, 1, 0, 0), 100)
    assert not allowance.open
    allowance.told(Credit(7, CREDIT_ENDED, 100, 100, 10))
    assert (allowance.open, allowance.open_bytes) == (True, 0)
    allowance.sent(100)
    allowance.confirmed(Confirm(200, 0, 1, 1, 0, 0), 100)
    assert not allowance.open


class Traffic:
    """Producers that keep to what they are told, a node whose words come when they come, and which appends, too."""

    def __init__(self, chance: random.Random) -> None:
        self.log = Log(bytes_max=100, batches_max=6, log_bytes_max=400, line_max=20)
        self.keys = [Key(owner, number, queue) for owner in "ab" for number in (1, 2) for queue in (1, 2)]
        self.quiet = {key: chance.random() < 0.5 for key in self.keys}
        self.own = {key: Allowance(100, 6, confirms_tell=self.quiet[key]) for key in self.keys}
        # Who was refused waits for a word of credit, and for nothing else.
        self.refused = dict.fromkeys(self.keys, False)
        self.told = dict.fromkeys(self.keys, False)
        self._chance = chance
        # In the order in which the node sent them: a confirm and its batch's size, or a word about credit.
        self._on_the_way: dict[Key, list[tuple[Confirm, int] | Credit]] = {key: [] for key in self.keys}
        self._waiting: list[tuple[int, Key, int]] = []

    def publish(self) -> None:
        """Somebody does, if it may by its own count. Raises Overloaded."""
        key, size = self._chance.choice(self.keys), self._chance.randint(1, 60)
        if not self.own[key].open or (self.refused[key] and not self.told[key]):
            return
        self.refused[key] = True
        self.told[key] = False
        end = self.log.publish(key, size, quiet=self.quiet[key])
        self.refused[key] = False
        self.own[key].sent(size)
        if self.quiet[key]:
            self._waiting.append((end, key, size))
        else:
            self._on_the_way[key].append((Confirm(end - size, 0, 1, 1, 0, 0), size))

    def confirm(self, offset: int) -> None:
        self.log.confirmed = offset
        while self._waiting and self._waiting[0][0] <= offset:
            end, key, size = self._waiting.pop(0)
            self._on_the_way[key].append((Confirm(end - size, 0, 1, 1, 0, 0), size))
        for told in self.log.credits.confirmed(offset, distance=self.log.distance, now=0.0):
            credit = Credit(told.key.producer_id, told.confirmed, told.granted, told.key.queue_id, 6)
            self._on_the_way[told.key].append(credit)

    def arrive(self, likely: float) -> None:
        for key in self.keys:
            while self._on_the_way[key] and self._chance.random() < likely:
                answer = self._on_the_way[key].pop(0)
                if isinstance(answer, Credit):
                    self.told[key] = True
                    self.own[key].told(answer)
                else:
                    self.own[key].confirmed(*answer)


def test_nobody_is_refused_who_keeps_to_what_was_told_and_nobody_waits_for_ever() -> None:
    """The master's count and the producers' own, at random levels, sizes, orders of answers and confirms. Whoever may
    send by its own count is taken, unless the grant shrank meanwhile; once all is confirmed everybody may send."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    traffic = Traffic(chance)
    log = traffic.log
    for _ in range(400):
        if chance.random() < 0.2:
            log.end += chance.randint(1, 60)  # the node's own, which needs no credit
        shrunk = log.credits.granted(log.distance) < 100
        try:
            traffic.publish()
        except Overloaded:
            assert shrunk, seed
        if chance.random() < 0.3:
            traffic.confirm(chance.randint(log.confirmed, log.end))
        traffic.arrive(0.5)
    traffic.confirm(log.end)
    traffic.arrive(1.1)
    for key, own in traffic.own.items():
        assert own.open, (seed, key)
        assert own.open_bytes == 0, (seed, key)
        assert not traffic.refused[key] or traffic.told[key], (seed, key)


def test_a_batch_that_had_landed_before_counts_no_more() -> None:
    """The node does not count it again, so no word of it would come."""
    allowance = Allowance(10, 10, confirms_tell=False)
    allowance.sent(10)
    assert not allowance.open
    allowance.confirmed(Confirm(0, 0, 1, 1, 0, CONFIRM_DUPLICATE), 10)
    assert allowance.open


def test_a_word_about_credit_that_comes_before_the_confirm_counts() -> None:
    allowance = Allowance(10, 10, confirms_tell=False)
    allowance.sent(10)
    allowance.told(Credit(1, 10, 10, 1, 10))
    assert not allowance.open
    allowance.confirmed(Confirm(0, 0, 1, 1, 0, 0), 10)
    assert (allowance.open, allowance.open_bytes) == (True, 0)


def test_a_node_without_credit_limits_nobody() -> None:
    """An older node names no limit."""
    allowance = Allowance(0, 0, confirms_tell=False)
    for _ in range(100):
        allowance.sent(10**9)
    assert allowance.open


def test_a_refused_attempt_counts_no_more() -> None:
    allowance = Allowance(10, 10, confirms_tell=True)
    allowance.sent(10)
    assert allowance.why().details["limit"] == "credit_bytes"
    allowance.refused(10)
    assert allowance.open
