"""A node: the composition root. Who it is, what its disk remembers, its part in the cluster, and what it serves.

Order at start: lock the directory; write this run down, before anything else is written; open the logs, which shows
what their copies have lost; listen; and only then tell the cluster, which decides what each log is here.

Order at stop: what is mastered here is handed over; publishes are refused and those that wait are answered; the cluster
is told, so that others take over at once; then ports, logs, and the mark that says that this run has stopped cleanly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec.structs import replace

from mirrorlog import __version__
from mirrorlog.broker.door_process import DoorProcess, door_flags, tls_flags
from mirrorlog.broker.hosting.former import FormerCopies, FormerDisk
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.hosting import Hosting, assignment_of
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.broker.membership.drain import hand_over
from mirrorlog.broker.membership.entry import RAFT_NAME, Entry
from mirrorlog.broker.membership.events import EventRing
from mirrorlog.broker.membership.exposure import check_replication
from mirrorlog.broker.membership.founder import FirstAdmin
from mirrorlog.broker.membership.placing import PlacingSettings
from mirrorlog.broker.resources.disk_limits import DiskSpace
from mirrorlog.broker.resources.disk_watch import measure
from mirrorlog.broker.server import Server
from mirrorlog.broker.service_manager import NOBODY, ServiceManager
from mirrorlog.broker.session.operator_requests import Operations
from mirrorlog.cluster.coordination.coordinator import CoordinatorSettings
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.membership.fenced_epochs import FencedEpochs
from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.multicast import Responder
from mirrorlog.cluster.membership.run_history import RunHistory, own_boot_id
from mirrorlog.cluster.membership.seeds import JoinerLink
from mirrorlog.cluster.peers import AcceptedLink
from mirrorlog.cluster.raft.leadership import Timing
from mirrorlog.cluster.requests import AnyAnswer, AnyQuestion, AskJoin
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Holder, NodeStarted, NodeStopped, addresses_of
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.config import Settings
from mirrorlog.errors import DirectoryGone, DiskFailed, MirrorlogError, ProtocolError
from mirrorlog.wire.auth.credentials import credentials_of
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.renewal import Renewal

logger = logging.getLogger(__name__)

READY_S: Final = 2.0
"""How long a start waits until its cluster has let it in, before it says that it serves: others may start later."""
GOODBYE_S: Final = 1.0
"""How long a stop waits for the cluster to hear of it."""

_T = TypeVar("_T")


def _print(line: str) -> None:
    print(line, flush=True)


class BrokerNode:
    """One running node. `run` returns its exit code."""

    def __init__(
        self,
        settings: Settings,
        *,
        debug: bool = False,
        bootstrap: bool = False,
        discard: bool = False,
        files: Files = OS_FILES,
        measure: Callable[[Path], DiskSpace] = measure,
        boot_id: Callable[[], str] = own_boot_id,
        ready: Callable[[str], None] = _print,
        manager: ServiceManager = NOBODY,
        capped: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`bootstrap`, `discard`: see `Entry`. `files`: the disk; `measure`: how much space is on it; `boot_id`: of the
        machine's boot; `ready`: is told, in a line, that the node serves, and where; `manager`: of its process, is
        told, too; `capped`: see `NodeCounts`. Raises ConfigError."""
        self._settings = settings
        self._debug = debug
        self._credentials = credentials_of(settings)
        check_replication(settings, self._credentials)
        self._entry = Entry(settings, files, bootstrap=bootstrap, discard=discard, credentials=self._credentials)
        self._first_admin = FirstAdmin.of(settings)
        self._files = files
        self._measure = measure
        self._capped = capped
        self._boot_id = boot_id
        self._ready = ready
        self._manager = manager
        self._stopping = asyncio.Event()
        self._failure: MirrorlogError | None = None
        self._directory: DataDirectory | None = None
        self._starts: RunHistory | None = None
        self._server: Server | None = None
        self._hosting: Hosting | None = None
        self._former: FormerCopies | None = None
        self._service: ClusterService | None = None
        cluster = settings.cluster
        self._view = NodeView(
            PlacingSettings(
                copies=cluster.copies, locator=cluster.queue_master_locator, logs_per_node_max=cluster.logs_per_node_max
            )
        )
        self._registered = asyncio.Event()
        self._work: set[asyncio.Future[None]] = set()
        self._responder: Responder | None = None
        self._doors: list[DoorProcess] = []
        self.renewal = Renewal(self._credentials.renewable, self._renew_doors)
        """Of the files of TLS: asked, it reads them anew, here and then in the doors."""

    @property
    def logs(self) -> HostedLogs:
        """What it holds; nothing before the start."""
        return self._server.logs if self._server is not None else HostedLogs()

    # --- life ---

    def stop(self) -> None:
        """Ask for a clean stop; `run` returns soon after."""
        self._stopping.set()

    def fail(self, error: MirrorlogError) -> None:
        """Stop because this node can no longer be trusted with its copy."""
        if isinstance(error, DiskFailed) and self._starts is not None:
            self._starts.disk_failed()  # now: a stop may not come to its end any more
            error = self._named(error)
        self._failure = self._failure or error
        self._stopping.set()

    def _named(self, error: DiskFailed) -> DiskFailed:
        """A disk that seems to fail since its directory was removed is not the one to look at."""
        try:
            if self._directory is not None:
                self._directory.check_in_place()
        except DirectoryGone as gone:
            return gone
        return error

    async def run(self) -> int:
        """Serve until stopped; the exit code. Raises MirrorlogError when the start fails."""
        try:
            await self._start()
            await self._start_doors()
            if not self._stopping.is_set():
                self._ready(self._readiness())
                self._manager.ready(self._readiness())
            await self._stopping.wait()
        except MirrorlogError as error:
            self.fail(error)
            raise
        finally:
            await self._shut_down()
        return self._failure.exit_code if self._failure else 0

    async def _start(self) -> None:
        if (entered := await self._unless_stopped(self._entry.enter())) is None:
            return
        self._settings, self._directory = entered.settings, entered.directory
        settings, files = self._settings, self._files
        path = settings.node.data_dir
        self._starts = starts = RunHistory.open(files, path, boot_id=self._boot_id())
        self._server = server = Server(
            settings,
            entered.directory,
            start_id=starts.start_id,
            view=self._view,
            failed=self.fail,
            files=files,
            measure=self._measure,
            credentials=self._credentials,
            capped=self._capped,
            children=lambda: [door.pid for door in self._doors if door.pid is not None],
            awaited=self._awaited,
        )
        self._warn_if_open()
        await server.start()
        await self._on_disk(starts.begin)
        self._hosting = hosting = Hosting(
            Holder(settings.node.id, starts.start_id),
            server.logs,
            await self._on_disk(lambda: FencedEpochs.open(files, path)),
            opener=server.open_log,
            helper=server.helpers.promise,
            failed=self.fail,
        )
        self._service = service = self._make_service(starts, server)
        hosting.ask_election = service.coordination.ask_election
        service.answers.dead_letters = server.dead_letters.asked
        service.answers.arrivals = server.moves.asked
        service.answers.syncs = server.former_records.asked
        hosting.propose_soon = service.propose_soon
        hosting.on_registered = self._note_registered
        hosting.on_changed = server.look_at_rights
        hosting.on_life = self._view.life_changed
        await service.open(files, path / RAFT_NAME, own=entered.own, snapshot=entered.snapshot)
        await self._on_disk(lambda: JoinRecord.remove(files, path))
        self._view.service = service
        service.chronicle = events = EventRing(now_us=now_us, known_to=service.driver.raft.log.last_index)
        self._former = former = self._former_copies(hosting, service, server)
        hosting.former, server.former = former, former.told
        server.operations = Operations(service, events, former, logs=server.logs, helper=server.helpers.read)
        server.chronicle = events.happened
        accept = server.ha.accept
        accept.welcome = replace(accept.welcome, incarnation=service.state.incarnation, runs=starts.known)
        damaged = await self._open_logs(service.foreseen())
        if damaged:
            await self._on_disk(lambda: starts.damage(damaged))
        service.identity = self._identity(starts)
        server.ha.accept.member_link = self._member_link
        server.ha.accept.joiner_link = self._joiner_link
        await server.listen()
        if settings.cluster.discovery == "multicast":
            self._responder = Responder(settings.cluster.cluster_id, settings.member.replication)
            await self._responder.start(settings.cluster)
        service.start()
        await self._until_let_in()

    async def _unless_stopped(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """None when the node is asked to stop before it is done."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            for each in (working, stopping):
                each.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _make_service(self, starts: RunHistory, server: Server) -> ClusterService:
        settings, cluster = self._settings, self._settings.cluster
        assert self._hosting is not None
        return ClusterService(
            self._identity(starts),
            host=self._hosting,
            hello=self._hello,
            wanted=CoordinatorSettings(
                copies=cluster.copies,
                promote_wait_s=cluster.promote_wait_ms / 1000,
                promote_always_after_s=cluster.promote_always_after_ms / 1000,
                replace_after_s=cluster.replace_after_ms / 1000,
            ),
            timing=Timing(),
            node_timeout_s=settings.cluster.node_timeout_ms / 1000,
            helper=server.helpers.cluster,
            credentials=self._credentials,
            configured={member.id: member.replication for member in cluster.members},
        )

    def _former_copies(self, hosting: Hosting, service: ClusterService, server: Server) -> FormerCopies:
        return FormerCopies(
            FormerDisk(self._files, self._settings.node.data_dir),
            node=self._settings.node.id,
            keep_ms=self._settings.cluster.former_keep_ms,
            helper=server.helpers.flush.lane(),
            state=lambda: hosting.state,
            held=hosting.held,
            is_up=lambda node: service.life(node) is Life.UP,
            up_to_date=self._view.up_to_date,
            now_us=now_us,
        )

    def _warn_if_open(self) -> None:
        """Said once: who reaches the ports may say that it is a node, or needs no user."""
        settings = self._settings
        if settings.node.insecure:
            logger.warning(
                "insecure client=%s replication=%s; node.insecure is set: without users, and without a secret or "
                "certificates of nodes, whoever reaches these ports may do everything",
                settings.client_bind, settings.replication_bind,
            )  # fmt: skip

    def _identity(self, starts: RunHistory) -> NodeStarted:
        return NodeStarted(
            node=self._settings.node.id,
            start_id=starts.start_id,
            addresses=addresses_of(self._settings.member),
            kind=starts.kind,
            before=starts.before,
            since=starts.since,
            damaged=starts.damaged,
        )

    async def _open_logs(self, state: ClusterState) -> list[str]:
        """The copies that this disk should hold, as far as it knows; the ids of those that have lost something."""
        assert self._starts is not None
        assert self._server is not None
        own = {log_id: facts for log_id, facts in state.logs.items() if self._settings.node.id in facts.replicas}
        gone = [log_id for log_id, facts in own.items() if self._copy_is_gone(log_id, facts)]
        if gone:
            # Before the first of them is made anew: a start that dies in between would find it there, and empty.
            starts = self._starts
            await self._on_disk(lambda: starts.damage(gone))
        damaged = list(gone)
        for log_id, facts in own.items():
            if log_id not in gone and not self._holds(log_id):
                continue  # nothing of it has come here yet
            log = await self._server.open_log(assignment_of(facts), UUID(log_id))
            if log.error is not None or log.replica.lossy:
                damaged.append(log_id)
        return damaged

    def _holds(self, log_id: str) -> bool:
        assert self._directory is not None
        return self._files.exists(self._directory.log_directory(UUID(log_id)))

    def _copy_is_gone(self, log_id: str, facts: LogFacts) -> bool:
        """Whether it is not here and may have counted: this disk may not know yet that it was let into the set."""
        assert self._starts is not None
        if self._holds(log_id):
            return False
        if self._settings.node.id in facts.in_sync:
            logger.error("copy_gone log=%s", facts.name)
            return True
        return bool(self._starts.before)

    async def _until_let_in(self) -> None:
        """A moment only: the others may not be there yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await self._registered.wait()
                assert self._hosting is not None
                await self._hosting.settle()

    async def _start_doors(self) -> None:
        """Start the doors' processes; wait until they serve, or until the node is asked to stop. Raises PortTaken."""
        settings = self._settings
        if self._stopping.is_set():
            return
        assert self._server is not None
        for kind, (bind, tls) in settings.door_binds.items():
            flags, token = [*tls_flags(settings.tls, tls), *door_flags(settings, kind)], self._server.door_token
            door = DoorProcess(kind, node=settings.client_bind, bind=bind, debug=self._debug, flags=flags, token=token)
            self._doors.append(door)
        serving = {asyncio.ensure_future(door.start()) for door in self._doors}
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while serving and not stopping.done():
                done, _ = await asyncio.wait({*serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
                serving -= done
        finally:
            for task in (stopping, *serving):
                task.cancel()

    def _awaited(self) -> list[str]:
        serving = {door.kind for door in self._doors if door.serves}
        return [kind for kind in self._settings.door_binds if kind not in serving]

    def _renew_doors(self) -> None:
        for door in self._doors:
            door.renew()

    async def _shut_down(self) -> None:
        self._manager.stopping()
        server = self._server
        if self._responder is not None:
            self._responder.stop()
        if self._service is not None and self._registered.is_set() and self._failure is None:
            await hand_over(self._service, hurry=lambda: self._failure is not None)
        if server is not None:
            if self._registered.is_set() and self._failure is None:
                await server.end_run()
            server.refuse_publishes()
            await server.drain(hurry=lambda: self._failure is not None)
        for door in self._doors:
            await door.stop()
        await self._say_goodbye()
        if self._hosting is not None:
            await self._hosting.stop()
        if self._service is not None:
            await self._service.stop()
        if server is not None:
            await server.stop()
            await self._mark_stop(server)
            server.shut_down()
        if self._directory is not None:
            self._directory.close()
        logger.info("node_stopped reason=%r", str(self._failure or "asked to"))

    async def _say_goodbye(self) -> None:
        """Who masters here is replaced at once, and not only when its silence is noticed."""
        service = self._service
        if service is None or not self._registered.is_set() or self._failure is not None:
            return
        try:
            stopped = NodeStopped(node=self._settings.node.id, start_id=service.identity.start_id)
            await service.decisions.propose(stopped, timeout_s=GOODBYE_S)
        except MirrorlogError as error:
            logger.info("goodbye_not_heard reason=%r", str(error))

    async def _mark_stop(self, server: Server) -> None:
        """The last thing that this run writes: what its disk is worth."""
        starts = self._starts
        if starts is None or self._service is None:
            return
        try:
            if self._failure is None:
                await self._on_disk(starts.stopped)
        except MirrorlogError as error:
            logger.error("stop_not_marked reason=%r", str(error))

    # --- what the cluster tells ---

    def _note_registered(self) -> None:
        """The cluster knows of this run: the disk shall, too."""
        assert self._starts is not None
        self._registered.set()
        if self._former is not None:
            self._former.start()
        assert self._service is not None
        if self._first_admin is not None:
            self._spawn(self._first_admin.make(self._service))
        self._spawn(self._keep_registered(self._starts))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _keep_registered(self, starts: RunHistory) -> None:
        try:
            assert self._service is not None
            damaged = self._service.identity.damaged
            await self._on_disk(lambda: starts.registered(damaged))
        except MirrorlogError as error:
            self.fail(error)

    def _member_link(self, hello: Hello, endpoint: Endpoint) -> AcceptedLink:
        assert self._service is not None
        return AcceptedLink(hello, endpoint=endpoint, events=self._service)

    def _joiner_link(self, endpoint: Endpoint) -> JoinerLink:
        return JoinerLink(endpoint, self._answer_joiner)

    async def _answer_joiner(self, question: AnyQuestion) -> AnyAnswer:
        if self._service is None or not isinstance(question, AskJoin):
            raise ProtocolError(f"{type(question).__name__} from a node that is in no cluster")
        return await self._service.answers.let_in(question)

    async def _on_disk(self, work: Callable[[], _T]) -> _T:
        """A blocking piece of work on the helper that the cluster's files have."""
        assert self._server is not None
        return await asyncio.get_running_loop().run_in_executor(self._server.helpers.cluster, work)

    # --- facts ---

    def _hello(self) -> Hello:
        assert self._starts is not None
        return Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            role="member",
            software=f"mirrorlog {__version__}",
            cluster_id=str(self._settings.cluster.cluster_id),
            node_id=self._settings.node.id,
            start_id=self._starts.start_id,
            incarnation=self._service.state.incarnation if self._service is not None else 0,
            runs=self._starts.known,
        )

    def _readiness(self) -> str:
        settings = self._settings
        return (
            f"mqnode {settings.node.id} serving client={settings.client_bind} "
            f"replication={settings.replication_bind} grpc={settings.grpc_bind or '-'} http={settings.http_bind or '-'}"
            f"{f' amqp={settings.amqp.bind}' if settings.amqp.bind else ''}"
        )
