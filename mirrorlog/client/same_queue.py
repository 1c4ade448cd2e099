"""Whether a queue that is found by its name is the one that was found before, and is there still. Pure.

A queue that was deleted, or lost, may have been declared anew under its name. It has another id, and its offsets begin
again: who reads on where he stood would pass over records, and who settles would settle others than he has. Its
incarnation is looked at beside the id: a log that lost declarations of a software that did not know how many ids it had
given out may give an id again.
"""

from __future__ import annotations

from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.wire.messages import Metadata, QueueInfo


def check_same(queue: str, known: QueueInfo | None, found: QueueInfo) -> None:
    """`known`: None when it is found for the first time. Raises NoSuchQueue, for good."""
    if known is None:
        return
    told = known.incarnation and found.incarnation
    if known.queue_id != found.queue_id or (told and known.incarnation != found.incarnation):
        raise NoSuchQueue(
            f"queue {queue!r} was deleted, and declared anew since; begin anew to have the new one",
            queue=queue,
            declared_anew=True,
        )


def ended_with_its_node(known: QueueInfo, version: int, answer: Metadata) -> bool:
    """Whether a queue that a node described at a `version` of the cluster is no more, by the `answer` of one that knows
    as much: it has no place. So it is of those that go with a node or a connection only. Another one's place may be
    unknown to a node that its log has not reached: it is waited for."""
    passing = known.arguments.get("exclusive") is True or known.arguments.get("durable") is False
    told = version and answer.version >= version
    return bool(passing and told) and known.name in answer.missing and known.name not in answer.placed


def is_another(error: MirrorlogError) -> bool:
    """Whether this says that it is another one, or is no more: asking again cannot change it."""
    return isinstance(error, NoSuchQueue) and bool(error.details.get("declared_anew") or error.details.get("ended"))
