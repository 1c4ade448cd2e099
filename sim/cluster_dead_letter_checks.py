"""What must hold of dead letters whatever happened to their cluster: what has left its queue came to where it was to
go, once, in order, and says what it died of; nothing else did.

That what dies comes there at all, and in time, is seen by the groups: in peace nothing may be left in a queue, and what
is on its way still is. So in the end the logs of both queues have to tell the same, and what takers were told.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from mirrorlog.queues.changes import Addressed, ForwardingStarted
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN
from mirrorlog.queues.delivery.settlement import WHYS
from sim.cluster_clients import Sent
from sim.cluster_consumers import Taken
from sim.cluster_dead_letters import DELIVERIES_MAX, DIED_AFTER_MS, REASONS, SOURCES, TARGETS, WAYS
from sim.cluster_group_checks import GroupsOutside, name_of
from sim.cluster_logged import LoggedQueue, Stored

REASONS_BY_WHY: Final = {why: reason for reason, why in WHYS.items()}
DEATHS: Final = "x-death"
_Place = tuple[str, int]
"""Queue, with its id, and offset."""


@dataclass(frozen=True)
class DeadLettersOutside:
    """What the checks look at. `left`: by source, the records that have left it by dying, and of what; `redriven`: by
    value, how many were sent back from where they had come to."""

    groups: GroupsOutside

    def queues(self, name: str) -> Iterator[tuple[str, LoggedQueue]]:
        """All that ever had that name: one may have been lost."""
        return ((each, known) for each, known in self.groups.left.items() if name_of(each) == name)

    @cached_property
    def sources(self) -> list[str]:
        return [queue for queue in self.groups.queues.log_ids if queue in SOURCES]

    @cached_property
    def left(self) -> Mapping[_Place, str]:
        return dict(self._ended(SOURCES, frozenset(REASONS_BY_WHY) - {REDRIVEN}))

    @cached_property
    def redriven(self) -> Counter[bytes | None]:
        places = self._ended(TARGETS, frozenset({REDRIVEN}))
        return Counter(self.groups.left[queue].records[offset].value for (queue, offset), _ in places)

    def _ended(self, names: Sequence[str], whys: frozenset[str]) -> Iterator[tuple[_Place, str]]:
        for queue, known in self.groups.left.items():
            for ended in known.ended if name_of(queue) in names else ():
                if not ended.group and ended.why in whys:
                    yield from (((queue, offset), ended.why) for offset, _ in ended.among(known.records))

    def copies(self, name: str) -> Counter[bytes | None]:
        """How often each value stands in the queues of that name."""
        return Counter(stored.value for _, known in self.queues(name) for stored in known.records.values())

    def letters(self, name: str) -> Counter[bytes | None]:
        """How often records of each value died in it."""
        return Counter(self.groups.left[place[0]].records[place[1]].value for place in self._of(name))

    def _of(self, name: str) -> Iterator[_Place]:
        return (place for place in self.left if name_of(place[0]) == name)

    def lost_since(self, queues: Sequence[str], at: float) -> bool:
        return any(self.groups.lost_since(queue, at) for queue in queues)

    def sent(self, name: str) -> Iterator[tuple[Sent, bytes]]:
        return ((sent, value) for sent, value, _ in self.groups.queues.sent if sent.queue == name)

    def rejecters(self, place: _Place) -> list[Taken]:
        """Who has asked for its death."""
        taken = self.groups.taken.get((place[0], "", place[1]), ())
        return [each for each in taken if each.how == "reject"]


def check_letters(groups: GroupsOutside) -> Counter[str]:
    """What happened, counted. Raises AssertionError naming the first that does not hold."""
    outside = DeadLettersOutside(groups)
    for check in (
        nothing_leaves_from_a_hand,
        letters_come_once,
        what_is_sent_back_comes_once,
        what_is_rejected_leaves,
        what_is_acknowledged_stays,
        records_die_for_a_reason,
        letters_tell_how_they_died,
        letters_keep_their_order,
    ):
        check(outside)
    return _counts(outside)


def letters_come_once(outside: DeadLettersOutside) -> None:
    """To each queue that they lead to, as often as they died; unless either log has lost something since."""
    for source in outside.sources:
        letters = outside.letters(source)
        for target in WAYS[source]:
            there = outside.copies(target)
            for sent, value in outside.sent(source):
                if there[value] != letters[value] and not outside.lost_since((source, target), sent.at):
                    raise AssertionError(
                        f"letters come once: {value[:20]!r} died {letters[value]} times in {source}, and is "
                        f"{there[value]} times in {target}: {sent}"
                    )


def what_is_sent_back_comes_once(outside: DeadLettersOutside) -> None:
    """To where it died: that has it once more than it was sent back, or not, if it is not known to be stored."""
    for source in outside.sources:
        there = outside.copies(source)
        for sent, value in outside.sent(source):
            published = there[value] - outside.redriven[value]
            allowed = {"confirmed": (1,), "refused": (0,)}.get(sent.outcome, (0, 1))
            assert published in allowed or outside.lost_since((source, *WAYS[source]), sent.at), (
                f"what is sent back comes once: {value[:20]!r} was sent back {outside.redriven[value]} times, and is "
                f"{there[value]} times in {source}: {sent}"
            )


def what_is_rejected_leaves(outside: DeadLettersOutside) -> None:
    """When that was confirmed."""
    for (queue, group, offset), those in outside.groups.taken.items():
        if group or name_of(queue) not in SOURCES:
            continue
        for taken in (each for each in those if each.how == "reject" and each.outcome == "confirmed"):
            assert (queue, offset) in outside.left or outside.lost_since((queue,), taken.asked_at), (
                f"what is rejected leaves: {offset} of {queue} has not: {taken}"
            )


def what_is_acknowledged_stays(outside: DeadLettersOutside) -> None:
    """When that was confirmed, it has not died, and does not."""
    for (queue, group, offset), those in outside.groups.taken.items():
        if group or (queue, offset) not in outside.left:
            continue
        for taken in (each for each in those if each.how == "ack" and each.outcome == "confirmed"):
            assert outside.lost_since((queue,), taken.asked_at), (
                f"what is acknowledged stays: {offset} of {queue} has left, {outside.left[queue, offset]}: {taken}"
            )


def records_die_for_a_reason(outside: DeadLettersOutside) -> None:
    """That their queue has; somebody rejected them, they were there for too long, or were given out too often."""
    for place, why in outside.left.items():
        queue, offset = place
        reason = REASONS_BY_WHY[why]
        assert reason in REASONS[name_of(queue)], f"records die for a reason: {place}, {why}"
        if reason == "rejected":
            assert outside.rejecters(place), f"records die for a reason: nobody has rejected {place}"
        elif reason == "delivery_limit":
            given = outside.groups.granted.get((queue, "", offset), ())
            assert len(given) >= DELIVERIES_MAX, f"records die for a reason: {place} was given {given}"
        elif reason == "expired":
            lasted_us = _left_at_us(outside, place) - outside.groups.left[queue].records[offset].appended_us
            assert lasted_us >= DIED_AFTER_MS * 1000, f"records die for a reason: {place} lasted {lasted_us} µs"


def _left_at_us(outside: DeadLettersOutside, place: _Place) -> int:
    """When it was logged that it leaves."""
    queue, offset = place
    return max(
        (
            at_us
            for _, at_us, change in outside.groups.left[queue].leaving
            if isinstance(change, ForwardingStarted) and _has(change.ranges, offset)
        ),
        default=0,
    )


def letters_tell_how_they_died(outside: DeadLettersOutside) -> None:
    """In which queue and of what, as its log has it; and once: what is sent back forgets."""
    why_by_value: dict[bytes | None, set[str]] = defaultdict(set)
    for (queue, offset), why in outside.left.items():
        why_by_value[outside.groups.left[queue].records[offset].value].add(REASONS_BY_WHY[why])
    sent = {value: sent for source in outside.sources for sent, value in outside.sent(source)}
    for target in TARGETS:
        for queue, known in outside.queues(target):
            for offset, stored in known.records.items():
                rule = f"letters tell how they died: {offset} of {queue}, {stored.value!r:.30}, says {_deaths(stored)}"
                assert stored.value in sent, rule
                own = sent[stored.value]
                if outside.lost_since((own.queue,), own.at):
                    continue
                newest, *others = _deaths(stored)
                assert not others, rule
                assert (newest["queue"], newest["count"]) == (own.queue, 1), rule
                assert newest["reason"] in why_by_value[stored.value], rule


def _deaths(stored: Stored) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(dict(stored.headers)[DEATHS] or b"[]")
    return found


def letters_keep_their_order(outside: DeadLettersOutside) -> None:
    """Departures of a queue come one after the other, and of one its records in theirs, but for those that joined
    theirs when others were on their way already."""
    for source in outside.sources:
        if outside.lost_since((source,), 0.0):
            continue
        for queue, known in outside.queues(source):
            steps = _Steps(known)
            for target in WAYS[source]:
                if not outside.lost_since((target,), 0.0):
                    _check_order(queue, target, steps, _arrived(outside, known, target))


def _check_order(queue: str, target: str, steps: _Steps, arrived: Sequence[int]) -> None:
    for one, other in pairwise(arrived):
        before, behind = steps.began[one], steps.began[other]
        joined_late = steps.joined[other] > max(steps.joined[one], steps.chosen[one])
        assert (before, one) < (behind, other) or joined_late, (
            f"letters keep their order: {one} of {queue}, of departure {steps.number[one]}, comes to {target} before "
            f"{other}, of departure {steps.number[other]}"
        )


class _Steps:
    """By queue offset of a source: `number`, of the departure by which it left; `joined`: the step by which it did;
    `began`: where that departure does, which may begin again under its number; `chosen`: behind which place its piece
    was."""

    def __init__(self, known: LoggedQueue) -> None:
        self.number: dict[int, int] = {}
        self.joined: dict[int, int] = {}
        self.chosen: dict[int, int] = {}
        self.began: dict[int, int] = {}
        begun: dict[int, int] = {}
        free = 0
        for at, (*_, change) in enumerate(known.leaving, 1):  # some stand at one place of the log
            if isinstance(change, ForwardingStarted):
                begun.setdefault(change.departure, at)
                for offset in _offsets(change.ranges):
                    if offset in known.records and offset not in self.chosen:
                        self.number[offset], self.joined[offset] = change.departure, at
                        self.began[offset] = begun[change.departure]
            elif isinstance(change, Addressed):
                for offset in _offsets(change.ranges):
                    self.chosen.setdefault(offset, free)
            else:
                free = at
                if change.last:
                    begun.pop(change.departure, None)


def _arrived(outside: DeadLettersOutside, known: LoggedQueue, target: str) -> list[int]:
    """Offsets of a source in the order in which its letters stand in the target; without those whose values stand in it
    more than once, having come back."""
    places: dict[bytes | None, list[int]] = defaultdict(list)
    for offset, stored in known.records.items():
        places[stored.value].append(offset)
    once = {value: offsets[0] for value, offsets in places.items() if len(offsets) == 1}
    return [
        once[stored.value]
        for _, there in outside.queues(target)
        for _, stored in sorted(there.records.items())
        if stored.value in once
    ]


def nothing_leaves_from_a_hand(outside: DeadLettersOutside) -> None:
    """Whoever has a record may settle it."""
    dropped = outside.groups.tap.dropped
    assert not dropped, f"nothing leaves from a hand: {dropped[0]}"


def _has(ranges: Sequence[int], offset: int) -> bool:
    return any(first <= offset < until for first, until in zip(ranges[::2], ranges[1::2], strict=True))


def _offsets(ranges: Sequence[int]) -> Iterator[int]:
    for first, until in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(first, until)


def _counts(outside: DeadLettersOutside) -> Counter[str]:
    seen = outside.groups.outside.observer.counts
    counts = Counter(f"letters: {REASONS_BY_WHY[why]}" for why in outside.left.values())
    counts["letters: sent back"] = outside.redriven.total()
    counts["letters: a departure waits"] = seen["departure_waits"]
    counts["letters: a departure is renumbered"] = seen["departure_renumbered"]
    counts["letters: some are dropped"] = seen["letters_dropped"]
    counts["letters: departures"] = len(
        {
            (queue, change.departure)
            for queue, known in outside.groups.left.items()
            for _, _, change in known.leaving
            if isinstance(change, ForwardingStarted)
        }
    )
    return counts
