"""The finder asks nodes where queues and their masters are. Thin; `queue_metadata` decides whom to believe.

Who looks for a queue for the first time believes the first node that names its master. Who looks again has lost that
master, or was refused by it, and a node that is behind would send him back: so all nodes are asked, at once, and the
one that knows most is believed. Whatever is looked for while such a survey is under way is asked for in the next one,
together: however many producers have lost their master, there is one question at a time to each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mirrorlog.client.connection.queue_metadata import (
    FoundQueue,
    ended_with_its_node,
    found_in,
    newest,
    not_found,
    outage_of,
    settled,
    whole,
)
from mirrorlog.errors import ConnectionLost, MirrorlogError, NoSuchQueue, RequestTimeout
from mirrorlog.wire.messages.queues import Metadata

# Asking several nodes the same: one that hangs delays nobody. Thin.
#
# Either all at once, or each a head start before the next (as RFC 8305 has it for addresses): then one that answers is
# the only one that is asked, and one that is silent costs its head start instead of its deadline. How long to wait for
# the others, once there is an answer, is for whoever asks to say: only he knows what it is worth.


HEAD_START_S: Final = 0.25

_T = TypeVar("_T")
Ask = Callable[[], Coroutine[Any, Any, _T]]


class Heard(Struct, Generic[_T]):
    """What nodes have answered. `answers`: in the order in which they came; `failures`: by the number of the one who
    was asked."""

    answers: list[_T] = field(default_factory=list)
    failures: dict[int, MirrorlogError] = field(default_factory=dict)

    def no_answer(self) -> MirrorlogError:
        """What to raise when every node failed: the first that did answer, with its reason, tells most."""
        failures = [self.failures[number] for number in sorted(self.failures)]
        for failure in failures:
            if not isinstance(failure, ConnectionLost | RequestTimeout):
                return failure
        return ConnectionLost(f"no node answers: {'; '.join(map(str, failures))}")


async def ask_nodes(
    asks: Sequence[Ask[_T]], patience_s: Callable[[list[_T]], float], *, head_start_s: float = 0.0
) -> Heard[_T]:
    """What they answer. `patience_s(answers)`: how much longer to wait for others, given these; 0 when they will do.

    The next one is asked `head_start_s` after the one before, or when that one has failed; and all of them once there
    is an answer that will not do. Without any answer it lasts until all have failed: each has its own deadline.
    """
    loop = asyncio.get_running_loop()
    heard: Heard[_T] = Heard()
    pending: dict[asyncio.Task[_T], int] = {}
    waiting = list(enumerate(asks))[::-1]
    next_at, end_at = loop.time(), inf
    try:
        while True:
            now = loop.time()
            while waiting and (now >= next_at or not pending):
                number, ask = waiting.pop()
                pending[asyncio.ensure_future(ask())] = number
                next_at = now + head_start_s
            if not pending or now >= end_at:
                return heard
            wake_at = min(end_at, next_at if waiting else inf)
            done, _ = await asyncio.wait(
                pending, timeout=None if wake_at == inf else wake_at - now, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                continue
            for task in done:
                _note(task, pending.pop(task), heard)
            next_at = loop.time()
            if heard.answers:
                more_s = patience_s(heard.answers)
                if more_s <= 0:
                    return heard
                end_at = min(end_at, next_at + more_s)
                head_start_s = 0.0
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def first_answer(asks: Sequence[Ask[_T]], *, head_start_s: float) -> _T:
    """The first one's, as of `ask_nodes`. Raises what to raise when every node failed."""
    heard = await ask_nodes(asks, lambda _: 0.0, head_start_s=head_start_s)
    if not heard.answers:
        raise heard.no_answer()
    return heard.answers[0]


def _note(task: asyncio.Task[_T], number: int, heard: Heard[_T]) -> None:
    try:
        heard.answers.append(task.result())
    except MirrorlogError as error:
        heard.failures[number] = error


# For nodes that may know more than the one that has named a new master already.
_SETTLED_S: Final = 0.01
# For nodes that may know of a new master, when the others name the old one or none.
_UNSETTLED_S: Final = 0.05
# For nodes that may know a queue that the others have not heard of.
_UNKNOWN_S: Final = 0.5
# For nodes that may have queues that no other one has, when all are asked for.
_LIST_S: Final = 2.0


class KnownNodes(Protocol):
    """The nodes that are known, as whoever keeps the connections to them says."""

    def addresses(self) -> list[str]:
        """All that are known, the best first."""

    async def ask(self, address: str, queues: list[str] | None) -> Metadata:
        """Raises MirrorlogError, ConnectionLost and RequestTimeout among them."""

    def learn(self, answer: Metadata) -> None:
        """Which nodes there are, by the one that knows most."""


