"""Every outcome that is not success, as one tree.

An expected outcome is a named class. Each carries what every surface needs to speak of it: a stable `code` that
travels in ERROR frames, a gRPC status, an exit code for the command line, and whether trying again can help.
Messages are one line and say what to do.

Three branches matter to a producer (invariant 9): `Refused` (nothing was stored), `OutcomeUnknown` (stored
perhaps; only an idempotent retry is safe) and `BadInput` (the same call can never succeed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self


class MirrorlogError(Exception):
    """Root of the tree. `details` is small, JSON-like, and survives the wire."""

    code: ClassVar[str] = "INTERNAL"
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return self.message


# --- A publish was refused: nothing was stored, the same batch may be sent again. ---------------------------------


class Refused(MirrorlogError):
    """Nothing was stored. Trying the identical batch again is always safe."""

    code = "REFUSED"
    grpc_status = "UNAVAILABLE"
    exit_code = 3
    retriable = True


class InSyncReplicasNotEnough(Refused):
    """Fewer live, proven links than `min_in_sync` before the append."""

    code = "IN_SYNC_REPLICAS_NOT_ENOUGH"


class NotMaster(Refused):
    """This node does not write the log; `details["master"]` is the client address of the node that does, as far as it
    is known."""

    code = "NOT_MASTER"


class NotLeader(Refused):
    """This member does not lead the cluster's metadata; `details["leader"]` is the member that does, 0 if unknown."""

    code = "NOT_LEADER"


class LogRecovering(Refused):
    """The log is closed until an operator or a returning copy settles what was lost."""

    code = "LOG_RECOVERING"


class LogUnavailable(Refused):
    """This node refuses to serve its copy (corruption, failed disk)."""

    code = "LOG_UNAVAILABLE"


class DiskFull(Refused):
    """No space for another batch; what is there stays readable."""

    code = "DISK_FULL"


class FileRefused(DiskFull):
    """The system refused an operation on a file, for want of descriptors, memory or rights; the disk is as sound as it
    was. Handled as a full one: nothing was stored, the copy stays, and what was to be done is tried again."""

    code = "FILE_REFUSED"


class Overloaded(Refused):
    """A named limit was reached; `details["limit"]` names it."""

    code = "OVERLOADED"


class QueueFull(Refused):
    """The queue has as many records, or bytes, as it may (`x-max-length`, `x-max-length-bytes`), and refuses more;
    `details["limit"]` names the argument."""

    code = "QUEUE_FULL"
    grpc_status = "RESOURCE_EXHAUSTED"


class NodeStopping(Refused):
    """The node is on its way down; another attempt reaches its successor or its next start."""

    code = "NODE_STOPPING"


# --- The batch was stored, and is not in the queue. ----------------------------------------------------------------


class SentToDeadLetters(MirrorlogError):
    """The queue has as many records, or bytes, as it may, and `x-overflow = reject-publish-dlx`: these are not in it.
    They leave for its dead letter exchange, once; sent again they would come there once more. Final, and said again to
    whoever sends the identical batch again under its numbers."""

    code = "SENT_TO_DEAD_LETTERS"
    grpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 3


# --- The batch may have been stored. ------------------------------------------------------------------------------


class OutcomeUnknown(MirrorlogError):
    """Stored perhaps: the batch reached a node, its confirm did not come in time.

    Retriable only under the same producer id, producer epoch and sequence; the client does that by itself until
    `delivery_timeout_ms`.
    """

    code = "OUTCOME_UNKNOWN"
    grpc_status = "DEADLINE_EXCEEDED"
    exit_code = 4
    retriable = True


class FlushSlaveTimeout(OutcomeUnknown):
    """Enough links are up, but their acks did not come before the deadline (seed 002, line 211)."""

    code = "FLUSH_SLAVE_TIMEOUT"


class FlushDiskTimeout(OutcomeUnknown):
    """The copies are in memory, but the disk did not answer before the deadline."""

    code = "FLUSH_DISK_TIMEOUT"


class SlaveNotAvailable(OutcomeUnknown):
    """The deadline passed and too few links are up."""

    code = "SLAVE_NOT_AVAILABLE"


