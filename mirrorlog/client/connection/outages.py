"""Reading on through an outage: whoever iterates waits for as long as it takes, unless he has said for how long.

What a queue's master, or each of its nodes, says that is not there now passes; what any of them would say again is
raised (a queue that was deleted, a right that is missing, bytes that are bad on every copy).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.errors import (
    ConnectionLost,
    LogRecovering,
    LogUnavailable,
    MirrorlogError,
    NodeStopping,
    NotCurrent,
    NotMaster,
    RequestTimeout,
)

logger = logging.getLogger(__name__)

_OUTAGES: Final = (ConnectionLost, RequestTimeout, NotMaster, NotCurrent, NodeStopping, LogRecovering, LogUnavailable)

_T = TypeVar("_T")


async def read_on(
    read: Callable[[], Awaitable[_T]], *, queue: str, patience_ms: int, outage_timeout_ms: int | None
) -> _T:
    """What `read` gives, asked again for as long as an outage lasts. `patience_ms`: how long it has tried by itself
    when it raises; `outage_timeout_ms`: how long an outage may take in all, None for ever."""
    loop = asyncio.get_running_loop()
    backoff = Backoff(random.random)
    began_at: float | None = None
    while True:
        try:
            return await read()
        except MirrorlogError as error:
            if not (isinstance(error, _OUTAGES) and error.retriable):
                raise
            if began_at is None:
                began_at = loop.time() - patience_ms / 1000
                logger.info("client_reading_waited queue=%r reason=%r", queue, str(error))
            if outage_timeout_ms is not None and loop.time() >= began_at + outage_timeout_ms / 1000:
                raise
        await asyncio.sleep(backoff.next_s())
