"""A node's part in the cluster: its Raft member, its links to the others, and the coordinator when it leads.

Thin: Raft decides in which order, the state what is allowed, the coordinator what is to be done, liveness who is
there. Here they are tied to sockets, timers and the disk. What the node does about the state (master this log, follow
that one, fence) is its `Host`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from mirrorlog.cluster.commands import Addresses, AnyCommand, NodeJoined, NodeStarted, StartKind, encode_command
from mirrorlog.cluster.coordinator import Action, ChangeMembers, Coordinator, Fence, Propose, Seen, Wanted
from mirrorlog.cluster.driver import RaftDriver
from mirrorlog.cluster.liveness import Change, Life, Liveness
from mirrorlog.cluster.machine import Machine, Step
from mirrorlog.cluster.peers import Mesh
from mirrorlog.cluster.promotion import Report
from mirrorlog.cluster.questions import (
    Applied,
    AskApply,
    AskFence,
    AskJoin,
    Fenced,
    Joined,
    decode_answer,
    decode_question,
    encode,
)
from mirrorlog.cluster.raft.core import Raft, Timing
from mirrorlog.cluster.raft.effects import Stored
from mirrorlog.cluster.raft.members import Members
from mirrorlog.cluster.raft.messages import AnyMessage, HardState, Snapshot
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state import ClusterState, Outcome, encode_state
from mirrorlog.commitlog.files import Files
from mirrorlog.errors import ConnectionLost, MirrorlogError, NotLeader, RequestTimeout
from mirrorlog.wire.messages import Hello

logger = logging.getLogger(__name__)

COORDINATE_S: Final = 0.05
"""How often the coordinator looks when nothing changes."""
ASK_S: Final = 2.0
"""How long an answer of another member may take."""
RETRY_S: Final = 0.1


class Host(Protocol):
    """The node around this service. Called on the loop."""

    def changed(self, state: ClusterState) -> None:
        """The cluster has decided something. Must not wait."""

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""

    async def fence(self, log_id: str, epoch: int) -> Report:
        """Keep `epoch`, on disk, stop in the one before, and report; a copy that keeps a higher one says which. Raises
        MirrorlogError when that cannot be."""

    def failed(self, error: MirrorlogError) -> None:
        """The node must stop."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is, in this run. `before`: the start id of its last run that its disk knows to be registered;
    `since`: of those after it, which may be. `kind` and `damaged` are the worst of all of these."""

    node: str
    start_id: str
    addresses: Addresses
    kind: StartKind
    before: str = ""
    since: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def founding(state: ClusterState, members: tuple[int, ...]) -> Snapshot:
    """What every founding member begins with: the same, byte for byte."""
    return Snapshot(0, 0, Members(members), encode_state(state))


class ClusterService:
    """One member. `state`: as far as it is known here."""

    def __init__(
        self,
        identity: Identity,
        *,
        host: Host,
        hello: Callable[[], Hello],
        wanted: Wanted,
        timing: Timing,
        node_timeout_s: float,
        helper: Executor,
    ) -> None:
        self.identity = identity
        self.mesh = Mesh(hello=hello, events=self)
        self.liveness = Liveness(timeout_s=node_timeout_s)
        self._host = host
        self._wanted = wanted
        self._timing = timing
        self._helper = helper
        self._loop = asyncio.get_running_loop()
        self._coordinator: Coordinator | None = None
        self._driver: RaftDriver | None = None
        self._nodes: dict[int, str] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._fencing: set[tuple[str, str, int]] = set()
        self._look = asyncio.Event()

    # --- life ---

    async def start(self, files: Files, directory: Path, *, own: int, snapshot: Snapshot) -> None:
        """As the member that the disk remembers; else as member `own`, which begins with `snapshot`.

        Returns when it runs, not when it has found the others. Raises LogCorrupt, DiskFull, DiskFailed.
        """

        def opened() -> tuple[RaftStore, Stored]:
            found = RaftStore.open(files, directory)
            if found is not None:
                return found
            made = RaftStore.create(files, directory, own=own, snapshot=snapshot)
            return made, Stored(HardState(), snapshot)

        store, stored = await self._loop.run_in_executor(self._helper, opened)
        raft = Raft(
            store.own,
            stored,
            chance=Random(),
            now=self._loop.time(),
            timing=self._timing,
        )
        self._driver = RaftDriver(
            raft,
            store,
            Machine(stored.snapshot),
            send=self._send,
            watcher=self,
            helper=self._helper,
            failed=self._host.failed,
        )
        self._know(self.state)
        self.mesh.start()
        self._driver.start()
        for work in (self._register(), self._coordinate()):
            self._spawn(work)

    async def stop(self) -> None:
        """Idempotent."""
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self.mesh.stop()
        if self._driver is not None:
            await self._driver.stop()

    # --- what it knows ---

    @property
    def driver(self) -> RaftDriver:
        assert self._driver is not None, "the service is not started"
        return self._driver

    @property
    def state(self) -> ClusterState:
        return self.driver.machine.state

    @property
    def leader(self) -> str:
        """The coordinator's node, as far as it is known; empty when not."""
        return self._nodes.get(self.driver.raft.leader, "")

    @property
    def waits(self) -> dict[str, tuple[str, ...]]:
        """On the coordinator: by log without a master, whom it waits for."""
        return dict(self._coordinator.waits) if self._coordinator is not None else {}

    def life(self, node: str) -> Life:
        """This node is up, whatever others think."""
        return Life.UP if node == self.identity.node else self.liveness.life(node)

    # --- changes ---

    async def propose(self, command: AnyCommand, *, timeout_s: float) -> Outcome:
        """Have it decided, wherever the leader is. Raises RequestTimeout: then it may be decided yet."""
        give_up_at = self._loop.time() + timeout_s
        data = encode_command(command)
        while True:
            try:
                async with asyncio.timeout_at(give_up_at):
                    return await self._ask_leader(data)
            except TimeoutError:
                raise RequestTimeout(
                    f"the cluster has not decided within {timeout_s * 1000:.0f} ms; is a majority of its nodes up?"
                ) from None
            except (NotLeader, ConnectionLost, RequestTimeout):
                if self._loop.time() >= give_up_at:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _ask_leader(self, data: bytes) -> Outcome:
        if self.driver.raft.leader == self.driver.raft.own:
            return await self._decide(data)
        if not self.leader:
            raise NotLeader("no coordinator is known; a majority of the nodes must reach each other")
        told = await self.mesh.ask(self.leader, encode(AskApply(command=data)), timeout_s=ASK_S)
        answer = decode_answer(told, Applied)
        return Outcome(answer.index, answer.refusal)

    async def _decide(self, data: bytes) -> Outcome:
        """As the leader. Raises NotLeader when it is none, or no more."""
        answer: asyncio.Future[Outcome | None] = self._loop.create_future()

        def done(outcome: Outcome | None) -> None:
            if not answer.done():
                answer.set_result(outcome)

        raft, machine = self.driver.raft, self.driver.machine
        machine.wait(raft.propose(data), raft.term, done)
        self.driver.wake()
        outcome = await answer
        if outcome is None:
            raise NotLeader("this node lost its leadership before the change was decided; ask again")
        return outcome

    async def _register(self) -> None:
        """Until the cluster knows of this run, it counts for nothing."""
        identity = self.identity
        started = NodeStarted(
            node=identity.node,
            start_id=identity.start_id,
            kind=identity.kind,
            addresses=identity.addresses,
            member=self.driver.raft.own,
            before=identity.before,
            since=identity.since,
            damaged=identity.damaged,
        )
        told = ""
        while True:
            try:
                outcome = await self.propose(started, timeout_s=ASK_S)
            except MirrorlogError as error:
                if str(error) != told:
                    logger.info("waiting_for_cluster node=%s reason=%r", identity.node, str(error))
                told = str(error)
                continue
            if not outcome.refusal:
                logger.info("registered node=%s start_id=%s kind=%s", identity.node, identity.start_id, identity.kind)
                return
            # A founding document that does not name this node, or a member that was forgotten.
            self._host.failed(MirrorlogError(f"the cluster does not let this node in: {outcome.refusal}"))
            return

    # --- MemberEvents ---

    def heard(self, node: str, start_id: str) -> None:
        self._lives(self.liveness.heard(node, start_id, self._loop.time()))

    def reset(self, node: str) -> None:
        self.liveness.reset(node)

    def refused(self, node: str) -> None:
        self._lives(self.liveness.refused(node))

    def raft(self, message: AnyMessage) -> None:
        self.driver.receive(message)

    async def asked(self, node: str, question: bytes) -> bytes:
        asked = decode_question(question)
        if isinstance(asked, AskApply):
            outcome = await self._decide(asked.command)
            return encode(Applied(index=outcome.index, refusal=outcome.refusal))
        if isinstance(asked, AskFence):
            return encode(await self._fence_here(asked))
        return encode(await self._let_in(asked))

    async def _fence_here(self, asked: AskFence) -> Fenced:
        if asked.start_id != self.identity.start_id:
            raise NotLeader(f"node {self.identity.node} runs as {self.identity.start_id}, not as {asked.start_id}")
        report = await self._host.fence(asked.log_id, asked.epoch)
        return Fenced(
            start_id=report.start_id,
            last_epoch=report.last_epoch,
            end=report.end,
            confirmed=report.confirmed,
            promised=report.promised,
        )

    async def _let_in(self, asked: AskJoin) -> Joined:
        joined = NodeJoined(node=asked.node, addresses=asked.addresses, witness=asked.witness, token=asked.token)
        outcome = await self.propose(joined, timeout_s=ASK_S)
        if outcome.refusal:
            raise NotLeader(outcome.refusal)
        node = self.state.nodes.get(asked.node)
        if node is None:
            raise NotLeader(f"node {asked.node} is let in, and not known here yet; ask again")
        return Joined(member=node.member, state=encode_state(self.state))

    # --- Watcher ---

    def applied(self, step: Step) -> None:
        if step.after is not step.before:
            self._know(step.after)
        self._look.set()

    def restored(self) -> None:
        self._know(self.state)

    def read_ready(self, token: Hashable, index: int | None) -> None:
        """Nobody reads by index yet: whoever asks gets what is known here."""

    # --- the coordinator ---

    async def _coordinate(self) -> None:
        while True:
            self._lives(self.liveness.tick(self._loop.time()))
            if not self.driver.raft.settled:
                self._coordinator = None
                self._fencing.clear()
            else:
                self._coordinator = self._coordinator or self._begin_to_coordinate()
                for action in self._coordinator.step(self.state, self._seen()):
                    self._act(action)
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COORDINATE_S):
                    await self._look.wait()

    def _begin_to_coordinate(self) -> Coordinator:
        logger.info("coordinating node=%s term=%s", self.identity.node, self.driver.raft.term)
        return Coordinator(self._wanted)

    def _seen(self) -> Seen:
        raft = self.driver.raft
        return Seen(raft.members, self.life, lambda member: raft.matched(member) >= raft.commit, self._loop.time())

    def _act(self, action: Action) -> None:
        try:
            if isinstance(action, Propose):
                self.driver.raft.propose(encode_command(action.command))
                self.driver.wake()
            elif isinstance(action, ChangeMembers):
                self.driver.raft.propose_members(action.members)
                self.driver.wake()
            else:
                self._fence_soon(action)
        except MirrorlogError as error:
            # What is not done now is found again by the next look.
            logger.debug("not_now action=%s reason=%r", type(action).__name__, str(error))

    def _fence_soon(self, fence: Fence) -> None:
        key = (fence.node, fence.log_id, fence.epoch)
        if key not in self._fencing:
            self._fencing.add(key)
            self._spawn(self._fence(fence, key))

    async def _fence(self, fence: Fence, key: tuple[str, str, int]) -> None:
        asked = AskFence(log_id=fence.log_id, epoch=fence.epoch, start_id=self.state.nodes[fence.node].start_id)
        try:
            if fence.node == self.identity.node:
                told = await self._fence_here(asked)
            else:
                told = decode_answer(await self.mesh.ask(fence.node, encode(asked), timeout_s=ASK_S), Fenced)
        except MirrorlogError as error:
            logger.info("fence_failed node=%s log=%s reason=%r", fence.node, fence.log_id, str(error))
            await asyncio.sleep(RETRY_S)
            return
        finally:
            self._fencing.discard(key)
        if self._coordinator is not None:
            report = Report(told.start_id, told.last_epoch, told.end, told.confirmed, told.promised)
            self._coordinator.fenced(fence.log_id, fence.epoch, fence.node, report)
            self._look.set()

    # --- inside ---

    def _know(self, state: ClusterState) -> None:
        """Whom to reach and watch follows from the state."""
        self._nodes = {facts.member: node for node, facts in state.nodes.items()}
        others = {node: facts for node, facts in state.nodes.items() if node != self.identity.node}
        self.mesh.reach({node: facts.addresses.replication for node, facts in others.items()})
        self.liveness.watch(set(others), self._loop.time())
        self._host.changed(state)

    def _send(self, message: AnyMessage) -> None:
        if (node := self._nodes.get(message.to)) is not None:
            self.mesh.send_raft(node, message)

    def _lives(self, changes: list[Change]) -> None:
        for change in changes:
            logger.info(
                "node_%s node=%s start_id=%s reason=%r", change.life.value, change.node, change.start_id, change.reason
            )
            facts = self.state.nodes.get(change.node)
            if change.life is Life.DOWN and facts is not None:
                self.driver.raft.lost(facts.member, self._loop.time())
                self.driver.wake()
            self._host.life_changed(change)
            self._look.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("cluster_task_failed", exc_info=error)
            self._host.failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))