class MasterChanged(OutcomeUnknown):
    """The node stopped writing the log while the batch waited; `details["master"]` is the client address of the node
    that writes it now, as far as it is known, and the identical batch belongs there."""

    code = "MASTER_CHANGED"


# --- The caller is wrong. -----------------------------------------------------------------------------------------


class BadInput(MirrorlogError):
    """The same call can never succeed; nothing was stored."""

    code = "BAD_INPUT"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 2


class CrossLogTransaction(BadInput):
    """A transaction is of one log; `details`: `queues`, two of its queues, and `logs`, those that they are in."""

    code = "CROSS_LOG_TRANSACTION"
    grpc_status = "FAILED_PRECONDITION"


class BadBatch(BadInput):
    """A batch that fails its checks (magic, CRC, counts, offsets). It is refused whole."""

    code = "BAD_BATCH"


class UnreadableBatch(BadBatch):
    """Stored as its producer sent it, and nobody can open it: an older node took it unopened. Every copy has it so.
    `details`: queue, queue_offset (of its first record), go_on_at (behind its last one), log_offset, producer_id,
    append_time_us. A reader that seeks to `go_on_at` passes it."""

    code = "UNREADABLE_BATCH"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class RecordTooLarge(BadInput):
    code = "RECORD_TOO_LARGE"


class BatchTooLarge(BadInput):
    code = "BATCH_TOO_LARGE"


class OutOfSequence(BadInput):
    """A sequence that does not follow; `details["last"]` is the last one held, -1 when none is."""

    code = "OUT_OF_SEQUENCE"


class StaleProducerEpoch(BadInput):
    """The producer id is in use under a newer producer epoch."""

    code = "STALE_PRODUCER_EPOCH"


class BadRequest(BadInput):
    code = "BAD_REQUEST"


class NoSuchQueue(MirrorlogError):
    code = "NO_SUCH_QUEUE"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class NoSuchLog(MirrorlogError):
    code = "NO_SUCH_LOG"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class QueueExists(MirrorlogError):
    """Declared again with other arguments; the message names the difference."""

    code = "QUEUE_EXISTS"
    grpc_status = "ALREADY_EXISTS"
    exit_code = 6


class HoldTaken(MirrorlogError):
    """Another landing holds the queue's records under this name; details carry its `holder`, its `epoch`, and
    `left_ms`, what is left of its lease. Or a renewal came after the hold's end: then they carry `ended`, why."""

    code = "HOLD_TAKEN"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 6


class NoSuchHold(MirrorlogError):
    code = "NO_SUCH_HOLD"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class OffsetOutOfRange(MirrorlogError):
    """A position below the begin or beyond the end; details carry `begin` and `next`, as far as they are known."""

    code = "OFFSET_OUT_OF_RANGE"
    grpc_status = "OUT_OF_RANGE"
    exit_code = 7


class PositionLost(OffsetOutOfRange):
    """A position from which on records were lost, or may have been, confirmed ones too: a loss of the log's newest
    records was declared, and it is no retention. `details["go_on_at"]` is the first queue offset behind the gap."""

    code = "POSITION_LOST"


class TierUnreachable(MirrorlogError):
    """Records that a log has no more are in a Delta table, and that cannot be read from here; details carry its
    `location`."""

    code = "TIER_UNREACHABLE"
    grpc_status = "UNAVAILABLE"
    exit_code = 9
    retriable = True


class TierNotAllowed(MirrorlogError):
    """Records that a log has no more are said to be in a table at a place that this reader was not told to follow;
    details carry its `location`."""

    code = "TIER_NOT_ALLOWED"
    grpc_status = "PERMISSION_DENIED"
    exit_code = 18


class TierBroken(MirrorlogError):
    """The Delta table that should have a queue's older records is another queue's, or has rows twice or lacks some;
    details carry its `location`, and `go_on_at`, the queue offset behind what is missing."""

    code = "TIER_BROKEN"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class NotCurrent(MirrorlogError):
    """A node that is cut off answers no reads, unless it is asked for stale ones: others may have confirmed more."""

    code = "NOT_CURRENT"
    grpc_status = "UNAVAILABLE"
    exit_code = 9
    retriable = True


