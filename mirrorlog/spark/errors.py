"""What can go wrong between a queue and a table, besides what the nodes themselves answer."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from mirrorlog.errors import BadInput, MirrorlogError

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What Spark raises on the driver; `from_spark` tells what it means."""

_NAMED: Final = re.compile(r"^mirrorlog(?:\.\w+)*\.(?P<name>\w+): (?P<message>.+)$", re.MULTILINE)


class BadOption(BadInput):
    """An option of the data source that is unknown, missing or malformed; the message names it."""

    code = "BAD_OPTION"


class BadSchema(BadInput):
    """The schema that records are decoded by is malformed, too large, or cannot be a table's; the message says why."""

    code = "BAD_SCHEMA"


class RecordsMissing(MirrorlogError):
    """Records below a queue's start offset, or above its confirmed end, were asked for; `failOnDataLoss` is true."""

    code = "RECORDS_MISSING"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class BeginUnknown(MirrorlogError):
    """The queue's master does not answer, and the copies that do may lack records that it still has."""

    code = "BEGIN_UNKNOWN"
    grpc_status = "UNAVAILABLE"
    exit_code = 9
    retriable = True


class RangeNotDense(MirrorlogError):
    """A reader did not get every queue offset of its range exactly once. Nothing that it read may be kept."""

    code = "RANGE_NOT_DENSE"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class LandingConflict(MirrorlogError):
    """Another landing of the same queue committed to the same table meanwhile; this one added nothing."""

    code = "LANDING_CONFLICT"
    grpc_status = "ABORTED"
    exit_code = 6
    retriable = True


class HistoryChanged(MirrorlogError):
    """The log does not hold the history that a position was read in: it lost its tail, or the queue is another one."""

    code = "HISTORY_CHANGED"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class TableOutOfStep(MirrorlogError):
    """The table's transaction id and the queue contradict each other."""

    code = "TABLE_OUT_OF_STEP"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 14


class TableRefused(MirrorlogError):
    """The table has a feature, a column or a setting that a landing cannot keep; the message names it."""

    code = "TABLE_REFUSED"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 14


class UndecodableRecord(MirrorlogError):
    """A record is not what its schema says, and the landing has no table for dead letters; the message names it."""

    code = "UNDECODABLE_RECORD"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class RecordWithoutKey(MirrorlogError):
    """A record that an upsert cannot place, and no table of dead letters to keep it."""

    code = "RECORD_WITHOUT_KEY"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 14


class UnsafeRetention(BadInput):
    """A retention so short that files of a landing's step could be removed before it commits them."""

    code = "UNSAFE_RETENTION"


class TableBusy(MirrorlogError):
    """Upkeep lost against commits of others each time it tried; the table is as it was."""

    code = "TABLE_BUSY"
    grpc_status = "ABORTED"
    exit_code = 6
    retriable = True


class StorageFailed(MirrorlogError):
    """A table's files could not be written or made durable: a full disk, missing rights, a store that is away."""

    code = "STORAGE_FAILED"
    grpc_status = "UNAVAILABLE"
    exit_code = 1
    retriable = True


class BadLanding(BadInput):
    """A landing's definition that is unknown, missing or malformed in a key; the message names it."""

    code = "BAD_LANDING"


class TableDiffers(MirrorlogError):
    """A table and the log that it was landed from do not say the same."""

    code = "TABLE_DIFFERS"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class CopiesDiffer(MirrorlogError):
    """Nodes hold other bytes at the same place of a log, or bytes that are damaged."""

    code = "COPIES_DIFFER"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class CopyNotChecked(MirrorlogError):
    """A node did not show all of its copy, so nothing can be said of the rest."""

    code = "COPY_NOT_CHECKED"
    grpc_status = "UNAVAILABLE"
    exit_code = 9
    retriable = True


class WriteUnproven(MirrorlogError):
    """What the tasks of a write say of their confirms does not fit together; the message says how."""

    code = "WRITE_UNPROVEN"
    grpc_status = "DATA_LOSS"
    exit_code = 15


class ReplayUnknown(MirrorlogError):
    """How far an earlier run of the same replay came cannot be told any more; nothing was published."""

    code = "REPLAY_UNKNOWN"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 14


class SparkFailed(MirrorlogError):
    """Spark ended a job for a reason that is not one of ours; the message is its first line."""

    code = "SPARK_FAILED"


def from_spark(error: BaseException) -> MirrorlogError:
    """The error inside what Spark raised: one of ours from a Python worker's traceback, else SparkFailed.

    A worker's exception reaches the driver as text only; its last line has the class and the message.
    """
    text = str(error)
    classes = _classes(MirrorlogError)
    for found in reversed(list(_NAMED.finditer(text))):
        if (kind := classes.get(found["name"])) is not None:
            return kind(found["message"].strip())
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return SparkFailed(f"Spark failed: {first}")


def _classes(root: type[MirrorlogError]) -> dict[str, type[MirrorlogError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_classes(child))
    return found
