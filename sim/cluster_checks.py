"""What must hold of a cluster whatever happened to it. From outside: by what clients were told, and by the disks.

Each check is named for its invariant, and says so in the AssertionError that it raises. What was reported as lost may
be lost, from the start that was reported on, if anything has happened that can make a cluster lose something; nothing
else may. Some of what is reported is no loss: nodes report where they cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final
from uuid import UUID

from mirrorlog.client.producer.batch import Receipt
from mirrorlog.commitlog.epochs import Epoch, decode_epochs
from mirrorlog.commitlog.format.header import HEADER_SIZE, MAGIC, Kind, check_body, check_stamped, log_seed, read_header
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import PositionCommitted, decode_changes
from mirrorlog.wire.messages.status import LossStatus, PlacedLog
from sim.cluster_clients import History, Reading, Seen, Sent
from sim.cluster_coverage import Observer
from sim.cluster_logged import flattened
from sim.cluster_moves import Places
from sim.cluster_plan import Plan
from sim.cluster_troubles import Troubles
from sim.disk import SimulatedFiles
from sim.machines import ROOT

DECIDED_S: Final = 0.3
"""Between a decision and the epoch that is opened by it nobody else has become coordinator for so long."""
DECIDING_S: Final = 2.0
"""More than the time for which a coordinator waits for answers."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What the checks look at. `troubles`: of all machines; `damage`: by node, what happened to its disk: power, or
    anything worse; `disks`: by node, at the end; `places`: where queues that move were; `given_up`: logs by name, and
    the epochs that began with a copy that lacked something, as their rule said."""

    plan: Plan
    history: History
    observer: Observer
    troubles: Troubles
    damage: Mapping[str, frozenset[str]]
    disks: Mapping[str, SimulatedFiles]
    places: Places
    given_up: frozenset[tuple[str, int]] = frozenset()

    @property
    def logs(self) -> Mapping[str, PlacedLog]:
        return {log.log_id: log for log in self.history.cluster.logs}

    def log_at(self, queue: str, queue_offset: int) -> PlacedLog:
        """Of that record."""
        return self.logs[self.places.log_at(queue, queue_offset) or self.history.log_ids[queue]]

    def log_may_lose(self, log: PlacedLog) -> bool:
        """Whether something that was confirmed may be gone, reported or not. It is on as many disks as a confirm needs,
        so as many have to be damaged; and a loss of power does not damage a disk log. Or it was given up."""
        if any(name == log.name for name, _ in self.given_up):
            return True
        harmless = {"power"} if log.flush == "disk" else set()
        return sum(bool(kinds - harmless) for kinds in self.damage.values()) >= self.plan.copies_wanted

    def excused(self, queue: str, *, queue_offset: int, log_offset: int, epoch: int) -> bool:
        """Whether what stood there in that epoch may be lost, and was reported: by where a loss starts. Its end is what
        copies have told that came back, each up to where it held the log: one that had left the set, or was set back,
        does not know how far the log had gone."""
        if self.may_have_moved(queue):  # it may have been lost where it was, or where it was copied to
            return self.lost_since(self.logs_of(queue), 0.0)
        log = self.log_at(queue, queue_offset)
        reported = any(loss.epoch > epoch and loss.start <= log_offset for loss in log.losses)
        return reported and self.log_may_lose(log)

    def may_have_moved(self, queue: str) -> bool:
        """Whether records of it may be elsewhere by now than where they were read: in another log, or in their own one
        behind what came after them."""
        if queue in self.places.copied or not self.observer.recopied:
            return queue in self.places.copied
        logs = self.logs
        return any(log_id in logs and logs[log_id].name in self.observer.recopied for log_id in self.logs_of(queue))

    def logs_of(self, queue: str) -> set[str]:
        """Ids of all logs that it was ever in: it takes what it knows from one to the next."""
        return {self.history.log_ids.get(queue, ""), *self.places.logs_of(queue)} - {""}

    def lost_since(self, log_ids: Iterable[str], at: float) -> bool:
        """Whether anything was reported as lost, and may have been, by an epoch that was opened later than that, in any
        of these logs."""
        opened_at, lost_at = self.observer.opened_at, self.places.lost_at
        return any(
            (
                self.log_may_lose(self.logs[log_id])
                and any(
                    opened_at.get((self.logs[log_id].name, loss.epoch), inf) >= at for loss in self.logs[log_id].losses
                )
            )
            if log_id in self.logs
            else any(time >= at for time in lost_at.get(log_id, ()))
            for log_id in log_ids
        )


def check_all(outside: Outside) -> None:
    """Raises AssertionError naming the first invariant that does not hold."""
    for check in (
        losses_have_a_reason,
        copies_stay_as_many_as_promised,
        one_writer_per_epoch,
        same_offset_same_byte,
        copies_read_the_same,
        nothing_confirmed_is_lost,
        receipts_tell_enough_copies,
        below_all_only_what_is_allowed_is_lost,
        nothing_refused_is_stored,
        no_refused_position_is_stored,
        nothing_lands_twice,
        queue_order_is_kept,
        queue_offsets_are_never_reused,
        readers_see_what_stays,
        loss_starts_are_exact,
        positions_only_go_forward,
    ):
        check(outside)


# --- Losses ---------------------------------------------------------------------------------------------------------


def losses_have_a_reason(outside: Outside) -> None:
    """What is on fewer disks than a confirm needs can be lost: a loss needs as many that were damaged, or lost power.
    Of a disk log too: what was not synced may leave whole batches behind torn ones, which its node cannot tell from
    bytes that went bad. Then it has to report a loss that is none: see `log_may_lose`."""
    for log in outside.logs.values():
        # One that has just been made is at its home alone, which reports what it held when nothing was confirmed.
        needed = outside.plan.copies_wanted if log.name in outside.plan.log_names else 1
        losses = [loss for loss in log.losses if (log.name, loss.epoch) not in outside.given_up]
        assert not losses or len(outside.damage) >= needed, (
            f"losses have a reason: log {log.name} ({log.flush}) reports {_told(log.losses)}, and only "
            f"{', '.join(outside.damage) or 'no disk'} was damaged; a confirm needs {needed} copies"
        )


def copies_stay_as_many_as_promised(outside: Outside) -> None:
    """When a copy is taken away on purpose, as many whole ones stay as the log has, or as there are nodes."""
    for log, node, whole, staying in sorted(outside.observer.retired):
        promised = min(outside.plan.copies, staying)
        assert whole >= promised, (
            f"copies stay as many as promised: log {log} lost its copy on {node} on purpose, and {whole} whole ones "
            f"stayed of {promised}"
        )


def loss_starts_are_exact(outside: Outside) -> None:
    """A reported loss begins where its epoch does: everything below is there, which the checks of records see, and
    nothing of what was above. It begins before that only where the copy that was promoted lacked epochs that had been
    given out before: what it has above what it knew to be confirmed may be of a history that was given up, and records
    of the epochs that are gone may have stood there. How often that was so is counted."""
    for log_id, log in outside.logs.items():
        starts = {entry.epoch: entry.start for _, entry in _epochs(outside, log_id)}
        for loss in log.losses:
            start = starts.get(loss.epoch)
            if start is None:
                continue  # it was given up before anything was written in it
            former = max((epoch for epoch in starts if epoch < loss.epoch), default=0)
            assert loss.start <= start, f"loss starts are exact: {loss}, and that epoch begins at {start}"
            assert loss.start == start or former < loss.epoch - 1, (
                f"loss starts are exact: {loss}; that epoch begins at {start}, and epoch {former} is known"
            )
            outside.history.counts["losses that begin before their epoch"] += loss.start < start


# --- Logs -----------------------------------------------------------------------------------------------------------


def one_writer_per_epoch(outside: Outside) -> None:
    """By the nodes' own word, and by what all copies have written down."""
    for (log, epoch), runs in outside.observer.opened.items():
        assert len(runs) == 1, f"one writer per epoch: {', '.join(sorted(runs))} opened epoch {epoch} of log {log}"
    for log_id in outside.logs:
        known: dict[int, Epoch] = {}
        for node, entry in _epochs(outside, log_id):
            former = known.setdefault(entry.epoch, entry)
            assert former == entry, f"one writer per epoch: {former}, and at {node} {entry}"