# --- The two ends of a connection do not fit. ---------------------------------------------------------------------


class ProtocolError(MirrorlogError):
    """Bytes that are no frames, or frames out of order. The connection is answered and closed."""

    code = "PROTOCOL_ERROR"
    grpc_status = "INTERNAL"
    exit_code = 8


class FrameTooLarge(ProtocolError):
    code = "FRAME_TOO_LARGE"


class StalledFrame(ProtocolError):
    code = "STALLED_FRAME"


class UnsupportedVersion(ProtocolError):
    code = "UNSUPPORTED_VERSION"
    grpc_status = "FAILED_PRECONDITION"


class WrongCluster(ProtocolError):
    code = "WRONG_CLUSTER"
    grpc_status = "FAILED_PRECONDITION"


class NotAMember(ProtocolError):
    """A mirror that the log's assignment does not name, or a node that the cluster does not let in."""

    code = "NOT_A_MEMBER"
    grpc_status = "PERMISSION_DENIED"


class NotProven(ProtocolError):
    """A node that does not prove the cluster's secret, or is not the one that its certificate names."""

    code = "NOT_PROVEN"
    grpc_status = "UNAUTHENTICATED"


class MirrorAhead(ProtocolError):
    """The mirror holds bytes that this master has lost: the master stays closed and truncates nobody."""

    code = "MIRROR_AHEAD"
    grpc_status = "FAILED_PRECONDITION"


class AckBeyondEnd(ProtocolError):
    """An ack above what was sent on this link: never believed."""

    code = "ACK_BEYOND_END"


class ConnectionLost(MirrorlogError):
    """The link broke or could not be made."""

    code = "CONNECTION_LOST"
    grpc_status = "UNAVAILABLE"
    exit_code = 9
    retriable = True


class RequestTimeout(MirrorlogError):
    """A request other than a publish had no answer in time; it changed nothing that a retry would double."""

    code = "REQUEST_TIMEOUT"
    grpc_status = "DEADLINE_EXCEEDED"
    exit_code = 9
    retriable = True


# --- This machine, this node. -------------------------------------------------------------------------------------


class ConfigError(MirrorlogError):
    code = "CONFIG_ERROR"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 10


class MissingDependency(MirrorlogError):
    """Java, a jar or a package that a command needs; the message says what to install."""

    code = "MISSING_DEPENDENCY"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 11


class PortTaken(MirrorlogError):
    code = "PORT_TAKEN"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 12


class DirectoryInUse(MirrorlogError):
    """Another process holds the data directory's lock."""

    code = "DIRECTORY_IN_USE"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 13


class ForeignDirectory(MirrorlogError):
    """The data directory belongs to another node, cluster or log."""

    code = "FOREIGN_DIRECTORY"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 14


class LogCorrupt(LogUnavailable):
    """Bad bytes below the flushed offset; details carry `first` and `last` log offset."""

    code = "LOG_CORRUPT"
    grpc_status = "DATA_LOSS"
    exit_code = 15
    retriable = False


class IndexDoubtful(MirrorlogError):
    """A segment's table, or the index of the past, is damaged or speaks of other bytes: it is rebuilt from the log."""

    code = "INDEX_DOUBTFUL"
    grpc_status = "UNAVAILABLE"
    exit_code = 17
    retriable = True


class DiskFailed(LogUnavailable):
    """A write or an fsync failed: what the page cache holds can no longer be trusted to reach the disk. Its node ends,
    and another one takes over."""

    code = "DISK_FAILED"
    grpc_status = "UNAVAILABLE"
    exit_code = 16


class DirectoryGone(DiskFailed):
    """The directory of the node, or of a log, was removed or replaced while the node ran: what is written reaches
    nobody who looks for it. The node ends, as of a failed disk."""

    code = "DIRECTORY_GONE"
    grpc_status = "UNAVAILABLE"
    exit_code = 19


# --- Exchanges, virtual hosts, users. -----------------------------------------------------------------------------


class StaleRouting(Refused):
    """A batch was routed by bindings that have changed since: route it again. `details["version"]`: the version of the
    routing that the node knows. The identical batch would be refused again."""

    code = "STALE_ROUTING"
    grpc_status = "ABORTED"
    retriable = False


