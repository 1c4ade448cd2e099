"""A node that founds a cluster together with others, and whose disk is blank. Thin.

What the others say is asked for here, `membership.founding` says what it means, and `registration.come_back` how the
node comes back when the cluster is there. Until it knows it votes for nobody and answers for nothing: its replication
port tells that it looks, and takes no member's connection.

Killed at any point it asks again. What makes it a member is the last thing that it writes (`JoinRecord`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from math import inf
from random import Random
from typing import Final, Self
from uuid import uuid4

import msgspec

from mirrorlog import versions
from mirrorlog.cluster.membership.discovery import FoundCluster, Looks
from mirrorlog.cluster.membership.founding import ComeBack, Founders, Told, founding_key
from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.registration import RIVAL_S, ReturnedNode, come_back
from mirrorlog.cluster.membership.run_history import RunHistory
from mirrorlog.cluster.membership.seeds import SeekingPort, ask_member, ask_to_join, look_at_founder
from mirrorlog.cluster.requests import Applied, AskApply, AskJoin, AskState, Joined
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import NodeStarted, StartKind, addresses_of
from mirrorlog.cluster.state.topology_commands import FirstUserMade
from mirrorlog.commitlog.files import Files
from mirrorlog.config import Settings, check_private
from mirrorlog.errors import BadRequest, ConfigError, DiskFailed, DiskFull, MirrorlogError, NotAMember
from mirrorlog.wire.auth.credentials import Credentials
from mirrorlog.wire.auth.passwords import PASSWORD_CHARS_MAX, check_password, hashed
from mirrorlog.wire.tls import Refusals

logger = logging.getLogger(__name__)

LOOK_FIRST_S: Final = 0.05
"""Between the first rounds, for the others may be starting as well; then more and more, up to `LOOK_S`."""
LOOK_S: Final = 0.3
KNOWN_S: Final = 0.2
"""How long one that founds stays, at most, for others to see that it looked."""


class Founder:
    """Of `settings.cluster.members`, on a directory that is open."""

    def __init__(self, settings: Settings, files: Files, credentials: Credentials) -> None:
        self._settings = settings
        self._files = files
        self._credentials = credentials
        self._path = settings.node.data_dir
        self._run = versions.run_id(str(uuid4()))
        self._never = versions.run_id(str(uuid4()))
        self._jitter = Random(self._run)
        self._reasons = Refusals()
        self._tries = 0
        self._rival_until = inf

    async def founds(self) -> bool:
        """Whether it founds; else it is a member of the cluster already, and its `JoinRecord` says which. Waits until
        the others tell; may be cancelled.

        Raises NotAMember, PortTaken, LogCorrupt, UnsupportedVersion, DiskFull, DiskFailed.
        """
        settings = self._settings
        own = Looks(self._run, settings.node.id, settings.member.replication, founding_key(settings.cluster))
        port = SeekingPort(own, settings.limits, self._credentials)
        await port.start(settings.replication_bind)
        try:
            return await self._look(port, Founders(own, settings.cluster))
        finally:
            await port.stop()

    async def _look(self, port: SeekingPort, founders: Founders) -> bool:
        pause_s, loop = LOOK_FIRST_S, asyncio.get_running_loop()
        while True:
            port.news.clear()
            answers = await self._ask_others()
            decision = founders.decide(answers, loop.time(), self._dialled_by(port))
            if isinstance(decision, FoundCluster):
                looking = {answer.run for _, answer in answers.values() if isinstance(answer, Looks)}
                await port.until_known_to(looking, KNOWN_S)
                return True
            if not isinstance(decision, ComeBack):
                self._tell(decision.reason)
            elif await self._is_back(decision):
                return False
            with suppress(TimeoutError):  # who asks is there now, and is asked at once
                async with asyncio.timeout(pause_s * self._jitter.uniform(0.5, 1.5)):
                    await port.news.wait()
            pause_s = min(pause_s * 1.5, LOOK_S)

    def _dialled_by(self, port: SeekingPort) -> set[str]:
        own = str(self._settings.cluster.cluster_id)
        return {node for cluster_id, node in port.dialled_by if cluster_id == own}

    async def _ask_others(self) -> dict[str, tuple[str, Told]]:
        """All at once; by id, with the address."""
        cluster, node = self._settings.cluster, self._settings.node.id
        others = {member.id: member.replication for member in cluster.members if member.id != node}
        looks = [
            look_at_founder(address, cluster.cluster_id, node=node, run=self._run, credentials=self._credentials)
            for address in others.values()
        ]
        told = await asyncio.gather(*looks)
        return {node: (others[node], answer) for node, answer in zip(others, told, strict=True)}

    # --- the cluster is there ---

    async def _is_back(self, decision: ComeBack) -> bool:
        """Whether it worked; else it is tried again. Raises NotAMember."""
        self._tries += 1
        seed = decision.seeds[self._tries % len(decision.seeds)]
        try:
            await self._come_back(seed)
        except (NotAMember, DiskFull, DiskFailed):
            raise
        except MirrorlogError as error:
            self._check_rival(error)
            hint = f"; {decision.hint}" if decision.hint else ""
            self._tell(f"{seed} of cluster {decision.name} could not take this node in again: {error}{hint}")
            return False
        return True

    async def _come_back(self, seed: str) -> None:
        settings = self._settings
        started = NodeStarted(
            node=settings.node.id, start_id=self._run, kind=StartKind.LOSSY, addresses=addresses_of(settings.member)
        )
        returned = await come_back(started, self._never, _AtSeed(seed, settings, self._run, self._credentials))
        if returned is None:
            await self._join(seed)
            return
        self._note_run(returned)
        self._note_member(returned.joined)
        logger.warning(
            "disk_replaced node=%s member=%s seed=%s first=%s",
            settings.node.id, returned.joined.member, seed, returned.first,
        )  # fmt: skip

    async def _join(self, seed: str) -> None:
        """The cluster has forgotten the node: it is a new one."""
        settings = self._settings
        asked = AskJoin(
            node=settings.node.id,
            addresses=addresses_of(settings.member),
            witness=settings.node.witness,
            token=JoinRecord.open(self._files, self._path).content.token,
            version=versions.OWN,
        )
        cluster_id = settings.cluster.cluster_id
        joined = await ask_to_join(seed, cluster_id, asked, run=self._run, credentials=self._credentials)
        self._note_member(joined)
        logger.info("joined node=%s member=%s cluster_id=%s seed=%s", asked.node, joined.member, cluster_id, seed)

    def _note_run(self, returned: ReturnedNode) -> None:
        """The run that the cluster knows now is known to the disk, before the node is a member by it. It counts as one
        that ended with its machine, unless there was nothing that it could have lost."""
        starts = RunHistory.open(self._files, self._path, boot_id="", new_id=lambda: self._run)
        starts.begin()
        starts.registered()
        if returned.first:
            starts.stopped()

    def _note_member(self, joined: Joined) -> None:
        record = JoinRecord.open(self._files, self._path)
        cluster_id = str(self._settings.cluster.cluster_id)
        record.joined(joined.member, cluster_id, msgspec.msgpack.encode(joined.snapshot))

    def _check_rival(self, error: MirrorlogError) -> None:
        """The former run may be ending; if it does not, it has this node's name. Raises NotAMember."""
        now = asyncio.get_running_loop().time()
        self._rival_until = min(self._rival_until, now + RIVAL_S) if "rival" in error.details else inf
        if now >= self._rival_until:
            raise NotAMember(error.message)

    def _tell(self, reason: str) -> None:
        """Each reason once in a while: they may take turns, ten times a second."""
        if self._reasons.is_news(reason):
            logger.info("looking_for_cluster node=%s reason=%r", self._settings.node.id, reason)


