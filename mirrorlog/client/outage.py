"""Whether a queue cannot be reached because all nodes that hold it are down. Pure.

Who asks for such a queue is told at once: to wait helps only when somebody starts the node. Who was at work with it
already waits on, as long as he was told to: it may be a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.wire.messages import Metadata


def is_outage(error: MirrorlogError) -> bool:
    """Whether this says so."""
    return isinstance(error, LogUnavailable) and "since" in error.details


def outage_of(queue: str, answers: Iterable[Metadata]) -> LogUnavailable | None:
    """By the node that knows most of the cluster, if that says so."""
    newest = max(answers, key=lambda answer: answer.version, default=None)
    for outage in newest.outages if newest is not None else ():
        if outage.name == queue:
            return LogUnavailable(outage.reason, node=outage.node, since=outage.since_us, queue=queue)
    return None
