"""Every error of the tree reaches a gRPC client as what it is, and only what is safe to repeat is called retriable."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from mirrorlog import errors
from mirrorlog.doors.grpc.calls import DETAILS_KEY, as_call_status, as_message, can_retry, grpc_code
from mirrorlog.errors import ConnectionLost, InSyncReplicasNotEnough, MirrorlogError, OutcomeUnknown, OutOfSequence

TRAILING_METADATA_BYTES_MAX = 8 * 1024


def tree(root: type[MirrorlogError]) -> Iterator[type[MirrorlogError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = sorted(set(tree(MirrorlogError)), key=lambda kind: kind.__name__)

# By name and by hand: a class that changes its status, or a new one, must be thought about here.
STATUSES = {
    "ABORTED": ["StaleRouting", "SubscriptionCancelled"],
    "ALREADY_EXISTS": ["ExchangeExists", "QueueExists"],
    "DATA_LOSS": ["LogCorrupt", "TierBroken", "UnreadableBatch"],
    "DEADLINE_EXCEEDED": [
        "FlushDiskTimeout", "FlushSlaveTimeout", "MasterChanged", "OutcomeUnknown", "RequestTimeout",
        "SlaveNotAvailable",
    ],
    "FAILED_PRECONDITION": [
        "Closed", "ConfigError", "ConsumerTimedOut", "CrossLogTransaction", "DirectoryInUse", "ExclusiveTaken",
        "ForeignDirectory", "HoldTaken", "InUse", "MirrorAhead", "MissingDependency", "NotGranted", "PortTaken",
        "PreconditionFailed", "QueueExclusive", "ReceiptStale", "SettledOtherwise", "UnsupportedVersion",
        "WrongCluster",
    ],
    "INTERNAL": ["AckBeyondEnd", "FrameTooLarge", "InternalError", "MirrorlogError", "ProtocolError", "StalledFrame"],
    "INVALID_ARGUMENT": [
        "BadBatch", "BadInput", "BadRequest", "BatchTooLarge", "OutOfSequence", "RecordTooLarge", "StaleProducerEpoch",
    ],
    "NOT_FOUND": [
        "NoSuchExchange", "NoSuchGroup", "NoSuchHold", "NoSuchLog", "NoSuchQueue", "NoSuchSubscription", "NoSuchUser",
        "NoSuchVirtualHost", "Unroutable",
    ],
    "OUT_OF_RANGE": ["OffsetOutOfRange", "PositionLost"],
    "PERMISSION_DENIED": ["AccessRefused", "NotAMember", "TierNotAllowed"],
    "RESOURCE_EXHAUSTED": ["LimitReached", "QueueFull", "SentToDeadLetters"],
    "UNAUTHENTICATED": ["LoginFailed", "NotProven"],
    "UNAVAILABLE": [
        "ConnectionLost", "DirectoryGone", "DiskFailed", "DiskFull", "FileRefused", "InSyncReplicasNotEnough",
        "IndexDoubtful", "LogRecovering", "LogUnavailable", "NodeStopping", "NotCurrent", "NotLeader", "NotMaster",
        "Overloaded", "QueueMoving", "Refused", "TierUnreachable",
    ],
}  # fmt: skip


def test_every_class_has_the_status_written_down_here() -> None:
    """Goal: no class without a thought. Method: compare the tree with the table."""
    found: dict[str, list[str]] = {status: [] for status in STATUSES}
    for kind in CLASSES:
        found.setdefault(grpc_code(kind("x")).name, []).append(kind.__name__)
    assert found == STATUSES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_stream_s_error_and_a_call_s_status_say_the_same(kind: type[MirrorlogError]) -> None:
    """Goal: one meaning on both paths. Method: decode the trailing metadata and compare it with the message."""
    error = kind("what to do", last=-1, master="h:1")
    message = as_message(error, idempotent=False)
    status = as_call_status(error, idempotent=False)
    ((key, packed),) = status.trailing_metadata
    rich = Status.FromString(packed)
    info = ErrorInfo()
    assert key == DETAILS_KEY
    assert rich.details[0].Unpack(info)
    assert status.code.value[0] == rich.code == message.grpc_code
    assert status.message == rich.message == message.message == "what to do"
    assert (info.domain, info.reason) == ("mirrorlog", kind.code)
    assert message.code == kind.code
    assert dict(message.details) == {"last": "-1", "master": "h:1"}
    retriable = "true" if message.retriable else "false"
    assert dict(info.metadata) == {"last": "-1", "master": "h:1", "retriable": retriable}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_may_have_been_stored_is_retriable_only_for_an_idempotent_producer(kind: type[MirrorlogError]) -> None:
    """Goal: a gRPC client that trusts `retriable` doubles nothing. Method: each class with and without identity."""
    error = kind("x")
    perhaps_stored = grpc_code(error) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert can_retry(error, idempotent=True) == kind.retriable
    assert can_retry(error, idempotent=False) == (kind.retriable and not perhaps_stored)


def test_the_branches_that_a_producer_tells_apart_by_status() -> None:
    """Goal: the promise of the .proto file. Method: one of each branch."""
    assert grpc_code(InSyncReplicasNotEnough("x")) is grpc.StatusCode.UNAVAILABLE
    assert grpc_code(OutcomeUnknown("x")) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert grpc_code(OutOfSequence("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert grpc_code(errors.NoSuchQueue("x")) is grpc.StatusCode.NOT_FOUND
    assert can_retry(ConnectionLost("x"), idempotent=False)


def test_a_long_error_still_fits_into_a_client_s_trailing_metadata() -> None:
    """Goal: the status arrives. Method: more text and details than any client takes."""
    details = {f"detail{number}{'n' * 1000}": {"deep": ["é" * 5_000]} for number in range(50)}
    status = as_call_status(MirrorlogError("é" * 50_000, **details), idempotent=True)
    ((key, packed),) = status.trailing_metadata
    sent = len(key) + len(b64encode(packed)) + len(quote(status.message))
    assert TRAILING_METADATA_BYTES_MAX / 2 < sent < TRAILING_METADATA_BYTES_MAX
    assert status.message.endswith("…")
