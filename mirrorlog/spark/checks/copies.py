"""What an audit found of a queue's copies, as values: what each holds, and where copies differ. Pure.

Copies are compared by the bytes of their batches as they are stored, header and all, not by records: the promise is
the same byte at the same place on every node, and a header that differs in its epoch or its place is a broken promise
although the records are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import CopiesDiffer, CopyNotChecked


class CopyState(StrEnum):
    """Of a copy, or of a stretch of it that is not as it should be."""

    EQUAL = "equal"
    DIFFERS = "other bytes"
    DAMAGED = "damaged"
    UNREAD = "could not be read"
    BEHIND = "does not have it"


_WORST_FIRST: Final = (CopyState.DIFFERS, CopyState.DAMAGED, CopyState.UNREAD, CopyState.BEHIND)


@dataclass(frozen=True, slots=True)
class CopyFinding:
    """Queue offsets `first` up to `next` (exclusive) on `node`, and what is the matter with them there."""

    node: str
    first: int
    next: int
    state: CopyState
    reason: str

    def __str__(self) -> str:
        return f"{self.node}, {self.first} up to {self.next}: {self.state}; {self.reason}"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as a node has it: queue offsets `first` up to `next` (exclusive), its length and CRC-32C."""

    first: int
    next: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class AuditedCopy:
    """A node's copy: it had queue offsets `begin` up to `next` (exclusive) when the audit began.

    Of it were read: so many `batches`, `records` and bytes (`size`); `crc`: CRC-32C over the CRCs of the batches.
    """

    node: str
    is_master: bool
    begin: int
    next: int
    batches: int = 0
    records: int = 0
    size: int = 0
    crc: int = 0

    @property
    def role(self) -> str:
        return "master" if self.is_master else "mirror"


@dataclass(slots=True)
class Findings:
    """Collects findings by node; one that goes on where the last one of its node ended, and says the same, joins it."""

    by_node: dict[str, list[CopyFinding]] = field(default_factory=dict)

    def add(self, found: CopyFinding) -> None:
        """The next one of its node, in order of queue offset."""
        mine = self.by_node.setdefault(found.node, [])
        last = mine[-1] if mine else None
        if last and (last.next, last.state, last.reason) == (found.first, found.state, found.reason):
            mine[-1] = replace(last, next=found.next)
        else:
            mine.append(found)

    def all(self) -> tuple[CopyFinding, ...]:
        """In order of node and queue offset."""
        return tuple(each for node in sorted(self.by_node) for each in self.by_node[node])


def differing(at: int, shown: Mapping[str, StoredBatch | None], believed: str) -> list[CopyFinding]:
    """The nodes that do not have at queue offset `at` what most have, None being no batch that begins there.

    `believed`: the node that is right in a draw.
    """
    votes = Counter(shown.values())
    most = max(votes.values(), default=0)
    best = [batch for batch, count in votes.items() if count == most]
    right = shown[believed] if believed in shown and shown[believed] in best else next(iter(best), None)
    agreeing = ", ".join(node for node, batch in shown.items() if batch == right)
    return [
        CopyFinding(node, at, _end(right, batch), CopyState.DIFFERS, f"not the bytes of {agreeing}")
        for node, batch in shown.items()
        if batch != right
    ]


def _end(right: StoredBatch | None, own: StoredBatch | None) -> int:
    shown = own if right is None else right
    assert shown is not None, "of two that differ one is a batch"
    return shown.next


@dataclass(frozen=True, slots=True)
class Audit:
    """A queue's copies, compared from queue offset `first` up to `next` (exclusive). `notes`: what else is to be known,
    one line each."""

    queue: str
    first: int
    next: int
    copies: tuple[AuditedCopy, ...]
    findings: tuple[CopyFinding, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.findings

    def state(self, node: str) -> CopyState:
        """The worst that was found of a copy."""
        found = {each.state for each in self.findings if each.node == node}
        return next((state for state in _WORST_FIRST if state in found), CopyState.EQUAL)

    def error(self) -> MirrorlogError | None:
        """What a command ends with; None when all copies were seen whole and are the same bytes."""
        wrong = [each for each in self.findings if each.state in (CopyState.DIFFERS, CopyState.DAMAGED)]
        if wrong:
            return CopiesDiffer(f"queue {self.queue!r} on {wrong[0]}")
        return CopyNotChecked(f"queue {self.queue!r} on {self.findings[0]}") if self.findings else None

    def view(self) -> RenderableType:
        """For a terminal: a line per copy, then a line per range in which something is the matter."""
        title = f"queue {self.queue}, offsets {self.first:,} up to {self.next:,}: {len(self.copies)} copies"
        shown = _table(title, ("node", "role", "records", "batches", "bytes", "CRC-32C", ""), right=(2, 3, 4))
        for copy in self.copies:
            numbers = (f"{copy.records:,}", f"{copy.batches:,}", f"{copy.size:,}", f"{copy.crc:08x}")
            state = self.state(copy.node)
            word = Text(state.value, style="green" if state is CopyState.EQUAL else "bold red")
            shown.add_row(copy.node, copy.role, *numbers, word)
        remarks = [Text(note) for note in self.notes]
        if not self.findings:
            return Group(shown, *remarks)
        ranges = _table("what is the matter", ("node", "first", "up to", "how", "why"), right=(1, 2))
        for each in self.findings:
            ranges.add_row(each.node, str(each.first), str(each.next), each.state.value, Text(each.reason))
        return Group(shown, ranges, *remarks)

    def fields(self) -> dict[str, Any]:
        """As JSON. Ranges are [first, next)."""
        return {
            "queue": self.queue,
            "equal": self.equal,
            "first": self.first,
            "next": self.next,
            "copies": [
                {
                    "node": copy.node,
                    "role": copy.role,
                    "begin": copy.begin,
                    "next": copy.next,
                    "state": self.state(copy.node).name,
                    "records": copy.records,
                    "batches": copy.batches,
                    "bytes": copy.size,
                    "crc": f"{copy.crc:08x}",
                }
                for copy in self.copies
            ],
            "findings": [
                {
                    "node": each.node,
                    "first": each.first,
                    "next": each.next,
                    "state": each.state.name,
                    "why": each.reason,
                }
                for each in self.findings
            ],
            "notes": list(self.notes),
        }


def _table(title: str, columns: Sequence[str], *, right: Sequence[int]) -> Table:
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return made
