"""Whether a queue that is found by its name is the one that was found before. Pure.

A queue that was deleted may have been declared anew under its name. It has another id, and its offsets begin again: who
reads on where he stood would pass over records, and who settles would settle others than he has.
"""

from __future__ import annotations

from mirrorlog.errors import MirrorlogError, NoSuchQueue


def check_same(queue: str, known_id: int | None, found_id: int) -> None:
    """`known_id`: None when it is found for the first time. Raises NoSuchQueue, for good."""
    if known_id is not None and known_id != found_id:
        raise NoSuchQueue(
            f"queue {queue!r} was deleted, and declared anew since; begin anew to have the new one",
            queue=queue,
            declared_anew=True,
        )


def is_another(error: MirrorlogError) -> bool:
    """Whether this says so: asking again cannot change it."""
    return isinstance(error, NoSuchQueue) and bool(error.details.get("declared_anew"))
