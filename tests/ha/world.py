"""A master and its mirrors as pure machines over real logs, joined by byte pipes that a test cuts where it likes.

The world does what the sockets, clocks and helper threads around the machines do, one step at a time and only when it
is told to: bytes arrive in chunks of any size, a connection dies on one side, on both, or in silence, a cut of a log or
a read from its disk takes as long as the test wants, a node is killed and comes back. After every step `check` holds
what was sent, stored and answered against what really is on each copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirrorlog.broker.log.replica import Replica
from mirrorlog.config import Flush, Settings
from mirrorlog.errors import MirrorAhead, MirrorlogError, Refused
from mirrorlog.ha.actions import Action, Align, Close, Connect, FlushSoon, ReadCold, Send
from mirrorlog.ha.client import ClientState, HAClient
from mirrorlog.ha.connection import HAConnection, LinkState
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.links import DeclaredLoss
from mirrorlog.ha.mastership import LogState, Mastership
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import Durability, Frame, FrameType, frame, read_ack
from mirrorlog.wire.messages.codec import decode, encode
from mirrorlog.wire.messages.handshake import Hello, NodeLimits, Welcome, check_hello
from mirrorlog.wire.messages.replication import FollowRequest, Pull
from tests.commitlog.logs import abandon
from tests.ha.links import Declared, everybody
from tests.ha.replicas import HA, append, content, flush, greeting_of, log_id_of, open_master, open_replica, settings_of

WELCOME = NodeLimits(max_record_bytes=1, max_batch_bytes=1)


class Pipe:
    """Bytes on their way in one direction, and the reader at the far end."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.dead = False
        self._reader = FrameReader(frame_bytes_max=1 << 20, initial_bytes=64)

    def send(self, parts: tuple[bytes | memoryview, ...]) -> None:
        if not self.dead:
            for part in parts:
                self.bytes += part

    def take(self, size: int) -> list[Frame]:
        """Let up to `size` bytes arrive; the frames that are complete now."""
        frames = []
        size = min(size, len(self.bytes))
        while size:
            room = self._reader.room()
            chunk = min(size, len(room))
            room[:chunk] = self.bytes[:chunk]
            del self.bytes[:chunk]
            size -= chunk
            self._reader.received(chunk)
            while (each := self._reader.next_frame()) is not None:
                frames.append(Frame(each.type, each.correlation_id, memoryview(bytes(each.payload))))
        return frames


@dataclass(eq=False)
class Link:
    """One connection. Each end knows only of its own; `silent`: neither is told when the other goes."""

    mirror: MirrorNode
    to_master: Pipe = field(default_factory=Pipe)
    to_mirror: Pipe = field(default_factory=Pipe)
    master_open: bool = True
    mirror_open: bool = True
    silent: bool = False
    greeted: Hello | None = None
    connection: HAConnection | None = None
    cold: ReadCold | None = None


@dataclass
class Wait:
    """A publish that was not answered yet. `copies` must have everything below `end`."""

    end: int
    copies: int
    durability: int
    deadline: float


class MasterNode:
    """The master's copy and its decisions, from its start to its end."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        assignment = settings.cluster.logs[0]
        self.settings = settings
        self.directory = directory
        self.replica = open_master(directory, settings)
        self.durability = Durability.DISK if assignment.flush == "disk" else Durability.MEMORY
        self.mastership = Mastership(
            name=assignment.name,
            own=settings.node.id,
            in_sync=everybody(assignment.nodes, copies_wanted=assignment.copies_wanted),
            durability=self.durability,
            confirmed=self.replica.log.confirmed,
            waiting_max=1000,
        )
        self.mastership.progress.flushed(self.replica.log.flushed)


class MirrorNode:
    """A mirror's copy and its side of the link, from its start to its end."""

    def __init__(self, directory: Path, settings: Settings, now: float, losses: Sequence[DeclaredLoss] = ()) -> None:
        self.settings = settings
        self.directory = directory
        self.replica = open_replica(directory, settings)
        self.link: Link | None = None
        self.aligns: deque[Align] = deque()
        self.follow(now, losses)

    def follow(self, now: float, losses: Sequence[DeclaredLoss]) -> None:
        """The cluster has promoted somebody: a new role on the same copy. `losses`: as it is told of them then."""
        self.link = None
        self.client = HAClient(
            log_id=log_id_of(self.settings),
            copy=self.replica,
            greeting=greeting_of(self.settings),
            master="master:7402",
            settings=HA,
            now=now,
            losses=tuple(losses),
        )

    @property
    def node_id(self) -> str:
        return self.settings.node.id


