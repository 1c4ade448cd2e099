"""What can go wrong between a queue and a table, besides what the nodes themselves answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from mirrorlog.errors import BadInput, InternalError, MirrorlogError, PreconditionFailed, Refused

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What Spark raises on the driver; `from_spark` tells what it means."""

_NAMED: Final = re.compile(r"^mirrorlog(?:\.\w+)*\.(?P<name>\w+): (?P<message>.+)$", re.MULTILINE)


class BadOption(BadInput):
    """An option of the data source that is unknown, missing or malformed; the message names it."""


class BadSchema(BadInput):
    """The schema that records are decoded by is malformed, too large, or cannot be a table's; the message says why."""


class RecordsMissing(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """Records below a queue's start offset, or above its confirmed end, were asked for; `failOnDataLoss` is true."""


class BeginUnknown(Refused, grpc="UNAVAILABLE", exit_code=9, retriable=True):
    """The queue's master does not answer, and the copies that do may lack records that it still has."""


class RangeNotDense(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """A reader did not get every queue offset of its range exactly once. Nothing that it read may be kept."""


class LandingConflict(Refused, grpc="ABORTED", exit_code=6, retriable=True):
    """Another landing of the same queue committed to the same table meanwhile; this one added nothing."""


class HistoryChanged(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """The log does not hold the history that a position was read in: it lost its tail, or the queue is another one."""


class TableOutOfStep(PreconditionFailed, grpc="FAILED_PRECONDITION", exit_code=14):
    """The table's transaction id and the queue contradict each other."""


class TableRefused(PreconditionFailed, grpc="FAILED_PRECONDITION", exit_code=14):
    """The table has a feature, a column or a setting that a landing cannot keep; the message names it."""


class UndecodableRecord(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """A record is not what its schema says, and the landing has no table for dead letters; the message names it."""


class RecordWithoutKey(PreconditionFailed, grpc="FAILED_PRECONDITION", exit_code=14):
    """A record that an upsert cannot place, and no table of dead letters to keep it."""


class UnsafeRetention(BadInput):
    """A retention so short that files of a landing's step could be removed before it commits them."""


class TableBusy(Refused, grpc="ABORTED", exit_code=6, retriable=True):
    """Upkeep lost against commits of others each time it tried; the table is as it was."""


class StorageFailed(Refused, grpc="UNAVAILABLE", exit_code=1, retriable=True):
    """A table's files could not be written or made durable: a full disk, missing rights, a store that is away."""


class BadLanding(BadInput):
    """A landing's definition that is unknown, missing or malformed in a key; the message names it."""


class TableDiffers(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """A table and the log that it was landed from do not say the same."""


class CopiesDiffer(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """Nodes hold other bytes at the same place of a log, or bytes that are damaged."""


class CopyNotChecked(Refused, grpc="UNAVAILABLE", exit_code=9, retriable=True):
    """A node did not show all of its copy, so nothing can be said of the rest."""


class WriteUnproven(PreconditionFailed, grpc="DATA_LOSS", exit_code=15):
    """What the tasks of a write say of their confirms does not fit together; the message says how."""


class ReplayUnknown(PreconditionFailed, grpc="FAILED_PRECONDITION", exit_code=14):
    """How far an earlier run of the same replay came cannot be told any more; nothing was published."""


class SparkFailed(InternalError):
    """Spark ended a job for a reason that is not one of ours; the message is its first line."""


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


@contextmanager
def translated() -> Iterator[None]:
    """What Spark raises in the block, or in the function that this decorates, is raised as an error of the tree."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def _classes(root: type[MirrorlogError]) -> dict[str, type[MirrorlogError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_classes(child))
    return found
