"""Positions: where a reader of a queue stands, as JSON, and whether the log still has the history that it was read in.

    {"queue": {"0": {"offset": 17, "epoch": 4, "log": "<uuid>", "incarnation": "<hex>"}}}

`offset` is the next queue offset to read and `epoch` that of the record below it, so that a log that lost its tail and
wrote another one is told from the one that was read. `log` is the one in which that record stands: a queue may have
been in several (decision 0050), and epochs are compared within one. A plain number in place of the inner object is an
offset alone.
The shape is that of the Kafka source's offsets, a queue being a topic with one partition.

Pure. Rejected: offsets alone, under which two histories of one log look alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mirrorlog.commitlog.format.header import BatchHeader, Flag
from mirrorlog.errors import BadInput

PARTITION: Final = "0"
"""The only partition of a queue, as a key of JSON."""

_OFFSET_MAX: Final = 2**63 - 1
_EPOCH_MAX: Final = 2**32 - 1
_FIELDS: Final = frozenset({"offset", "epoch", "log", "incarnation"})


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """`offset`: the next to read; `epoch`: of the record below it, None when none is left there or nobody looked.

    `log_id` and `incarnation`: None where they were not given; then they are not checked.
    """

    offset: int
    epoch: int | None = None
    log_id: str | None = None
    incarnation: str | None = None

    def as_json(self) -> dict[str, Any]:
        """What is not known is left out."""
        given = {"offset": self.offset, "epoch": self.epoch, "log": self.log_id, "incarnation": self.incarnation}
        return {name: value for name, value in given.items() if value is not None}


Positions = Mapping[str, QueuePosition]
"""By queue name."""


def as_offsets(positions: Positions) -> dict[str, Any]:
    """As JSON, queues in the order of their names: equal positions are equal text."""
    return {queue: {PARTITION: positions[queue].as_json()} for queue in sorted(positions)}


def parse_offsets(given: Any) -> dict[str, QueuePosition]:
    """Positions by queue name, of what `as_offsets` made, or of plain numbers. Raises BadInput saying what is wrong."""
    if not isinstance(given, dict):
        raise BadInput(f'offsets are JSON like {{"queue": {{"0": 23}}}}, not {given!r:.80}')
    return {queue: _parse_partitions(queue, partitions) for queue, partitions in given.items()}


def parse_position(given: Any) -> QueuePosition:
    """A number (-2 earliest, -1 latest, as they are) or an object. Raises BadInput."""
    if _is_number(given, -2, _OFFSET_MAX):
        return QueuePosition(given)
    if not isinstance(given, dict) or not given.keys() <= _FIELDS or "offset" not in given:
        raise BadInput(f"{given!r:.80} is no queue offset (0 and up, -2 for earliest, -1 for latest) and no position")
    if not _is_number(given["offset"], 0, _OFFSET_MAX):
        raise BadInput(f"offset {given['offset']!r:.80} of a position is no queue offset")
    epoch = given.get("epoch")
    if epoch is not None and not _is_number(epoch, 0, _EPOCH_MAX):
        raise BadInput(f"epoch {epoch!r:.80} of a position is no epoch")
    return QueuePosition(given["offset"], epoch, _log_id(given.get("log")), _text(given.get("incarnation")))


def broken_history(
    position: QueuePosition,
    *,
    log_id: str,
    incarnation: str,
    below: BatchHeader | None = None,
    former_logs: Collection[str] = (),
) -> str | None:
    """Why the queue (of `incarnation`) is not the one that was read up to `position`; None when it is.

    `below`: of the batch that holds the record before the position, in `log_id`, None when that is gone or was not
    looked at: then it proves nothing. Neither does a batch that was moved, which has the epoch of its move, nor one in
    another log than it stood in. `former_logs`: in which the queue is or was, besides.
    """
    if position.incarnation not in (None, incarnation):
        return f"it was deleted and made anew since (incarnation {position.incarnation}, now {incarnation})"
    if position.log_id not in (None, log_id, *former_logs):
        return f"it stood in log {position.log_id}, now it is in {log_id}, and was never in that one"
    if position.epoch is None or below is None or below.flags & Flag.COPIED or below.epoch == position.epoch:
        return None
    if position.log_id not in (None, log_id):
        return None
    return (
        f"its record {position.offset - 1} was of epoch {position.epoch}, now it is one of epoch {below.epoch}: the "
        "log lost its tail and wrote another one"
    )


def _parse_partitions(queue: str, partitions: Any) -> QueuePosition:
    if not isinstance(partitions, dict) or partitions.keys() != {PARTITION}:
        raise BadInput(f'queue {queue!r}: a queue has one partition, so give {{"0": offset}}')
    try:
        return parse_position(partitions[PARTITION])
    except BadInput as error:
        raise BadInput(f"queue {queue!r}: {error}") from None


def _is_number(given: Any, least: int, most: int) -> bool:
    return type(given) is int and least <= given <= most


def _log_id(given: Any) -> str | None:
    try:
        return None if given is None else str(UUID(given))
    except (ValueError, AttributeError, TypeError):
        raise BadInput(f"log {given!r:.80} of a position is no log id") from None


def _text(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise BadInput(f"incarnation {given!r:.80} of a position is no text")
    return given