def _epochs(outside: Outside, log_id: str) -> Iterator[tuple[str, Epoch]]:
    for node in outside.logs[log_id].replicas:
        content = outside.disks[node].content(_directory(log_id) / "epochs")
        for entry in decode_epochs(content).entries:
            yield node, entry


def same_offset_same_byte(outside: Outside) -> None:
    """On the disks of all copies, below what is confirmed; but for a batch that a bad sector has spoilt and that nobody
    has read since: its checksum shows it."""
    for log_id, log in outside.logs.items():
        known: dict[int, tuple[str, bytes]] = {}
        for node in log.replicas:
            confirmed = next(each.confirmed for each in outside.history.status[node].logs if each.log_id == log_id)
            held = dict(_batches(outside.disks[node], log_id, until=confirmed))
            assert held, f"same offset, same byte: {node} holds nothing of log {log.name}"
            for offset, batch in held.items():
                if "flip" in outside.damage.get(node, ()) and not _is_whole(log_id, batch):
                    continue
                first, other = known.setdefault(offset, (node, batch))
                assert batch == other, f"same offset, same byte: log {log.name} at {offset} on {first} and {node}"


def _is_whole(log_id: str, batch: bytes) -> bool:
    """By its checksums."""
    header = read_header(batch)
    try:
        check_stamped(batch, 0, log_offset=header.log_offset, seed=log_seed(UUID(log_id)), max_batch_bytes=len(batch))
        check_body(memoryview(batch), 0, header)
    except MirrorlogError:
        return False
    return True


