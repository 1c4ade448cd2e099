"""What a step lands of which queue: found out from the table and the log, and cut to what one commit may have.

Thin where it asks a `Lookup`; what decides is in `positions`. With `on_data_loss = "fail"` a loss is an error that
names the exact range, behind all that stands before it has been landed; with `skip` the range is passed over and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.config import RECORD_BYTES_MAX
from mirrorlog.errors import NoSuchQueue
from mirrorlog.spark.landing.commit.delta_log import TableState
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.positions import (
    MissedRange,
    QueueIds,
    changed_history,
    refuse_changed_history,
    refuse_gap,
    starting_offset,
)
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueuePlace, QueueRange
from mirrorlog.spark.reading.declared_gaps import GAP_OFFSETS_MIN, Gap, between
from mirrorlog.spark.reading.lookup import Lookup
from mirrorlog.spark.reading.planning import gaps_of, headers_below


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """What a step lands of a queue: the pieces between declared losses, each within one log, and where the queue
    stands afterwards.

    `epoch`: of the record below `first`, where the log has another history than the table was landed from.
    """

    facts: QueueFacts
    first: int
    next: int
    pieces: tuple[QueueRange, ...] = ()
    missed: tuple[MissedRange, ...] = ()
    epoch: int | None = None

    @property
    def moves(self) -> bool:
        """Whether the position changes."""
        return self.next != self.first or bool(self.missed)


def source_options(landing: Landing) -> SourceOptions:
    """What a landing reads, as the data source names it."""
    return SourceOptions(
        servers=landing.servers,
        path=landing.path,
        queues=landing.queues,
        pattern=landing.queue_pattern,
        read_from=landing.read_from,
        fail_on_data_loss=landing.on_data_loss == "fail",
        access=landing.access,
    )


def lookup_options(landing: Landing) -> SourceOptions:
    """As `source_options`, for looks at single batches: of any copy, so that queues without mirrors have one too."""
    options = source_options(landing)
    return replace(options, read_from="nearest") if landing.read_from == "mirror" else options


def unmirrored(landing: Landing, plans: Sequence[QueuePlan]) -> frozenset[str]:
    """The queues that are read from their masters because the mirrors that are asked for do not exist."""
    if landing.read_from != "mirror":
        return frozenset()
    return frozenset(plan.facts.name for plan in plans if not plan.facts.mirrored)


def queues_of(landing: Landing, lookup: Lookup) -> list[QueueFacts]:
    """Raises NoSuchQueue naming those that there are not; of a pattern there may be none yet."""
    if landing.queue_pattern is not None:
        options = source_options(landing)
        return [facts for facts in lookup.facts(None) if options.subscribes(facts.name)]
    found = lookup.facts(landing.queues)
    missing = [name for name in landing.queues if name not in {facts.name for facts in found}]
    if missing:
        raise NoSuchQueue(f"no queue {', '.join(map(repr, missing))}; see: mqtool queues")
    return found


def queue_plans(landing: Landing, lookup: Lookup, queues: Sequence[QueueFacts], state: TableState) -> list[QueuePlan]:
    """All that there is to land of the queues. Raises RecordsMissing, BeginUnknown, HistoryChanged, TableOutOfStep."""
    below = _below(lookup, queues, state)
    return [_queue_plan(landing, lookup, facts, state, below.get(facts.name)) for facts in queues]


def record_bytes(lookup: Lookup, plans: Sequence[QueuePlan], bytes_max: int) -> float:
    """About how many bytes of the log a record of the plans has: the largest of their first, middle and last ones.

    0 when nobody needs to know it, because so few records are pending that they are below `bytes_max` anyhow.
    """
    if sum(_pending(plan) for plan in plans) * RECORD_BYTES_MAX <= bytes_max:
        return 0.0
    places = [QueuePlace(plan.facts, at) for plan in plans if plan.pieces for at in _samples(plan)]
    seen = lookup.headers_at(places)
    return max((each.length / max(1, each.record_count) for each in seen if isinstance(each, BatchHeader)), default=0.0)


def _pending(plan: QueuePlan) -> int:
    return sum(map(len, plan.pieces))


def _samples(plan: QueuePlan) -> list[int]:
    """The first, the middle and the last queue offset of what a plan lands, each once."""
    middle = _pending(plan) // 2
    for piece in plan.pieces:
        if middle < len(piece):
            return sorted({plan.pieces[0].first, piece.first + middle, plan.pieces[-1].next - 1})
        middle -= len(piece)
    raise AssertionError("a plan without records has no samples")


def limited(plans: Sequence[QueuePlan], records_max: int) -> list[QueuePlan]:
    """The same plans with at most `records_max` records in all: each queue gets an equal share, and what others
    leave."""
    found: dict[str, QueuePlan] = {}
    room = records_max
    # The shortest first: what it leaves is shared by those that have more.
    waiting = sorted(plans, key=_pending)
    for number, plan in enumerate(waiting):
        share = -(-room // (len(waiting) - number))
        cut = _cut(plan, share)
        found[plan.facts.name] = cut
        room -= _pending(cut)
    return [found[plan.facts.name] for plan in plans]


def _cut(plan: QueuePlan, records_max: int) -> QueuePlan:
    if _pending(plan) <= records_max:
        return plan
    pieces: list[QueueRange] = []
    room = records_max
    for piece in plan.pieces:
        if room <= 0:
            break
        pieces.append(replace(piece, next=min(piece.next, piece.first + room)))
        room -= len(pieces[-1])
    end = pieces[-1].next if pieces else plan.first
    missed = tuple(each for each in plan.missed if each.next <= end)
    return replace(plan, next=end, pieces=tuple(pieces), missed=missed)


def _below(lookup: Lookup, queues: Sequence[QueueFacts], state: TableState) -> dict[str, BatchHeader]:
    """The header of the batch with the last landed record, of the queues where there is something to prove."""
    stands = []
    for facts in queues:
        ids = QueueIds(facts)
        landed = state.versions[ids.offset]
        if landed is not None and landed != facts.next and state.versions[ids.epoch(landed)] is not None:
            stands.append((facts, landed))
    return headers_below(lookup, stands)


def _queue_plan(
    landing: Landing, lookup: Lookup, facts: QueueFacts, state: TableState, below: BatchHeader | None
) -> QueuePlan:
    skip = landing.on_data_loss == "skip"
    landed = state.versions[QueueIds(facts).offset]
    changed = changed_history(facts, state, below, landing.table)
    if not skip:
        refuse_changed_history(changed)
    start = starting_offset(facts, landed, landing.table, skip=skip)
    first = start.first if landed is None else landed
    missed = start.missed
    if changed is not None:
        missed = (*missed, MissedRange(facts.name, start.first, start.first, changed))
    found = below.epoch if changed is not None and below is not None else None
    gaps = _gaps(lookup, facts, start.first)
    if not skip:
        refuse_gap(facts.name, start.first, gaps, landing.table)
        # What stands before a loss is landed; the next step ends at it.
        end = gaps[0].first if gaps else facts.next
        return QueuePlan(facts, first, end, _pieces(facts, start.first, end, ()), missed)
    lost = tuple(MissedRange(facts.name, gap.first, gap.next, "a declared loss") for gap in gaps)
    return QueuePlan(facts, first, facts.next, _pieces(facts, start.first, facts.next, gaps), (*missed, *lost), found)


def _gaps(lookup: Lookup, facts: QueueFacts, first: int) -> list[Gap]:
    """Declared losses from `first` on. In the queue's own log one is so wide that a shorter range has none."""
    own_first = min(facts.spans[-1].first, facts.next) if facts.spans else first
    return gaps_of(lookup, facts, first, facts.next if facts.next - first >= GAP_OFFSETS_MIN else own_first)


def _pieces(facts: QueueFacts, first: int, end: int, gaps: Sequence[Gap]) -> tuple[QueueRange, ...]:
    dense = (facts.range(begin, stop) for begin, stop in between(first, end, gaps))
    return tuple(piece for each in dense for piece in facts.in_logs(each))
