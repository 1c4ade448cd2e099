"""What must hold of records that have a time to live, a delay or a priority, and of queues that may be so long and no
longer: by what left the nodes, what stands on their disks, and how long a queue gets in the end.

Times are those of the node that gave: the log's, which never goes back. So clocks that are off are no excuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from sim.cluster_group_checks import GroupsOutside, name_of
from sim.cluster_ledgers import Ledgers
from sim.cluster_logged import UNACKED, LoggedQueue, Stored
from sim.cluster_sorts import DELIVERY_LIMIT, LENGTH_MAX, PRIORITY_MAX, RECORDS, TTL_MS
from sim.cluster_taps import Granted

JOINED_US_MAX: Final = 100_000
"""Neighbours are so far apart at most whose times end together, the later one's; or a hundredth of the time."""
QUEUE_FULL: Final = "QUEUE_FULL"


class Filled(NamedTuple):
    """A queue that may be so long was sent more when nobody took from it: so many were confirmed, and so many were
    refused, with these codes; `ready`: how long it was then."""

    queue: str
    confirmed: int
    refused: int
    codes: frozenset[str]
    ready: int


@dataclass(frozen=True)
class RecordsOutside:
    """`filled`: in the end."""

    groups: GroupsOutside
    ledgers: Ledgers
    filled: tuple[Filled, ...]

    @cached_property
    def logged(self) -> Mapping[str, LoggedQueue]:
        """By queue, of those whose records have limits."""
        known = ((name_of(queue), each) for queue, each in self.groups.each_logged())
        return {queue: each for queue, each in known if queue in RECORDS}

    def granted(self) -> Iterator[tuple[str, Granted]]:
        """With the name of the queue, of those whose records have limits; behind a loss another record may stand
        there."""
        for each in self.groups.tap.granted:
            queue = name_of(self.groups.queue_of(each))
            if queue in self.logged and not self.groups.lost_since(queue, each.at):
                yield queue, each


def check_records(outside: RecordsOutside) -> None:
    """Raises AssertionError naming the first that does not hold."""
    for check in (
        nothing_is_given_before_its_time,
        nothing_is_given_after_its_time,
        nothing_expires_early,
        the_urgent_go_first,
        nothing_comes_back_too_often,
        records_are_done_for_a_reason,
        nothing_is_dropped_in_hand,
        queues_are_no_longer_than_they_may_be,
        copies_know_the_same_times,
    ):
        check(outside)


def nothing_is_given_before_its_time(outside: RecordsOutside) -> None:
    """Its delay counts from its append."""
    for queue, granted, offset, stored in _each_granted(outside):
        not_before_us = stored.appended_us + stored.attributes.delay_ms * 1000
        early_us = not_before_us - granted.clock_us
        assert early_us <= 0, (
            f"nothing is given before its time: {offset} of {queue}, {stored[:2]}, {early_us} µs too early: {granted}"
        )


def nothing_is_given_after_its_time(outside: RecordsOutside) -> None:
    """But for as long as neighbours are taken together. What is of use only at once goes by who waits."""
    for queue, granted, offset, stored in _each_granted(outside):
        ttl_us = _ttl_us(queue, stored)
        if not ttl_us:
            continue
        until_us = stored.appended_us + ttl_us + _joined_us(ttl_us, stored)
        assert granted.clock_us < until_us, (
            f"nothing is given after its time: {offset} of {queue}, {stored[:2]}, {granted.clock_us - until_us} µs too "
            f"late: {granted}"
        )


def _each_granted(outside: RecordsOutside) -> Iterator[tuple[str, Granted, int, Stored]]:
    """But for those that a group may have been given as plain ones."""
    for queue, granted in outside.granted():
        known = outside.logged[queue]
        for offset in range(granted.first, granted.next):
            # Else it is reported as lost.
            if offset in known.records and not known.may_be_plain(granted.group, offset):
                yield queue, granted, offset, known.records[offset]


def _ttl_us(queue: str, stored: Stored) -> int | None:
    """None for as long as may be."""
    of_queue = TTL_MS if queue == "timed" else None
    known = [each for each in (stored.attributes.ttl_ms, of_queue) if each is not None]
    return min(known) * 1000 if known else None