class _AtSeed:
    """The cluster, by one of its members (`returning.Cluster`)."""

    def __init__(self, seed: str, settings: Settings, run: str, credentials: Credentials) -> None:
        self._seed = seed
        self._node = settings.node.id
        self._cluster_id = settings.cluster.cluster_id
        self._run = run
        self._credentials = credentials

    async def apply(self, command: NodeStarted) -> Applied:
        asked = AskApply(command=encode_command(command), pass_on=True)
        return await ask_member(
            self._seed, self._cluster_id, asked, Applied, node=self._node, run=self._run, credentials=self._credentials
        )

    async def state(self, index: int) -> Joined:
        asked = AskState(node=self._node, index=index)
        return await ask_member(
            self._seed, self._cluster_id, asked, Joined, node=self._node, run=self._run, credentials=self._credentials
        )


# The administrator whom a cluster gets from one of its nodes: made on that node, by who may read its files, and not by
# whoever is first over the network. Thin.
#
# He is made when the cluster has let the node in and has no users. That he is named in a node's settings later on, or
# in those of several nodes, changes nothing: where there are users, nobody is made. He and his permissions are one
# command, so whatever fails between node and cluster leaves all of him or nothing, and the next attempt finds out
# which.


DECIDE_S: Final = 10.0
AGAIN_S: Final = 0.5


class FirstAdmin:
    """`password`: as his user will type it."""

    def __init__(self, name: str, password: str) -> None:
        self._name = name
        self._password = password
        self._begun = False

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None when the settings name nobody. Raises ConfigError."""
        name, file = settings.node.first_admin, settings.node.first_admin_file
        if name is None or file is None:
            return None
        check_private(file, "node.first_admin_file")
        try:
            with file.open(encoding="utf-8") as opened:
                password = opened.read(PASSWORD_CHARS_MAX + 2).rstrip("\r\n")
            check_password(password)
        except OSError as error:
            raise ConfigError(f"node.first_admin_file {file}: {error.strerror}") from None
        except (UnicodeDecodeError, BadRequest) as error:
            raise ConfigError(f"node.first_admin_file {file}: {error}") from None
        return cls(name, password)

    async def make(self, service: ClusterService) -> None:
        """Try until it is decided, by this node or another one. Once in a run."""
        if self._begun:
            return
        self._begun = True
        password_hash = await asyncio.to_thread(hashed, self._password)
        while not await self._is_decided(service, password_hash):  # noqa: ASYNC110  (the cluster tells nobody)
            await asyncio.sleep(AGAIN_S)

    async def _is_decided(self, service: ClusterService, password_hash: str) -> bool:
        try:
            await service.decisions.up_to_date()
            topology = service.state.topology
            if topology is not None and topology.users:
                return True
            made = FirstUserMade(name=self._name, password_hash=password_hash)
            outcome = await service.decisions.decide(made, timeout_s=DECIDE_S)
            if outcome.refusal:
                logger.warning("first_admin_not_made user=%s reason=%r", self._name, outcome.refusal)
                return False
        except MirrorlogError as error:
            logger.info("first_admin_waits user=%s reason=%r", self._name, str(error))
            return False
        user = service.state.routing.users.get(self._name)
        if user is not None and user.password_hash == password_hash:
            logger.info("first_admin_made user=%s", self._name)
        return True
