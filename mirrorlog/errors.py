"""Every outcome that is not success, as one tree.

Each carries what every surface needs to speak of it: a stable `code` that travels in ERROR frames, a gRPC status, an
exit code, and whether trying again can help. The code is the class's name in capitals (`NotMaster`: NOT_MASTER), so a
class is never renamed. The rest stands in the line that begins it. Messages are one line and say what to do.

Whatever a client raises is below one of four (invariant 9), and `except` of them is enough: `Refused` (nothing was
done; later it may be), `OutcomeUnknown` (done perhaps; only an idempotent retry is safe), `BadInput` (the same call
cannot succeed, as things stand), and `Closed` (what was used is closed, or not started).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

_WORD_BEGINS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class MirrorlogError(Exception):
    """Root of the tree. `details` is small, JSON-like, and survives the wire."""

    code: ClassVar[str] = "INTERNAL"
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, grpc: str | None = None, exit_code: int | None = None, retriable: bool | None = None
    ) -> None:
        """What is not given is as of the class above, and so is the code of a class that stands in no `errors` module
        and sets none."""
        super().__init_subclass__()
        if cls.__module__.endswith(".errors") and "code" not in vars(cls):
            cls.code = _WORD_BEGINS.sub("_", cls.__name__).upper()
        if "code" in vars(cls):
            _KINDS[cls.code] = cls
        cls.grpc_status = cls.grpc_status if grpc is None else grpc
        cls.exit_code = cls.exit_code if exit_code is None else exit_code
        cls.retriable = cls.retriable if retriable is None else retriable

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


_KINDS: Final[dict[str, type[MirrorlogError]]] = {MirrorlogError.code: MirrorlogError}
"""By code; those of other modules, once they are imported, too."""


class Refused(MirrorlogError, grpc="UNAVAILABLE", exit_code=3, retriable=True):
    """Nothing was done, nothing is in the queue. Trying the identical batch again is safe where it is `retriable`."""


class InSyncReplicasNotEnough(Refused):
    """Fewer live, proven links than `min_in_sync` before the append."""


class NotMaster(Refused):
    """This node does not write the log; `details["master"]` is the client address of the node that does, as far as it
    is known."""


class QueueMoving(NotMaster):
    """The queue leaves this log for another one, has left, or arrives; ask for its place again, after a moment."""


class NotLeader(Refused):
    """This member does not lead the cluster's metadata; `details["leader"]` is the member that does, 0 if unknown."""


class LogRecovering(Refused):
    """The log is closed until an operator or a returning copy settles what was lost."""


class LogUnavailable(Refused):
    """This node refuses to serve its copy (corruption, failed disk)."""


class DiskFull(Refused):
    """No space for another batch; what is there stays readable."""


class FileRefused(DiskFull):
    """The system refused an operation on a file, for want of descriptors, memory or rights; the disk is as sound as it
    was. Handled as a full one: nothing was stored, the copy stays, and what was to be done is tried again."""


class Overloaded(Refused):
    """A named limit was reached; `details["limit"]` names it."""


class QueueFull(Refused, grpc="RESOURCE_EXHAUSTED"):
    """The queue has as many records, or bytes, as it may (`x-max-length`, `x-max-length-bytes`), and refuses more;
    `details["limit"]` names the argument."""


class NodeStopping(Refused):
    """The node is on its way down; another attempt reaches its successor or its next start."""


class SentToDeadLetters(Refused, grpc="RESOURCE_EXHAUSTED", retriable=False):
    """The batch was stored, and is not in the queue, which has as many records, or bytes, as it may, and `x-overflow =
    reject-publish-dlx`. They leave for its dead letter exchange, once; sent again they would come there once more.
    Final, and said again to whoever sends the identical batch again under its numbers."""


class OutcomeUnknown(MirrorlogError, grpc="DEADLINE_EXCEEDED", exit_code=4, retriable=True):
    """Done perhaps: its answer did not come in time. A batch is retriable only under the same producer id, producer
    epoch and sequence; the client does that by itself until `delivery_timeout_ms`."""


class FlushSlaveTimeout(OutcomeUnknown):
    """Enough links are up, but their acks did not come before the deadline (seed 002, line 211)."""


class FlushDiskTimeout(OutcomeUnknown):
    """The copies are in memory, but the disk did not answer before the deadline."""


class SlaveNotAvailable(OutcomeUnknown):
    """The deadline passed and too few links are up."""


class MasterChanged(OutcomeUnknown):
    """The node stopped writing the log while the batch waited; `details["master"]` is the client address of the node
    that writes it now, as far as it is known, and the identical batch belongs there."""


class InternalError(OutcomeUnknown, grpc="INTERNAL", exit_code=1, retriable=False):
    """A node failed in the midst of the work, or answers what this software has no name for."""

    code = MirrorlogError.code


