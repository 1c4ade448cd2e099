"""What the management page shows, made of what nodes and lists say: rows, and bars on an axis of offsets. Pure.

Red comes first: whatever stops something stands above what goes on, in every list, with the words that `mqtool doctor`
has for it; nothing is judged here a second time. On the axis of a log stand all of its copies, how far each is
confirmed and flushed, what was lost, and where each landing is, so that one look says who lags behind whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.diagnosis.advice import NOTED, STOPS, Diagnosis
from mirrorlog.diagnosis.cells import bytes_text
from mirrorlog.diagnosis.cluster_status import loss_text
from mirrorlog.wire.messages.groups import GroupInfo
from mirrorlog.wire.messages.queues import HoldInfo, QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import LogStatus, LossStatus, MirrorStatus, PlacedLog, QueueStatus
from mirrorlog.wire.names import shown, split

LOST: Final = "lost"
"""The weight of what a log has lost: it is over, and nothing takes it away, so it stands before nothing else."""
AXIS: Final = 1_000
"""How wide an axis is, in units of its drawings."""
_SEEN_MIN: Final = 3.0
"""What there is at all is drawn so wide."""
_NEAR: Final = 0.1
"""Of the stretch in which copies differ, so much is shown before it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not as it should be. `weight`: stops, noted or lost; `advice`: what to do, may be empty."""

    weight: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue in a list. `in_sync`, `behind`: its mirrors; numbers are None where nobody tells them."""

    vhost: str
    name: str
    state: str
    node: str
    in_sync: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    policy: str = ""
    ready: int | None = None
    unacknowledged: int | None = None
    consumers: int | None = None
    publish_rate: float | None = None
    deliver_rate: float | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def weight(self) -> str:
        """The heaviest of its reasons; empty when all is well."""
        return _heaviest(self.reasons)


def _heaviest(reasons: Iterable[Reason]) -> str:
    weights = {each.weight for each in reasons}
    return next((weight for weight in (STOPS, NOTED, LOST) if weight in weights), "")


class Reasons:
    """Findings by what they are about. `losses`: by log, its lost ranges, which are no finding of the doctor's: nothing
    stands still for them."""

    def __init__(self, found: Iterable[Diagnosis], losses: Mapping[str, Sequence[LossStatus]] | None = None) -> None:
        self._found: dict[tuple[str, str], list[Reason]] = {}
        for each in found:
            # A group's name begins with that of its queue, which may have blanks itself.
            self._found.setdefault((each.what, each.name), []).append(Reason(each.weight, each.text, each.advice))
        for log, lost in (losses or {}).items():
            self._found.setdefault(("log", log), []).extend(Reason(LOST, lost_text(log, each)) for each in lost)

    def of(self, what: str, name: str) -> tuple[Reason, ...]:
        """Of a node, log or queue by its name."""
        return tuple(self._found.get((what, name), ()))

    def of_queue(self, name: str, log: str) -> tuple[Reason, ...]:
        """Its own and those of its log."""
        return self.of("queue", shown(name)) + self.of("log", log)


def lost_text(log: str, loss: LossStatus) -> str:
    """A lost range in words."""
    return f"log {log}: confirmed records may be lost, log offsets {loss_text(loss)}"


# --- Queues ---------------------------------------------------------------------------------------------------------


def queue_line(
    info: QueueInfo, log: PlacedLog | None, told: QueueStatus | None, reasons: Sequence[Reason] = ()
) -> QueueLine:
    """`log`: that it is in; `told`: what the master of that says of it."""
    vhost, name = split(info.name)
    synced = set(log.in_sync) if log is not None else set()
    counts = told.counts if told is not None else None
    numbers = told if told is not None and told.ready >= 0 else None
    found = list(reasons)
    if not info.master and not any(each.weight == STOPS for each in found):
        found.insert(0, Reason(STOPS, info.reason or "nobody masters it"))
    return QueueLine(
        vhost=vhost,
        name=name,
        state="running" if info.master else "down",
        node=info.master,
        in_sync=tuple(node for node in info.mirrors if node in synced),
        behind=tuple(node for node in info.mirrors if node not in synced),
        policy=info.policy,
        ready=numbers.ready if numbers is not None else None,
        unacknowledged=numbers.unacknowledged if numbers is not None else None,
        consumers=numbers.consumers if numbers is not None else None,
        publish_rate=counts.publish_rate if counts is not None else None,
        deliver_rate=counts.deliver_rate if counts is not None else None,
        reasons=tuple(found),
    )