class Finder:
    """Finds queues and their masters, for one client."""

    def __init__(self, nodes: KnownNodes) -> None:
        self._nodes = nodes
        # What was believed of each queue last. It only says when others need not be waited for: what counts is what
        # the nodes say now.
        self._seen: dict[str, FoundQueue] = {}
        self._wanted: set[str] = set()
        self._survey: asyncio.Task[Heard[Metadata]] | None = None
        self._next_survey: asyncio.Task[Heard[Metadata]] | None = None

    async def metadata(self, queues: list[str] | None) -> Metadata:
        """What the first nodes say that know all these queues together; for all there are, what all nodes say.

        Raises ConnectionLost, or what a node says that does answer.
        """

        def patience_s(answers: list[Metadata]) -> float:
            if queues is None:
                silent = {node.node_id for node in answers[-1].nodes} - {answer.node_id for answer in answers}
                return _LIST_S if silent else 0.0
            return _UNKNOWN_S if whole(answers, queues).missing else 0.0

        head_start_s = HEAD_START_S
        if queues is None:
            await self.metadata([])  # the members may be others than were known
            head_start_s = 0.0
        heard = self._learned(await ask_nodes(self._asks(queues), patience_s, head_start_s=head_start_s))
        found = whole(heard.answers, queues)
        if found.placed and queues is not None and len(heard.answers) < len(found.nodes):
            # They are in logs of nodes that were not known yet.
            heard = self._learned(await ask_nodes(self._asks(queues), patience_s, head_start_s=head_start_s))
            found = whole(heard.answers, queues)
        return found

    async def find(self, queue: str) -> FoundQueue:
        """The queue as the node that knows most describes it. Raises NoSuchQueue, ConnectionLost, LogUnavailable naming
        the node that is down, or NotMaster when it is there and no node that answers has it."""
        heard = await (self._surveyed(queue) if queue in self._seen else self._first_named(queue))
        found = newest(found_in(queue, heard.answers))
        if found is None:
            if (outage := outage_of(queue, heard.answers)) is not None:
                raise outage
            self._check_ended(queue, heard.answers)
            raise not_found(queue, heard.answers)
        self._seen[queue] = found
        said = [answer for answer in heard.answers if answer.node_id == found.told_by]
        return replace(found, outage=outage_of(queue, said))

    async def newer(self, than: FoundQueue) -> FoundQueue | None:
        """The queue's new master, if a node knows of one that was named after `than`. Raises nothing of the nodes'."""
        try:
            heard = await self._surveyed(than.queue)
        except MirrorlogError:
            return None
        found = newest(found_in(than.queue, heard.answers))
        if found is None or not found.replaces(than):
            return None
        self._seen[than.queue] = found
        return found

    async def close(self) -> None:
        """End what is under way; who waits gets CancelledError, unless he is told otherwise before."""
        surveys = [survey for survey in (self._survey, self._next_survey) if survey is not None]
        for survey in surveys:
            survey.cancel()
        await asyncio.gather(*surveys, return_exceptions=True)
        self._survey = self._next_survey = None
        self._wanted.clear()

    # --- inside ---

    def _check_ended(self, queue: str, answers: list[Metadata]) -> None:
        """Raises NoSuchQueue, for good, when it was seen once and has gone with its node."""
        seen = self._seen.get(queue)
        knows_most = max(answers, key=lambda answer: answer.version)
        if seen is not None and ended_with_its_node(seen.info, seen.version, knows_most):
            raise NoSuchQueue(f"queue {queue!r} was not durable, and has gone with its node", queue=queue, ended=True)

    async def _first_named(self, queue: str) -> Heard[Metadata]:
        def patience_s(answers: list[Metadata]) -> float:
            found_queues, outage = found_in(queue, answers), outage_of(queue, answers)
            by_master = any(each.by_master and each.heard for each in found_queues)
            if settled(found_queues, None) and (outage is None or by_master):
                return 0.0
            if outage is not None and any(each.address for each in found_queues):
                return _UNKNOWN_S  # one that cannot hear the master calls it down; it may answer for itself
            return _UNSETTLED_S if found_queues or outage is not None else _UNKNOWN_S

        return self._learned(await ask_nodes(self._asks([queue]), patience_s, head_start_s=HEAD_START_S))

    async def _surveyed(self, queue: str) -> Heard[Metadata]:
        self._wanted.add(queue)
        if self._next_survey is None:
            self._next_survey = asyncio.ensure_future(self._ask_all(self._survey))
            self._next_survey.add_done_callback(noted)
        return await asyncio.shield(self._next_survey)

    async def _ask_all(self, before: asyncio.Task[Heard[Metadata]] | None) -> Heard[Metadata]:
        if before is not None:
            await asyncio.wait({before})
        queues, self._wanted = sorted(self._wanted), set()
        self._survey, self._next_survey = self._next_survey, None
        seen = {queue: self._seen.get(queue) for queue in queues}

        def patience_s(answers: list[Metadata]) -> float:
            found_queues = {queue: found_in(queue, answers) for queue in queues}
            if all(settled(found_queues[queue], seen[queue]) for queue in queues):
                return _SETTLED_S
            return _UNSETTLED_S if all(found_queues.values()) else _UNKNOWN_S

        return self._learned(await ask_nodes(self._asks(queues), patience_s))

    def _asks(self, queues: list[str] | None) -> list[Ask[Metadata]]:
        return [partial(self._nodes.ask, address, queues) for address in self._nodes.addresses()]

    def _learned(self, heard: Heard[Metadata]) -> Heard[Metadata]:
        if not heard.answers:
            raise heard.no_answer()
        self._nodes.learn(max(heard.answers, key=lambda answer: answer.version))
        return heard


def noted(ended: asyncio.Future[Any]) -> None:
    """Whoever asked may be gone; its failure is nobody's then."""
    if not ended.cancelled():
        ended.exception()