class World:
    """Nodes `n0` (master), `n1`, … under `root`. Time stands still but for `tick`."""

    def __init__(self, root: Path, *, mirrors: int, flush: Flush = "memory", min_in_sync: int = 1) -> None:
        self.now = 0.0
        self.names = [f"n{number}" for number in range(mirrors + 1)]
        self.links: list[Link] = []
        self.waits: dict[int, Wait] = {}
        self.answers: list[Answer] = []
        self.faults: list[MirrorlogError] = []
        self.confirmed_ever = b""
        self.losses: list[DeclaredLoss] = []
        """Of the log, as the master and every mirror that starts after they were declared know them."""
        self._published = 0
        self._settings = {
            name: settings_of(name, self.names, flush=flush, min_in_sync=min_in_sync) for name in self.names
        }
        self._root = root
        self.master = MasterNode(root / "n0", self._settings["n0"])
        self._wire_master()
        self.mirrors = [MirrorNode(root / name, self._settings[name], 0.0) for name in self.names[1:]]

    # --- steps ----------------------------------------------------------------------------------------------------

    def publish(
        self, size: int, *, level: int, durability: int = Durability.MEMORY, timeout: float = 1.0
    ) -> int | None:
        """Append a batch and wait for its copies; the token of the wait, None when it was refused."""
        mastership = self.master.mastership
        end = self.master.replica.log.end
        try:
            copies = mastership.progress.copies_for(level)
            mastership.admit()
        except Refused:
            assert self.master.replica.log.end == end
            return None
        self._published += 1
        token = self._published
        header = append(self.master.replica, size, token)
        durability = max(durability, self.master.durability)
        wait = Wait(header.next_log_offset, copies, durability, self.now + timeout)
        self.waits[token] = wait
        self._progressed(mastership.appended(self.master.replica.log.end))
        self._progressed(
            mastership.wait(token, end=wait.end, copies=copies, durability=durability, deadline=wait.deadline)
        )
        return token

    def tick(self, seconds: float) -> None:
        """Time passes for everybody."""
        self.now += seconds
        for link in list(self.links):
            if link.master_open and link.connection is not None:
                self._do_master(link, link.connection.tick(self.now))
        self._progressed(self.master.mastership.expired(self.now))
        for mirror in self.mirrors:
            self._do_mirror(mirror, mirror.client.tick(self.now))

    def deliver(self, link: Link, size: int, *, to_master: bool) -> None:
        """Let bytes arrive at one end; the news that the other end has closed comes after the last of them."""
        if to_master:
            if not link.to_master.bytes and not link.mirror_open and not link.silent:
                self._close_master_end(link)
            for each in link.to_master.take(size):
                if link.master_open:
                    self._master_received(link, each)
        else:
            if not link.to_mirror.bytes and not link.master_open and not link.silent:
                self._close_mirror_end(link)
            for each in link.to_mirror.take(size):
                if link.mirror_open:
                    self._mirror_received(link, each)
        self._prune()

    def cut(self, link: Link, *, master_knows: bool, mirror_knows: bool) -> None:
        """The connection dies and what was on its way is gone; an end that is not told learns by silence."""
        for pipe in (link.to_master, link.to_mirror):
            pipe.bytes.clear()
            pipe.dead = True
        link.silent = True
        if master_knows:
            self._close_master_end(link)
        if mirror_knows:
            self._close_mirror_end(link)
        self._prune()

    def flush(self, number: int) -> None:
        """Node `number` brings its log to disk."""
        if number == 0:
            flush(self.master.replica)
            self._progressed(self.master.mastership.flushed(self.master.replica.log.flushed))
        else:
            mirror = self.mirrors[number - 1]
            flush(mirror.replica)
            self._do_mirror(mirror, mirror.client.flushed(self.now))

    def finish_align(self, mirror: MirrorNode) -> None:
        """The helper of a mirror gets its next piece of work done."""
        if not mirror.aligns:
            return
        action = mirror.aligns.popleft()
        if action.loss:
            gone = content(mirror.replica)[action.log_offset :]
            aside = mirror.replica.quarantine_tail(action.log_offset)
            kept = b"".join(path.read_bytes() for path in sorted(aside.iterdir()) if path.name.isdigit())
            assert kept == gone, f"what {mirror.node_id} has to lose is not what it keeps"
            aside.rename(mirror.directory.with_name(f"{mirror.node_id}-kept-{len(list(self._root.iterdir()))}"))
            mirror.replica.begin_anew()
        mirror.replica.align(action.log_offset, action.epochs, lost=action.loss > 0)
        mirror.replica.aligned()
        self._do_mirror(mirror, mirror.client.aligned(self.now))

    def finish_cold(self, link: Link) -> None:
        """The master's helper brings what was read from disk."""
        if link.cold is None:
            return
        run, link.cold = link.cold.job.run(), None
        if link.master_open and link.connection is not None:
            self._do_master(link, link.connection.cold_read(run, self.now))

    def restart_mirror(self, number: int, *, clean: bool) -> None:
        """A mirror ends, killed or cleanly, and starts anew. The page cache survives."""
        old = self.mirrors[number]
        if old.link is not None:
            old.link.mirror_open = False
        _end(old.replica, clean=clean)
        self.mirrors[number] = MirrorNode(old.directory, old.settings, self.now, self.losses)

    def restart_master(self, *, clean: bool) -> None:
        """The master ends and starts anew, in a new epoch; the outcome of what waited stays unknown."""
        for link in self.links:
            link.master_open = False
            link.cold = None
        self.waits.clear()
        _end(self.master.replica, clean=clean)
        self.master = MasterNode(self.master.directory, self.master.settings)
        self._wire_master()

    def lose_power(self, share: float) -> None:
        """The master's machine goes down: of what is not on its disk a share is left, confirmed or not. It is promoted
        all the same, with the loss declared; everybody hears of it, and follows anew."""
        for mirror in self.mirrors:
            while mirror.aligns:
                self.finish_align(mirror)
        replica = self.master.replica
        left = [border for border in _borders(replica) if border >= replica.log.flushed]
        keep = left[round(share * (len(left) - 1))]
        for link in self.links:
            link.master_open = link.mirror_open = False
            link.cold = None
        self.links.clear()
        self.waits.clear()
        _end(replica, clean=False)
        _forget(self.master.directory, keep)
        self.master = MasterNode(self.master.directory, self.master.settings)
        self.losses.append(Declared(self.master.replica.log.epochs.current, keep))
        self.confirmed_ever = self.confirmed_ever[:keep]
        self._wire_master()
        for mirror in self.mirrors:
            mirror.follow(self.now, self.losses)

    def settle(self) -> None:
        """Let everything happen that is due until nothing more does; at most as long as two silences take."""
        for _ in range(200):
            for mirror in self.mirrors:
                self.finish_align(mirror)
            for link in list(self.links):
                self.finish_cold(link)
                self.deliver(link, 1 << 30, to_master=True)
                self.deliver(link, 1 << 30, to_master=False)
            if self.settled():
                return
            self.tick(0.05)
            for number in range(len(self.names)):
                self.flush(number)
        raise AssertionError(f"not settled: {self.describe()}")

    def settled(self) -> bool:
        end = self.master.replica.log.end
        return (
            not self.waits
            and all(each.client.state is ClientState.TRANSFER for each in self.mirrors)
            and all(each.replica.log.end == each.replica.log.confirmed == end for each in self.mirrors)
        )

    def describe(self) -> str:
        states = [(each.client.state.value, each.replica.log.end, each.replica.log.confirmed) for each in self.mirrors]
        return f"master at {self.master.replica.log.end}, mirrors {states}, waiting {self.waits}, faults {self.faults}"

    # --- what holds always ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Hold every claim against the copies themselves."""
        truth = content(self.master.replica)
        limits = {mirror.node_id: self._lost_from(mirror) for mirror in self.mirrors}
        confirmed = max(
            self.master.replica.log.confirmed,
            *(min(each.replica.log.confirmed, limits[each.node_id]) for each in self.mirrors),
        )
        assert truth.startswith(self.confirmed_ever), "what was confirmed has changed"
        self.confirmed_ever = truth[: max(confirmed, len(self.confirmed_ever))]
        for mirror in self.mirrors:
            common = content(mirror.replica)[: limits[mirror.node_id]]
            assert truth.startswith(common), f"{mirror.node_id} holds other bytes than its master"
            assert mirror.replica.log.end >= len(self.confirmed_ever), (
                f"{mirror.node_id} has not all that was confirmed"
            )
            held = self.master.mastership.progress.held(mirror.node_id)
            assert held.written <= mirror.replica.log.end, "more is believed than the mirror holds"
            assert held.flushed <= mirror.replica.log.flushed, "more is believed than the mirror has on disk"
        assert self.master.mastership.state is LogState.SERVING
        assert not self.faults, self.faults
        assert all(wait.deadline > self.now for wait in self.waits.values()), "a wait outlived its deadline"
        assert len(self.master.mastership._transfers) == len(self.waits)

    def _lost_from(self, mirror: MirrorNode) -> int:
        """From where on it may hold what the log has lost: until it follows the epoch for which that was declared."""
        known = mirror.replica.log.epochs.current
        return min((loss.start for loss in self.losses if loss.epoch > known), default=1 << 62)

    def close(self) -> None:
        for replica in (self.master.replica, *(each.replica for each in self.mirrors)):
            replica.close()

    # --- the master's end -----------------------------------------------------------------------------------------

    def _wire_master(self) -> None:
        self.master.replica.on_appended.append(self._pump)
        self.master.replica.on_confirmed.append(lambda gained: self._pump())
        self._progressed(self.master.mastership.appended(self.master.replica.log.end))

    def _pump(self) -> None:
        for link in list(self.links):
            if link.master_open and link.connection is not None:
                self._do_master(link, link.connection.pump(self.now))

    def _master_received(self, link: Link, each: Frame) -> None:
        try:
            if link.greeted is None:
                self._greet(link, each)
            elif link.connection is None:
                self._follow(link, each)
            else:
                self._transfer(link, link.connection, each)
        except MirrorlogError as error:
            self.faults.append(error)
            self._close_master_end(link)

    def _greet(self, link: Link, each: Frame) -> None:
        hello = decode(each.payload)
        assert isinstance(hello, Hello)
        cluster = self.master.settings.cluster
        version = check_hello(hello, cluster_id=str(cluster.cluster_id))
        link.greeted = hello
        welcome = Welcome(
            version=version,
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id="n0",
            start_id="s",
            limits=WELCOME,
        )
        link.to_mirror.send((frame(FrameType.WELCOME, encode(welcome)),))

    def _follow(self, link: Link, each: Frame) -> None:
        message = decode(each.payload)
        assert isinstance(message, FollowRequest)
        assert link.greeted is not None
        assert link.greeted.node_id is not None
        mastership = self.master.mastership
        mastership.check_member(link.greeted.node_id)
        connection = HAConnection(
            node_id=link.greeted.node_id,
            start_id=link.greeted.start_id or "",
            copy=self.master.replica,
            settings=HA,
            now=self.now,
            losses=self.losses,
        )
        try:
            actions = connection.follow(message, self.now)
        except MirrorAhead as error:
            mastership.ahead(error)
            raise
        replaced = mastership.join(connection)
        link.connection = connection
        for other in list(self.links):
            if replaced is not None and other.connection is replaced:
                self._close_master_end(other)
        self._do_master(link, actions)

    def _transfer(self, link: Link, connection: HAConnection, each: Frame) -> None:
        mastership = self.master.mastership
        if each.type == FrameType.ACK:
            self._progressed(mastership.acked(connection, read_ack(each.payload), self.now))
            self._do_master(link, connection.pump(self.now))
        else:
            message = decode(each.payload)
            assert isinstance(message, Pull)
            self._do_master(link, connection.pull(message, self.now))
            self._progressed(mastership.proven(connection))

    def _do_master(self, link: Link, actions: list[Action]) -> None:
        for action in actions:
            if not link.master_open:
                return
            if isinstance(action, Send):
                link.to_mirror.send(action.parts)
            elif isinstance(action, ReadCold):
                assert link.cold is None
                link.cold = action
            else:
                assert isinstance(action, Close)
                self._close_master_end(link)

    def _close_master_end(self, link: Link) -> None:
        if link.master_open and link.connection is not None:
            self.master.mastership.leave(link.connection)
            assert link.connection.state is LinkState.CLOSED
        link.master_open = False

    def _progressed(self, answers: list[Answer]) -> None:
        before = self.master.replica.log.confirmed
        self.master.replica.set_confirmed(self.master.mastership.progress.confirmed)
        assert self.master.replica.log.confirmed >= before
        for answer in answers:
            self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        wait = self.waits.pop(answer.token)  # type: ignore[call-overload]
        really = sum(
            (each.log.flushed if wait.durability == Durability.DISK else each.log.end) >= wait.end
            for each in (self.master.replica, *(mirror.replica for mirror in self.mirrors))
        )
        assert answer.copies <= really, "more copies are claimed than there are"
        if answer.status is PutStatus.PUT_OK:
            everyone = 1 + len(self.mirrors)
            assert (everyone if wait.copies == ALL_MEMBERS else wait.copies) <= answer.copies
        else:
            assert self.now >= wait.deadline
        self.answers.append(answer)

    def _prune(self) -> None:
        self.links = [each for each in self.links if each.master_open or each.mirror_open]

    # --- a mirror's end -------------------------------------------------------------------------------------------

    def _mirror_received(self, link: Link, each: Frame) -> None:
        mirror = link.mirror
        try:
            actions = mirror.client.received(each, self.now)
        except MirrorlogError as error:
            self.faults.append(error)
            self._close_mirror_end(link, error)
            return
        self._do_mirror(mirror, list(actions))

    def _do_mirror(self, mirror: MirrorNode, actions: object) -> None:
        assert isinstance(actions, list)
        for action in actions:
            if isinstance(action, Connect):
                self._connect(mirror)
            elif isinstance(action, Align):
                mirror.aligns.append(action)
            elif isinstance(action, Send):
                assert mirror.link is not None
                mirror.link.to_master.send(action.parts)
                self._check_acks(mirror, action)
            elif isinstance(action, FlushSoon):
                pass  # the schedule flushes when it likes
            else:
                assert isinstance(action, Close)
                assert mirror.link is not None
                self._close_mirror_end(mirror.link, action.error)

    def _check_acks(self, mirror: MirrorNode, action: Send) -> None:
        head = bytes(action.parts[0])
        if int.from_bytes(head[4:6], "little") == FrameType.ACK:
            ack = read_ack(memoryview(head)[16:])
            assert (ack.written, ack.flushed) == (mirror.replica.log.end, mirror.replica.log.flushed)

    def _connect(self, mirror: MirrorNode) -> None:
        link = Link(mirror)
        mirror.link = link
        self.links.append(link)
        self._do_mirror(mirror, list(mirror.client.connected(self.now)))

    def _close_mirror_end(self, link: Link, error: MirrorlogError | None = None) -> None:
        if link.mirror_open and link.mirror.link is link:
            link.mirror.link = None
            link.mirror.client.disconnected(self.now, error)
        link.mirror_open = False


def _borders(replica: Replica) -> list[int]:
    """Where batches begin, and the end."""
    found: list[int] = []
    replica.log.scan(replica.log.begin, lambda header, batch: found.append(header.log_offset))
    return [*found, replica.log.end]


def _forget(directory: Path, log_offset: int) -> None:
    """The disk has nothing of a log from there on."""
    for path in directory.iterdir():
        if path.name.isdigit():
            at = max(0, log_offset - int(path.name))
            size = path.stat().st_size
            if at < size:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes(size - at))


def _end(replica: Replica, *, clean: bool) -> None:
    if clean:
        replica.close()
    else:
        abandon(replica.log)
