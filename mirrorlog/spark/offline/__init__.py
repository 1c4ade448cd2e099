"""The second reader of the data source: queues straight from log directories, on a shared or local path.

    logs = LogDirectories.open("/archive/n1")
    facts = logs.facts(["flights"])[0]
    for batch in logs.batches(QueueRange(facts.cluster_id, "flights", facts.log_id, facts.queue_id, 0, facts.next)):
        print(batch.first, batch.next)

Same contract as the reader over the network: confirmed records only, whole and dense, or an error that says what is
missing. Nothing is written, no lock is taken, and a node may run on the directory meanwhile.
"""

from mirrorlog.spark.offline.directories import LogDirectories
from mirrorlog.spark.offline.log_view import BadStretch, OnBad

__all__ = ["BadStretch", "LogDirectories", "OnBad"]