class BadInput(MirrorlogError, grpc="INVALID_ARGUMENT", exit_code=2):
    """The same call cannot succeed; nothing was stored."""


class PreconditionFailed(BadInput, grpc="FAILED_PRECONDITION"):
    """The call makes sense, and cannot succeed as things stand; those below it say why."""


class CrossLogTransaction(BadInput, grpc="FAILED_PRECONDITION"):
    """A transaction is of one log; `details`: `queues`, two of its queues, and `logs`, those that they are in."""


class BadBatch(BadInput):
    """A batch that fails its checks (magic, CRC, counts, offsets). It is refused whole."""


class UnreadableBatch(BadBatch, grpc="DATA_LOSS", exit_code=15):
    """Stored as its producer sent it, and nobody can open it: an older node took it unopened. Every copy has it so.
    `details`: queue, queue_offset (of its first record), go_on_at (behind its last one), log_offset, producer_id,
    append_time_us. A reader that seeks to `go_on_at` passes it."""


class RecordTooLarge(BadInput):
    """A record above `limits.max_record_bytes`."""


class BatchTooLarge(BadInput):
    """A batch above `limits.max_batch_bytes`."""


class OutOfSequence(BadInput):
    """A sequence that does not follow; `details["last"]` is the last one held, -1 when none is."""


class StaleProducerEpoch(BadInput):
    """The producer id is in use under a newer producer epoch."""


class BadRequest(BadInput):
    """A request whose fields make no sense, or not in this place; the message names the field."""


