"""Where queues are and go, in words: copies, nodes, moves, what is left in former logs, and what keeps a queue from
being where it is wanted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from mirrorlog.config import COPIES_MAX
from mirrorlog.diagnosis.cells import bytes_text
from mirrorlog.wire.messages.queues import AlteredQueue, QueueInfo, QueueSync, Stays
from mirrorlog.wire.messages.status import ClusterStatus, NodeStatus, PlacedLog
from mirrorlog.wire.names import shown
from mirrorlog.wire.policies import CONFIRM, PolicyRow


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


# --- What is wanted and cannot be had ---------------------------------------------------------------------------------


def why_unmet(holds: Mapping[str, Any], view: ClusterStatus, log: PlacedLog | None = None) -> str:
    """Why the copies that are asked for cannot be had now, in one sentence; empty when they can be, or are on their
    way. `holds`: arguments of a queue, with what policies make of them, or those that a policy stands for; `log`: the
    queue's, None of a policy. A node that is not known to be down counts as up. Pure."""
    nodes, copies, least = (holds.get(key) for key in ("nodes", "copies", "min_in_sync"))
    there = {node.node_id: node for node in view.nodes}
    away = _away(there, there)
    most = sum(not _why_not(node) for node in there.values())
    if isinstance(nodes, list | tuple) and nodes:
        names = [str(node) for node in nodes]
        if missing := _away(names, there):
            return f"wants copies on {', '.join(names)}{missing}"
        copies, most, away = len(names), len(names), ""
    elif type(copies) is int and copies >= COPIES_MAX:
        if missing := _away([name for name, node in there.items() if node.life == "down" and not node.witness], there):
            return f"wants a copy on every node{missing}"
        copies = None
    elif type(copies) is int:
        if copies > most:
            return f"wants {_copies(copies)}, {_many(most, 'node is', 'nodes are')} eligible{away}"
        most, away = copies, ""
    if log is not None:
        return _lacks(copies, least, log, there) or _unconfirmed(holds, log)
    if type(least) is int and least > most:
        return f"wants {_copies(least)} in sync, there can be {most}{away}"
    return ""


def _lacks(copies: Any, least: Any, log: PlacedLog, there: Mapping[str, NodeStatus]) -> str:
    """What a log lacks that a queue wants, though it could have it: others take the place of copies that are down after
    a while."""
    down = [name for name in log.replicas if name not in there or there[name].life == "down"]
    up, in_sync = len(log.replicas) - len(down), sum(name not in down for name in log.in_sync)
    if type(copies) is int and down and up < copies:
        return f"wants {_copies(copies)}, {_many(up, 'is', 'are')} up{_away(down, there)}"
    if type(least) is int and in_sync < least:
        return f"wants {_copies(least)} in sync, {_many(in_sync, 'is', 'are')}{_away(down, there)}"
    return ""


def _unconfirmed(holds: Mapping[str, Any], log: PlacedLog) -> str:
    """Why producers that ask for no level are refused."""
    level = holds.get(CONFIRM)
    if type(level) is not int or level <= log.copies:
        return ""
    return f"wants confirms by {_copies(level)}, its log has {log.copies}"


def _away(names: Iterable[str], there: Mapping[str, NodeStatus]) -> str:
    """Of these nodes those on which nothing is put, and why, behind a colon; empty when there are none."""
    found = [f"{name} {why}" for name in names if (why := _why_not(there.get(name)))]
    return f": {'; '.join(found)}" if found else ""


def _why_not(node: NodeStatus | None) -> str:
    """Why nothing is put on a node; empty when something may be."""
    if node is None:
        return "is no node of this cluster"
    if node.life == "down":
        return "is down"
    if node.witness:
        return "is a witness"
    return "is leaving" if node.leaving else "is draining" if node.draining else ""


def nowhere(log: PlacedLog, view: ClusterStatus) -> str:
    """Why a log does not come away from a node that leaves; empty when nothing keeps it. Pure."""
    there = {node.node_id: node for node in view.nodes}
    if not log.master:
        return f"log {log.name} has no master"
    if away := _away([name for name in log.target if name not in log.replicas or _is_down(there.get(name))], there):
        return f"log {log.name} is to be on {', '.join(log.target)}{away}"
    others = [node.node_id for node in view.nodes if not node.leaving and not node.witness]
    if not others or all(_why_not(there[name]) for name in others):
        return f"log {log.name} has nowhere to go, no other node may take it{_away(others, there)}"
    return ""


def _is_down(node: NodeStatus | None) -> bool:
    return node is None or node.life == "down"


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _copies(count: int) -> str:
    return _many(count, "copy", "copies")


def why_queue_unmet(info: QueueInfo, view: ClusterStatus | None, log: PlacedLog | None) -> str:
    """The same of a queue that is in that log; of one that nobody masters, and of one of which nothing of its place is
    known, nothing is said. Pure."""
    if view is None or log is None or not info.master or log.transient:
        return ""
    return why_unmet(info.effective or info.arguments, view, log)


def with_reasons(rows: Iterable[PolicyRow], view: ClusterStatus | None) -> list[PolicyRow]:
    """Policies, with why each cannot be met now. `view`: None while nobody tells how the cluster is. Pure."""
    if view is None:
        return list(rows)
    return [row if row.reason else replace(row, reason=why_unmet(_asked(row), view)) for row in rows]


def _asked(row: PolicyRow) -> dict[str, Any]:
    """What a policy says of a place, by the names of the arguments that it stands for."""
    said = row.policy.definition
    params = {"exactly": "copies", "nodes": "nodes"}.get(str(said.get("ha-mode")))
    found = {params: said.get("ha-params")} if params else {"copies": COPIES_MAX} if "ha-mode" in said else {}
    return found | ({"min_in_sync": said["min-in-sync"]} if "min-in-sync" in said else {})


# --- What former logs have --------------------------------------------------------------------------------------------


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
