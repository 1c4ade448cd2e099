"""What the node says of itself, asked for as seldom as serves: for the door, and for each caller by his own login.

One question is under way at most, and its answer is good for a second: however many ask this door, the node answers
once a second, and however long it is silent, nobody waits longer than the deadline. That it did not answer is shared
in the same way.

Metrics are for who may see them. The node decides, for it is asked over a connection of the caller: without a login
where there are no users, by a user with a tag that may look where there are. Each login has its own answer: what one
may see must not be shown to another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from mirrorlog.client import Client
from mirrorlog.doors.common.callers import Callers, is_here, read_basic
from mirrorlog.errors import LoginFailed, MirrorlogError, RequestTimeout
from mirrorlog.wire.messages.status import GetStatus, Status
from mirrorlog.wire.messages.topology import Login

logger = logging.getLogger(__name__)

DEADLINE_MS: Final = 2_000
FRESH_S: Final = 1.0

SOURCES_MAX: Final = 64
"""Logins whose last answer is kept."""
_DEADLINE_S: Final = 2 * DEADLINE_MS / 1000


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's status, and what it runs. `software`: what the node runs, with its version."""

    software: str
    status: Status


@dataclass(frozen=True, slots=True)
class StatusScrape:
    """What the node told, after how many seconds, and how many questions it did not answer since this door started."""

    told: NodeReport
    took_s: float
    failures: int


Ask = Callable[[], Awaitable[NodeReport]]


@dataclass(slots=True)
class Failures:
    """Questions that the node did not answer, whoever put them."""

    count: int = 0


class StatusSource:
    """Asks the node for its status, at most once a second. `ask`: one question to the node, which raises MirrorlogError
    and need not keep the deadline itself. `failures`: of all sources of a door."""

    def __init__(
        self, ask: Ask, *, deadline_ms: int = DEADLINE_MS, fresh_s: float = FRESH_S, failures: Failures | None = None
    ) -> None:
        self._ask = ask
        self._deadline_ms = deadline_ms
        self._fresh_s = fresh_s
        self._failures = failures if failures is not None else Failures()
        self._question: asyncio.Task[StatusScrape | MirrorlogError] | None = None
        self._outcome: StatusScrape | MirrorlogError | None = None
        self._outcome_at = 0.0

    async def answer(self) -> StatusScrape:
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

    def _fresh(self) -> StatusScrape | MirrorlogError | None:
        age_s = asyncio.get_running_loop().time() - self._outcome_at
        return self._outcome if age_s < self._fresh_s else None

    async def _put_question(self) -> StatusScrape | MirrorlogError:
        try:
            outcome = await self._asked()
        finally:
            self._question = None
        if isinstance(outcome, MirrorlogError):
            self._failures.count += 1
        _tell_change(self._outcome, outcome)
        self._outcome, self._outcome_at = outcome, asyncio.get_running_loop().time()
        return outcome

    async def _asked(self) -> StatusScrape | MirrorlogError:
        # The loop's clock stands still within one of its turns, which is most of a quick answer's time.
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self._deadline_ms / 1000):
                told = await self._ask()
        except MirrorlogError as error:
            return error
        except TimeoutError:
            return RequestTimeout(f"the node did not answer within {self._deadline_ms} ms")
        return StatusScrape(told, took_s=time.perf_counter() - begun, failures=self._failures.count)


def _tell_change(before: StatusScrape | MirrorlogError | None, now: StatusScrape | MirrorlogError) -> None:
    if isinstance(now, MirrorlogError) and not isinstance(before, MirrorlogError):
        logger.warning("node_fell_silent reason=%r", now.message)
    elif isinstance(now, StatusScrape) and not isinstance(before, StatusScrape):
        logger.info("node_answered node=%s", now.told.status.node_id)


async def ask_node(client: Client, node: str) -> NodeReport:
    """One question to the node at an address. Raises ConnectionLost, RequestTimeout, or what it answers."""
    connection = await client.connection_to(node)
    # Longer than whoever asks waits: one deadline says in its words that it has passed.
    status = await connection.request(GetStatus(), Status, timeout_ms=2 * DEADLINE_MS)
    return NodeReport(connection.welcome.software, status)


class CallerSources:
    """Asks the node for its status by the login of whoever wants the metrics. `node`: whose status is told. `failures`:
    of all sources of the door."""

    def __init__(self, callers: Callers, node: str, failures: Failures) -> None:
        self._callers = callers
        self._node = node
        self._failures = failures
        self._sources: dict[Login | None, StatusSource] = {}

    async def answer(self, request: Request) -> StatusScrape:
        """As of `StatusSource`. Raises LoginFailed, AccessRefused, and what `Callers.client` raises."""
        login, address = login_of(request), address_of(request)
        try:
            async with (
                asyncio.timeout(_DEADLINE_S),
                self._callers.client(login, address),
            ):  # whatever is kept, is it he?
                return await self._source(login).answer()
        except TimeoutError:
            raise RequestTimeout(f"the node did not answer within {_DEADLINE_S:g} s") from None

    def _source(self, login: Login | None) -> StatusSource:
        source = self._sources.get(login)
        if source is None:
            if len(self._sources) >= SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
            source = self._sources[login] = StatusSource(lambda: self._ask(login), failures=self._failures)
        return source

    async def _ask(self, login: Login | None) -> NodeReport:
        async with self._callers.client(login) as client:
            return await ask_node(client, self._node)


def login_of(request: Request) -> Login | None:
    """Raises LoginFailed for what is none."""
    given = request.headers.getlist("authorization")
    if not given:
        return None
    if len(given) > 1:
        raise LoginFailed("authorization is given once")
    return read_basic(given[0], private=request.url.scheme == "https" or is_here(address_of(request)))


def address_of(request: Request) -> str:
    """Of who asks; empty where it is not known."""
    return request.client.host if request.client is not None else ""