class NoSuchQueue(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The cluster has no queue of that name."""


class NoSuchLog(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The cluster, or this node, has no log of that name."""


class QueueExists(PreconditionFailed, grpc="ALREADY_EXISTS", exit_code=6):
    """Declared again with other arguments; the message names the difference."""


class HoldTaken(PreconditionFailed, exit_code=6):
    """Another landing holds the queue's records under this name; details carry its `holder`, its `epoch`, and
    `left_ms`, what is left of its lease. Or a renewal came after the hold's end: then they carry `ended`, why."""


class NoSuchHold(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The queue has no landing of that name that holds its records."""


class OffsetOutOfRange(PreconditionFailed, grpc="OUT_OF_RANGE", exit_code=7):
    """A position below the start offset or beyond the end; details carry `begin` and `next`, as far as is known."""


class PositionLost(OffsetOutOfRange):
    """A position from which on records were lost, or may have been, confirmed ones too: a loss of the log's newest
    records was declared, and it is no retention. `details["go_on_at"]` is the first queue offset behind the gap."""


class TierUnreachable(Refused, exit_code=9):
    """Records that a log has no more are in a Delta table that cannot be read from here; details: its `location`."""


class TierNotAllowed(PreconditionFailed, grpc="PERMISSION_DENIED", exit_code=18):
    """Records that a log has no more are said to be where this reader may not look; details carry its `location`."""


class TierBroken(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """The Delta table that should have a queue's older records is another queue's, or has rows twice or lacks some;
    details carry its `location`, and `go_on_at`, the queue offset behind what is missing."""


class NotCurrent(Refused, exit_code=9):
    """A node that is cut off answers no reads, unless it is asked for stale ones: others may have confirmed more."""


class ProtocolError(PreconditionFailed, grpc="INTERNAL", exit_code=8):
    """Bytes that are no frames, or frames out of order. The connection is answered and closed."""


class FrameTooLarge(ProtocolError):
    """A frame above the limit of its connection."""


class StalledFrame(ProtocolError):
    """A frame was begun and not completed within `limits.frame_timeout_ms`."""


class UnsupportedVersion(ProtocolError, grpc="FAILED_PRECONDITION"):
    """The other end, or the cluster as a whole, does not speak the version that this needs."""


class WrongCluster(ProtocolError, grpc="FAILED_PRECONDITION"):
    """The other end belongs to another cluster."""


class NotAMember(ProtocolError, grpc="PERMISSION_DENIED"):
    """A mirror that the log's assignment does not name, or a node that the cluster does not let in."""


class NotProven(ProtocolError, grpc="UNAUTHENTICATED"):
    """A node that does not prove the cluster's secret, or is not the one that its certificate names."""


class MirrorAhead(ProtocolError, grpc="FAILED_PRECONDITION"):
    """The mirror holds bytes that this master has lost: the master stays closed and truncates nobody."""


class AckBeyondEnd(ProtocolError):
    """An ack above what was sent on this link: never believed."""


class ConnectionLost(Refused, exit_code=9):
    """No node was reached, or the link broke under a question. What was changed through a link that broke is
    OutcomeUnknown (`mirrorlog.attempts`)."""


class RequestTimeout(OutcomeUnknown, exit_code=9):
    """A request other than a publish had no answer in time; it changed nothing that a retry would double."""


class ConfigError(PreconditionFailed, exit_code=10):
    """A setting that makes no sense; the message names it."""


class MissingDependency(PreconditionFailed, exit_code=11):
    """Java, a jar or a package that a command needs; the message says what to install."""


class PortTaken(PreconditionFailed, exit_code=12):
    """An address cannot be bound: something else listens there."""


class DirectoryInUse(PreconditionFailed, exit_code=13):
    """Another process holds the data directory's lock."""


class ForeignDirectory(PreconditionFailed, exit_code=14):
    """The data directory belongs to another node, cluster or log."""


class LogCorrupt(LogUnavailable, grpc="DATA_LOSS", exit_code=15, retriable=False):
    """Bad bytes below the flushed offset; details carry `first` and `last` log offset."""


class IndexDoubtful(Refused, exit_code=17):
    """A segment's table, or the index of the past, is damaged or speaks of other bytes: it is rebuilt from the log."""


class DiskFailed(LogUnavailable, exit_code=16):
    """A write or an fsync failed: what the page cache holds may never reach the disk. The node ends."""


class DirectoryGone(DiskFailed, exit_code=19):
    """The directory of the node, or of a log, was removed or replaced while it ran: it ends, as of a failed disk."""


# --- Exchanges, virtual hosts, users. -----------------------------------------------------------------------------


class StaleRouting(Refused, grpc="ABORTED", retriable=False):
    """A batch was routed by bindings that have changed since: route it again. `details["version"]`: the version of the
    routing that the node knows. The identical batch would be refused again."""


class Unroutable(BadInput, grpc="NOT_FOUND"):
    """No binding leads from the exchange to a queue; `details`: exchange, key. Nothing was stored."""


class NoSuchExchange(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The virtual host has no exchange of that name."""


class NoSuchVirtualHost(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The cluster has no virtual host of that name."""


class NoSuchUser(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The cluster has no user of that name."""


class ExchangeExists(PreconditionFailed, grpc="ALREADY_EXISTS", exit_code=6):
    """With other properties; the message names the difference."""


class InUse(PreconditionFailed, exit_code=6):
    """It was to go only if nothing needs it, and something does."""


class LimitReached(PreconditionFailed, grpc="RESOURCE_EXHAUSTED", exit_code=6):
    """The cluster has as many as it may; `details["limit"]` names the limit."""


class AccessRefused(BadInput, grpc="PERMISSION_DENIED", exit_code=18):
    """Nothing was stored. The user has no permission for it, or nobody has: what is reserved."""


class LoginFailed(ProtocolError, grpc="UNAUTHENTICATED", exit_code=18):
    """No such user, another password, or a password over a connection that others may read."""


class NotGranted(BadInput, grpc="FAILED_PRECONDITION"):
    """A settlement of records that another consumer has, or none. Nothing of it counts, but where it says which ones
    another has: then the others do. `details`: first, next: which; or `passed_over`, how many another consumer has, and
    `elsewhere`, which, as [first, next]; too many to name are not named."""

    @classmethod
    def elsewhere_of(cls, passed_over: int, elsewhere: Sequence[tuple[int, int]]) -> NotGranted:
        """Of a settlement of which so many records are somebody else's: `elsewhere`, ascending."""
        text = f"{passed_over} of the records are in somebody else's hands by now, and were not settled"
        return NotGranted(text, passed_over=passed_over, elsewhere=[list(each) for each in elsewhere])

    @property
    def passed_over(self) -> int:
        """How many records of the settlement somebody else has, where the rest counts."""
        return int(self.details.get("passed_over", 0))

    @property
    def elsewhere(self) -> list[tuple[int, int]]:
        """Which: [first, next). Empty where they are not told."""
        return [(low, high) for low, high in self.details.get("elsewhere", ())]

    @property
    def unnamed(self) -> OutcomeUnknown | None:
        """What each record has ended with, where somebody else has some of them and nobody says which."""
        if not self.passed_over or self.elsewhere:
            return None
        return OutcomeUnknown(f"{self.message}; which ones nobody says, and the others are settled")

    def within(self, first: int, following: int) -> MirrorlogError | None:
        """What it says of records [first, following) of the settlement; None when they count."""
        if not self.passed_over:
            return self
        if (unknown := self.unnamed) is not None:
            return unknown
        found = [(max(first, low), min(following, high)) for low, high in self.elsewhere]
        found = [(low, high) for low, high in found if low < high]
        return NotGranted.elsewhere_of(sum(high - low for low, high in found), found) if found else None


class SettledOtherwise(NotGranted):
    """Some records of a settlement were settled before, as something else: that stands, and is confirmed. `details`:
    `otherwise`, the runs that are concerned as [first, next, stands], and of the first one `first`, `next`, `stands`:
    `acked` (acknowledged, purged, or not there any more: no dead letter comes), `dead` (rejected, expired, dropped,
    come back too often, or sent back to where they died), or `unknown` (so many have died since that nobody knows).
    What else the settlement named counts, of a subscription; nothing of it, of leases and in transactions."""

    @classmethod
    def of(
        cls, runs: Sequence[tuple[int, int, str]], *, passed_over: int = 0, elsewhere: Sequence[tuple[int, int]] = ()
    ) -> Self:
        """`runs`: (first, next, stands), ascending, at least one; `passed_over`, `elsewhere`: see `NotGranted`."""
        first, following, stands = runs[0]
        records = f"record {first} is" if following == first + 1 else f"records {first} to {following} are"
        return cls(
            f"{records} settled already{_STANDS.get(stands, '')}; that stands",
            first=first,
            next=following,
            stands=stands,
            otherwise=[list(each) for each in runs],
            passed_over=passed_over,
            elsewhere=[list(each) for each in elsewhere],
        )

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The records that are settled otherwise: [first, next)."""
        return [(low, high) for low, high, _ in self.details.get("otherwise", ())]

    @property
    def untold(self) -> tuple[int, int] | None:
        """Behind the runs that it names: where others are settled otherwise, [first, next), and it does not say which.
        Who settles that once more, in the same way, is told; a last run that is unknown for good looks like it."""
        *named, (first, following, stands) = self.details["otherwise"]
        return (first, following) if named and stands == "unknown" else None

    def went_on(self, answer: NotGranted | None) -> SettledOtherwise:
        """Both of them in one. `answer`: to a settlement of what was `untold`; None when all of that counts."""
        assert self.untold is not None, "it named all"
        since, until = self.untold
        runs = [tuple(each) for each in self.details["otherwise"][:-1]]
        elsewhere = [(low, min(high, since)) for low, high in self.elsewhere if low < since]
        unnamed = self.passed_over if self.unnamed is not None else 0
        if answer is not None:
            told = answer.details.get("otherwise", ())
            runs += [(max(low, since), min(high, until), stands) for low, high, stands in told if since < high]
            elsewhere += answer.elsewhere
            unnamed = max(unnamed, answer.passed_over if answer.unnamed is not None else 0)
        if unnamed:
            return SettledOtherwise.of(runs, passed_over=unnamed)
        return SettledOtherwise.of(runs, passed_over=sum(high - low for low, high in elsewhere), elsewhere=elsewhere)

    def within(self, first: int, following: int) -> MirrorlogError | None:
        runs = [
            (max(first, low), min(following, high), stands)
            for low, high, stands in self.details.get("otherwise", ())
            if low < following and first < high
        ]
        if runs:
            return type(self).of(runs)
        return super().within(first, following) if self.passed_over else None


_STANDS: Final = {
    "acked": " as acknowledged, and are no dead letters",
    "dead": ": dead",
    "unknown": ", so long ago that nobody knows as what",
}


class ReceiptStale(BadInput, grpc="FAILED_PRECONDITION"):
    """The lease has ended, and somebody else has the record by now; nothing of the settlement counts. `details`: first,
    next: which."""


class NoSuchSubscription(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """It has ended, or was never there, or is another connection's."""


class NoSuchGroup(PreconditionFailed, grpc="NOT_FOUND", exit_code=5):
    """The queue has no group of that name."""


class ExclusiveTaken(PreconditionFailed, exit_code=6):
    """Another subscriber has the group for itself, or there are others where this one wants it for itself."""


class QueueExclusive(PreconditionFailed, exit_code=6):
    """The queue belongs to another connection, which alone may use it; `details["queue"]`: its key."""


class ConsumerTimedOut(Refused, grpc="FAILED_PRECONDITION", exit_code=9, retriable=False):
    """A record was not settled by this subscriber within the time that the queue allows; others get what it had."""


class SubscriptionCancelled(Refused, grpc="ABORTED", exit_code=9, retriable=False):
    """The group was reset or deleted, or the queue was."""


class Closed(MirrorlogError, grpc="FAILED_PRECONDITION", exit_code=2):
    """What was used is closed, not started, or of the process that this one was forked from; nothing was done."""


def from_code(code: str, message: str, details: dict[str, Any] | None = None) -> MirrorlogError:
    """The error that an ERROR frame describes; an unknown code (a newer peer) becomes InternalError with its text."""
    kind = _KINDS.get(code)
    return InternalError(f"{code}: {message}", **(details or {})) if kind is None else kind(message, **(details or {}))
