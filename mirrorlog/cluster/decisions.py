"""Asking the cluster to decide something, wherever its leader is, and waiting for what comes of it. Thin.

Who asked for it is known where a request comes in, and is written into the command. It goes with the task that serves
the request, and with those that this one starts, as a deadline does. Rejected: an argument through everything between
the door and the proposal, which none of it has a use for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from mirrorlog.attempts import Attempts
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.driver import RaftDriver
from mirrorlog.cluster.peers import Mesh
from mirrorlog.cluster.requests import Applied, AskApplied, AskApply, AskIndex, decode_answer, encode
from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import Command, NodeStarted
from mirrorlog.cluster.state.machine import check_proposal
from mirrorlog.cluster.state.state import ClusterState, Outcome
from mirrorlog.errors import ConnectionLost, MirrorlogError, NotAMember, NotLeader, RequestTimeout

ASK_S: Final = 2.0
"""How long an answer of another member may take."""
RETRY_S: Final = 0.1
AGAIN_S: Final = 0.02
"""Between two questions to a node whose link is not there."""


class Ground(Protocol):
    """The member that asks."""

    @property
    def node(self) -> str:
        """Its own name."""

    @property
    def driver(self) -> RaftDriver: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def state(self) -> ClusterState: ...
    @property
    def leader(self) -> str:
        """The coordinator's node, as far as it is known; empty when not."""

    def life(self, node: str) -> Life:
        """Of any node, as far as it is known here."""

    def check_run(self, command: Command) -> None:
        """As the leader. Raises NotLeader when a run may not register now."""


