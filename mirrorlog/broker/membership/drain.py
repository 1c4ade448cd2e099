"""Before a clean stop a node hands over what it masters, while it still serves.

So the next masters are there before this one goes: a publish is refused for as long as one log changes hands, and none
ends with an outcome unknown. Bounded: a node that cannot hand over stops all the same, and is replaced like a dead one.

A log that nobody is in sync with waits for this node to come back; nobody else is waited for here. But where its rule
says `ha-promote-on-shutdown = always` it would go on without what its mirrors lack: then those that are up are waited
for, so that nothing need be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mirrorlog.cluster.coordination.handover import heirs, may_come_in
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Holder, NodeDraining
from mirrorlog.cluster.state.placements import ALWAYS
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.errors import MirrorlogError

logger = logging.getLogger(__name__)

HAND_OVER_S: Final = 5.0
"""For all logs together."""
DECIDE_S: Final = 1.0
"""How long the cluster may take to hear of it."""
LOOK_S: Final = 0.005


async def hand_over(service: ClusterService, *, hurry: Callable[[], bool]) -> None:
    """Until nobody could take over what this node still masters, or it takes too long, or there is no time."""
    mastered = to_hand_over(service)
    if not mastered:
        _tell_left(service)
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await service.decisions.propose(NodeDraining(node=service.identity.node, draining=True), timeout_s=DECIDE_S)
    except MirrorlogError as error:
        logger.info("handover_not_heard reason=%r", str(error))
        return
    while left := to_hand_over(service):
        if hurry() or loop.time() - began >= HAND_OVER_S:
            logger.warning("handover_not_done logs=%s", ",".join(left))
            break
        await asyncio.sleep(LOOK_S)
    else:
        logger.info("handed_over logs=%s seconds=%.3f", ",".join(mastered), loop.time() - began)
    _tell_left(service)


def to_hand_over(service: ClusterService) -> list[str]:
    """The names of the logs that this run masters and that somebody can take over, or soon may where a loss is the
    alternative."""
    state, life = service.state, service.life
    return [
        log.name
        for log_id, log in _mastered(service)
        if heirs(log, state, life)
        or (state.rule(log_id).promote_on_shutdown == ALWAYS and may_come_in(log, state, life))
    ]


def _mastered(service: ClusterService) -> list[tuple[str, LogFacts]]:
    own = Holder(service.identity.node, service.identity.start_id)
    return [(log_id, log) for log_id, log in service.state.logs.items() if log.master == own]


def _tell_left(service: ClusterService) -> None:
    """Of logs with mirrors none of which is in sync: they have no master when this node is gone."""
    state = service.state
    for log_id, log in _mastered(service):
        if len(log.replicas) > 1 and not heirs(log, state, service.life):
            says = state.rule(log_id).promote_on_shutdown
            logger.warning("stops_without_mirror_in_sync log=%s ha-promote-on-shutdown=%s", log.name, says)
