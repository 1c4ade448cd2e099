"""What the node says of itself, asked for as seldom as serves.

One question is under way at most, and its answer is good for a second: however many ask this door, the node answers
once a second, and however long it is silent, nobody waits longer than the deadline. That it did not answer is shared
in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, RequestTimeout
from mirrorlog.wire.messages.status import GetStatus, Status

logger = logging.getLogger(__name__)

DEADLINE_MS: Final = 2_000
FRESH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """`software`: what the node runs, with its version."""

    software: str
    status: Status


@dataclass(frozen=True, slots=True)
class Answer:
    """What the node told, after how many seconds, and how many questions it did not answer since this door started."""

    told: Told
    took_s: float
    failures: int


Ask = Callable[[], Awaitable[Told]]


@dataclass(slots=True)
class Failures:
    """Questions that the node did not answer, whoever put them."""

    count: int = 0


class StatusSource:
    """`ask`: one question to the node, which raises MirrorlogError and need not keep the deadline itself. `failures`:
    of all sources of a door."""

    def __init__(
        self,
        ask: Ask,
        *,
        deadline_ms: int = DEADLINE_MS,
        fresh_s: float = FRESH_S,
        failures: Failures | None = None,
    ) -> None:
        self._ask = ask
        self._deadline_ms = deadline_ms
        self._fresh_s = fresh_s
        self._failures = failures if failures is not None else Failures()
        self._question: asyncio.Task[Answer | MirrorlogError] | None = None
        self._outcome: Answer | MirrorlogError | None = None
        self._outcome_at = 0.0

    async def answer(self) -> Answer:
        """The node's answer, not older than a second. Raises why there is none, within the deadline."""
        outcome = self._fresh()
        if outcome is None:
            if self._question is None:
                self._question = asyncio.ensure_future(self._put_question())
            # Others may wait for it too: it goes on when this one is cancelled.
            outcome = await asyncio.shield(self._question)
        if isinstance(outcome, MirrorlogError):
            # A new one for each who waits: they would add their tracebacks to one that is shared.
            raise type(outcome)(outcome.message, **outcome.details)
        return outcome

    def _fresh(self) -> Answer | MirrorlogError | None:
        age_s = asyncio.get_running_loop().time() - self._outcome_at
        return self._outcome if age_s < self._fresh_s else None

    async def _put_question(self) -> Answer | MirrorlogError:
        try:
            outcome = await self._asked()
        finally:
            self._question = None
        if isinstance(outcome, MirrorlogError):
            self._failures.count += 1
        _tell_change(self._outcome, outcome)
        self._outcome, self._outcome_at = outcome, asyncio.get_running_loop().time()
        return outcome

    async def _asked(self) -> Answer | MirrorlogError:
        # The loop's clock stands still within one of its turns, which is most of a quick answer's time.
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self._deadline_ms / 1000):
                told = await self._ask()
        except MirrorlogError as error:
            return error
        except TimeoutError:
            return RequestTimeout(f"the node did not answer within {self._deadline_ms} ms")
        return Answer(told, took_s=time.perf_counter() - begun, failures=self._failures.count)


def _tell_change(before: Answer | MirrorlogError | None, now: Answer | MirrorlogError) -> None:
    if isinstance(now, MirrorlogError) and not isinstance(before, MirrorlogError):
        logger.warning("node_fell_silent reason=%r", now.message)
    elif isinstance(now, Answer) and not isinstance(before, Answer):
        logger.info("node_answered node=%s", now.told.status.node_id)


async def ask_node(client: Client, node: str) -> Told:
    """One question to the node at an address. Raises ConnectionLost, RequestTimeout, or what it answers."""
    connection = await client.connection_to(node)
    # Longer than whoever asks waits: one deadline says in its words that it has passed.
    status = await connection.request(GetStatus(), Status, timeout_ms=2 * DEADLINE_MS)
    return Told(connection.welcome.software, status)
