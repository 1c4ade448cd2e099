"""Runs the coordinator on the member that leads: what it wants done is proposed, or asked of the nodes. Thin.

The coordinator decides what is to be done; here it is given what this node sees, and its actions are tied to Raft and
to the links between members. Each node may ask for an election; the leader's coordinator sees to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from mirrorlog import versions
from mirrorlog.cluster.coordination.balance import CopyMove, plan
from mirrorlog.cluster.coordination.coordinator import (
    Action,
    ChangeMembers,
    Coordinator,
    CoordinatorSettings,
    Fence,
    Observation,
    Propose,
)
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import FenceReport
from mirrorlog.cluster.coordination.unmastered import waited_for
from mirrorlog.cluster.decisions import ASK_S, RETRY_S, Ground
from mirrorlog.cluster.requests import AskElection, AskFence, AskSizes, Fenced, LogSizes, Noted, decode_answer, encode
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.log_rules import promised
from mirrorlog.cluster.state.state import ClusterState, holds_transient
from mirrorlog.errors import MirrorlogError, NotAMember, NotLeader

logger = logging.getLogger(__name__)

COORDINATE_S: Final = 0.05
"""How often the coordinator looks when nothing changes."""
LAGS_S: Final = 1.0
"""How often it asks what copies lack that are not in sync."""
SIZES_S: Final = 10.0
"""How often it asks how large logs are, while it makes a difference where they are."""


class Surroundings(Ground, Protocol):
    """The member that runs it."""

    def life_of_run(self, node: str) -> Life: ...
    def tick(self) -> None:
        """Time has passed: see who has fallen silent."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done while the member runs."""


