"""When a log that nobody waits for is flushed."""

from __future__ import annotations

import pytest

from tests.process.clusters import MIB, declare, eventually, fast_cluster, log_of
from tests.process.raw import Raw, batch_of

pytestmark = pytest.mark.process


def test_so_many_bytes_are_flushed_before_their_time() -> None:
    """Goal: `log.flush_bytes` bounds what a power loss takes from a memory log. Method: an interval of ten minutes, so
    that nothing else flushes; what is flushed follows what is published, and is never further behind."""
    settings = {"log.flush_bytes": MIB, "log.flushIntervalCommitLog": 600_000}
    with fast_cluster(1, settings=settings) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            for _ in range(3):
                begin = log_of(one.master).end
                for _ in range(5):
                    raw.produce(batch_of([b"x" * (MIB // 4)], queue))
                eventually(lambda begin=begin: log_of(one.master).flushed > begin, "what was published is flushed")
                assert log_of(one.master).end - log_of(one.master).flushed < MIB
