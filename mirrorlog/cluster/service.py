"""One member of the cluster: its Raft, its links to the others, and the coordinator when it leads.

Thin: Raft decides in which order, the state what is allowed, the coordinator what is to be done, liveness who is
there. Here they are tied to sockets, timers and the disk. What the node does about the state (master this log, follow
that one, fence) is its `MemberHost`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from mirrorlog import versions
from mirrorlog.cluster.answers import Answers
from mirrorlog.cluster.coordination.coordinator import CoordinatorSettings
from mirrorlog.cluster.coordination.liveness import Change, Life, Liveness, Runs, unknown_to
from mirrorlog.cluster.coordination.unmastered import why_unmastered
from mirrorlog.cluster.coordinator_runner import CoordinatorRunner
from mirrorlog.cluster.decisions import ASK_S, Decisions
from mirrorlog.cluster.driver import RaftDriver
from mirrorlog.cluster.membership.joining import anew
from mirrorlog.cluster.membership.registration import Registration
from mirrorlog.cluster.peers import Mesh, Voice
from mirrorlog.cluster.ports import Chronicle, MemberHost
from mirrorlog.cluster.raft.core import Raft
from mirrorlog.cluster.raft.leadership import Timing
from mirrorlog.cluster.raft.messages import AnyMessage, Appended, HardState, Snapshot, Stored, Vote
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.requests import Joined
from mirrorlog.cluster.state.commands import Command, NodeStarted
from mirrorlog.cluster.state.events import LOGGED, events_of, line_of
from mirrorlog.cluster.state.machine import AppliedEntry, Machine
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome, advice
from mirrorlog.cluster.state.topology import ClusterTopology
from mirrorlog.commitlog.files import Files
from mirrorlog.errors import DiskFailed, MirrorlogError, NotAMember, RequestTimeout, UnsupportedVersion
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.messages.handshake import Hello, Welcome

logger = logging.getLogger(__name__)

PROPOSE_S: Final = 30.0
"""How long the cluster may take to decide what nobody waits for."""


class ClusterService:
    """One member. `state`: as far as it is known here."""

    def __init__(
        self,
        identity: NodeStarted,
        *,
        host: MemberHost,
        hello: Callable[[], Hello],
        wanted: CoordinatorSettings,
        timing: Timing,
        node_timeout_s: float,
        helper: Executor,
        credentials: Credentials = OPEN,
        configured: Mapping[str, str] | None = None,
    ) -> None:
        """`identity`: who this node is, in this run, as it registers (its member is not known yet, and nothing seen);
        `configured`: replication addresses of nodes by this node's own configuration."""
        self.identity = identity
        self.mesh = Mesh(hello=hello, events=self, credentials=credentials)
        self.mesh.welcomed = self._welcomed
        self.liveness = Liveness(timeout_s=node_timeout_s)
        self.decisions = Decisions(self)
        self.answers = Answers(self, host)
        self.coordination = CoordinatorRunner(
            self,
            wanted,
            leads=self._leads,
            fence_here=self.answers.fence_here,
            sizes_here=host.sizes,
            lags_here=host.lags,
        )
        self._host = host
        self._timing = timing
        self._helper = helper
        self._loop = asyncio.get_running_loop()
        self._driver: RaftDriver | None = None
        self._nodes: dict[int, str] = {}
        self._configured = configured or {}
        # By member, what its last Raft message came over.
        self._heard_over: dict[int, Voice] = {}
        self._forgetful: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._runs = Runs()
        self.chronicle: Chronicle | None = None
        self.followed: Callable[[ClusterTopology], None] = lambda topology: None
        """Told what exchanges and bindings there are, after each change of anything. Must not wait."""
        self._node_timeout_s = node_timeout_s
        self._place: tuple[Files, Path] | None = None
        self.registration = Registration(lambda: self.identity, self, failed=host.failed)
        self._foreseen: tuple[int, ClusterState] | None = None
        self._known_to = 0
        self.expected: ClusterState
        """From `open` on: `state`; before all is decided that the disk held at the start, that. For what must not be
        forgotten. Whoever publishes is looked up in it, with each batch."""
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
        self.expected = self.foreseen()
        self._known_to = self.driver.raft.log.last_index
        self._foreseen = self._known_to, self.expected

    def _make_driver(self, store: RaftStore, stored: Stored) -> RaftDriver:
        raft = Raft(store.own, stored, chance=Random(), now=self._loop.time(), timing=self._timing)
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
        for work in (self._register(), self.coordination.run()):
            self.spawn(work)

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
    def node(self) -> str:
        """This member's own name."""
        return self.identity.node

    @property
    def state(self) -> ClusterState:
        return self.driver.machine.state

    def in_touch(self) -> bool:
        """Whether a majority was heard within half the time after which a node counts as gone: what is decided is known
        here, or was decided a moment ago."""
        now = self._loop.time()
        return now < self.driver.raft.contact_at(now) + self._node_timeout_s / 2

    @property
    def leader(self) -> str:
        """The coordinator's node, as far as it is known; empty when not."""
        return self._nodes.get(self.driver.raft.leader, "")

    def life(self, node: str) -> Life:
        """This node is up, whatever others think."""
        return Life.UP if node == self.identity.node else self.liveness.life(node)

    def why_unmastered(self, log_id: str, *, since: str = "") -> str:
        """See `unmastered.why_unmastered`."""
        coordination = self.coordination
        return why_unmastered(
            log_id,
            self.state,
            self.life,
            lags=coordination.lags(log_id),
            since=since,
            after_s=coordination.wanted.promote_always_after_s,
        )

    def life_of_run(self, node: str) -> Life:
        """Of the run that the cluster knows."""
        known = self.state.nodes[node].start_id if node in self.state.nodes else ""
        if node == self.identity.node:
            return Life.UP if known == self.identity.start_id else Life.DOWN
        return self._runs.life_of(node, known, self.liveness, self._loop.time())

    # --- changes ---

    def propose_soon(self, command: Command) -> None:
        """Have it decided, and do not wait; who needs it looks again later."""

        async def propose() -> None:
            try:
                await self.decisions.propose(command, timeout_s=PROPOSE_S)
            except MirrorlogError as error:
                logger.warning("not_decided command=%s reason=%r", type(command).__name__, str(error))

        self.spawn(propose())

    def check_run(self, command: Command) -> None:
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

    async def ask_leader(self, data: bytes) -> Outcome:
        """Have a command decided. Raises MirrorlogError."""
        return await self.decisions.ask_leader(data)

    async def told(self, node: str, index: int) -> Joined:
        """Of a node, once everything up to `index` is applied here. Raises NotAMember, RequestTimeout."""
        await self.applied_here(index)
        facts = self.state.nodes.get(node)
        if facts is None:
            raise NotAMember(f"node {node} was forgotten by its cluster; its copies count no more")
        machine = self.driver.machine
        if machine.index == 0 and self.driver.raft.term > 0:
            # Who says index 0 is untouched: nothing can have been decided by it (`membership.founding`).
            raise RequestTimeout(f"node {self.identity.node} has voted, and does not know yet what is decided")
        members = self.driver.raft.log.members_at(machine.index)
        snapshot = Snapshot(machine.index, machine.term, members, machine.snapshot_state())
        return Joined(member=facts.member, snapshot=snapshot)

    async def applied_here(self, index: int) -> None:
        """Until everything up to `index` is applied on this node. Raises RequestTimeout."""
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
        """Whether the disk of a run has forgotten what it may have promised (`unknown_to`): neither its votes nor its
        answers count before it has registered, as another member. Of two voters none is elected and nothing is
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
        return await self.answers.to(question)

    # --- Watcher ---

    def applied(self, step: AppliedEntry) -> None:
        if self.chronicle is not None:
            self.chronicle.applied(step)
        is_new = step.entry.index > self._known_to  # what the disk held at the start is applied once more
        if is_new and step.after.cluster_version != step.before.cluster_version:
            logger.info("cluster_version_raised version=%s", step.after.cluster_version)
        if is_new and isinstance(step.command, LOGGED):
            for event in events_of(step):
                logger.info("%s", line_of(event))
        if isinstance(step.command, NodeStarted) and step.command.start_id == self.identity.start_id:
            self._check_fits(step)
        if step.after is not step.before:
            self._know(step.after)
        self.decisions.tell_readers()
        if step.command is None or not step.outcome.refusal:  # what was refused would be proposed again at once
            self.coordination.look()

    def _check_fits(self, step: AppliedEntry) -> None:
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

    # --- inside ---

    def _know(self, state: ClusterState) -> None:
        """Whom to reach and watch follows from the state."""
        known = self._with_foreseen(state)
        self.expected = state if self._foreseen is None else self._foreseen[1]
        self.followed(state.routing)
        self.registration.note(state, self.driver.machine.index)
        self._note_advice(state)
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

    def tick(self) -> None:
        """Time has passed: see who has fallen silent."""
        self._lives(self.liveness.tick(self._loop.time()))

    def _leads(self, node: str, term: int) -> None:
        if self.chronicle is not None:
            self.chronicle.coordinated(node, term)

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
            self.coordination.look()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done while this member runs; that it fails stops the node."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("cluster_task_failed", exc_info=error)
            self._host.failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))
