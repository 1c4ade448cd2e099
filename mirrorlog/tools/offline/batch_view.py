"""A stored batch as a line for people, or as fields for programs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
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
from mirrorlog.errors import BadBatch
from mirrorlog.tools.offline.changes import change_text, counts_text, read_changes, state_counts
from mirrorlog.tools.output import NOTHING, time_text
from mirrorlog.tools.records import attributes_text

_LAYOUT: Final = "{:>14} {:>6} {:<11} {:>6} {:>12} {:>8} {:>9} {:<24}  {}"
_TITLES: Final = ("log offset", "epoch", "kind", "queue", "first", "records", "bytes", "appended", "what")
_INDENT: Final = " " * 16

TITLE: Final = _LAYOUT.format(*_TITLES)
"""The line above those of `batch_lines`."""


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
