"""What an audit of copies found, as values: checksums by range of queue offsets, and where copies differ. Pure.

Copies are compared by the bytes of their batches as they are stored, header and all, not by records: the promise is
the same byte at the same place on every node, and a header that differs in its epoch or its place is a broken promise
although the records are equal. A CRC-32C runs on at the speed of memory, and is what the log itself is sealed with.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.errors import CopiesDiffer, CopyNotChecked

_PLACED: Final = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class Sum:
    """The batches whose first record has a queue offset of `first` up to `next` (exclusive), as `node` has them.

    `crc`: CRC-32C of their bytes one after the other; `size`: in bytes.
    """

    node: str
    first: int
    next: int
    batches: int
    records: int
    size: int
    crc: int

    @property
    def content(self) -> tuple[int, int, int, int]:
        return self.batches, self.records, self.size, self.crc


class State(StrEnum):
    """Of a copy, or of a stretch of it that is not as it should be."""

    EQUAL = "equal"
    DIFFERS = "other bytes"
    DAMAGED = "damaged"
    UNREAD = "could not be read"
    BEHIND = "does not have it"


@dataclass(frozen=True, slots=True)
class Finding:
    """Queue offsets `first` up to `next` (exclusive) on `node`, and what is the matter with them there."""

    node: str
    first: int
    next: int
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A node's copy, as it was when the audit began: it had queue offsets `begin` up to `next` (exclusive)."""

    node: str
    is_master: bool
    begin: int
    next: int


@dataclass(frozen=True, slots=True)
class Audit:
    """A queue's copies, compared from queue offset `first` up to `next` (exclusive). `sums`: of whole copies, `crc`
    being that of the CRCs of their ranges. `notes`: what else is to be known, one line each."""

    queue: str
    first: int
    next: int
    copies: tuple[Copy, ...]
    sums: tuple[Sum, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.findings

    def state(self, node: str) -> State:
        """The worst that was found of a copy."""
        found = {each.state for each in self.findings if each.node == node}
        return next((state for state in _WORST_FIRST if state in found), State.EQUAL)

    def error(self) -> MirrorlogError | None:
        """What a command ends with; None when all copies were seen whole and are the same bytes."""
        wrong = [each for each in self.findings if each.state in (State.DIFFERS, State.DAMAGED)]
        if wrong:
            return CopiesDiffer(f"queue {self.queue!r} on {_text(wrong[0])}")
        if self.findings:
            return CopyNotChecked(f"queue {self.queue!r} on {_text(self.findings[0])}")
        return None

    def view(self) -> RenderableType:
        """For a terminal: a line per copy, then a line per range in which something is the matter."""
        title = f"queue {self.queue}, offsets {self.first:,} up to {self.next:,}: {len(self.copies)} copies"
        shown = _table(title, ("node", "role", "records", "batches", "bytes", "CRC-32C", ""), right=(2, 3, 4))
        sums = {each.node: each for each in self.sums}
        for copy in self.copies:
            shown.add_row(
                copy.node, "master" if copy.is_master else "mirror", *_cells(sums.get(copy.node)), self._word(copy)
            )
        remarks = [Text(note) for note in self.notes]
        if not self.findings:
            return Group(shown, *remarks)
        ranges = _table("what is the matter", ("node", "first", "up to", "how", "why"), right=(1, 2))
        for each in self.findings:
            ranges.add_row(each.node, str(each.first), str(each.next), each.state.value, Text(each.reason))
        return Group(shown, ranges, *remarks)

    def fields(self) -> dict[str, Any]:
        """As JSON. Ranges are [first, next)."""
        sums = {each.node: each for each in self.sums}
        return {
            "queue": self.queue,
            "equal": self.equal,
            "first": self.first,
            "next": self.next,
            "copies": [
                {
                    "node": copy.node,
                    "role": "master" if copy.is_master else "mirror",
                    "begin": copy.begin,
                    "next": copy.next,
                    "state": self.state(copy.node).name,
                    **_sum_fields(sums.get(copy.node)),
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

    def _word(self, copy: Copy) -> Text:
        state = self.state(copy.node)
        return Text(state.value, style="green" if state is State.EQUAL else "bold red")


_WORST_FIRST: Final = (State.DIFFERS, State.DAMAGED, State.UNREAD, State.BEHIND)


def differing(sums: Iterable[Sum], believed: str) -> list[Finding]:
    """The ranges in which a copy has other bytes than most copies have; `believed`: the node that is right in a draw.

    Ranges that follow one another are one. A range that only one copy showed cannot differ.
    """
    by_range: dict[tuple[int, int], list[Sum]] = {}
    for each in sums:
        by_range.setdefault((each.first, each.next), []).append(each)
    found: list[Finding] = []
    for (first, following), copies in sorted(by_range.items()):
        right = _right(copies, believed)
        reason = f"not the bytes of {', '.join(each.node for each in copies if each.content == right)}"
        found += [
            Finding(each.node, first, following, State.DIFFERS, reason) for each in copies if each.content != right
        ]
    return merged(found)


def whole(node: str, sums: Iterable[Sum]) -> Sum:
    """Of all ranges of a copy as one."""
    mine = sorted((each for each in sums if each.node == node), key=lambda each: each.first)
    crc = 0
    for each in mine:
        crc = crc32c(_PLACED.pack(each.first, each.crc), crc)
    first, following = (mine[0].first, mine[-1].next) if mine else (0, 0)
    return Sum(
        node,
        first,
        following,
        batches=sum(each.batches for each in mine),
        records=sum(each.records for each in mine),
        size=sum(each.size for each in mine),
        crc=crc,
    )


def _right(copies: Sequence[Sum], believed: str) -> tuple[int, int, int, int]:
    votes = Counter(each.content for each in copies)
    most = max(votes.values())
    best = [content for content, count in votes.items() if count == most]
    return next((each.content for each in copies if each.node == believed and each.content in best), best[0])


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """By node, with those that follow one another and say the same as one."""
    found: list[Finding] = []
    for each in sorted(findings, key=lambda each: (each.node, each.first)):
        last = found[-1] if found else None
        if last and (last.node, last.next, last.state, last.reason) == (each.node, each.first, each.state, each.reason):
            found[-1] = replace(last, next=each.next)
        else:
            found.append(each)
    return found


def _text(finding: Finding) -> str:
    return f"{finding.node}, {finding.first} up to {finding.next}: {finding.state}; {finding.reason}"


def _cells(whole: Sum | None) -> Sequence[str]:
    if whole is None:
        return ("-", "-", "-", "-")
    return (f"{whole.records:,}", f"{whole.batches:,}", f"{whole.size:,}", f"{whole.crc:08x}")


def _sum_fields(whole: Sum | None) -> dict[str, Any]:
    if whole is None:
        return {"records": None, "batches": None, "bytes": None, "crc": None}
    return {"records": whole.records, "batches": whole.batches, "bytes": whole.size, "crc": f"{whole.crc:08x}"}


def _table(title: str, columns: Sequence[str], *, right: Sequence[int]) -> Table:
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return made