def _batches(files: SimulatedFiles, log_id: str, *, until: int) -> Iterator[tuple[int, bytes]]:
    directory = _directory(log_id)
    for name in files.listdir(directory):
        if not name.isdigit():
            continue
        content, start, at = files.content(directory / name), int(name), 0
        while at + HEADER_SIZE <= len(content) and start + at < until:
            header = read_header(content, at)
            if header.magic != MAGIC or header.log_offset != start + at:
                break
            yield start + at, content[at : at + header.length]
            at += header.length


def _directory(log_id: str) -> Path:
    return ROOT / "data" / "logs" / log_id


# --- Records --------------------------------------------------------------------------------------------------------


def copies_read_the_same(outside: Outside) -> None:
    """Whichever copy is asked."""
    for queue, readings in _by_queue(outside.history.finals).items():
        first = readings[0]
        for other in readings[1:]:
            differing = next(
                (pair for pair in zip(first.seen, other.seen, strict=False) if pair[0] != pair[1]), "their ends"
            )
            same = first.seen == other.seen or [_lasting(outside, queue, each) for each in first.seen] == [
                _lasting(outside, queue, each) for each in other.seen
            ]
            assert same, f"copies read the same: {queue} at {first.node}, {other.node}: {differing}"


def nothing_confirmed_is_lost(outside: Outside) -> None:
    """What was confirmed at `all` is there, as it was sent and where its receipt says, or was reported as lost; below
    `all` it is where its receipt says, if it is there."""
    stored = {queue: _by_source(readings[0]) for queue, readings in _by_queue(outside.history.finals).items()}
    for sent in outside.history.sent:
        if sent.receipt is None:
            continue
        receipt, seen = sent.receipt, stored[sent.queue].get((sent.producer, sent.number))
        if seen is None:
            excused = _excuses(outside, sent.queue, receipt)
            outside.history.counts["confirmed and reported as lost" if excused else "confirmed below all and lost"] += 1
            assert excused or sent.level != "all", (
                f"nothing confirmed is lost: {_named(sent)} is gone; reported is "
                f"{_told(outside.log_at(sent.queue, receipt.queue_offset).losses)}"
            )
        else:
            assert seen.queue_offset == receipt.queue_offset, (
                f"nothing confirmed is changed: {_named(sent)} stands at {seen.queue_offset}"
            )


def receipts_tell_enough_copies(outside: Outside) -> None:
    """As many as the level asks for, or more; at `all` no fewer than a confirm needs."""
    for sent in outside.history.sent:
        if sent.receipt is not None:
            wanted = copies_at(sent.level, outside.plan)
            assert sent.receipt.copies >= wanted, f"receipts tell enough copies: {_named(sent)}; it takes {wanted}"


