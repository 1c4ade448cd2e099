"""What must hold of acking groups whatever happened to their cluster: by what takers noted, by what was seen leaving
the nodes, and by what the copies know.

A master that was replaced and has not heard of it may still give something, as long as it believes itself in touch: it
gives that in its old epoch, and nothing that it is told counts. So it is the masters of the newest epoch that are held
to what was confirmed before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final

from mirrorlog.queues.groups.verdicts import ACKED, DEAD, DEAD_WHYS, UNKNOWN
from sim.cluster_checks import Outside, _batches
from sim.cluster_consumers import OPEN_MAX_S, GroupHistory, GroupKey, Taken, Taking
from sim.cluster_dead_letters import SOURCES, TARGETS, WAYS
from sim.cluster_ledgers import Ledgers, facts, rebuilt
from sim.cluster_logged import UNACKED, Ended, LoggedQueue, logged
from sim.cluster_queues import KEYED, WILD, QueueHistory, key_of
from sim.cluster_sorts import RECORDS
from sim.cluster_taps import Granted, Tap
from sim.loop import START_S
from sim.patches import WALL_START_NS

FINAL: Final = frozenset({"ack", "reject"})
_Record = tuple[str, str, int]
"""Queue, see `one_of`, group and queue offset."""
Mastership = tuple[int, int]
"""Of a queue: how often it has moved, and the epoch of the log that it is in. A later one is greater."""


def one_of(queue: str, queue_id: int) -> str:
    """What a queue is called that may be made anew."""
    return f"{queue}#{queue_id}"


def name_of(queue: str) -> str:
    """Its own name."""
    return queue.partition("#")[0]


@dataclass(frozen=True)
class GroupsOutside:
    """What the checks look at: beside what there is of the cluster, all that concerns groups."""

    outside: Outside
    history: GroupHistory
    tap: Tap
    ledgers: Ledgers
    takings: tuple[Taking, ...]
    queues: QueueHistory

    @cached_property
    def logged(self) -> Sequence[Mapping[int, LoggedQueue]]:
        """By queue id, what the logs say; once for each copy that there is of any."""
        copies: dict[str, list[list[tuple[int, bytes]]]] = defaultdict(list)
        for log_id, _, batches in _logs(self.outside):
            copies[log_id].append(batches)
        most = max(map(len, copies.values()), default=0)
        return [logged(*(each[number % len(each)] for each in copies.values())) for number in range(most)]

    def each_logged(self) -> Iterator[tuple[str, LoggedQueue]]:
        """By the first copy of each log, of queues whose names are known; see `one_of`."""
        for queue_id, known in self.logged[0].items() if self.logged else ():
            if queue_id in self._names:
                yield self._names[queue_id], known

    @cached_property
    def ended(self) -> frozenset[_Record]:
        """What the logs say is done without anybody's settlement: too old, too much, come back too often. Whether that
        was right is for others to check."""
        found: set[_Record] = set()
        limited = self.queues.log_ids.keys() & {*RECORDS, *SOURCES, *TARGETS}
        for copy in self.logged if limited else ():
            for queue_id, known in copy.items():
                queue = self._names.get(queue_id, "")
                for each in known.ended if name_of(queue) in limited else ():
                    if each.why in UNACKED:
                        found.update((queue, each.group, offset) for offset, _ in each.among(known.records))
        return frozenset(found)

    @cached_property
    def unheard(self) -> Mapping[str, int]:
        """By queue, up to which record it was in a log of which there is only a later part."""
        freed = {log_id for log_id, _, batches in _logs(self.outside) if batches and batches[0][0] > 0}
        return {
            queue: max((first for source, first in known.came if source in freed), default=0)
            for queue, known in self.each_logged()
        }

    @cached_property
    def settled_at(self) -> Mapping[_Record, float]:
        """When the logs say first, in s of the run, that somebody has settled a record."""
        found: dict[_Record, float] = {}
        for copy in self.logged:
            for queue_id, known in copy.items():
                queue = self._names.get(queue_id, "")
                for each in (each for each in known.ended if each.why not in UNACKED):
                    at = (each.at_us - WALL_START_NS // 1000) / 1e6 + START_S
                    for offset, _ in each.among(known.records):
                        record = queue, each.group, offset
                        found[record] = min(at, found.get(record, inf))
        return found

    @property
    def groups(self) -> list[GroupKey]:
        return sorted({(each.queue, each.group) for each in self.takings})

    @cached_property
    def granted(self) -> Mapping[_Record, list[Granted]]:
        """By record, in their order."""
        found: dict[_Record, list[Granted]] = defaultdict(list)
        for each in self.tap.granted:
            queue = self.queue_of(each)
            for offset in range(each.first, each.next):
                found[queue, each.group, offset].append(each)
        return found

    def queue_of(self, granted: Granted) -> str:
        """One that may be made anew is named with its id."""
        return self._names.get(granted.queue_id) or one_of(WILD, granted.queue_id)

    @cached_property
    def _names(self) -> Mapping[int, str]:
        stay = {number: queue for queue, number in self.outside.history.queue_ids.items()}
        return {**{number: one_of(queue, number) for number, queue in self.queues.names.items()}, **stay}

    def queue_taken(self, taken: Taken) -> str:
        """The same of a record that was taken: its value tells."""
        if taken.queue not in self.queues.log_ids:
            return taken.queue
        return one_of(taken.queue, self.sent_to.get((taken.queue, taken.value), 0))

    @cached_property
    def sent_to(self) -> Mapping[tuple[str, bytes | None], int]:
        found: dict[tuple[str, bytes | None], int] = {}
        for sent, value, queue_id in self.queues.sent:
            found[sent.queue, value] = queue_id
            found.update(((target, value), self._id_of(target)) for target in WAYS.get(sent.queue, ()))
        return found

    def _id_of(self, queue: str) -> int:
        """Of one that was made once."""
        return next(queue_id for queue_id, name in self.queues.names.items() if name == queue)

    @cached_property
    def left(self) -> Mapping[str, LoggedQueue]:
        """What the logs say of the queues that dead records leave, and come to; see `one_of`."""
        return {queue: known for queue, known in self.each_logged() if name_of(queue) in (*SOURCES, *TARGETS)}

    @cached_property
    def stands(self) -> Mapping[tuple[str, str], Sequence[Ended]]:
        """By queue, see `one_of`, and group: what the logs say that its records were settled as since its last reset,
        which forgets, in their order."""
        return {(queue, group): ended for queue, known in self.each_logged() for group, ended in known.stands.items()}

    def logs_of(self, queue: str) -> set[str]:
        """Ids of all logs that it was ever in."""
        name = name_of(queue)
        return {*self.outside.logs_of(name), self.queues.log_ids.get(name, "")} - {""}

    @cached_property
    def taken(self) -> Mapping[_Record, list[Taken]]:
        found: dict[_Record, list[Taken]] = defaultdict(list)
        for each in self.history.taken:
            found[self.queue_taken(each), each.group, each.queue_offset].append(each)
        return found

    def newest(self, queue: str, at: float) -> Mastership:
        """By then: the epoch of the log that it was in."""
        name = name_of(queue)
        times_moved, log_id = self.outside.places.home_at(name, at)
        if not log_id:
            log_id = {**self.queues.log_ids, **self.outside.history.log_ids}[name]
        times, epochs = self._opened[self.outside.logs[log_id].name if log_id in self.outside.logs else ""]
        index = bisect_right(times, at)
        return times_moved, epochs[index - 1] if index else 0

    def mastership(self, queue: str, granted: Granted) -> Mastership:
        """By which that was given."""
        return self.outside.places.times_in(name_of(queue), granted.log_id, granted.at), granted.epoch

    @cached_property
    def _opened(self) -> Mapping[str, tuple[list[float], list[int]]]:
        found: dict[str, tuple[list[float], list[int]]] = defaultdict(lambda: ([], []))
        rows = [(at, epoch, log) for (log, epoch), at in self.outside.observer.opened_at.items()]
        for at, epoch, log in sorted(rows):
            times, epochs = found[log]
            times.append(at)
            epochs.append(max(epoch, epochs[-1] if epochs else 0))
        return found

    def lost_since(self, queue: str, at: float) -> bool:
        """Whether anything was reported as lost by an epoch that was opened later than that, and may have been."""
        return self.outside.lost_since(self.logs_of(queue), at)

    def excused(self, queue: str, at: float) -> bool:
        """Whether what was so at that time need not be so any more: something was lost since, or somebody has reset,
        purged or deleted it."""
        return self.lost_since(queue, at) or self.queues.meddled_since(name_of(queue), at)

    def given_at(self, record: _Record, taken: Taken) -> float:
        """When it was given to who took it: a client may get late what was sent early."""
        return max((each.at for each in self.granted.get(record, ()) if each.at <= taken.at), default=taken.at)

    def current(self, queue: str, granted: Granted) -> bool:
        """Whether it was given by the newest master that there was then."""
        return self.mastership(queue, granted) >= self.newest(queue, granted.at)


def check_groups(groups: GroupsOutside) -> None:
    """Raises AssertionError naming the first that does not hold."""
    for check in (
        what_is_delivered_is_what_was_published,
        no_record_is_in_two_hands,
        one_at_a_time,
        no_confirmed_ack_comes_back,
        one_verdict_stands,
        leases_hold,
        nothing_is_settled_that_nobody_settled,
        nothing_refused_is_settled,
        not_redelivered_means_never_delivered,
        attempts_are_returns,
        the_order_is_kept_for_one,
        each_key_is_in_order,
        copies_know_the_same,
        a_checkpoint_tells_the_same,
        nothing_waits_for_ever,
    ):
        check(groups)


def what_is_delivered_is_what_was_published(groups: GroupsOutside) -> None:
    """The bytes that stand there; or stood there, and were reported as lost."""
    values = {
        (final.queue, seen.queue_offset): seen.value for final in groups.outside.history.finals for seen in final.seen
    }
    sent = groups.sent_to.keys()
    for taken in groups.history.taken:
        if taken.queue in groups.queues.log_ids:
            assert (taken.queue, taken.value) in sent, f"what is delivered is what was published: {taken}"
            continue
        value = values.get((taken.queue, taken.queue_offset))
        assert value == taken.value or (value is None and groups.lost_since(taken.queue, taken.at)), (
            f"what is delivered is what was published: {taken}, and there stands {value!r}"
        )


def each_key_is_in_order(groups: GroupsOutside) -> None:
    """A mastership gives a record when somebody has asked to settle all that stands before it in its key: so one record
    of a key at a time is with anybody, and what comes back comes first."""
    keys: dict[int, bytes] = {}
    for taken in groups.history.taken:
        if taken.queue == KEYED and taken.value is not None:
            keys[taken.queue_offset] = key_of(int(taken.value.split()[1]))
    given: dict[tuple[Mastership, bytes], set[int]] = defaultdict(set)
    for each in groups.tap.granted:
        queue = groups.queue_of(each)
        if name_of(queue) != KEYED or groups.lost_since(queue, each.at):
            continue
        for offset in (offset for offset in range(each.first, each.next) if offset in keys):
            before = given[groups.mastership(queue, each), keys[offset]]
            for other in before - {offset}:
                asked = any(
                    taken.how in FINAL and taken.asked_at <= each.at for taken in groups.taken[queue, each.group, other]
                )
                assert other < offset and asked, (  # noqa: PT018
                    f"each key is in order: {other} of {keys[offset]!r} was given before {offset}: {each}"
                )
            before.add(offset)


def no_record_is_in_two_hands(groups: GroupsOutside) -> None:
    """Of one mastership."""
    assert not groups.tap.twice, f"no record is in two hands: {groups.tap.twice[0]}"


def one_at_a_time(groups: GroupsOutside) -> None:
    """Has records of a queue with a single active consumer, or of a group that each wants for itself: the next one is
    given some when those of the one before are settled or returned."""
    assert not groups.tap.beside, f"one at a time: {groups.tap.beside[0]}"


def no_confirmed_ack_comes_back(groups: GroupsOutside) -> None:
    """At level `all`, behind the answer, from whoever is master then or later."""
    for record, those in groups.taken.items():
        for taken in those:
            if taken.how not in FINAL or taken.outcome != "confirmed" or taken.level != "all":
                continue
            newest = groups.newest(taken.queue, taken.answered_at)
            for granted in groups.granted.get(record, ()):
                assert (
                    granted.at <= taken.answered_at
                    or groups.mastership(record[0], granted) < newest
                    or groups.excused(taken.queue, groups.given_at(record, taken))
                ), f"no confirmed ack comes back: {taken}; and then {granted}"


def one_verdict_stands(groups: GroupsOutside) -> None:
    """Of two that contradict each other one is confirmed, at level `all`: the one that is in the log; and who hears
    that another one stands hears which."""
    for (queue, group, offset), those in groups.taken.items():
        said = [each for each in those if each.stands or (each.outcome == "confirmed" and each.how in FINAL)]
        ended = groups.stands.get((queue, group), ())
        for taken in said:
            # The first one stands; none when nothing that was settled so long ago is in the log any more. Who was
            # given it before a reset is excused.
            why = next((each.why for each in ended if each.first <= offset < each.until), "")
            stands = (DEAD if why in DEAD_WHYS else ACKED) if why else ""
            heard = taken.stands or (DEAD if taken.how == "reject" else ACKED)
            assert (
                heard in (stands, UNKNOWN)
                or not stands
                or taken.level != "all"
                or groups.excused(taken.queue, groups.given_at((queue, group, offset), taken))
            ), f"one verdict stands: {offset} of group {group!r} of {queue} is {stands} ({why}): {taken}"


def leases_hold(groups: GroupsOutside) -> None:
    """Nobody else is given a leased record before its time is over, whoever becomes master, unless its holder has said
    something about it."""
    for record, those in groups.taken.items():
        for taken in (each for each in those if each.lease_ms):
            until = min(taken.lease_from + taken.lease_ms / 1000, taken.asked_at)
            newest = groups.newest(taken.queue, taken.at)
            for granted in groups.granted[record]:
                assert (
                    not taken.at < granted.at < until
                    or groups.mastership(record[0], granted) < newest
                    or groups.excused(taken.queue, taken.lease_from)
                ), f"leases hold: {taken}; and then {granted}"


def nothing_is_settled_that_nobody_settled(groups: GroupsOutside) -> None:
    """In the end nothing is open in any group. So each record that is there was given to somebody who settled it; and
    each that was confirmed, where records go when they are settled. What a log said that was freed since, nobody
    knows."""
    ended, unheard = groups.ended, groups.unheard
    automatic = {(each.queue, each.group) for each in groups.takings if each.way == "auto"}
    stored = {final.queue: {seen.queue_offset for seen in final.seen} for final in groups.outside.history.finals}
    for sent, _, queue_id in groups.queues.sent:
        there = stored.setdefault(one_of(sent.queue, queue_id), set())
        if sent.receipt is not None and not groups.excused(sent.queue, sent.at):
            there.add(sent.receipt.queue_offset)
    for queue, known in groups.left.items():
        if name_of(queue) in TARGETS:
            stored[queue] = set(known.records)
    for queue, group in groups.groups:
        every = ((each, offset) for each in stored if name_of(each) == queue for offset in sorted(stored[each]))
        for one, offset in every:
            record = one, group, offset
            if offset < unheard.get(one, 0):
                continue
            if (queue, group) in automatic:
                settled = record in groups.granted
            else:
                settled = any(each.how in FINAL for each in groups.taken.get(record, ())) or record in ended
            assert settled, (
                f"nothing is settled that nobody settled: {offset} of group {group!r} of {queue}; it was given "
                f"{groups.granted.get(record, [])[-3:]} and taken {groups.taken.get(record, [])[-3:]}"
            )


def nothing_refused_is_settled(groups: GroupsOutside) -> None:
    """Who is refused an ack or a rejection is told that nothing counts: so until somebody else has asked for it, or he
    himself once more, no log says that the record is settled. Clocks are right wherever there are takers."""
    refused = [each for each in groups.history.refused if each.how in FINAL]
    settled_at = groups.settled_at if refused else {}
    for told in refused:
        record = groups.queue_taken(told), told.group, told.queue_offset
        at = settled_at.get(record, -inf)
        if at < told.asked_at or groups.excused(record[0], told.asked_at):
            continue
        others = [each for each in groups.taken[record] if each.how in FINAL and each.outcome != "refused"]
        assert any(each.asked_at <= at for each in others), (
            f"nothing refused is settled: it is since {at:.3f}: {told}; {groups.history.errors}"
        )


def not_redelivered_means_never_delivered(groups: GroupsOutside) -> None:
    """To anybody who saw it, and did not give it back as not seen."""
    for record, those in groups.granted.items():
        taken = [each for each in groups.taken.get(record, ()) if each.how != "release"]
        for granted in those:
            if granted.redelivered or not groups.current(record[0], granted):
                continue
            before = [each for each in taken if each.at < granted.at]
            assert not before or groups.excused(record[0], groups.given_at(record, before[0])), (
                f"not redelivered means never delivered: {granted} of {record}, and before {before[0]}"
            )


def attempts_are_returns(groups: GroupsOutside) -> None:
    """No more of them than it was given before, however often, and to however many masters, a return was told."""
    for record, those in groups.granted.items():
        for number, granted in enumerate(those):
            assert granted.attempts <= number, (
                f"attempts are returns: {granted} of {record} was given {number} times before: {those[:number][-4:]}; "
                f"{groups.taken.get(record)}"
            )


def the_order_is_kept_for_one(groups: GroupsOutside) -> None:
    """Who has a group for itself, and acknowledges as it goes, is given it in order, within each of its sessions."""
    alone = {(each.queue, each.group) for each in groups.takings if each.alone}
    reached: dict[tuple[str, int, str, str, int, int], int] = {}
    last: dict[_Record, int] = {}
    for granted in groups.tap.granted:
        if (name_of(groups.queue_of(granted)), granted.group) not in alone:
            continue
        session = granted.log_id, granted.queue_id, granted.group, granted.node, granted.epoch, granted.number
        record = groups.queue_of(granted), granted.group, granted.first
        before = last.get(record, granted.number)
        last[record] = granted.number
        if granted.attempts and before != granted.number:
            continue  # by whoever was killed before, and whose connection ends late
        assert granted.first >= reached.get(session, 0), (
            f"the order is kept for one: {granted}, and it had come to {reached[session]}"
        )
        reached[session] = granted.next
    for record, those in groups.taken.items():
        if (name_of(record[0]), record[1]) in alone:
            assert all(each.how in ("", "ack") for each in those)


def copies_know_the_same(groups: GroupsOutside) -> None:
    """Wherever two of them came to the same place of a log."""
    assert not groups.ledgers.differing, f"copies know the same: {groups.ledgers.differing[0]}"


def a_checkpoint_tells_the_same(groups: GroupsOutside) -> None:
    """As the whole log does, on the disk of every copy."""
    for log_id, node, batches in _logs(groups.outside):
        whole = rebuilt(batches, from_checkpoint=False)
        brief = rebuilt(batches, from_checkpoint=True)
        if whole is not None and brief is not None:
            groups.outside.history.counts["checkpoints compared"] += 1
            assert facts(*whole) == facts(*brief), (
                f"a checkpoint tells the same: {node} has log {log_id}; by all of it {facts(*whole)}; by its last "
                f"checkpoint {facts(*brief)}"
            )


def _logs(outside: Outside) -> Iterator[tuple[str, str, list[tuple[int, bytes]]]]:
    for log_id, log in outside.logs.items():
        for node in log.replicas:
            if "flip" in outside.damage.get(node, ()):
                continue
            yield log_id, node, list(_batches(outside.disks[node], log_id, until=1 << 62))


def nothing_waits_for_ever(groups: GroupsOutside) -> None:
    """Every subscribe, settlement, lease and close has ended, and in its time."""
    waits = groups.history.waits
    assert not waits, f"nothing waits for ever: {next(iter(waits.values()))}"
    waited_s, what = groups.history.waited_s
    assert waited_s < OPEN_MAX_S, f"nothing waits for ever: {what} took {waited_s:.1f} s"
