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


class RecordsMissing(MirrorlogError):
    """Records below a queue's begin, or above its confirmed end, were asked for; `failOnDataLoss` is true."""

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


class TableOutOfStep(MirrorlogError):
    """The table's transaction id and the queue contradict each other."""

    code = "TABLE_OUT_OF_STEP"
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