def copies_at(level: str | int, plan: Plan) -> int:
    """How many copies hold what is confirmed at that level, at least: a node may have been forgotten."""
    fewest = max(1, plan.copies - 1)
    usual = 1 if fewest <= 2 else fewest // 2 + 1
    named = {"none": 0, "master": 1, "one": 2, "majority": fewest // 2 + 1, "all": plan.min_in_sync or usual}
    return level if isinstance(level, int) else named[level]


def below_all_only_what_is_allowed_is_lost(outside: Outside) -> None:
    """A record that was confirmed below `all` is gone without a report only when

    - a later epoch begins at or below where it stood: what stands in an epoch that goes on behind it stays; and
    - between when it was handed over and when that epoch was opened as many nodes were in trouble as held it when it
      was answered, by its receipt: each of these was down, or could be late with its answer to who looked for the next
      master, or was damaged. Whoever is in sync and answers holds what it held, and the copy that holds most is
      promoted: so it takes the master and all others that had it. Or who decided that was late itself: then it may not
      have taken in answers that were there.
    """
    stored = {queue: _by_source(readings[0]) for queue, readings in _by_queue(outside.history.finals).items()}
    for sent in outside.history.sent:
        if sent.receipt is None or sent.level == "all" or (sent.producer, sent.number) in stored[sent.queue]:
            continue
        receipt = sent.receipt
        if _excuses(outside, sent.queue, receipt):
            continue
        cut_at = _cut_at(outside, outside.log_at(sent.queue, receipt.queue_offset).log_id, receipt)
        assert cut_at is not None, f"below all: {_named(sent)} is gone, and its epoch goes on behind it"
        troubled = {each.node for each in outside.troubles.between(sent.at, cut_at)} & outside.disks.keys()
        assert len(troubled) >= receipt.copies or _decided_late(outside, cut_at), (
            f"below all: {_named(sent)}, handed over at {sent.at:.3f}, is gone since {cut_at:.3f}, and only "
            f"{', '.join(sorted(troubled)) or 'nobody'} was in trouble meanwhile"
        )


def _cut_at(outside: Outside, log_id: str, receipt: Receipt) -> float | None:
    """When an epoch was opened that begins at or below that record's place; None for none."""
    later = [
        entry.epoch
        for _, entry in _epochs(outside, log_id)
        if entry.epoch > receipt.epoch and entry.start <= receipt.log_offset
    ]
    if not later:
        return None
    # Its opening may not have been told any more, then the next one's was.
    name, opened_at = outside.logs[log_id].name, outside.observer.opened_at
    return min((at for (log, epoch), at in opened_at.items() if log == name and epoch >= min(later)), default=inf)


def _decided_late(outside: Outside, opened_at: float) -> bool:
    """Whether the coordinator that decided on an epoch was late, while it waited for answers."""
    deciding = outside.observer.coordinated_between(opened_at - DECIDED_S, opened_at)
    troubles = outside.troubles.between(opened_at - DECIDING_S, opened_at)
    return any(each.late and each.node in deciding for each in troubles)


def nothing_refused_is_stored(outside: Outside) -> None:
    """A refusal says that nothing was."""
    stored = {queue: _by_source(readings[0]) for queue, readings in _by_queue(outside.history.finals).items()}
    for sent in outside.history.sent:
        if sent.outcome == "refused":
            seen = stored[sent.queue].get((sent.producer, sent.number))
            assert seen is None, f"nothing refused is stored: {_named(sent)}, {sent.reason}: {seen}"


def no_refused_position_is_stored(outside: Outside) -> None:
    """One of which every commit was refused is in no log."""
    history = outside.history
    refused = {position for position, told in history.told.items() if told == {"refused"}}
    queues = {number: queue for queue, number in history.queue_ids.items()}
    for log_id, log in outside.logs.items():
        for node in [each for each in log.replicas if refused and "flip" not in outside.damage.get(each, ())]:
            for _, batch in flattened(_batches(outside.disks[node], log_id, until=1 << 62)):
                header = read_header(batch)
                changes = decode_changes(batch) if header.kind == Kind.QUEUE_STATE else ()
                for each in (each for each in changes if isinstance(each, PositionCommitted)):
                    position = queues.get(header.queue_id, ""), each.group, each.queue_offset
                    assert position not in refused, f"no refused position is stored: {position} is at {node}"


def nothing_lands_twice(outside: Outside) -> None:
    """What was read and then reported as lost may land again: its producer's state is lost with it."""
    for reading in [*outside.history.finals, *outside.history.readings]:
        known: dict[tuple[str, int], Seen] = {}
        for seen in reading.seen:
            before = known.get(seen.source)
            assert before is None or _excuses(outside, reading.queue, before), (
                f"nothing lands twice: {reading.name} got {seen.source} again, {seen}"
            )
            known[seen.source] = seen


def queue_order_is_kept(outside: Outside) -> None:
    """Of each producer, in the order in which it sent."""
    for reading in outside.history.finals:
        last: dict[str, int] = {}
        for seen in reading.seen:
            producer, number = seen.source
            assert number > last.get(producer, -1), (
                f"queue order is kept: {producer} {number} behind {last[producer]} for the {reading.name}"
            )
            last[producer] = number


def queue_offsets_are_never_reused(outside: Outside) -> None:
    """One record for each, whoever was told of it and whatever was lost."""
    told: dict[tuple[str, int], tuple[str, int]] = {}
    for reading in [*outside.history.finals, *outside.history.readings]:
        for seen in reading.seen:
            former = told.setdefault((reading.queue, seen.queue_offset), seen.source)
            assert former == seen.source, (
                f"queue offsets are never reused: {seen.queue_offset} of {reading.queue} is {former} and {seen.source}"
            )
    for sent in outside.history.sent:
        if sent.receipt is not None and sent.level == "all":
            source = (sent.producer, sent.number)
            former = told.setdefault((sent.queue, sent.receipt.queue_offset), source)
            assert former == source, f"queue offsets are never reused: {_named(sent)}, and {former} stands there"


def readers_see_what_stays(outside: Outside) -> None:
    """In order, without a gap that they are not told of; and nothing that is not there later."""
    stored = {
        queue: {_lasting(outside, queue, seen) for seen in readings[0].seen}
        for queue, readings in _by_queue(outside.history.finals).items()
    }
    for reading in [*outside.history.readings, *outside.history.finals]:
        gaps = dict(reading.gaps)
        back = [gap for gap in reading.gaps if gap[1] <= gap[0]]
        assert not back, f"readers see what stays: the {reading.name} is sent back, from {back[0][0]} to {back[0][1]}"
        expected = reading.seen[0].queue_offset if reading.seen else 0
        for seen in reading.seen:
            while expected in gaps:
                expected = gaps[expected]
            assert seen.queue_offset == expected, (
                f"readers see what stays: the {reading.name} gets {seen.queue_offset} where {expected} is next"
            )
            expected += 1
            excused = _excuses(outside, reading.queue, seen)
            assert _lasting(outside, reading.queue, seen) in stored[reading.queue] or excused, (
                f"readers see what stays: the {reading.name} got {seen.source} at {seen.queue_offset}, epoch "
                f"{seen.epoch}, log offset {seen.log_offset}, and it is gone; reported is "
                f"{_told(outside.log_at(reading.queue, seen.queue_offset).losses)}"
            )


def positions_only_go_forward(outside: Outside) -> None:
    """What a group has committed it finds again, or what was committed later; unless something was reported as lost
    when a later epoch was opened."""
    for (queue, group), (committed, found) in outside.history.found.items():
        assert found >= committed.queue_offset or outside.lost_since(outside.logs_of(queue), committed.at), (
            f"positions only go forward: {group} of {queue} committed {committed} and finds {found}"
        )


# --- Words ----------------------------------------------------------------------------------------------------------


def _lasting(outside: Outside, queue: str, seen: Seen) -> Seen:
    """Without its place in a log, of a queue whose records may have got another one."""
    return replace(seen, log_offset=0, epoch=0) if outside.may_have_moved(queue) else seen


def _by_queue(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.queue, []).append(reading)
    return found


def _excuses(outside: Outside, queue: str, record: Seen | Receipt) -> bool:
    """Whether what was known of that record may be so no more."""
    return outside.excused(queue, queue_offset=record.queue_offset, log_offset=record.log_offset, epoch=record.epoch)


def _by_source(reading: Reading) -> dict[tuple[str, int], Seen]:
    return {seen.source: seen for seen in reading.seen}


def _named(sent: Sent) -> str:
    return f"{sent.producer} {sent.number} of {sent.queue}, level {sent.level}, {sent.receipt}"


def _told(losses: Sequence[LossStatus]) -> str:
    return "; ".join(map(str, losses)) or "no loss"
