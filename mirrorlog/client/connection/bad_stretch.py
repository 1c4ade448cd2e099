"""A stretch of a queue whose bytes are bad on a node: who else may have it, and what to say when nobody has. Pure.

A node checks what it reads from disk, and refuses what is bad (LogCorrupt); what it has mapped it sends as it stands,
and only its reader's checksums tell that a bit of it has gone. Every copy of a log has the same bytes, so another one
has what is bad here: the reader asks for that stretch elsewhere, each copy once, and goes on where it was.

Rejected: to leave the node for good (its other bytes are good, and all of its readers would move at once); to ask it
again (its bytes stay as they are until it reads its files at a start).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mirrorlog.errors import BadBatch, ConnectionLost, LogCorrupt


@dataclass(slots=True, eq=False)
class BadStretch:
    """From `queue_offset` on, `size` bytes. `why`: what was found at its first bad batch, naming queue and log offset;
    `log_offset`: of that, as its header says.

    `bad`: the nodes that have not got it whole; `unread`: those that could not be asked this time, and why.
    """

    queue: str
    queue_offset: int
    size: int
    log_offset: int
    why: str
    bad: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def left(self, node_ids: Iterable[str]) -> list[str]:
        """Of those the ones that may have it whole, in their order."""
        return [node_id for node_id in node_ids if node_id and node_id not in self.bad]

    def refusal(self) -> BadBatch | ConnectionLost:
        """Why it is not there now: ConnectionLost while a node that may have it could not be asked."""
        return ConnectionLost(self._told()) if self.unread else self.verdict()

    def verdict(self, advice: str = "") -> BadBatch:
        """Why it is not there at all; details carry `queue`, `queue_offset`, `log_offset` and the bad `nodes`."""
        return BadBatch(
            self._told() + advice,
            queue=self.queue,
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            nodes=list(self.bad),
        )

    def _told(self) -> str:
        away = "; ".join(f"{node_id}: {reason}" for node_id, reason in self.unread.items())
        return f"{self.why} on {', '.join(self.bad)}" + (f"; not read: {away}" if away else "")


def refused(queue: str, queue_offset: int, error: LogCorrupt, *, size: int) -> BadStretch:
    """What a node refuses of its own copy to a reader at `queue_offset`. It knows its log; whose records stand there is
    known here."""
    first = error.details.get("first")
    return BadStretch(
        queue,
        queue_offset=queue_offset,
        size=size,
        log_offset=first if isinstance(first, int) else 0,
        why=f"queue {queue!r}, queue offset {queue_offset}: {error.message}",
    )