class CoordinatorRunner:
    """`wanted`: may be set anew while it runs. `leads`: told of each other coordinator, by node and term; `fence_here`:
    the answer of this node itself."""

    def __init__(
        self,
        member: Surroundings,
        wanted: CoordinatorSettings,
        *,
        leads: Callable[[str, int], None],
        fence_here: Callable[[AskFence], Awaitable[Fenced]],
        sizes_here: Callable[[], Mapping[str, int]],
        lags_here: Callable[[], Mapping[str, Mapping[str, tuple[int, int]]]],
    ) -> None:
        self.wanted = wanted
        self.elections = 0
        """How often another coordinator was seen in this run."""
        self._member = member
        self._leads = leads
        self._fence_here = fence_here
        self._sizes_here = sizes_here
        self._lags_here = lags_here
        self._lags: dict[str, Mapping[str, tuple[int, int]]] = {}
        self._lags_at = -LAGS_S
        self.sizes: dict[str, int] = {}
        """On the coordinator: bytes by log id, of those that are known."""
        self._sizes_at = -SIZES_S
        self._coordinator: Coordinator | None = None
        self._fencing: set[tuple[str, str, int]] = set()
        self._fence_failures: dict[tuple[str, str], str] = {}
        self._last_leader = 0
        self._look = asyncio.Event()

    @property
    def waits(self) -> dict[str, tuple[str, ...]]:
        """On the coordinator: by log without a master, whom it waits for."""
        return dict(self._coordinator.waits) if self._coordinator is not None else {}

    def look(self) -> None:
        """Something has changed: do not wait for the next look."""
        self._look.set()

    async def run(self) -> None:
        """For as long as the member runs."""
        while True:
            self._member.tick()
            self._note_leader()
            self._ask_lags()
            if not self._member.driver.raft.settled:
                self._coordinator = None
                self._fencing.clear()
                self._fence_failures.clear()
            else:
                self._coordinator = self._coordinator or self._begin()
                self._ask_sizes()
                for action in self._coordinator.step(self._member.state, self._seen()):
                    self._act(action)
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COORDINATE_S):
                    await self._look.wait()

    def _begin(self) -> Coordinator:
        logger.info("coordinating node=%s term=%s", self._member.node, self._member.driver.raft.term)
        return Coordinator(self.wanted)

    def _note_leader(self) -> None:
        raft = self._member.driver.raft
        if raft.leader and raft.leader != self._last_leader:
            self.elections += 1
            self._last_leader = raft.leader
            self._leads(self._member.leader, raft.term)
            logger.info("coordinator_is node=%s term=%s", self._member.leader or raft.leader, raft.term)

    def _seen(self) -> Observation:
        raft = self._member.driver.raft
        return Observation(
            members=raft.members,
            life=self._member.life,
            life_of_run=self._member.life_of_run,
            caught_up=lambda member: raft.matched(member) >= raft.commit,
            now=asyncio.get_running_loop().time(),
            sizes=self.sizes,
        )

    async def plan(self) -> list[tuple[tuple[str, ...], CopyMove]]:
        """On the coordinator: which logs go elsewhere, each with the nodes that it goes from, as of now. Others have
        their turns meanwhile. Raises NotLeader."""
        if self._coordinator is None:
            raise NotLeader("this node does not coordinate; ask again")
        state, found = self._member.state, []
        held = {log_id: log.replicas for log_id, log in state.logs.items()}
        for move in plan(state, self._coordinator.outlook(state, self._seen())):
            found.append((held[move.log_id], move))
            held[move.log_id] = move.nodes
            await asyncio.sleep(0)
        return found

    # --- sizes ---

    def _ask_sizes(self) -> None:
        """Of every node, now and then. While each log is on every node it makes no difference, and nobody is asked."""
        now, state = asyncio.get_running_loop().time(), self._member.state
        if state.cluster_version < versions.PLACEMENTS or now - self._sizes_at < (SIZES_S if self.sizes else ASK_S):
            return
        self._sizes_at = now
        self.sizes.clear()
        if not _somewhere_only(state):
            return
        self._take(self._sizes_here())
        for node in state.nodes:
            if node != self._member.node and self._member.life(node) is Life.UP:
                self._member.spawn(self._sizes_of(node))

    async def _sizes_of(self, node: str) -> None:
        try:
            told = await self._member.mesh.ask(node, encode(AskSizes()), timeout_s=ASK_S)
            self._take(decode_answer(told, LogSizes).sizes)
        except MirrorlogError as error:
            logger.debug("sizes_not_told node=%s reason=%r", node, str(error))

    def _take(self, sizes: Mapping[str, int]) -> None:
        """Copies of a log may be of different lengths: the longest is what has to be copied."""
        for log_id, size in sizes.items():
            if log_id in self._member.state.logs:
                self.sizes[log_id] = max(size, self.sizes.get(log_id, 0))

    # --- what copies lack ---

    def lags(self, log_id: str) -> Mapping[str, tuple[int, int]]:
        """Of a log that nobody masters: by node, what its copy lacks, at least, bytes and records, as far as it was
        known before its master was gone."""
        return self._lags.get(log_id, {})

    def known_lags(self) -> dict[str, dict[str, tuple[int, int]]]:
        """For whoever asks this member."""
        return {log_id: dict(lags) for log_id, lags in {**self._lags, **self._lags_here()}.items()}

    def _ask_lags(self) -> None:
        """Every member asks masters, now and then, as long as some copy is not in sync: nobody else knows, and which
        of those who heard it will be up nobody can say. Who comes back later asks the coordinator."""
        member, now, state = self._member, asyncio.get_running_loop().time(), self._member.state
        if state.cluster_version < versions.PLACEMENTS or now - self._lags_at < LAGS_S:
            return
        self._lags_at = now
        behind = {log_id: log for log_id, log in state.logs.items() if len(log.in_sync) < len(log.replicas)}
        self._lags = {log_id: lags for log_id, lags in self._lags.items() if log_id in behind}
        self._lags.update(self._lags_here())
        asked = {log.master.node for log in behind.values() if log.master is not None}
        if any(waited_for(log, state, member.life) for log in behind.values()):
            asked.add(member.leader)
        for node in asked - {member.node, ""}:
            if member.life(node) is Life.UP:
                member.spawn(self._lags_of(node))

    async def _lags_of(self, node: str) -> None:
        try:
            told = await self._member.mesh.ask(node, encode(AskSizes()), timeout_s=ASK_S)
            self._lags.update(decode_answer(told, LogSizes).lags)
        except MirrorlogError as error:
            logger.debug("lags_not_told node=%s reason=%r", node, str(error))

    def _act(self, action: Action) -> None:
        driver = self._member.driver
        try:
            if isinstance(action, Propose):
                driver.raft.propose(encode_command(action.command))
                driver.wake()
            elif isinstance(action, ChangeMembers):
                driver.raft.propose_members(action.members)
                driver.wake()
            elif (key := (action.node, action.log_id, action.epoch)) not in self._fencing:
                self._fencing.add(key)
                self._member.spawn(self._fence(action, key))
        except MirrorlogError as error:
            # What is not done now is found again by the next look.
            logger.debug("not_now action=%s reason=%r", type(action).__name__, str(error))

    # --- fences ---

    async def _fence(self, fence: Fence, key: tuple[str, str, int]) -> None:
        try:
            report = await self.ask_fence(fence)
        except MirrorlogError as error:
            reason = str(error)
            if self._fence_failures.get(key[:2]) != reason:  # it is asked again, ten times a second
                logger.warning("fence_failed node=%s log=%s reason=%r", fence.node, fence.log_id, reason)
            self._fence_failures[key[:2]] = reason
            await asyncio.sleep(RETRY_S)
            return
        finally:
            self._fencing.discard(key)
        if self._coordinator is not None:
            self._coordinator.fenced(fence.log_id, fence.epoch, fence.node, report)
            self.look()

    async def ask_fence(self, fence: Fence) -> FenceReport:
        """What a node of the cluster reports. Raises MirrorlogError when it does not."""
        facts = self._member.state.nodes.get(fence.node)
        if facts is None:
            raise NotAMember(f"node {fence.node} was forgotten meanwhile")
        start_id = facts.start_id
        asked = AskFence(log_id=fence.log_id, epoch=fence.epoch, start_id=start_id, gently=fence.gently)
        if fence.node == self._member.node:
            told = await self._fence_here(asked)
        else:
            told = decode_answer(await self._member.mesh.ask(fence.node, encode(asked), timeout_s=ASK_S), Fenced)
        return FenceReport(told.start_id, told.last_epoch, told.end, told.confirmed, told.promised)

    # --- elections ---

    def ask_election(self, log_id: str, epoch: int) -> None:
        """Have somebody promoted above `epoch`, which was promised here; to be asked again until it is done."""
        asked = AskElection(log_id=log_id, epoch=epoch)

        async def ask() -> None:
            member = self._member
            try:
                if member.driver.raft.leader == member.driver.raft.own:
                    self.elect(asked)
                elif member.leader:
                    await member.mesh.ask(member.leader, encode(asked), timeout_s=ASK_S)
            except MirrorlogError as error:
                logger.info("election_not_asked log=%s reason=%r", log_id, str(error))

        self._member.spawn(ask())

    def elect(self, asked: AskElection) -> Noted:
        """A member asks for it. Raises NotLeader."""
        if self._coordinator is None:
            raise NotLeader("this node does not coordinate; ask again")
        logger.warning("election_asked log=%s epoch=%s", asked.log_id, asked.epoch)
        self._coordinator.elect(asked.log_id, asked.epoch)
        self.look()
        return Noted()


def _somewhere_only(state: ClusterState) -> bool:
    """Whether some log is not on every node."""
    nodes = sum(not facts.witness for facts in state.nodes.values())
    return any(promised(state, log_id) < nodes for log_id in state.logs if not holds_transient(state, log_id))
