"""A stored batch as a line for people, or as fields for programs. Pure.

What stands in batches that are no data is read by the format's text alone: changes are maps with a `type`, the values
of a state checkpoint are arrays that begin with a letter. A tool may be older than the log: what it does not know it
shows as it is. Offline tools know nothing of the server's own classes; `docs/reference/format.md` has the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import (
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    Column,
    Flag,
    Kind,
    is_envelope,
    is_inner,
)
from mirrorlog.diagnosis.cells import NOTHING, time_text
from mirrorlog.errors import BadBatch
from mirrorlog.tools.common.records import attributes_text

_LAYOUT: Final = "{:>14} {:>6} {:<11} {:>6} {:>12} {:>8} {:>9} {:<24}  {}"
_TITLES: Final = ("log offset", "epoch", "kind", "queue", "first", "records", "bytes", "appended", "what")
_INDENT: Final = " " * 16

TITLE: Final = _LAYOUT.format(*_TITLES)
"""The line above those of `batch_lines`."""

CHANGES: Final = frozenset({Kind.CONTROL, Kind.QUEUE_STATE, Kind.CHECKPOINT})
_STATES: Final = {
    "B": ("CheckpointBegan", "queue_id_max"),
    "Q": (
        "QueueState",
        *("queue_id", "name", "incarnation", "arguments", "next_queue_offset", "positions", "declared_at", "used_at"),
        "governed",
        "kept_by_use",
    ),
    "H": ("QueueHolds", "queue_id", "holds"),
    "A": ("GroupState", "queue_id", "group", "floor", "watermark", "void"),
    "C": ("LedgerChunk", "queue_id", "group", "first", "next", "settled", "attempts", "parked", "leased"),
    "S": ("GroupLeases", "queue_id", "group", "leases"),
    "R": ("QueueRuns", "queue_id", "runs"),
    "D": ("QueueForwarding", *("queue_id", "next_departure", "epoch_floor", "departures", "piece", "sequences")),
    "P": (
        "ProducerState",
        *("producer_id", "queue_id", "producer_epoch", "next_sequence", "last_append_time_us", "landed"),
    ),
    "L": ("QueueBegins", "log_begin", "begins"),
    "G": ("QueueGaps", "gaps", "former"),
    "M": ("MoveOfQueue", "queue_id", "step", "move", "log_id", "queue_offset", "first", "epochs", "name"),
    "E": ("CheckpointEnded", "began_at", "producer_epoch_floor"),
}
"""By letter: the name, then those of the items behind the letter."""
_ADDED: Final = {"QueueState": 2, "QueueGaps": 1}
"""How many of the last items software of before did not write."""
_COUNTED: Final = {"QueueState": "queues", "ProducerState": "producers"}


def batch_lines(header: BatchHeader, batch: memoryview, *, states: bool = False) -> Iterator[str]:
    """A batch for people, in one line; with `states` a line more for each state of a checkpoint."""
    changes = _changes(header, batch)
    data = header.kind == Kind.DATA
    yield _LAYOUT.format(
        header.log_offset,
        header.epoch,
        _name(Kind, header.kind),
        header.queue_id,
        header.base_queue_offset if data else NOTHING,
        header.record_count,
        header.length,
        time_text(header.append_time_us),
        _what(header, batch, changes),
    ).rstrip()
    if states and header.kind == Kind.CHECKPOINT:
        yield from (f"{_INDENT}{change_text(change)}" for change in changes)


def batch_fields(header: BatchHeader, batch: memoryview, *, states: bool = False) -> dict[str, Any]:
    """A batch for programs: the fields of the format by their names, flags and columns as lists of names.

    `attributes`: of a batch that has some, null when they cannot be read. `changes`: of a batch that is no data; of a
    checkpoint only with `states`, else `states` has their numbers.
    """
    fields: dict[str, Any] = header._asdict()
    for constant in ("magic", "reserved"):
        del fields[constant]
    fields["kind"] = _name(Kind, header.kind)
    fields["codec"] = _name(Codec, header.codec)
    fields["flags"] = [str(flag.name).lower() for flag in Flag(header.flags)]
    fields["columns"] = [str(column.name).lower() for column in Column(header.columns)]
    if header.max_timestamp_us == NO_TIMESTAMP:
        fields["max_timestamp_us"] = None
    if header.columns & Column.ATTRIBUTES:
        fields["attributes"] = None if (found := _attributes(header, batch)) is None else found._asdict()
    changes = _changes(header, batch)
    if header.kind == Kind.CHECKPOINT:
        fields["states"] = state_counts(changes)
    if changes and (states or header.kind != Kind.CHECKPOINT):
        fields["changes"] = changes
    return fields


def _changes(header: BatchHeader, batch: memoryview) -> list[dict[str, Any]]:
    """What cannot be read is left out: the header says enough, and `verify` names it."""
    try:
        return read_changes(header, batch)
    except BadBatch:
        return []


def _what(header: BatchHeader, batch: memoryview, changes: list[dict[str, Any]]) -> str:
    what = _producer(header, batch) if header.kind == Kind.DATA else _brief(header, changes)
    return f"inside: {what}".rstrip() if is_inner(header) else what


def _brief(header: BatchHeader, changes: list[dict[str, Any]]) -> str:
    if is_envelope(header):
        return f"{header.record_count} batches that count together"
    if header.kind == Kind.CHECKPOINT:
        return counts_text(state_counts(changes))
    return "; ".join(change_text(change) for change in changes)


def _name(kinds: Callable[[int], Kind | Codec], number: int) -> str:
    return kinds(number).name.lower()


def _attributes(header: BatchHeader, batch: memoryview) -> Attributes | None:
    """None for what cannot be read; `dump` shows the rest of the batch all the same."""
    try:
        return attributes_of(header, batch)
    except BadBatch:
        return None


def _producer(header: BatchHeader, batch: memoryview) -> str:
    parts = [] if header.producer_id == NO_PRODUCER else [
        f"producer {header.producer_id}/{header.producer_epoch} sequence {header.sequence}"
    ]  # fmt: skip
    if header.codec != Codec.NONE:
        parts.append(_name(Codec, header.codec))
    if header.flags & Flag.COPIED:
        parts.append("copied")
    if header.columns & Column.ATTRIBUTES:
        found = _attributes(header, batch)
        parts.append("bad attributes" if found is None else attributes_text(found))
    return " ".join(parts)


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