class Decisions:
    """Those that this member asks for, and those that others ask it for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._loop = asyncio.get_running_loop()
        self._readers: list[tuple[int, asyncio.Future[None]]] = []
        # Who asks this member, the leader, up to where all is decided; by a number, which Raft gives back.
        self._rounds: dict[Hashable, asyncio.Future[int | None]] = {}
        self._last_round = 0

    async def propose(self, command: Command, *, timeout_s: float) -> Outcome:
        """Have it decided. Raises NotLeader, or what speaks against it: it is not decided; RequestTimeout or
        OutcomeUnknown: it may be, or may be yet."""
        give_up_at = self._loop.time() + timeout_s
        data = encode_command(signed(command))
        attempts = Attempts()
        with attempts.request(telling=(RequestTimeout,)):
            while True:
                try:
                    async with asyncio.timeout_at(give_up_at):
                        with attempts.one():
                            outcome = await self.ask_leader(data)
                    return replace(outcome, in_doubt=bool(outcome.refusal) and attempts.in_doubt)
                except TimeoutError:
                    raise RequestTimeout(
                        f"the cluster has not decided within {timeout_s * 1000:.0f} ms; is a majority of its nodes up?"
                    ) from None
                except (NotLeader, ConnectionLost, RequestTimeout):
                    if self._loop.time() >= give_up_at:
                        raise
                    await asyncio.sleep(RETRY_S)

    async def decide(self, command: Command, *, timeout_s: float) -> Outcome:
        """As `propose`; and the state here is as of the outcome or later."""
        give_up_at = self._loop.time() + timeout_s
        outcome = await self.propose(command, timeout_s=timeout_s)
        try:
            async with asyncio.timeout_at(give_up_at):
                await self.applied_here(outcome.index)
        except TimeoutError:
            raise RequestTimeout(f"decided, and not known here within {timeout_s * 1000:.0f} ms") from None
        return outcome

    async def decide_once(self, command: Command) -> Outcome:
        """Have it decided, and know here what came of it: the state is as of the outcome or later.

        Asked for once: after any error nobody can say whether it will be decided. Raises MirrorlogError.
        """
        try:
            async with asyncio.timeout(ASK_S):
                outcome = await self.ask_leader(encode_command(signed(command)))
                await self.applied_here(outcome.index)
        except TimeoutError:
            raise RequestTimeout(f"the cluster has not decided within {ASK_S * 1000:.0f} ms") from None
        return outcome

    async def applied_here(self, index: int) -> None:
        """Until everything up to `index` is applied on this node."""
        if self._ground.driver.machine.index < index:
            reached: asyncio.Future[None] = self._loop.create_future()
            self._readers.append((index, reached))
            await reached

    async def applied_everywhere(self, index: int, *, timeout_s: float) -> bool:
        """Whether all nodes that are not known to be down have applied everything up to `index`; told when they have,
        or in time. One whose link is just being made again, or that was not heard yet, is asked until then."""
        until = self._loop.time() + timeout_s
        others = [node for node in self._ground.state.nodes if node != self._ground.node]
        told = await asyncio.gather(*(self._has_applied(node, index, until) for node in others))
        return all(told)

    async def _has_applied(self, node: str, index: int, until: float) -> bool:
        """Also of one that goes down meanwhile: it takes nothing any more."""
        question = encode(AskApplied(index=index))
        while (left_s := until - self._loop.time()) > 0 and self._ground.life(node) is not Life.DOWN:
            try:
                await self._ground.mesh.ask(node, question, timeout_s=left_s)
            except (ConnectionLost, RequestTimeout):
                await asyncio.sleep(min(left_s, AGAIN_S))
            except MirrorlogError:
                return False
            else:
                return True
        return self._ground.life(node) is Life.DOWN

    async def up_to_date(self) -> None:
        """Until everything is applied on this node that was decided before this was asked. Raises MirrorlogError while
        nobody can say."""
        ground = self._ground
        try:
            async with asyncio.timeout(ASK_S):
                if ground.driver.raft.leader == ground.driver.raft.own:
                    index = await self.decided_up_to()
                elif ground.leader:
                    told = await ground.mesh.ask(ground.leader, encode(AskIndex()), timeout_s=ASK_S)
                    index = decode_answer(told, Applied).index
                else:
                    raise NotLeader("no coordinator is known; a majority of the nodes must reach each other")
                await self.applied_here(index)
        except TimeoutError:
            raise RequestTimeout(f"what is decided is not known here within {ASK_S * 1000:.0f} ms") from None

    async def decided_up_to(self) -> int:
        """As the leader: the index of the last decision before this was asked. Raises NotLeader when it is none, or no
        more."""
        self._last_round += 1
        number = self._last_round
        driver, answer = self._ground.driver, self._loop.create_future()
        driver.raft.read(number)
        self._rounds[number] = answer
        driver.wake()
        try:
            index = await answer
        finally:
            del self._rounds[number]
        if index is None:
            raise NotLeader("this node lost its leadership before it knew that it had it; ask again")
        assert isinstance(index, int)
        return index

    def round_ended(self, number: Hashable, index: int | None) -> None:
        """Raft's answer to whoever asked; see `raft.messages.ReadReady`."""
        answer = self._rounds.get(number)
        if answer is not None and not answer.done():
            answer.set_result(index)

    def tell_readers(self) -> None:
        """More has been applied."""
        applied = self._ground.driver.machine.index
        for index, reached in self._readers:
            if index <= applied and not reached.done():
                reached.set_result(None)
        self._readers = [each for each in self._readers if not each[1].done()]

    async def ask_leader(self, data: bytes) -> Outcome:
        """Once. Raises MirrorlogError."""
        ground = self._ground
        raft = ground.driver.raft
        if raft.leader == raft.own:
            return await self.lead(data)
        command = decode_command(data)
        if not isinstance(command, NodeStarted):
            # Whether a start fits, who leads says: this node may have read only the beginning of what was decided.
            check_proposal(ground.state, command)
        if not ground.leader:
            raise NotLeader("no coordinator is known; a majority of the nodes must reach each other")
        told = await ground.mesh.ask(ground.leader, encode(AskApply(command=data)), timeout_s=ASK_S)
        answer = decode_answer(told, Applied)
        return Outcome(answer.index, answer.refusal, answer.code, answer.details)

    async def lead(self, data: bytes) -> Outcome:
        """As the leader. Raises NotLeader when it is none, RequestTimeout when it is none any more."""
        command = decode_command(data)
        self._check(command)
        self._ground.check_run(command)
        answer: asyncio.Future[Outcome | None] = self._loop.create_future()

        def done(outcome: Outcome | None) -> None:
            if not answer.done():
                answer.set_result(outcome)

        driver = self._ground.driver
        driver.machine.wait(driver.raft.propose(data), driver.raft.term, done)
        driver.wake()
        outcome = await answer
        if outcome is None:
            raise RequestTimeout("this node lost its leadership before it knew whether the change was decided")
        return outcome

    def _check(self, command: Command) -> None:
        """See `check_proposal`. A leader that does not know yet what was decided refuses nobody for good."""
        try:
            check_proposal(self._ground.state, command)
        except NotAMember:
            if not self._ground.driver.raft.settled:
                raise NotLeader("this node has only begun to coordinate the cluster; ask again") from None
            raise


_USER: Final[ContextVar[str]] = ContextVar("asked_by", default="")

_C = TypeVar("_C", bound=Command)


@contextmanager
def asked_by(user: str) -> Iterator[None]:
    """What is proposed within, and in tasks that are made within, says so. `user`: empty for nobody in particular."""
    token = _USER.set(user)
    try:
        yield
    finally:
        _USER.reset(token)


def asker() -> str:
    """Whose request is served; empty for nobody in particular."""
    return _USER.get()


def signed(command: _C) -> _C:
    """With the name of who asked for it, if there is one and it says nobody else's."""
    user = _USER.get()
    return command if not user or command.by else replace(command, by=user)
