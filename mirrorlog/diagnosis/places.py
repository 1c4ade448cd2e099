"""Where queues are and go, in words: copies, nodes, moves, and what is left in former logs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mirrorlog.diagnosis.cells import bytes_text
from mirrorlog.wire.messages.queues import AlteredQueue, QueueSync, Stays
from mirrorlog.wire.names import shown


def stays_text(found: Stays) -> str:
    """In words. Pure."""
    names = ", ".join(map(shown, found.queues))
    move = "its move is cancelled" if found.cancelled else "nothing was moving"
    return f"{names}: stays in log {found.log}; {move}"


def altered_text(found: AlteredQueue, *, sync: bool = False) -> str:
    """In words. `sync`: what it leaves behind shall be copied. Pure."""
    names, copies = ", ".join(map(shown, found.queues)), _copies_text(found)
    if found.moves:
        does = "moves" if found.done else "would move"
        return f"{names}: {does} from log {found.log} to one of {found.rule}{copies}{_left_text(found, sync)}"
    if found.copies_change:
        does = "becomes" if found.done else "would become"
        return f"{names}: log {found.log} {does} one of {found.rule}{copies}; {bytes_text(found.copied_bytes)} to copy"
    return f"{names}: log {found.log} is as asked for already; nothing moves"


def _copies_text(found: AlteredQueue) -> str:
    """Nodes of before that say nothing of it tell 0."""
    if not found.copies:
        return ""
    return f"; copies: {found.copies_before} now, {found.copies} then"


def _left_text(found: AlteredQueue, sync: bool) -> str:
    if not found.left_records:
        return ""
    if sync:
        will = "will be" if found.done else "would be"
        return f"; {found.left_records} records in the former log {will} copied once it has moved"
    return f"; {found.left_records} records stay there until they are freed, or copied"


def absent_nodes(arguments: Mapping[str, Any], members: Collection[str]) -> list[str]:
    """Which of the nodes that a queue asks for the cluster does not have. Pure."""
    nodes = arguments.get("nodes")
    return [str(node) for node in nodes if node not in members] if isinstance(nodes, list | tuple) else []


def nodes_note(arguments: Mapping[str, Any], members: Collection[str]) -> str:
    """What whoever names nodes should know of those that the cluster does not have: there are so many copies less.
    Empty when it has all. Pure."""
    absent = absent_nodes(arguments, members)
    if not absent:
        return ""
    there = [str(node) for node in arguments["nodes"] if node in members]
    on = f"copies are on: {', '.join(there)}" if there else "of those named none is there, so there is one copy"
    return f"no node {', '.join(map(repr, absent))} yet; {on}"


def sync_text(found: QueueSync) -> str:
    """In words. Pure."""
    name, known = shown(found.queue), all(span.size >= 0 for span in found.spans)
    if not found.spans:
        return f"{name}: all of it is in its own log; nothing is left to copy"
    logs = ", ".join(span.log for span in found.spans)
    if why := next((span.unknown or "nobody tells" for span in found.spans if span.records < 0), ""):
        return f"{name}: how many records are left in {logs} is unknown: {why}"
    records = sum(span.records for span in found.spans)
    size = bytes_text(sum(span.size for span in found.spans)) if known else "nobody says how many bytes"
    left = f"{records} records ({size}) are left in {logs}"
    if not found.wished:
        return f"{name}: {left}; they are not copied{f': {found.waits}' if found.waits else ''}"
    if found.waits:
        return f"{name}: {left}; waits: {found.waits}"
    done = f"{found.done_records} copied" if found.done_records else "nothing copied yet"
    pace = f", {bytes_text(found.bytes_per_s)}/s" if found.bytes_per_s else ""
    time_left = f", {found.seconds_left:.0f} s left" if found.seconds_left >= 0 else ""
    return f"{name}: {left}; {done}{pace}{time_left}"