def outage_line(outage: QueueOutage) -> QueueLine:
    """Nobody can answer for it."""
    vhost, name = split(outage.name)
    return QueueLine(vhost=vhost, name=name, state="down", node=outage.node, reasons=(Reason(STOPS, outage.reason),))


def red_first(lines: Iterable[QueueLine]) -> list[QueueLine]:
    """What stops, what is noted, mirrors behind, and then all that is well; each by virtual host and name."""
    return sorted(lines, key=lambda line: (_urgency(line.weight), not line.behind, line.vhost, line.name))


def _urgency(weight: str) -> int:
    return {STOPS: 0, NOTED: 1}.get(weight, 2)


# --- Axes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BarPart:
    """Drawn from `x`, `width` wide, in 1,000ths of the axis. `kind`: what it is, a class of the style sheet; `title`:
    in words."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One row along an axis. `cells`: what stands beside it, by what it is."""

    name: str
    kind: str
    stretches: tuple[BarPart, ...]
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Axis:
    """Bars over the same offsets, from `low` up to `high`. `cut`: it begins behind the first offset there is."""

    low: int
    high: int
    unit: str
    bars: tuple[Bar, ...]
    cut: bool = False

    @property
    def ticks(self) -> list[tuple[int, int]]:
        """(1,000ths, offset) of five places."""
        return [(part * AXIS // 4, self.low + (self.high - self.low) * part // 4) for part in range(5)]


class _Scale:
    """Offsets in 1,000ths of an axis."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = max(high, low + 1)

    def at(self, offset: int) -> float:
        place = (offset - self.low) / (self.high - self.low)
        return round(min(1.0, max(0.0, place)) * AXIS, 2)

    def stretch(self, kind: str, first: int, end: int, title: str) -> BarPart:
        start, stop = self.at(first), self.at(end)
        width = round(max(stop - start, _SEEN_MIN if end > first else 0.0), 2)
        return BarPart(kind, min(start, round(AXIS - width, 2)), width, title)

    def mark(self, kind: str, offset: int, title: str) -> BarPart:
        return BarPart(kind, min(max(0.0, self.at(offset) - _SEEN_MIN / 2), AXIS - _SEEN_MIN), _SEEN_MIN, title)


def log_axis(
    placed: PlacedLog, copies: Mapping[str, LogStatus], *, near: bool = False, holds: Sequence[HoldInfo] | None = None
) -> Axis:
    """The copies of a log, the master's first. `copies`: by node, of those that answer; of another one its master knows
    what it has acknowledged. `near`: only the stretch in which they differ; `holds`: landings that are shown, all of
    the log unless said."""
    master = copies.get(placed.master)
    mirrors = {each.node_id: each for each in master.mirrors} if master is not None else {}
    landings = (master.holds if master is not None else []) if holds is None else holds
    scale, cut = _log_scale(placed, copies, mirrors, landings, near=near)
    nodes = list(dict.fromkeys([*([placed.master] if placed.master else []), *placed.replicas, *sorted(copies)]))
    bars = [_copy_bar(scale, placed, node, copies.get(node), mirrors.get(node)) for node in nodes]
    if placed.losses:
        bars.append(Bar("lost", "lost", tuple(_loss(scale, placed.name, each) for each in placed.losses)))
    if master is not None:
        bars += [_landing_bar(scale, master, each) for each in landings]
    return Axis(scale.low, scale.high, "bytes of the log", tuple(bars), cut)


def _log_scale(
    placed: PlacedLog,
    copies: Mapping[str, LogStatus],
    mirrors: Mapping[str, MirrorStatus],
    landings: Sequence[HoldInfo],
    *,
    near: bool,
) -> tuple[_Scale, bool]:
    begins = [each.begin for each in copies.values()]
    ends = [each.end for each in copies.values()] + [each.end or each.start for each in placed.losses]
    low, high = min(begins, default=0), max([*ends, 0])
    if not near:
        return _Scale(low, high), False
    places = [place for each in copies.values() for place in (each.end, each.confirmed, each.flushed) if place >= 0]
    places += [each.acked for each in mirrors.values() if each.acked >= 0]
    places += [high - each.kept_bytes for each in landings if each.kept_bytes >= 0 and not each.ended]
    first = min(places, default=low)
    near_low = max(low, first - int((high - first) * _NEAR) - 1)
    return _Scale(near_low, high), near_low > low


def _loss(scale: _Scale, log: str, loss: LossStatus) -> BarPart:
    return scale.stretch("loss", loss.start, loss.end if loss.end is not None else loss.start, lost_text(log, loss))


def _copy_bar(scale: _Scale, placed: PlacedLog, node: str, copy: LogStatus | None, mirror: MirrorStatus | None) -> Bar:
    """`mirror`: as its master sees it."""
    cells: dict[str, str] = {"in sync": "yes" if node in placed.in_sync else "NO"}
    losses = tuple(_loss(scale, placed.name, each) for each in placed.losses)
    if mirror is not None:
        about = "≈ " if mirror.lag_records_estimated else ""
        cells["lag"] = (
            f"{bytes_text(mirror.lag_bytes)}, {about}{mirror.lag_records} records, {mirror.lag_seconds:.1f} s"
        )
        cells["speed"] = f"{bytes_text(mirror.bytes_per_second)}/s"
    if copy is None:
        cells["state"] = "does not answer"
        if mirror is None or mirror.acked < 0:
            return Bar(node, "away", losses, cells)
        known = scale.stretch(
            "untold", scale.low, mirror.acked, f"acknowledged up to {mirror.acked}, as its master says"
        )
        return Bar(node, "away", (known, *losses), {**cells, "end": str(mirror.acked)})
    cells |= {"state": f"{copy.state}{': ' + copy.reason if copy.reason else ''}"}
    cells |= {"end": str(copy.end), "confirmed": str(copy.confirmed), "flushed": str(copy.flushed)}
    kind = "master" if node == placed.master else "mirror" if node in placed.replicas else "former"
    drawn = (
        scale.stretch("held", copy.begin, copy.end, f"held: {copy.begin} up to {copy.end}"),
        scale.stretch("confirmed", copy.begin, max(copy.begin, copy.confirmed), f"confirmed up to {copy.confirmed}"),
        scale.mark("flushed", max(copy.flushed, copy.begin), f"on disk up to {copy.flushed}"),
        *losses,
    )
    return Bar(node, kind, drawn, cells)


def _landing_bar(scale: _Scale, master: LogStatus, hold: HoldInfo) -> Bar:
    """What it keeps of the log says where it stands on it."""
    cells = {"state": hold.ended or f"held by {hold.holder}", "lag": f"{hold.lag} records"}
    name = f"landing {hold.name} of {shown(hold.queue)}"
    if hold.kept_bytes < 0:
        return Bar(name, "landing", (), cells)
    at = max(master.begin, master.end - hold.kept_bytes)
    cells["lag"] += f", {bytes_text(hold.kept_bytes)}"
    behind = scale.stretch("behind", at, master.end, f"not landed: {hold.lag} records, {bytes_text(hold.kept_bytes)}")
    return Bar(name, "landing", (behind, scale.mark("landed", at, f"landed up to log offset {at}")), cells)


def queue_axis(info: QueueInfo, groups: Iterable[GroupInfo], holds: Iterable[HoldInfo]) -> Axis:
    """A queue's records, what was given up of them, and where its groups and landings stand: queue offsets."""
    groups, holds = list(groups), [each for each in holds if each.queue == info.name]
    begin = min([info.begin, *(each.queue_offset for each in holds), *(each.floor for each in groups)])
    scale = _Scale(begin, info.next)
    gaps = tuple(
        scale.stretch("loss", first, end, f"given up after a loss: {first} up to {end}") for first, end in info.gaps
    )
    there = scale.stretch("confirmed", info.begin, info.next, f"confirmed: {info.begin} up to {info.next}")
    bars = [Bar("records", "queue", (there, *gaps), {"state": f"{info.begin} up to {info.next}"})]
    for group in groups:
        lag = group.unsettled if group.kind == "acking" else max(0, info.next - group.floor)
        behind = scale.stretch("behind", group.floor, info.next, f"{lag} records to go")
        marks: tuple[BarPart, ...] = (behind, scale.mark("floor", group.floor, f"stands at {group.floor}"))
        if group.watermark > group.floor:
            out = scale.stretch("out", group.floor, group.watermark, f"given out up to {group.watermark}")
            marks = (behind, out, marks[-1])
        cells = {"state": f"stands at {group.floor}", "lag": f"{lag} records"}
        bars.append(Bar(f"group {group.group or '(own)'}", "group", marks, cells))
    for hold in holds:
        behind = scale.stretch("behind", hold.queue_offset, info.next, f"not landed: {hold.lag} records")
        mark = scale.mark("landed", hold.queue_offset, f"landed up to {hold.queue_offset}")
        cells = {"state": hold.ended or f"held by {hold.holder}", "lag": f"{hold.lag} records"}
        bars.append(Bar(f"landing {hold.name}", "landing", (behind, mark), cells))
    return Axis(scale.low, scale.high, "records of the queue", tuple(bars))
