"""The clock of a log that this node masters, against clocks that are set forward and back."""

from __future__ import annotations

from mirrorlog.broker.log.clock import LogClock

SECOND = 1_000_000
NOON = 1_000_000 * SECOND


class Clocks:
    """`ahead`: of the node's clock. An append is stamped with what the clock says."""

    def __init__(self, last: int = 0) -> None:
        self.last_append_time_us, self.now, self.ahead = last, 0.0, 0
        self.clock = LogClock(self, wall_us=lambda: NOON + self.ahead + self.passed, now=lambda: self.now)

    @property
    def passed(self) -> int:
        return round(self.now * SECOND)

    def append(self) -> int:
        self.last_append_time_us = max(self.last_append_time_us, self.clock())
        return self.last_append_time_us


def test_it_is_the_nodes_clock_where_nothing_is_ahead_of_it() -> None:
    it = Clocks()
    for _ in range(3):
        it.append()
        it.now += 1.5
        assert it.clock() == NOON + it.passed


def test_the_time_of_a_log_that_is_ahead_goes_on() -> None:
    """One append by a clock that is a day ahead: what is appended from then on counts on, second for second, whether
    there are many appends or none."""
    it = Clocks()
    it.ahead = 86_400 * SECOND
    jumped = it.append()
    it.ahead = 0
    for _ in range(10):
        it.now += 1
        it.append()
    assert it.last_append_time_us == jumped + 10 * SECOND
    it.now += 3600
    assert it.clock() == jumped + 3610 * SECOND
    it.now += 86_400
    assert it.append() == jumped + 90_010 * SECOND


def test_another_master_goes_on_with_what_the_log_says() -> None:
    """Its own clock is right, and an hour behind the log."""
    it = Clocks(last=NOON + 3600 * SECOND)
    it.now += 2
    assert it.clock() == it.append() == NOON + 3602 * SECOND
    it.ahead = 7200 * SECOND
    assert it.clock() == NOON + 7202 * SECOND


def test_a_clock_that_was_ahead_while_nothing_was_appended_leaves_no_trace() -> None:
    it = Clocks()
    it.append()
    it.ahead = 86_400 * SECOND
    assert it.clock() == NOON + it.ahead
    it.ahead = 0
    it.now += 1
    assert it.append() == NOON + SECOND


def test_it_says_once_that_it_was_set() -> None:
    """By more than a tenth of a second, in either direction."""
    it = Clocks()
    it.append()
    said = []
    for ahead in (0, 0, 600 * SECOND, 600 * SECOND, 0, 50_000):
        it.now += 0.1
        it.ahead = ahead
        said.append(it.clock.jumped())
    assert said == [False, False, True, False, True, False]


def test_a_clock_that_is_set_little_by_little_is_said_to_be_set_too() -> None:
    """A second is slewed by 5 ms with each look: said whenever a tenth of a second has come together."""
    it = Clocks()
    said = 0
    for _ in range(201):
        said += it.clock.jumped()
        it.now += 0.1
        it.ahead += 5_000
    assert said == 9  # each time it was more than a tenth: at 105 ms, 210 ms, and so on


def test_a_node_that_is_held_up_while_it_reads_its_clocks_does_not_go_ahead() -> None:
    """Goal: who publishes, and then looks at his own clock, has a later time than his records. Method: 50 ms pass
    within the first look at the clocks, and none later."""
    passed = 0.0

    class Held:
        last_append_time_us = 0

    def read() -> float:
        """Held up before the second reading."""
        nonlocal passed
        readings.append(passed)
        if len(readings) == 3:  # one is of the making
            passed += 0.05
        return passed

    readings: list[float] = []
    log = Held()
    clock = LogClock(log, wall_us=lambda: NOON + round(read() * SECOND), now=read)
    for number in range(5):
        log.last_append_time_us = clock()
        assert log.last_append_time_us <= NOON + round(passed * SECOND), number
        passed += 0.01