def _joined_us(ttl_us: int, stored: Stored) -> int:
    times = [each for each in (ttl_us, stored.attributes.delay_ms * 1000) if each]
    return min(JOINED_US_MAX, min(times) // 100)


def nothing_expires_early(outside: RecordsOutside) -> None:
    """By the log alone: when it was appended, and when that it has expired."""
    for queue, known in outside.logged.items():
        for ended in known.ended:
            for offset, stored in ended.among(known.records) if ended.why == "expired" else ():
                ttl_us = _ttl_us(queue, stored)
                late = ttl_us is not None and ended.at_us >= stored.appended_us + ttl_us
                assert late, f"nothing expires early: {offset} of {queue}, {stored[:2]}: {ended}"


def the_urgent_go_first(outside: RecordsOutside) -> None:
    """A record that nobody had been given, and that might have been given out, was free: a less urgent one could not be
    given to somebody before it."""
    known = outside.logged.get("urgent")
    if known is None:
        return
    levels = {offset: min(each.attributes.priority, PRIORITY_MAX) for offset, each in known.records.items()}
    every = [granted for queue, granted in outside.granted() if queue == "urgent"]
    # Before a loss, too: a record that outlived it, and that its consumer had given back with a delay, was given to
    # somebody, and is not free for a while: the next master begins that delay anew, in full (decision 0033).
    first: dict[int, Granted] = {}
    for granted in outside.groups.tap.granted:
        if name_of(outside.groups.queue_of(granted)) == "urgent":
            for offset in range(granted.first, granted.next):
                first.setdefault(offset, granted)
    for granted in every:
        level = max(levels.get(offset, PRIORITY_MAX) for offset in range(granted.first, granted.next))
        for offset, then in first.items():
            # What is given at one time is decided on together, and what another master gives by that one.
            passed_over = then.at > granted.at and _of_one(granted, then) and offset < granted.below
            assert not passed_over or levels.get(offset, 0) <= level, (
                f"the urgent go first: {offset}, of level {levels[offset]}, is given by {then}, and before {granted}"
            )


def _of_one(one: Granted, other: Granted) -> bool:
    """Whether one mastership gave both."""
    return (one.node, one.log_id, one.epoch) == (other.node, other.log_id, other.epoch)


def nothing_comes_back_too_often(outside: RecordsOutside) -> None:
    """Where there is a limit to it."""
    for queue, granted in outside.granted():
        assert queue != "fragile" or granted.attempts <= DELIVERY_LIMIT, f"nothing comes back too often: {granted}"


def records_are_done_for_a_reason(outside: RecordsOutside) -> None:
    """That its queue has."""
    reasons = {"timed": {"expired", "gone"}, "short": {"dropped"}, "fragile": {"limit"}}
    for queue, known in outside.logged.items():
        for ended in known.ended:
            assert not ended.among(known.records) or ended.why not in UNACKED - reasons.get(queue, set()), (
                f"records are done for a reason: of {queue}, {ended}"
            )


def nothing_is_dropped_in_hand(outside: RecordsOutside) -> None:
    """Whoever has a record may settle it, however long the queue is."""
    dropped = outside.groups.tap.dropped
    assert not dropped, f"nothing is dropped in hand: {dropped[0]}"


def queues_are_no_longer_than_they_may_be(outside: RecordsOutside) -> None:
    """At quiet, and no shorter."""
    for filled in outside.filled:
        rule = f"queues are no longer than they may be: {filled}"
        assert filled.ready == min(LENGTH_MAX, filled.confirmed), rule
        assert (QUEUE_FULL in filled.codes) == (filled.queue == "tight"), rule
        # One that is on its way once more when its time is up.
        assert filled.codes <= {QUEUE_FULL, "OUTCOME_UNKNOWN"}, rule


def copies_know_the_same_times(outside: RecordsOutside) -> None:
    """Wherever two of them came to the same place of a log; and priorities."""
    assert not outside.ledgers.other_times, f"copies know the same times: {outside.ledgers.other_times[0]}"
