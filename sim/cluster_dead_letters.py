"""Queues of a simulated cluster whose dead records leave for others: how they are declared, where their letters go, and
who takes from them.

In `court` much is rejected, of `frail` a record is given out twice at most, in `fresh` it lasts for a moment, `brief`
is short: what dies there comes to `morgue`, and what dies in `court` and `fresh` to `notice` as well, by an exchange.
`morgue` is in another log than all the others, where the cluster has two. Now and then somebody sends back what is in
it: then it may die once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from mirrorlog.client import Client
from sim.cluster_clients import insist
from sim.cluster_consumers import Taking

SOURCES: Final = ("brief", "court", "frail", "fresh")
"""By their names before the others: letters that are on their way are waited for first."""
MORGUE: Final = "morgue"
TARGETS: Final = (MORGUE, "notice")
APART: Final = MORGUE
"""In a log of its own, if there are two."""
ENDS: Final = "ends"
"""The exchange that leads to both."""
DIED_AFTER_MS: Final = 400
DIED_BEHIND: Final = 6
"""Records of `brief`."""
DELIVERIES_MAX: Final = 2
"""Of a record of `frail`."""
REDRIVEN_MAX: Final = 20

WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "brief": (MORGUE,),
    "court": TARGETS,
    "frail": (MORGUE,),
    "fresh": TARGETS,
}
"""Where letters of a queue go."""
REASONS: Final[Mapping[str, frozenset[str]]] = {
    "brief": frozenset({"maxlen", "rejected"}),
    "court": frozenset({"rejected"}),
    "frail": frozenset({"delivery_limit", "rejected"}),
    "fresh": frozenset({"expired", "rejected"}),
}
"""What records of a queue may die of."""
_TO_MORGUE: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": MORGUE}
_TO_BOTH: Final = {"x-dead-letter-exchange": ENDS}
LETTER_ARGUMENTS: Final[Mapping[str, dict[str, Any]]] = {
    "brief": {"x-max-length": DIED_BEHIND, **_TO_MORGUE},
    "court": _TO_BOTH,
    "frail": {"x-delivery-limit": DELIVERIES_MAX - 1, "x-consumer-timeout": 300, **_TO_MORGUE},
    "fresh": {"x-message-ttl": DIED_AFTER_MS, **_TO_BOTH},
}


def letter_queues_of(seed: str) -> list[str]:
    """Both targets and two sources: a schedule with all of them takes long."""
    random = Random(f"{seed} letters")
    return [*random.sample(SOURCES, 2), *TARGETS]


async def lead(client: Client) -> None:
    """Letters to where they go."""
    topology = client.admin.topology
    await insist(lambda: topology.declare_exchange(ENDS, "fanout"))
    for target in TARGETS:
        await insist(lambda target=target: topology.bind(ENDS, target))  # type: ignore[misc]


def takings_of_letters(seed: str, queues: list[str]) -> list[Taking]:
    """Who takes from these."""
    random = Random(f"{seed} takings of letters")

    def prefetch(*some: int) -> int:
        return random.choice(some or (1, 5, 50))

    def lease_ms() -> int:
        return random.choice((200, 1_000))

    every = [
        Taking("b0", "brief", "", "push", prefetch(1, 2)),
        Taking("c0", "court", "", "push", prefetch(), rejects=0.5),
        Taking("c1", "court", "", "lease", prefetch(1, 10), lease_ms=lease_ms(), rejects=0.5),
        Taking("c2", "court", "g", "push", prefetch(), rejects=0.2),
        Taking("a0", "frail", "", "push", prefetch(1, 5), rejects=0.1),
        Taking("a1", "frail", "", "push", prefetch(1, 5)),
        Taking("h0", "fresh", "", "push", prefetch(1, 5), rejects=0.1),
        Taking("m0", MORGUE, "", "push", prefetch(1, 5)),
        Taking("m1", MORGUE, "", "lease", prefetch(1, 10), lease_ms=lease_ms()),
        Taking("n0", "notice", "", "push", prefetch(5, 50)),
    ]
    return [each for each in every if each.queue in queues]
