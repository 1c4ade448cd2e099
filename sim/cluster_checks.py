"""What must hold of a cluster whatever happened to it. From outside: by what clients were told, and by the disks.

Each check is named for its invariant, and says so in the AssertionError that it raises. What was reported as lost may
be lost, from the start that was reported on, if anything has happened that can make a cluster lose something; nothing
else may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirrorlog.commitlog.epochs import Epoch, decode_epochs
from mirrorlog.commitlog.format import HEADER_SIZE, MAGIC, read_header
from mirrorlog.wire.messages import LossStatus, PlacedLog
from sim.cluster_clients import History, Reading, Seen, Sent
from sim.cluster_coverage import Observer
from sim.cluster_plan import Plan
from sim.disk import SimulatedFiles
from sim.machines import ROOT


@dataclass(frozen=True, slots=True)
class Outside:
    """What the checks look at. `damage`: by node, what happened to its disk: power, or anything worse; `disks`: by
    node, at the end; `by_hand`: a loss was accepted by the operator, who had no other copy."""

    plan: Plan
    history: History
    observer: Observer
    damage: Mapping[str, frozenset[str]]
    disks: Mapping[str, SimulatedFiles]
    by_hand: bool = False

    @property
    def logs(self) -> Mapping[str, PlacedLog]:
        return {log.log_id: log for log in self.history.cluster.logs}

    def losses(self, queue: str) -> Sequence[LossStatus]:
        return self.logs[self.history.log_ids[queue]].losses

    def excused(self, queue: str, *, log_offset: int, epoch: int) -> bool:
        """Whether what stood there in that epoch was reported as lost."""
        return any(
            loss.epoch > epoch and loss.start <= log_offset and (loss.end is None or log_offset < loss.end)
            for loss in self.losses(queue)
        )


def check_all(outside: Outside) -> None:
    """Raises AssertionError naming the first invariant that does not hold."""
    for check in (
        losses_have_a_reason,
        one_writer_per_epoch,
        same_offset_same_byte,
        copies_read_the_same,
        nothing_confirmed_is_lost,
        nothing_refused_is_stored,
        nothing_lands_twice,
        queue_order_is_kept,
        queue_offsets_are_never_reused,
        readers_see_what_stays,
        loss_starts_are_early_enough,
        positions_only_go_forward,
    ):
        check(outside)


# --- Losses ---------------------------------------------------------------------------------------------------------


def losses_have_a_reason(outside: Outside) -> None:
    """What is on fewer disks than a confirm needs can be lost: a loss needs as many that were damaged. A disk log is
    not damaged by a loss of power."""
    for log in outside.logs.values():
        harmless = {"power"} if log.flush == "disk" else set()
        damaged = [node for node, kinds in outside.damage.items() if kinds - harmless]
        assert not log.losses or outside.by_hand or len(damaged) >= outside.plan.copies_wanted, (
            f"losses have a reason: log {log.name} ({log.flush}) reports {_told(log.losses)}, and only "
            f"{', '.join(damaged) or 'no disk'} was damaged; a confirm needs {outside.plan.copies_wanted} copies"
        )


def loss_starts_are_early_enough(outside: Outside) -> None:
    """A reported loss begins where its epoch does, or before: where nobody can say what the epochs held that are gone.
    How often it could have begun later is counted."""
    for log_id, log in outside.logs.items():
        starts = {entry.epoch: entry.start for _, entry in _epochs(outside, log_id)}
        for loss in log.losses:
            start = starts.get(loss.epoch, loss.start)
            assert loss.start <= start, f"loss starts are early enough: {loss}, and that epoch begins at {start}"
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
    """On the disks of all copies, below what is confirmed."""
    for log_id, log in outside.logs.items():
        known: dict[int, tuple[str, bytes]] = {}
        for node in log.replicas:
            confirmed = next(each.confirmed for each in outside.history.status[node].logs if each.log_id == log_id)
            held = dict(_batches(outside.disks[node], log_id, until=confirmed))
            assert held, f"same offset, same byte: {node} holds nothing of log {log.name}"
            for offset, batch in held.items():
                first, other = known.setdefault(offset, (node, batch))
                assert batch == other, f"same offset, same byte: log {log.name} at {offset} on {first} and {node}"


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
            assert first.seen == other.seen, f"copies read the same: {queue} at {first.node}, {other.node}: {differing}"


def nothing_confirmed_is_lost(outside: Outside) -> None:
    """What was confirmed at `all` is there, as it was sent and where its receipt says; below `all` it is where its
    receipt says, if it is there."""
    stored = {queue: _by_source(readings[0]) for queue, readings in _by_queue(outside.history.finals).items()}
    for sent in outside.history.sent:
        if sent.receipt is None:
            continue
        receipt, seen = sent.receipt, stored[sent.queue].get((sent.producer, sent.number))
        if seen is None:
            excused = outside.excused(sent.queue, log_offset=receipt.log_offset, epoch=receipt.epoch)
            outside.history.counts["confirmed and reported as lost" if excused else "confirmed below all and lost"] += 1
            assert excused or sent.level != "all", (
                f"nothing confirmed is lost: {_named(sent)} is gone; reported is {_told(outside.losses(sent.queue))}"
            )
        else:
            assert seen.queue_offset == receipt.queue_offset, (
                f"nothing confirmed is changed: {_named(sent)} stands at {seen.queue_offset}"
            )


def nothing_refused_is_stored(outside: Outside) -> None:
    """A refusal says that nothing was."""
    stored = {queue: _by_source(readings[0]) for queue, readings in _by_queue(outside.history.finals).items()}
    for sent in outside.history.sent:
        if sent.outcome == "refused":
            seen = stored[sent.queue].get((sent.producer, sent.number))
            assert seen is None, f"nothing refused is stored: {_named(sent)}, {sent.reason}: {seen}"


def nothing_lands_twice(outside: Outside) -> None:
    for reading in [*outside.history.finals, *outside.history.readings]:
        sources: set[tuple[str, int]] = set()
        for seen in reading.seen:
            assert seen.source not in sources, f"nothing lands twice: {reading.name} got {seen.source} again, {seen}"
            sources.add(seen.source)


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
    stored = {queue: set(readings[0].seen) for queue, readings in _by_queue(outside.history.finals).items()}
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
            excused = outside.excused(reading.queue, log_offset=seen.log_offset, epoch=seen.epoch)
            assert seen in stored[reading.queue] or excused, (
                f"readers see what stays: the {reading.name} got {seen.source} at {seen.queue_offset}, epoch "
                f"{seen.epoch}, log offset {seen.log_offset}, and it is gone; reported is "
                f"{_told(outside.losses(reading.queue))}"
            )


def positions_only_go_forward(outside: Outside) -> None:
    """What a group has committed it finds again, or what was committed later."""
    for (queue, group), (committed, found) in outside.history.found.items():
        assert found >= committed or outside.losses(queue), (
            f"positions only go forward: {group} of {queue} committed {committed} and finds {found}"
        )


# --- Words ----------------------------------------------------------------------------------------------------------


def _by_queue(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {}
    for reading in readings:
        found.setdefault(reading.queue, []).append(reading)
    return found


def _by_source(reading: Reading) -> dict[tuple[str, int], Seen]:
    return {seen.source: seen for seen in reading.seen}


def _named(sent: Sent) -> str:
    return f"{sent.producer} {sent.number} of {sent.queue}, level {sent.level}, {sent.receipt}"


def _told(losses: Sequence[LossStatus]) -> str:
    return "; ".join(map(str, losses)) or "no loss"
