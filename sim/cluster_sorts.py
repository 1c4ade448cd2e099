"""Queues of a simulated cluster whose records have times, priorities and limits, and those that transactions fill: how
they are declared, what their records ask for, and who takes from them.

`timed` has a time to live, and so have some of its records, or a delay; `urgent` tells priorities apart; of `short` the
oldest go when it is too long, `tight` refuses then; `fragile` gives a record out twice at most, and not for long. What
is in `orders` is acknowledged by transactions alone, which put a record for each into `invoices`, and one of their own
into `audit`; all three are in one log.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from mirrorlog.commitlog.format.attributes import RecordOptions
from sim.cluster_consumers import AUDIT, INVOICES, Taking

RECORDS: Final = ("timed", "urgent", "short", "tight", "fragile")
TRANSACTED: Final = ("orders", INVOICES, AUDIT)
FILLED: Final = frozenset({INVOICES, AUDIT})
"""By transactions alone."""
TTL_MS: Final = 1_500
PRIORITY_MAX: Final = 3
LENGTH_MAX: Final = 12
DELIVERY_LIMIT: Final = 1
LIMITED: Final = ("short", "tight")
"""Which may be so long and no longer."""
ARGUMENTS: Final[Mapping[str, dict[str, Any]]] = {
    "timed": {"x-message-ttl": TTL_MS},
    "urgent": {"x-max-priority": PRIORITY_MAX},
    "short": {"x-max-length": LENGTH_MAX},
    "tight": {"x-max-length": LENGTH_MAX, "x-overflow": "reject-publish"},
    "fragile": {"x-delivery-limit": DELIVERY_LIMIT, "x-consumer-timeout": 300},
    **{queue: {"x-log-group": "shop"} for queue in TRANSACTED},
}
DELIVERY_MS: Final[Mapping[str, int]] = {"tight": 500}
"""How long those who send wait; others longer."""


def asked(queue: str, random: Random) -> RecordOptions:
    """What the next record asks for."""
    if queue == "timed":
        return RecordOptions(
            ttl_ms=random.choice((None, None, 0, 200, 800, 5_000)), delay_ms=random.choice((0, 0, 0, 100, 600))
        )
    if queue == "urgent":
        return RecordOptions(priority=random.choice((0, 0, 0, 1, 2, PRIORITY_MAX, 200)))
    return RecordOptions()


def sorts_of(seed: str, *, records: bool, transactions: bool) -> list[str]:
    """Two of those whose records have limits: a schedule with all of them takes long."""
    random = Random(f"{seed} sorts")
    return [*(random.sample(RECORDS, 2) if records else ()), *(TRANSACTED if transactions else ())]


def takings_of_sorts(seed: str, queues: list[str]) -> list[Taking]:
    """Who takes from these."""
    random = Random(f"{seed} takings of sorts")

    def prefetch(*some: int) -> int:
        return random.choice(some or (1, 5, 50))

    every = [
        Taking("l0", "timed", "", "push", prefetch()),
        Taking("l1", "timed", "", "lease", random.choice((1, 10)), lease_ms=random.choice((200, 1_000))),
        Taking("l2", "timed", "g", "push", prefetch()),
        Taking("u0", "urgent", "", "push", prefetch(1, 2, 5)),
        Taking("u1", "urgent", "", "push", prefetch(1, 2)),
        Taking("d0", "short", "", "push", prefetch(1, 2, 5)),
        Taking("d1", "short", "", "lease", 2, lease_ms=random.choice((200, 1_000))),
        Taking("d2", "short", "g", "push", prefetch()),
        Taking("r0", "tight", "", "push", prefetch(1, 5)),
        Taking("r1", "tight", "", "lease", 5, lease_ms=random.choice((200, 1_000))),
        Taking("f0", "fragile", "", "push", prefetch(1, 5)),
        Taking("f1", "fragile", "", "push", prefetch(1, 5)),
        Taking("k0", "orders", "", "tx", prefetch()),
        Taking("k1", "orders", "", "tx", prefetch(1, 5)),
    ]
    return [each for each in every if each.queue in queues]