class Unroutable(BadInput):
    """No binding leads from the exchange to a queue; `details`: exchange, key. Nothing was stored."""

    code = "UNROUTABLE"
    grpc_status = "NOT_FOUND"


class NoSuchExchange(MirrorlogError):
    code = "NO_SUCH_EXCHANGE"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class NoSuchVirtualHost(MirrorlogError):
    code = "NO_SUCH_VIRTUAL_HOST"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class NoSuchUser(MirrorlogError):
    code = "NO_SUCH_USER"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class ExchangeExists(MirrorlogError):
    """With other properties; the message names the difference."""

    code = "EXCHANGE_EXISTS"
    grpc_status = "ALREADY_EXISTS"
    exit_code = 6


class InUse(MirrorlogError):
    """It was to go only if nothing needs it, and something does."""

    code = "IN_USE"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 6


class LimitReached(MirrorlogError):
    """The cluster has as many as it may; `details["limit"]` names the limit."""

    code = "LIMIT_REACHED"
    grpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 6


class AccessRefused(BadInput):
    """Nothing was stored. The user has no permission for it, or nobody has: what is reserved."""

    code = "ACCESS_REFUSED"
    grpc_status = "PERMISSION_DENIED"
    exit_code = 18


class LoginFailed(ProtocolError):
    """No such user, another password, or a password over a connection that others may read."""

    code = "LOGIN_FAILED"
    grpc_status = "UNAUTHENTICATED"
    exit_code = 18


# --- Groups that ack. -----------------------------------------------------------------------------------------------


class NotGranted(BadInput):
    """A settlement of records that are in somebody else's hands, or in nobody's; nothing of it counts, but where it
    says which ones somebody else has: then the others do. `details`: first, next: which; or `passed_over`, how many
    somebody else has, and `elsewhere`, which, as [first, next]; too many to name are not named."""

    code = "NOT_GRANTED"
    grpc_status = "FAILED_PRECONDITION"

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

    code = "SETTLED_OTHERWISE"

    @classmethod
    def of(
        cls,
        runs: Sequence[tuple[int, int, str]],
        *,
        passed_over: int = 0,
        elsewhere: Sequence[tuple[int, int]] = (),
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


class ReceiptStale(BadInput):
    """The lease has ended, and somebody else has the record by now; nothing of the settlement counts. `details`: first,
    next: which."""

    code = "RECEIPT_STALE"
    grpc_status = "FAILED_PRECONDITION"


class NoSuchSubscription(MirrorlogError):
    """It has ended, or was never there, or is another connection's."""

    code = "NO_SUCH_SUBSCRIPTION"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class NoSuchGroup(MirrorlogError):
    code = "NO_SUCH_GROUP"
    grpc_status = "NOT_FOUND"
    exit_code = 5


class ExclusiveTaken(MirrorlogError):
    """Another subscriber has the group for itself, or there are others where this one wants it for itself."""

    code = "EXCLUSIVE_TAKEN"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 6


class QueueExclusive(MirrorlogError):
    """The queue belongs to another connection, which alone may use it; `details["queue"]`: its key."""

    code = "QUEUE_EXCLUSIVE"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 6


class ConsumerTimedOut(MirrorlogError):
    """A record was in this subscriber's hands for longer than the queue allows; what it had is given to others."""

    code = "CONSUMER_TIMED_OUT"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 9


class SubscriptionCancelled(MirrorlogError):
    """The group was reset or deleted, or the queue was."""

    code = "SUBSCRIPTION_CANCELLED"
    grpc_status = "ABORTED"
    exit_code = 9


def _tree(root: type[MirrorlogError]) -> dict[str, type[MirrorlogError]]:
    """By code. A class without one of its own stays within its module, and stands for nothing here."""
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_code(code: str, message: str, details: dict[str, Any] | None = None) -> MirrorlogError:
    """The error that an ERROR frame describes; an unknown code (a newer peer) becomes the root with its text."""
    kind = _tree(MirrorlogError).get(code)
    if kind is None:
        return MirrorlogError(f"{code}: {message}", **(details or {}))
    return kind(message, **(details or {}))
