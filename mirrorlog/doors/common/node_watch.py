"""Asks the node again and again whether it answers, so that health says SERVING only while it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.handshake import NodeLimits
from mirrorlog.wire.messages.queues import GetMetadata, Metadata

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.25
# A node that is paused or overloaded keeps its connections; only its silence tells.
ANSWER_TIMEOUT_MS: Final = 2_000


class NodeWatch:
    """`changed` is awaited with whether the node answers, at the first look and at every change."""

    def __init__(self, client: Client, node: str, changed: Callable[[bool], Awaitable[None]]) -> None:
        self._client = client
        self._node = node
        self._changed = changed

    async def limits(self) -> NodeLimits:
        """The limits of the node, as soon as it answers."""
        while True:
            if (connection := await self._answering()) is not None:
                return connection.welcome.limits
            await asyncio.sleep(INTERVAL_S)

    async def run(self) -> None:
        """Look until cancelled."""
        known: bool | None = None
        while True:
            answers = await self._answering() is not None
            if answers != known:
                logger.info("node_%s node=%s", "answered" if answers else "fell_silent", self._node)
                await self._changed(answers)
                known = answers
            await asyncio.sleep(INTERVAL_S)

    async def _answering(self) -> Connection | None:
        """The connection to the node, None when it does not answer."""
        try:
            connection = await self._client.connection_to(self._node)
            await connection.request(GetMetadata(queues=[]), Metadata, timeout_ms=ANSWER_TIMEOUT_MS)
        except MirrorlogError as error:
            logger.debug("node_silent node=%s reason=%r", self._node, str(error))
            return None
        return connection
