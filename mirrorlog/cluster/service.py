"""A node's part in the cluster: its Raft member, its links to the others, and the coordinator when it leads.

Thin: Raft decides in which order, the state what is allowed, the coordinator what is to be done, liveness who is
there. Here they are tied to sockets, timers and the disk. What the node does about the state (master this log, follow
that one, fence) is its `Host`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from mirrorlog import versions
from mirrorlog.cluster.coordination.coordinator import Action, ChangeMembers, Coordinator, Fence, Propose, Seen, Wanted
from mirrorlog.cluster.coordination.liveness import Change, Life, Liveness
from mirrorlog.cluster.coordination.promotion import Report
from mirrorlog.cluster.coordination.runs import Runs, unknown_to
from mirrorlog.cluster.decisions import ASK_S, RETRY_S, Decisions
from mirrorlog.cluster.driver import RaftDriver
from mirrorlog.cluster.membership.joining import anew, check_joining
from mirrorlog.cluster.membership.registration import Registration
from mirrorlog.cluster.peers import Mesh, Voice
from mirrorlog.cluster.questions import (
    AnyAnswer,
    AnyQuestion,
    Applied,
    AskApplied,
    AskApply,
    AskElection,
    AskFence,
    AskIndex,
    AskJoin,
    AskQueue,
    AskState,
    AskTake,
    Fenced,
    Joined,
    Noted,
    decode_answer,
    decode_question,
    encode,
)
from mirrorlog.cluster.raft.core import Raft, Timing
from mirrorlog.cluster.raft.effects import Stored
from mirrorlog.cluster.raft.members import Members
from mirrorlog.cluster.raft.messages import AnyMessage, Appended, HardState, Snapshot, Vote
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state.advice import advice
from mirrorlog.cluster.state.commands import (
    Addresses,
    AnyCommand,
    NodeJoined,
    NodeStarted,
    StartKind,
    encode_command,
)
from mirrorlog.cluster.state.machine import Machine, Step
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome, encode_state
from mirrorlog.cluster.state.topology import Topology
from mirrorlog.commitlog.files import Files
from mirrorlog.errors import (
    ConnectionLost,
    DiskFailed,
    MirrorlogError,
    NotAMember,
    NotLeader,
    ProtocolError,
    RequestTimeout,
    UnsupportedVersion,
)
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.messages.handshake import Hello, Welcome

logger = logging.getLogger(__name__)

COORDINATE_S: Final = 0.05
"""How often the coordinator looks when nothing changes."""
AGAIN_S: Final = 0.02
"""Between two questions to a node whose link is not there."""
PROPOSE_S: Final = 30.0
"""How long the cluster may take to decide what nobody waits for."""


class Chronicle(Protocol):
    """Who keeps what happened. Called on the loop: it must not wait."""

    def applied(self, step: Step) -> None:
        """The cluster has decided something, or refused it."""

    def restored(self, state: ClusterState, index: int) -> None:
        """What was decided up to `index` was taken over as a whole."""

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""

    def coordinated(self, node: str, term: int) -> None:
        """Another node coordinates."""


class Host(Protocol):
    """The node around this service. Called on the loop."""

    def changed(self, state: ClusterState) -> None:
        """The cluster has decided something. Must not wait."""

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""

    async def fence(self, log_id: str, epoch: int, *, gently: bool = False) -> Report:
        """Keep `epoch`, on disk, stop in the one before, and report; a copy that keeps a higher one says which.
        `gently`: a master lets its mirrors come to its end before, for a moment. Raises MirrorlogError when that cannot
        be."""

    def registered(self) -> None:
        """The cluster knows of this run."""

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


def _nobody_follows(topology: Topology) -> None:
    pass


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
        credentials: Credentials = OPEN,
        configured: Mapping[str, str] | None = None,
    ) -> None:
        """`configured`: replication addresses of nodes by this node's own configuration."""
        self.identity = identity
        self.mesh = Mesh(hello=hello, events=self, credentials=credentials)
        self.mesh.welcomed = self._welcomed
        self.liveness = Liveness(timeout_s=node_timeout_s)
        self.decisions = Decisions(self)
        self._host = host
        self.wanted = wanted
        self._timing = timing
        self._helper = helper
        self._loop = asyncio.get_running_loop()
        self._coordinator: Coordinator | None = None
        self._driver: RaftDriver | None = None
        self._nodes: dict[int, str] = {}
        self._configured = configured or {}
        # By member, what its last Raft message came over.
        self._heard_over: dict[int, Voice] = {}
        self._forgetful: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._fencing: set[tuple[str, str, int]] = set()
        self._runs = Runs()
        self._fence_failures: dict[tuple[str, str], str] = {}
        self._last_leader = 0
        self.elections = 0
        """How often another coordinator was seen in this run."""
        self.chronicle: Chronicle | None = None
        self.followed: Callable[[Topology], None] = _nobody_follows
        """Told what exchanges and bindings there are, after each change of anything. Must not wait."""
        self.letters: Callable[[AskQueue | AskTake], Awaitable[AnyAnswer]] | None = None
        """Answers what other nodes' queues ask of the logs that are mastered here; set before it starts."""
        self._node_timeout_s = node_timeout_s
        self._look = asyncio.Event()
        self._place: tuple[Files, Path] | None = None
        self.registration = Registration(self._started, self, failed=host.failed)
        self._foreseen: tuple[int, ClusterState] | None = None
        self._advice: list[str] = []

    # --- life ---

    async def open(self, files: Files, directory: Path, *, own: int, snapshot: Snapshot) -> None:
        """As the member that the disk remembers; else as member `own`, which begins with `snapshot`. Then `state` is
        what this node knew when it stopped. Raises LogCorrupt, DiskFull, DiskFailed."""

        def opened() -> tuple[RaftStore, Stored]:
            found = RaftStore.open(files, directory)
            if found is not None:
                return found
            made = RaftStore.create(files, directory, own=own, snapshot=snapshot)
            return made, Stored(HardState(), snapshot)

        self._place = files, directory
        self._driver = self._make_driver(*await self._loop.run_in_executor(self._helper, opened))
        self._foreseen = self.driver.raft.log.last_index, self.foreseen()

    def _make_driver(self, store: RaftStore, stored: Stored) -> RaftDriver:
        raft = Raft(
            store.own,
            stored,
            chance=Random(),
            now=self._loop.time(),
            timing=self._timing,
        )
        return RaftDriver(
            raft,
            store,
            Machine(stored.snapshot),
            send=self._send,
            watcher=self,
            helper=self._helper,
            failed=self._host.failed,
        )

    def start(self) -> None:
        """Find the others, after `open`; returns at once. A founding member registers when a majority is there."""
        self._know(self.state)
        self.mesh.start()
        self.driver.start()
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

    def foreseen(self) -> ClusterState:
        """The state with all entries that the disk holds, decided or not; before the start."""
        log = self.driver.raft.log
        machine = Machine(log.snapshot)
        machine.apply(log.entries(log.snapshot.index + 1, log.last_index))
        return machine.state

    @property
    def driver(self) -> RaftDriver:
        assert self._driver is not None, "the service is not started"
        return self._driver

    @property
    def state(self) -> ClusterState:
        return self.driver.machine.state

    @property
    def expected(self) -> ClusterState:
        """The same; before all is decided that the disk held at the start, that. For what must not be forgotten."""
        if self._foreseen is not None:
            return self._foreseen[1]
        assert self._driver is not None, "the service is not started"
        return self._driver.machine.state

    def in_touch(self) -> bool:
        """Whether a majority was heard within half the time after which a node counts as gone: what is decided is known
        here, or was decided a moment ago."""
        now = self._loop.time()
        return now < self.driver.raft.contact_at(now) + self._node_timeout_s / 2

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

    def life_of_run(self, node: str) -> Life:
        """Of the run that the cluster knows."""
        known = self.state.nodes[node].start_id if node in self.state.nodes else ""
        if node == self.identity.node:
            return Life.UP if known == self.identity.start_id else Life.DOWN
        return self._runs.life_of(node, known, self.liveness, self._loop.time())

    # --- changes ---

    async def propose(self, command: AnyCommand, *, timeout_s: float) -> Outcome:
        """As `Decisions.propose`."""
        return await self.decisions.propose(command, timeout_s=timeout_s)

    async def decide(self, command: AnyCommand, *, timeout_s: float) -> Outcome:
        """As `Decisions.decide`."""
        return await self.decisions.decide(command, timeout_s=timeout_s)

    async def decide_once(self, command: AnyCommand) -> Outcome:
        """As `Decisions.decide_once`."""
        return await self.decisions.decide_once(command)

    async def up_to_date(self) -> None:
        """As `Decisions.up_to_date`."""
        await self.decisions.up_to_date()

    def propose_soon(self, command: AnyCommand) -> None:
        """Have it decided, and do not wait; who needs it looks again later."""

        async def propose() -> None:
            try:
                await self.propose(command, timeout_s=PROPOSE_S)
            except MirrorlogError as error:
                logger.warning("not_decided command=%s reason=%r", type(command).__name__, str(error))

        self._spawn(propose())

    def check_run(self, command: AnyCommand) -> None:
        """See `Runs.check_rival`."""
        if isinstance(command, NodeStarted):
            self._runs.check_rival(command, (self.identity.node, self.identity.start_id), self._loop.time())

    async def _register(self) -> None:
        try:
            await self.registration.register()
        except (NotAMember, DiskFailed) as error:
            self._host.failed(error)
            return
        identity = self.identity
        logger.info("registered node=%s start_id=%s kind=%s", identity.node, identity.start_id, identity.kind)
        self._host.registered()
        await self.registration.watch()

    def _started(self) -> NodeStarted:
        identity = self.identity
        return NodeStarted(
            node=identity.node,
            start_id=identity.start_id,
            kind=identity.kind,
            addresses=identity.addresses,
            before=identity.before,
            since=identity.since,
            damaged=identity.damaged,
        )

    # --- registration.Member ---

    @property
    def own(self) -> int:
        """This member's number."""
        return self.driver.raft.own

    @property
    def applied_index(self) -> int:
        """Up to where it knows what is decided."""
        return self.driver.machine.index

    @property
    def hears_leader(self) -> bool:
        return bool(self.leader)

    def others(self) -> list[str]:
        """Who can be asked now."""
        return sorted(self.mesh.reached())

    async def ask(self, node: str, question: bytes) -> bytes:
        """As `Mesh.ask`."""
        return await self.mesh.ask(node, question, timeout_s=ASK_S)

    async def applied_everywhere(self, index: int, *, timeout_s: float) -> bool:
        """Whether all nodes that are not known to be down have applied everything up to `index`; told when they have,
        or in time. One whose link is just being made again, or that was not heard yet, is asked until then."""
        until = self._loop.time() + timeout_s
        others = [node for node in self.state.nodes if node != self.identity.node]
        told = await asyncio.gather(*(self._has_applied(node, index, until) for node in others))
        return all(told)

    async def _has_applied(self, node: str, index: int, until: float) -> bool:
        """Also of one that goes down meanwhile: it takes nothing any more."""
        question = encode(AskApplied(index=index))
        while (left_s := until - self._loop.time()) > 0 and self.life(node) is not Life.DOWN:
            try:
                await self.mesh.ask(node, question, timeout_s=left_s)
            except (ConnectionLost, RequestTimeout):
                await asyncio.sleep(min(left_s, AGAIN_S))
            except MirrorlogError:
                return False
            else:
                return True
        return self.life(node) is Life.DOWN

    async def ask_leader(self, data: bytes) -> Outcome:
        """Have a command decided. Raises MirrorlogError."""
        return await self.decisions.ask_leader(data)

    async def told(self, node: str, index: int) -> Joined:
        """Of a node, once everything up to `index` is applied here. Raises NotAMember, RequestTimeout."""
        await self._applied_here(index)
        facts = self.state.nodes.get(node)
        if facts is None:
            raise NotAMember(f"node {node} was forgotten by its cluster; its copies count no more")
        machine = self.driver.machine
        if machine.index == 0 and self.driver.raft.term > 0:
            # Who says index 0 is untouched: nothing can have been decided by it (`cluster.founders`).
            raise RequestTimeout(f"node {self.identity.node} has voted, and does not know yet what is decided")
        members = self.driver.raft.log.members_at(machine.index)
        snapshot = Snapshot(machine.index, machine.term, members, machine.snapshot_state())
        return Joined(member=facts.member, snapshot=snapshot)

    async def _applied_here(self, index: int) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                await self.decisions.applied_here(index)
        except TimeoutError:
            raise RequestTimeout(f"node {self.identity.node} does not know yet what is decided up to {index}") from None

    async def begin_anew(self, told: Joined) -> None:
        """As another Raft member; the old one says nothing more. Raises LogCorrupt, DiskFull, DiskFailed."""
        assert self._place is not None
        await self.driver.stop()
        files, directory = self._place
        make = partial(anew, files, directory, told)
        self._driver = self._make_driver(*await self._loop.run_in_executor(self._helper, make))
        self._foreseen = None
        self._know(self.state)
        self.driver.start()

    def _note_advice(self, state: ClusterState) -> None:
        told, self._advice = self._advice, advice(state) if self.registration.is_in else []
        for each in self._advice:
            if each not in told:
                logger.warning("cluster_could_be_safer node=%s advice=%r", self.identity.node, each)

    # --- MemberEvents ---

    def heard(self, node: str, start_id: str) -> None:
        now = self._loop.time()
        self._runs.heard(node, start_id, now)
        self._lives(self.liveness.heard(node, start_id, now))

    def reset(self, node: str) -> None:
        self.liveness.reset(node)

    def refused(self, node: str) -> None:
        self._lives(self.liveness.refused(node))

    def raft(self, message: AnyMessage, link: Voice) -> None:
        """From a member; perhaps one that joined while this one was away. What was lost when the cluster was recovered
        has nothing to say here: it is of another incarnation."""
        if self._left_behind(self._nodes.get(message.sender, "")):
            return
        known = message.sender in self._nodes or message.sender in self.driver.raft.members.all
        if link.incarnation != self.state.incarnation and (link.incarnation or not known):
            return
        self._heard_over[message.sender] = link
        # Whoever asks for a vote may know of more runs than this member does.
        if isinstance(message, Vote | Appended) and self._is_forgetful(link):
            return
        self.driver.receive(message)

    def _is_forgetful(self, link: Voice) -> bool:
        """Whether the disk of a run has forgotten what it may have promised (`runs.unknown_to`): neither its votes nor
        its answers count before it has registered, as another member. Of two voters none is elected and nothing is
        decided without the other, which has not forgotten."""
        facts, raft = self.state.nodes.get(link.node), self.driver.raft
        if facts is None or link.start_id == facts.start_id or len(raft.members.voters) <= 2:
            return False
        undecided = raft.log.entries(self.driver.machine.index + 1, raft.log.last_index)
        unknown = unknown_to(link.node, link.start_id, runs=link.runs, registered=facts.start_id, undecided=undecided)
        if unknown and link.start_id not in self._forgetful:
            self._forgetful.add(link.start_id)
            logger.warning(
                "disk_forgot node=%s start_id=%s registered_as=%s; its votes do not count before it has registered",
                link.node, link.start_id, unknown,
            )  # fmt: skip
        return bool(unknown)

    def _welcomed(self, welcome: Welcome) -> None:
        """The cluster may have been recovered without this node: then there are two, and this one has to end."""
        if welcome.incarnation > self.state.incarnation:
            self._host.failed(
                NotAMember(
                    f"the cluster was recovered without this node, which knows it as incarnation "
                    f"{self.state.incarnation}; node {welcome.node_id} is of incarnation {welcome.incarnation}. A lost "
                    "node joins anew with a blank disk; a survivor is recovered with mqtool recover-cluster"
                )
            )

    async def asked(self, node: str, question: bytes) -> bytes:
        return encode(await self._answer(decode_question(question)))

    async def _answer(self, asked: AnyQuestion) -> AnyAnswer:
        told: AnyAnswer = Noted()
        if isinstance(asked, AskApply):
            outcome = await (self.decisions.ask_leader if asked.pass_on else self.decisions.lead)(asked.command)
            told = Applied(
                index=outcome.index, refusal=outcome.refusal, code=outcome.code, details=dict(outcome.details)
            )
        elif isinstance(asked, AskFence):
            told = await self._fence_here(asked)
        elif isinstance(asked, AskElection):
            told = self._elect_here(asked)
        elif isinstance(asked, AskState):
            told = await self.told(asked.node, asked.index)
        elif isinstance(asked, AskApplied):
            await self._applied_here(asked.index)
        elif isinstance(asked, AskIndex):
            told = Applied(index=await self.decisions.decided_up_to())
        elif isinstance(asked, AskQueue | AskTake) and self.letters is not None:
            told = await self.letters(asked)
        else:
            raise ProtocolError(f"{type(asked).__name__} from a member")
        return told

    async def _fence_here(self, asked: AskFence) -> Fenced:
        if asked.start_id != self.identity.start_id:
            raise NotLeader(f"node {self.identity.node} runs as {self.identity.start_id}, not as {asked.start_id}")
        report = await self._host.fence(asked.log_id, asked.epoch, gently=asked.gently)
        return Fenced(
            start_id=report.start_id,
            last_epoch=report.last_epoch,
            end=report.end,
            confirmed=report.confirmed,
            promised=report.promised,
        )

    def ask_election(self, log_id: str, epoch: int) -> None:
        """Have somebody promoted above `epoch`, which was promised here; to be asked again until it is done."""
        asked = AskElection(log_id=log_id, epoch=epoch)

        async def ask() -> None:
            try:
                if self.driver.raft.leader == self.driver.raft.own:
                    self._elect_here(asked)
                elif self.leader:
                    await self.mesh.ask(self.leader, encode(asked), timeout_s=ASK_S)
            except MirrorlogError as error:
                logger.info("election_not_asked log=%s reason=%r", log_id, str(error))

        self._spawn(ask())

    def _elect_here(self, asked: AskElection) -> Noted:
        if self._coordinator is None:
            raise NotLeader("this node does not coordinate; ask again")
        logger.warning("election_asked log=%s epoch=%s", asked.log_id, asked.epoch)
        self._coordinator.elect(asked.log_id, asked.epoch)
        self._look.set()
        return Noted()

    async def let_in(self, asked: AskJoin) -> Joined:
        """A node asks to be in. Raises NotAMember when the cluster does not want it; after any other MirrorlogError it
        may ask again, by the same token."""
        check_joining(asked)
        if reason := versions.misfit(asked.version, self.state.cluster_version):
            if versions.misfit(versions.version_of(self.identity.start_id), self.state.cluster_version):
                raise NotLeader("this node does not know yet what its cluster has decided; ask again")
            raise NotAMember(f"the cluster does not let this node in: {reason}")
        joined = NodeJoined(node=asked.node, addresses=asked.addresses, witness=asked.witness, token=asked.token)
        outcome = await self.decide_once(joined)
        if outcome.refusal:
            raise NotAMember(f"the cluster does not let this node in: {outcome.refusal}")
        told = await self.told(asked.node, outcome.index)
        if self.state.nodes[asked.node].token != asked.token:
            raise NotAMember(f"the cluster does not let this node in: node {asked.node} was forgotten meanwhile")
        logger.info("let_in node=%s member=%s index=%s", asked.node, told.member, outcome.index)
        return told

    # --- Watcher ---

    def applied(self, step: Step) -> None:
        if self.chronicle is not None:
            self.chronicle.applied(step)
        if step.after.cluster_version != step.before.cluster_version:
            logger.info("cluster_version_raised version=%s", step.after.cluster_version)
        if isinstance(step.command, NodeStarted) and step.command.start_id == self.identity.start_id:
            self._check_fits(step)
        if step.after is not step.before:
            self._know(step.after)
        self.decisions.tell_readers()
        if step.command is None or not step.outcome.refusal:  # what was refused would be proposed again at once
            self._look.set()

    def _check_fits(self, step: Step) -> None:
        """Software of the first version lets everybody in."""
        own = versions.version_of(self.identity.start_id)
        if step.outcome.refusal and (reason := versions.misfit(own, step.after.cluster_version)):
            self._host.failed(UnsupportedVersion(reason))

    def restored(self) -> None:
        if self.chronicle is not None:
            self.chronicle.restored(self.state, self.driver.machine.index)
        self._know(self.state)
        self.decisions.tell_readers()

    def read_ready(self, token: Hashable, index: int | None) -> None:
        self.decisions.round_ended(token, index)

    # --- the coordinator ---

    async def _coordinate(self) -> None:
        while True:
            self._lives(self.liveness.tick(self._loop.time()))
            self._note_leader()
            if not self.driver.raft.settled:
                self._coordinator = None
                self._fencing.clear()
                self._fence_failures.clear()
            else:
                self._coordinator = self._coordinator or self._begin_to_coordinate()
                for action in self._coordinator.step(self.state, self._seen()):
                    self._act(action)
            self._look.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COORDINATE_S):
                    await self._look.wait()

    def _note_leader(self) -> None:
        leader = self.driver.raft.leader
        if leader and leader != self._last_leader:
            self.elections += 1
            self._last_leader = leader
            if self.chronicle is not None:
                self.chronicle.coordinated(self.leader, self.driver.raft.term)
            logger.info("coordinator_is node=%s term=%s", self.leader or leader, self.driver.raft.term)

    def _begin_to_coordinate(self) -> Coordinator:
        logger.info("coordinating node=%s term=%s", self.identity.node, self.driver.raft.term)
        return Coordinator(self.wanted)

    def _seen(self) -> Seen:
        raft = self.driver.raft
        return Seen(
            members=raft.members,
            life=self.life,
            life_of_run=self.life_of_run,
            caught_up=lambda member: raft.matched(member) >= raft.commit,
            now=self._loop.time(),
        )

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
            self._look.set()

    async def ask_fence(self, fence: Fence) -> Report:
        """What a node of the cluster reports. Raises MirrorlogError when it does not."""
        facts = self.state.nodes.get(fence.node)
        if facts is None:
            raise NotAMember(f"node {fence.node} was forgotten meanwhile")
        start_id = facts.start_id
        asked = AskFence(log_id=fence.log_id, epoch=fence.epoch, start_id=start_id, gently=fence.gently)
        if fence.node == self.identity.node:
            told = await self._fence_here(asked)
        else:
            told = decode_answer(await self.mesh.ask(fence.node, encode(asked), timeout_s=ASK_S), Fenced)
        return Report(told.start_id, told.last_epoch, told.end, told.confirmed, told.promised)

    # --- inside ---

    def _know(self, state: ClusterState) -> None:
        """Whom to reach and watch follows from the state."""
        self.followed(state.routing)
        self.registration.note(state, self.driver.machine.index)
        self._note_advice(state)
        known = self._with_foreseen(state)
        self._nodes = {facts.member: node for node, facts in known.items()}
        others = {node: facts for node, facts in known.items() if node != self.identity.node}
        self.mesh.reach({node: self._places(node, facts) for node, facts in others.items()})
        self.liveness.watch(set(others), self._loop.time())
        self._host.changed(state)

    def _places(self, node: str, facts: NodeFacts) -> list[str]:
        """Where it registered, and where this node's configuration says it is: all may have moved at once."""
        places = [facts.addresses.replication, self._configured.get(node, "")]
        return [place for place in dict.fromkeys(places) if place] or [""]

    def _with_foreseen(self, state: ClusterState) -> Mapping[str, NodeFacts]:
        """Until all is decided that its disk holds, nodes that are in that only are reached too: it may be their votes
        that decide it."""
        if self._foreseen is None or self.driver.machine.index >= self._foreseen[0]:
            self._foreseen = None
            return state.nodes
        return {**state.nodes, **self._foreseen[1].nodes}

    def _send(self, message: AnyMessage) -> None:
        node = self._nodes.get(message.to)
        if node is not None and self._left_behind(node):
            return
        if node is not None and self.mesh.send_raft(node, message):
            return
        if (link := self._heard_over.get(message.to)) is not None:
            link.send_raft(message)

    def _left_behind(self, node: str) -> bool:
        """Whether it runs software from before the cluster's version, which stops at what it cannot read: it is told
        why when it registers, and has no part in anything."""
        run = self.liveness.start_id(node)
        return bool(run) and versions.version_of(run) < self.state.cluster_version

    def _lives(self, changes: list[Change]) -> None:
        for change in changes:
            logger.info(
                "node_%s node=%s start_id=%s reason=%r", change.life.value, change.node, change.start_id, change.reason
            )
            if self.chronicle is not None:
                self.chronicle.life_changed(change)
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
