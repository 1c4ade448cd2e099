"""What a node says of a log instead of a confirm: that another one writes it, that it stops, or that nobody knows.

Each is made anew for whoever is told: an exception keeps the frames of everybody who ever raised it, and what they
hold.
"""

from __future__ import annotations

from collections.abc import Callable

from mirrorlog.broker.ports import Reply
from mirrorlog.config import Member
from mirrorlog.errors import (
    FlushDiskTimeout,
    FlushSlaveTimeout,
    MasterChanged,
    MirrorlogError,
    NodeStopping,
    NotMaster,
    OutcomeUnknown,
    SentToDeadLetters,
    SlaveNotAvailable,
)
from mirrorlog.ha.group_transfer import Answer, PutStatus
from mirrorlog.ha.mastership import Mastership

_TIMEOUTS: dict[PutStatus, type[OutcomeUnknown]] = {
    PutStatus.FLUSH_SLAVE_TIMEOUT: FlushSlaveTimeout,
    PutStatus.FLUSH_DISK_TIMEOUT: FlushDiskTimeout,
    PutStatus.SLAVE_NOT_AVAILABLE: SlaveNotAvailable,
}


class ElsewhereLog:
    """Stands where a Publisher stands, on a node that does not master the log: it refuses and names who does, if that
    is known."""

    def __init__(self, name: str, master: Member | None) -> None:
        self._name = name
        self._master = master

    def publish(self, payload: memoryview, reply: Reply, correlation_id: int, *, own: bool = False) -> None:
        raise self.refusal()

    def forget(self, reply: Reply) -> None:
        """It has nothing here."""

    def append_change(self, batch: bytearray, done: Callable[[MirrorlogError | None], None]) -> None:
        raise self.refusal()

    def when_confirmed(self, done: Callable[[MirrorlogError | None], None]) -> None:
        raise self.refusal()

    def refusal(self) -> NotMaster:
        return not_master(self._name, self._master)

    def unknown(self) -> MasterChanged:
        """What is said of a batch that waited here when the log left; a new one each time."""
        again = "the batch is stored perhaps; send the identical one"
        if self._master is None:
            return MasterChanged(f"this node does not write log {self._name} any more: {again} to its next master")
        return MasterChanged(
            f"log {self._name} is now written by node {self._master.id} at {self._master.client}: {again} there",
            **_place_of(self._master),
        )


def not_master(log: str, master: Member | None, *, why: str = "") -> NotMaster:
    """The refusal of a node that does not write the log, with the address of the one that does; `why`: nobody does."""
    if why:
        return NotMaster(f"nobody writes log {log}: {why}")
    if master is None:
        return NotMaster(f"log {log} is not written by this node, and by which is not decided; ask again")
    return NotMaster(f"log {log} is written by node {master.id} at {master.client}", **_place_of(master))


def _place_of(master: Member) -> dict[str, str]:
    return {"master": master.client, "node": master.id}


def node_stopping() -> NodeStopping:
    return NodeStopping("this node is stopping; nothing was stored")


def sent_to_dead_letters() -> SentToDeadLetters:
    return SentToDeadLetters(
        "the queue was full (x-max-length, x-max-length-bytes): this is not in it, and goes to its dead letter "
        "exchange; do not send it again"
    )


def timed_out(answer: Answer, mastership: Mastership) -> OutcomeUnknown:
    kind = _TIMEOUTS[answer.status]
    return kind(
        f"stored on the master, {answer.copies} of {mastership.progress.copies} copies have it, "
        f"{mastership.copies_up} are up; send the identical batch again",
        copies=answer.copies,
        copies_up=mastership.copies_up,
    )
