"""Whether what a node says of a queue is all that is confirmed. Pure.

Only a master whose epoch has begun knows that (invariant 4), and only it can say of itself that it is one: a node that
was promoted may not have heard of it yet, and describes the queue as the mirror that it was, with less than its
predecessor confirmed. What others say of it does not help: they may know of the promotion before it does. Rejected: to
compare the versions of the cluster that nodes know (a node that has heard has not begun for that).
"""

from __future__ import annotations

from mirrorlog.errors import NotCurrent
from mirrorlog.wire.messages import QueueInfo


def is_known(info: QueueInfo, *, told_by: str) -> bool:
    """Whether `info.next`, as the node `told_by` gave it, is behind all that is confirmed."""
    return info.current and info.master == told_by


def not_known(info: QueueInfo, *, told_by: str) -> NotCurrent:
    """What is said to who wanted to know it of that node."""
    if told_by == info.master:
        why = f"node {told_by} has just become master of queue {info.name!r}, or is no more"
    elif info.master:
        why = f"node {told_by} does not master queue {info.name!r}, as far as it has heard"
    else:
        why = f"nobody masters queue {info.name!r} at the moment"
    return NotCurrent(
        f"{why}: what is confirmed by now it cannot say; ask again, or read what one copy knows: read_from a node's id"
    )
