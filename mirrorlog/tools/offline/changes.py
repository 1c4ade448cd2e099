"""What stands in batches that are no data, read by the format's text alone: changes are maps with a `type`, the values
of a state checkpoint are arrays that begin with a letter.

A tool may be older than the log: what it does not know it shows as it is. Offline tools know nothing of the server's
own classes; `docs/format.md` has the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mirrorlog.commitlog.format.body import parse_batch_body
from mirrorlog.commitlog.format.header import BatchHeader, Kind
from mirrorlog.errors import BadBatch

CHANGES: Final = frozenset({Kind.CONTROL, Kind.QUEUE_STATE, Kind.CHECKPOINT})

_STATES: Final = {
    "B": ("CheckpointBegan", "queue_id_max"),
    "Q": (
        "QueueState",
        *("queue_id", "name", "incarnation", "arguments", "next_queue_offset", "positions", "declared_at", "used_at"),
    ),
    "H": ("QueueHolds", "queue_id", "holds"),
    "A": ("GroupState", "queue_id", "group", "floor", "watermark", "void"),
    "C": ("LedgerChunk", "queue_id", "group", "first", "next", "settled", "attempts", "parked", "leased"),
    "S": ("GroupLeases", "queue_id", "group", "leases"),
    "R": ("QueueRuns", "queue_id", "runs"),
    "D": (
        "QueueForwarding",
        *("queue_id", "next_departure", "epoch_floor", "departures", "piece", "sequences"),
    ),
    "P": (
        "ProducerState",
        *("producer_id", "queue_id", "producer_epoch", "next_sequence", "last_append_time_us", "landed"),
    ),
    "L": ("QueueBegins", "log_begin", "begins"),
    "G": ("QueueGaps", "gaps", "former"),
    "E": ("CheckpointEnded", "began_at", "producer_epoch_floor"),
}
"""By letter: the name, then those of the items behind the letter."""

_ADDED: Final = {"QueueState": 1, "QueueGaps": 1}
"""How many of the last items software of before did not write."""

_COUNTED: Final = {"QueueState": "queues", "ProducerState": "producers"}


def read_changes(header: BatchHeader, batch: memoryview) -> list[dict[str, Any]]:
    """Each change of a batch that is no data as a map with `type`; a checkpoint's array under the names of its items.

    Raises BadBatch for values that are no changes.
    """
    if header.kind not in CHANGES:
        return []
    values = parse_batch_body(batch).values
    try:
        decoded = [msgspec.msgpack.decode(values[index] or b"") for index in range(len(values))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise BadBatch(f"a change that cannot be read: {error}") from None
    return [_named(value) for value in decoded]


def _named(value: Any) -> dict[str, Any]:
    """Raises BadBatch for what is neither a change nor a state."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], str):
        name, *fields = _STATES.get(value[0], (value[0],))
        if len(value) - 1 < len(fields) - _ADDED.get(name, 0):
            raise BadBatch(f"a {name} of {len(value) - 1} items, it has {len(fields)}")
        known: dict[str, Any] = {"type": name, **dict(zip(fields, value[1:], strict=False))}
        further = value[1 + len(fields) :]
        return {**known, "further": further} if further else known
    raise BadBatch("a value that is neither a map with a type nor an array that begins with a letter")


def state_counts(changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A checkpoint batch in brief: how many queues and producers, and the fields of its begin and end."""
    found: dict[str, Any] = {}
    for change in changes:
        name = change["type"]
        if name == "CheckpointBegan":
            found["began"] = {"queue_id_max": change["queue_id_max"]}
        elif name == "CheckpointEnded":
            found["ended"] = {key: change[key] for key in ("began_at", "producer_epoch_floor")}
        else:
            counted = _COUNTED.get(name, name)
            found[counted] = found.get(counted, 0) + 1
    return found


def change_text(change: dict[str, Any]) -> str:
    """One change in words: its type, then its fields."""
    return " ".join([change["type"], *(f"{key}={change[key]}" for key in change if key != "type")])


def counts_text(counts: dict[str, Any]) -> str:
    """`state_counts` in words."""
    parts = []
    for name, value in counts.items():
        if name == "began":
            parts.append(f"checkpoint begins, queue_id_max={value['queue_id_max']}")
        elif name == "ended":
            parts.append(f"checkpoint of {value['began_at']} ends, floor={value['producer_epoch_floor']}")
        else:
            parts.append(f"{value} {name}")
    return ", ".join(parts)
