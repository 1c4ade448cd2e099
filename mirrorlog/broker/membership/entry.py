"""How a node comes to its cluster, before anything else of it starts.

    its disk holds a Raft store               it goes on as that member; seeds only tell whether it is the same cluster
    the disk has joined, and has no store     it becomes the member that it was let in as
    the disk has asked to join                it asks that cluster again, and no other
    the disk is blank, with seeds             it looks: joins what it finds, founds, or waits
    it is blank, with other members           it asks these: founds with them, comes back as another member, or waits
    it is blank, without                      it founds a cluster of its own

A cluster's id is on the disk (`node.json`) before anything is asked or founded, and what the member begins with
(`JoinRecord`) before it has a store. So a node may be killed at any point and goes on where it was; in particular one
that may be known to a cluster founds no other. Who founds by configuration needs no record: before it has a store it
has said nothing, and asks again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID, uuid4

import msgspec

from mirrorlog import versions
from mirrorlog.broker.membership.founder import Founder
from mirrorlog.cluster.membership.discovery import Answer, FoundCluster, Join, Looks, Wait, clusters, decide, in_order
from mirrorlog.cluster.membership.founding import founding, founding_state
from mirrorlog.cluster.membership.joining import FILE_NAME as JOIN_NAME
from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.multicast import Prober
from mirrorlog.cluster.membership.seeds import SeekingPort, ask_to_join, look_at
from mirrorlog.cluster.raft.messages import Snapshot
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.requests import AskJoin
from mirrorlog.cluster.state.commands import addresses_of
from mirrorlog.cluster.state.state import decode_state
from mirrorlog.commitlog.directory import IDENTITY_NAME, LOCK_NAME, LOGS_NAME, DataDirectory
from mirrorlog.commitlog.files import Files, disk_named, read_file
from mirrorlog.config import Settings
from mirrorlog.errors import (
    DiskFailed,
    DiskFull,
    ForeignDirectory,
    MirrorlogError,
    NotAMember,
    ProtocolError,
    UnsupportedVersion,
)
from mirrorlog.wire.auth.credentials import OPEN, Credentials

logger = logging.getLogger(__name__)

RAFT_NAME: Final = "raft"
ASIDE_NAME: Final = "discarded-"
"""What is set aside in the directory: `discarded-1`, `discarded-2`, …"""
LOOK_EVERY_S: Final = 0.3
PROBE_S: Final = 0.1
"""How long answers to a multicast are waited for, before all that were ever heard are asked."""

_IDENTITY_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Entered:
    """`settings`: with the id and the name that the cluster has; `own`, `snapshot`: which member it is, and what that
    begins with, if its disk holds no store yet."""

    settings: Settings
    directory: DataDirectory
    own: int
    snapshot: Snapshot


class _OtherCluster(Exception):
    """The disk belongs to a cluster that is not the one that is meant."""

    def __init__(self, owner: UUID, meant: str) -> None:
        super().__init__(meant)
        self.owner = owner
        self.meant = meant


class Entry:
    """`bootstrap`: found a cluster, whatever seeds there are; `discard`: what belongs to another cluster is set aside.
    Neither does anything to a node that is in its cluster."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        *,
        bootstrap: bool = False,
        discard: bool = False,
        credentials: Credentials = OPEN,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._files = files
        self._bootstrap = bootstrap
        self._discard = discard
        self._path = settings.node.data_dir
        self._run = str(uuid4())
        self._told = ""
        self._asked = 0
        self._jitter = Random(self._run)
        self._prober = Prober(settings.cluster) if settings.cluster.discovery == "multicast" else None

    async def enter(self) -> Entered:
        """Waits until there is a cluster; may be cancelled.

        Raises ForeignDirectory, DirectoryInUse, NotAMember, WrongCluster, PortTaken, LogCorrupt, DiskFull, DiskFailed.
        """
        try:
            while True:
                try:
                    return await self._enter()
                except _OtherCluster as other:
                    if not self._discard:
                        raise ForeignDirectory(
                            f"{self._path} belongs to cluster_id {other.owner}, this is {other.meant}; give the node a "
                            "data directory of its own, or start it with --discard: what is there is renamed, and the "
                            "node joins anew",
                            found=str(other.owner),
                        ) from None
                    self._back_up(other.owner)
        finally:
            if self._prober is not None:
                self._prober.stop()

    async def _enter(self) -> Entered:
        owner = self._owner()
        if owner is not None and (self._looks or self._is_founder) and self._nothing_but_a_name():
            with disk_named("remove", self._path / IDENTITY_NAME):
                self._files.unlink(self._path / IDENTITY_NAME)  # it was neither founded nor asked to be let in
            owner = None
        if owner is None:
            return await self._enter_blank()
        return await self._within(owner, self._enter_owned)

    async def _within(self, owner: UUID, enter: Callable[[UUID, DataDirectory], Awaitable[Entered]]) -> Entered:
        """With the directory open, as that cluster's; it stays so for who has entered."""
        directory = self._open(owner)
        try:
            return await enter(owner, directory)
        except BaseException:
            directory.close()
            raise

    # --- a disk that belongs to a cluster ---

    async def _enter_owned(self, owner: UUID, directory: DataDirectory) -> Entered:
        cluster = self._settings.cluster
        if (member := self._member_of(directory)) is not None:
            if not cluster.is_this(owner, member.settings.cluster.name):
                raise _OtherCluster(owner, f"cluster {cluster.name}, cluster_id {cluster.cluster_id}")
            if cluster.looks:
                self._check_same(owner, await self._ask_seeds())
            return member
        if self._looks:
            return await self._join_again(owner, directory)
        if self._files.exists(self._path / JOIN_NAME) and not self._is_founder:
            raise _OtherCluster(owner, "a new cluster")  # it may be known to that one, and must not found it again
        if owner != cluster.cluster_id and (cluster.named or not self._bootstrap):
            raise _OtherCluster(owner, f"cluster {cluster.name}, cluster_id {cluster.cluster_id}")
        return await self._by_configuration(owner, directory)

    def _member_of(self, directory: DataDirectory) -> Entered | None:
        """The member that the disk is, or was let in as; None when it is none."""
        if (found := RaftStore.open(self._files, self._path / RAFT_NAME)) is not None:
            store, stored = found
            store.close()
            return self._as(store.own, stored.snapshot, directory)
        if not self._files.exists(self._path / JOIN_NAME):
            return None
        record = JoinRecord.open(self._files, self._path)
        return (
            self._as(record.content.member, _decoded(record.content.snapshot), directory)
            if record.content.member
            else None
        )

    def _check_same(self, owner: UUID, answers: Mapping[str, Answer]) -> None:
        """Seeds that are in another cluster, all of them, mean another one."""
        found = clusters(answers)
        if found and owner not in found:
            raise _OtherCluster(
                owner, ", ".join(f"cluster {each.name}, cluster_id {key}" for key, each in found.items())
            )

    async def _join_again(self, owner: UUID, directory: DataDirectory) -> Entered:
        """It may have been let in already: this cluster, or none."""
        while True:
            answers = await self._ask_seeds()
            self._check_same(owner, answers)
            if (join := clusters(answers).get(owner)) is None:
                await self._wait(f"this disk belongs to cluster_id {owner}, and no seed that answers does")
            elif (entered := await self._try_to_join(join, directory)) is not None:
                return entered

    # --- a blank disk ---

    async def _enter_blank(self) -> Entered:
        cluster = self._settings.cluster
        if not self._looks:
            cluster_id = uuid4() if self._bootstrap and not cluster.named else cluster.cluster_id
            return await self._within(cluster_id, self._by_configuration)
        decision = await self._look()
        cluster_id = decision.cluster_id if isinstance(decision, Join) else self._new_id()
        directory = self._open(cluster_id)
        try:
            if isinstance(decision, FoundCluster):
                return self._found(cluster_id, directory)
            if (entered := await self._try_to_join(decision, directory)) is not None:
                return entered
            return await self._join_again(cluster_id, directory)
        except BaseException:
            directory.close()
            raise

    async def _look(self) -> Join | FoundCluster:
        settings = self._settings
        own = Looks(self._run, settings.node.id, settings.member.replication, in_order(settings.cluster.join))
        port = SeekingPort(own, settings.limits, self._credentials)
        await port.start(settings.replication_bind)
        try:
            while isinstance(decision := decide(own, settings.cluster, await self._ask_seeds()), Wait):
                await self._wait(decision.reason)
            return decision
        finally:
            await port.stop()

    def _new_id(self) -> UUID:
        return self._settings.cluster.cluster_id if self._settings.cluster.named else uuid4()

    def _found(self, cluster_id: UUID, directory: DataDirectory) -> Entered:
        """As one that lets itself in, so that a start that dies here does not look again."""
        entered = self._configured(cluster_id, directory)
        record = JoinRecord.open(self._files, self._path)
        record.joined(entered.own, str(cluster_id), _encode(entered.snapshot))
        logger.info("cluster_founded node=%s cluster_id=%s", self._settings.node.id, cluster_id)
        return entered

    # --- a blank disk, by configuration ---

    async def _by_configuration(self, cluster_id: UUID, directory: DataDirectory) -> Entered:
        """A founding member, if nothing can have been decided yet without it; else another one."""
        if self._is_founder and not await Founder(self._settings, self._files, self._credentials).founds():
            returned = self._member_of(directory)
            assert returned is not None, "a founder that does not found is a member"
            return returned
        return self._configured(cluster_id, directory)

    # --- parts ---

    @property
    def _is_founder(self) -> bool:
        """Whether it founds together with others."""
        return not (self._looks or self._bootstrap) and len(self._settings.cluster.members) > 1

    @property
    def _looks(self) -> bool:
        return self._settings.cluster.looks and not self._bootstrap

    def _configured(self, cluster_id: UUID, directory: DataDirectory) -> Entered:
        """A founding member, by the configuration."""
        settings = self._known_as(cluster_id, self._settings.cluster.name)
        state = founding_state(settings.cluster, witness=settings.node.id if settings.node.witness else "")
        return Entered(settings, directory, state.nodes[settings.node.id].member, founding(state))

    async def _try_to_join(self, join: Join, directory: DataDirectory) -> Entered | None:
        """None when it has to be tried again. Raises NotAMember."""
        settings = self._settings
        record = JoinRecord.open(self._files, self._path)
        asked = AskJoin(
            node=settings.node.id,
            addresses=addresses_of(settings.member),
            witness=settings.node.witness,
            token=record.content.token,
            version=versions.OWN,
        )
        self._asked += 1
        seed = join.seeds[self._asked % len(join.seeds)]
        try:
            joined = await ask_to_join(seed, join.cluster_id, asked, run=self._run, credentials=self._credentials)
            entered = self._as(joined.member, joined.snapshot, directory)
            record.joined(joined.member, str(join.cluster_id), _encode(joined.snapshot))
        except (NotAMember, DiskFull, DiskFailed):
            raise
        except MirrorlogError as error:
            await self._wait(f"{seed} of cluster {join.name} could not let this node in: {error}")
            return None
        logger.info(
            "joined node=%s member=%s cluster_id=%s seed=%s",
            settings.node.id, joined.member, join.cluster_id, seed,
        )  # fmt: skip
        return entered

    def _as(self, own: int, snapshot: Snapshot, directory: DataDirectory) -> Entered:
        """Raises ProtocolError for a snapshot that is none."""
        try:
            state = decode_state(snapshot.state)
            settings = self._known_as(UUID(state.cluster_id), state.name)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"the cluster's state does not fit: {error}") from None
        return Entered(settings, directory, own, snapshot)

    def _known_as(self, cluster_id: UUID, name: str) -> Settings:
        cluster = self._settings.cluster.known_as(cluster_id, name)
        return self._settings.model_copy(update={"cluster": cluster})

    async def _ask_seeds(self) -> dict[str, Answer]:
        """One round, all at once; by address."""
        seeds = list(in_order(self._settings.cluster.join))
        if self._prober is not None:
            await self._prober.probe()
            await asyncio.sleep(PROBE_S)
            seeds += [address for address in self._prober.found if address not in seeds]
        node, credentials = self._settings.node.id, self._credentials
        answers = await asyncio.gather(
            *(look_at(seed, node=node, run=self._run, credentials=credentials) for seed in seeds)
        )
        return dict(zip(seeds, answers, strict=True))

    async def _wait(self, reason: str) -> None:
        """Until the next round. Said once, as long as it stays the same."""
        if reason != self._told:
            logger.info("looking_for_cluster node=%s reason=%r", self._settings.node.id, reason)
        self._told = reason
        await asyncio.sleep(LOOK_EVERY_S * self._jitter.uniform(0.5, 1.5))

    # --- the disk ---

    def _open(self, cluster_id: UUID) -> DataDirectory:
        return DataDirectory.open(self._path, cluster_id=cluster_id, node_id=self._settings.node.id, files=self._files)

    def _owner(self) -> UUID | None:
        """The cluster that the disk belongs to; None for a blank one."""
        identity = _identity(self._files, self._path)
        return UUID(identity["cluster_id"]) if identity is not None else None

    def _nothing_but_a_name(self) -> bool:
        path, files = self._path, self._files
        with disk_named("read", path):
            there = set(files.listdir(path)) - {IDENTITY_NAME, LOCK_NAME, LOGS_NAME}
            logs = files.listdir(path / LOGS_NAME) if files.exists(path / LOGS_NAME) else []
        return not logs and all(name.startswith(ASIDE_NAME) for name in there)

    def _back_up(self, owner: UUID) -> None:
        """Everything gets another name, the identity last: what is begun is seen and done again."""
        path, files = self._path, self._files
        identity = _identity(files, path)
        assert identity is not None
        with (
            closing(DataDirectory.open(path, cluster_id=owner, node_id=identity["node_id"], files=files)),
            disk_named("set aside what is in", path),
        ):
            there = files.listdir(path)
            aside = next(path / f"{ASIDE_NAME}{number}" for number in count(1) if f"{ASIDE_NAME}{number}" not in there)
            files.make_directory(aside)
            moved = [
                name for name in there if name not in (LOCK_NAME, IDENTITY_NAME) and not name.startswith(ASIDE_NAME)
            ]
            for name in (*moved, IDENTITY_NAME):
                files.fsync_directory(path)
                files.rename(path / name, aside / name)
            files.fsync_directory(aside)
            files.fsync_directory(path)
        logger.warning("set_aside cluster_id=%s as=%s", owner, aside)


_encode = msgspec.msgpack.Encoder().encode


def _decoded(snapshot: bytes) -> Snapshot:
    try:
        return msgspec.msgpack.decode(snapshot, type=Snapshot)
    except msgspec.MsgspecError as error:  # its checksum is right, so this is what was written
        raise UnsupportedVersion(f"a newer version of mirrorlog has let this node in: {error}") from None


def _identity(files: Files, path: Path) -> dict[str, str] | None:
    """`cluster_id`, a UUID, and `node_id`. Raises ForeignDirectory, DiskFailed."""
    file = path / IDENTITY_NAME
    if not files.exists(file):
        return None
    with disk_named("read", file):
        text = read_file(files, file, max_bytes=_IDENTITY_BYTES_MAX)
    try:
        found = json.loads(text)
        return {"cluster_id": str(UUID(found["cluster_id"])), "node_id": str(found["node_id"])}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ForeignDirectory(f"{file} does not name a directory of mirrorlog; give the node another one") from None
