"""A session beside the user's, for one command with settings of its own.

Delta takes some of a command's arguments from the session: transaction ids, sizes of files, the check of a retention.
Set in the session that others use, they would reach whatever else runs in it at that moment: a transaction id would
make somebody's DELETE a no-op. So a command gets a copy of the session, with all that the user has set, and the copy
is dropped with its settings. Rejected: setting and resetting, which two threads cannot do at once; `newSession`, which
forgets what was set since the start (credentials of a storage, for one).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of `spark` with these settings above its own; it shares the context, the JVM and nothing that is set."""
    copy = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession(), {})
    for name, value in settings.items():
        copy.conf.set(name, value)
    return copy
