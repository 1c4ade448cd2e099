"""A piece on its way: what becomes of it when one of its targets has answered (decision 0041).

The targets of a piece are served in their order, and the one that is served is the first: it goes when it has what it
was to get, or never will. So a piece that is logged anew, because something must be sent in another way than was
logged, names those that are left and no others: what has landed is not sent again, whoever goes on.

What must be the same whoever sends it stands in the log before it is sent: numbers, the records that are not there any
more, how much a dead letter tells. Rejected: to find out again what the one before found out, as he may have been
answered by a target with other limits, or have read what is freed since.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    MirrorlogError,
    NoSuchQueue,
    OutOfSequence,
    RecordTooLarge,
    StaleProducerEpoch,
)
from mirrorlog.queues.changes import Addressed, DeadLetterTarget
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN, REJECTED
from mirrorlog.queues.ranges import flat_of, joined_flat, offsets_of, without

_TOO_LARGE: Final = (BatchTooLarge, RecordTooLarge)
_FOR_EVER: Final = (BadBatch, BadRequest, *_TOO_LARGE)
"""What a target refuses it refuses until somebody has changed it."""


class Step(NamedTuple):
    """The piece as it goes on, and `what` happened. `logged`: it is to be logged, and confirmed, before it does."""

    piece: Addressed
    what: str
    logged: bool = True


def served(piece: Addressed) -> Addressed:
    """The first target has what it was to get, or never will."""
    return replace(piece, targets=piece.targets[1:])


def reduced(piece: Addressed, gone: Sequence[int], *, sent: bool = True) -> Step:
    """Some records of the first target are not there any more. The others go under the same numbers: so if all of
    them have landed before, it is seen by that. `sent`: whether somebody may have sent them; if nobody has, numbers
    that are in use are those of a piece that a loss has taken out of the log."""
    target = piece.targets[0]
    left = without(target.ranges, gone)
    if not left:
        return Step(served(piece), "gone", logged=False)
    numbered = (target.numbered or target.records) if sent else 0
    anew = replace(target, ranges=left, numbered=numbered)
    return Step(_with_first(piece, anew), "reduced")


def refused(piece: Addressed, reason: str, error: MirrorlogError) -> Step | None:
    """The first target does not take its records, of a forwarding for that `reason`; None: it is to be waited for."""
    target = piece.targets[0]
    if isinstance(error, NoSuchQueue):
        return _abandoned(piece, reason)
    if _had_landed(target, error):
        return Step(served(piece), "landed", logged=False)
    if is_numbers_in_use(error) or isinstance(error, OutOfSequence | StaleProducerEpoch):
        return Step(_renumbered(piece, error), "renumbered")
    if isinstance(error, _TOO_LARGE) and (smaller := _smaller(piece, reason)) is not None:
        return smaller
    if isinstance(error, _FOR_EVER) and reason == REDRIVEN:
        return _abandoned(piece, reason)
    return _kept(piece, "held") if isinstance(error, _TOO_LARGE) else None


def _had_landed(target: DeadLetterTarget, error: MirrorlogError) -> bool:
    """They were sent under these numbers before some of them were freed; or others behind them were, and the target
    does not remember each batch: see `ProducerTable.state`."""
    if isinstance(error, OutOfSequence):
        last = error.details.get("last")
        return isinstance(last, int) and last >= target.following - 1
    return is_numbers_in_use(error) and bool(target.numbered)


def is_numbers_in_use(error: MirrorlogError) -> bool:
    """Whether it says that another batch was sent under the same numbers: see `ProducerTable.check`."""
    return isinstance(error, BadBatch) and isinstance(error.details.get("producer_epoch"), int)


def _abandoned(piece: Addressed, reason: str) -> Step:
    """What nobody can have is done, but what somebody wanted to have elsewhere stays where it is."""
    if reason != REDRIVEN:
        return Step(served(piece), "dropped", logged=False)
    return _kept(piece, "stayed")


def _kept(piece: Addressed, what: str) -> Step:
    """What the first target was to get is not sent there: it is kept where it is."""
    return Step(replace(served(piece), kept=joined_flat(piece.kept, piece.targets[0].ranges)), what)


def _renumbered(piece: Addressed, error: MirrorlogError) -> Addressed:
    """Under a producer epoch of its own, from 0 on, with all that is for the same queue behind it: who keeps the former
    one would find it ended by this."""
    queue_id = piece.targets[0].queue_id
    ended = error.details.get("producer_epoch")
    used = [target.producer_epoch for target in piece.targets if target.queue_id == queue_id]
    epoch = max(*used, ended if isinstance(ended, int) else -1) + 1
    targets, sequence = list(piece.targets), 0
    for at, target in enumerate(targets):
        if target.queue_id == queue_id:
            targets[at] = replace(target, producer_epoch=epoch, sequence=sequence, numbered=0)
            sequence += target.records
    return replace(piece, targets=targets)


def _smaller(piece: Addressed, reason: str) -> Step | None:
    """Half of the records first; of a single one, a dead letter that tells less of how it died. At last only the newest
    time, or nothing, where somebody's rejection is in every circle that it may go: others would never end."""
    target = piece.targets[0]
    if target.records > 1:
        return Step(replace(piece, targets=[*_halves(target), *piece.targets[1:]]), "split")
    least = {REJECTED: 0, REDRIVEN: target.tables}.get(reason, 1)
    if target.tables == least:
        return None
    tables = 1 if target.tables < 0 else 0
    return Step(_with_first(piece, replace(target, tables=tables)), "shortened")


def _halves(target: DeadLetterTarget) -> list[DeadLetterTarget]:
    records = offsets_of(target.ranges)
    half = len(records) // 2
    return [
        replace(target, ranges=flat_of(records[:half]), numbered=0),
        replace(target, ranges=flat_of(records[half:]), sequence=target.sequence + half, numbered=0),
    ]


def _with_first(piece: Addressed, target: DeadLetterTarget) -> Addressed:
    return replace(piece, targets=[target, *piece.targets[1:]])
