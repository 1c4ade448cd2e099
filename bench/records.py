"""Records to publish: distinct objects of random bytes, made before any clock starts.

One value sent again and again would stay in the processor's cache, where no user's records are. A pool larger than the
cache is enough: it is gone round as often as needed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.workload import MIB

POOL_BYTES: Final = 64 * MIB
RECORDS_MIN: Final = 64


def random_records(record_bytes: int, count: int, *, seed: int) -> list[bytes]:
    """`count` records; those of the pool are distinct, and follow each other again and again."""
    distinct = min(count, max(RECORDS_MIN, POOL_BYTES // record_bytes))
    content = np.random.default_rng(seed).bytes(distinct * record_bytes)
    pool = [content[at : at + record_bytes] for at in range(0, len(content), record_bytes)]
    return (pool * (count // distinct + 1))[:count]


def halved_records(record_bytes: int, count: int, *, seed: int) -> list[bytes]:
    """As `random_records`, but a codec halves them: the second half of each is zeros."""
    half = record_bytes // 2
    return [record[:half] + bytes(record_bytes - half) for record in random_records(record_bytes, count, seed=seed)]
