"""Before a clean stop a node hands over what it masters, while it still serves.

So the next masters are there before this one goes: a publish is refused for as long as one log changes hands, and none
ends with an outcome unknown. Bounded: a node that cannot hand over stops all the same, and is replaced like a dead one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mirrorlog.cluster.coordination.handover import heirs
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Holder, NodeDraining
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
            return
        await asyncio.sleep(LOOK_S)
    logger.info("handed_over logs=%s seconds=%.3f", ",".join(mastered), loop.time() - began)


def to_hand_over(service: ClusterService) -> list[str]:
    """The names of the logs that this run masters and that somebody can take over."""
    identity, state = service.identity, service.state
    own = Holder(identity.node, identity.start_id)
    return [log.name for log in state.logs.values() if log.master == own and heirs(log, state, service.life)]
