"""Registration: how the cluster comes to know of one run of a node, and how that run finds out that it is over.

A start is a command like any other. What is refused is told apart by what the cluster's state says of the node, as
somebody else has it: this member's own Raft may be one that hears nothing any more.

    no such node, or another member       forgotten: the run ends, and says so
    a start id that the disk knows        refused for good
    one that the disk does not know       the disk was set back, or copied: asked again, naming it (`seen`)

A disk that was set back may have forgotten a vote. So its Raft member is over too: the node is another member from that
entry on, and begins with what another one has applied, as a blank disk would; its logs stay, and are marked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from mirrorlog.cluster.requests import Applied, AskApply, AskState, Joined, decode_answer, encode
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import NodeStarted
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, Outcome, decode_state
from mirrorlog.errors import DiskFailed, MirrorlogError, NotAMember, NotLeader, ProtocolError, RequestTimeout

logger = logging.getLogger(__name__)

ASK_S: Final = 2.0
RETRY_S: Final = 0.1
RIVAL_S: Final = 5.0
"""How long another process with this node's name, whose run the cluster knows, is waited for: it may be ending."""
STUCK_S: Final = 10.0
"""A member that hears its leader, is known to the cluster and learns nothing for so long has lost what it answered for:
its disk was set back to an earlier moment of the run that the cluster knows, so that no start id tells."""
WATCH_S: Final = 1.0
"""How often a run that hears no leader asks others whether it is still the one."""


class RaftMember(Protocol):
    """The Raft member of this node, and the way to the others."""

    @property
    def own(self) -> int:
        """Its number."""

    @property
    def applied_index(self) -> int:
        """The index up to which it knows what is decided."""

    @property
    def hears_leader(self) -> bool: ...

    def others(self) -> list[str]:
        """Who can be asked now."""

    async def ask(self, node: str, question: bytes) -> bytes:
        """Raises MirrorlogError."""

    async def ask_leader(self, data: bytes) -> Outcome:
        """Have a command decided. Raises MirrorlogError."""

    async def told(self, node: str, index: int) -> Joined:
        """Of a node, once everything up to `index` is applied here. Raises MirrorlogError."""

    async def begin_anew(self, told: Joined) -> None:
        """As another Raft member. Raises MirrorlogError."""


class Registration:
    """Of the run that `started` says, as a member that is not known yet and with nothing seen. `failed`: this run is
    over."""

    def __init__(
        self, started: Callable[[], NodeStarted], member: RaftMember, *, failed: Callable[[MirrorlogError], None]
    ) -> None:
        self._started = started
        self._member = member
        self._failed = failed
        self._asked = 0
        self._in_since: int | None = None
        self._stuck: tuple[int, float] | None = None

    @property
    def is_in(self) -> bool:
        """Whether the cluster has been seen to know of this run."""
        return self._in_since is not None

    async def register(self) -> None:
        """Until the cluster knows of this run, and that is known here. Raises NotAMember when it never will,
        DiskFailed."""
        told = ""
        seen = ""
        rival_until = inf
        patient_until = asyncio.get_running_loop().time() + ASK_S
        while True:
            try:
                async with asyncio.timeout(2 * ASK_S):
                    found = await self._try(seen, patient_until)
                if found is None:
                    return
                seen = found
            except (NotAMember, DiskFailed):
                raise
            except (MirrorlogError, TimeoutError) as error:
                now = asyncio.get_running_loop().time()
                if isinstance(error, MirrorlogError) and "rival" in error.details:
                    rival_until = min(rival_until, now + RIVAL_S)
                    if now >= rival_until:
                        raise NotAMember(error.message) from None
                reason = str(error) or "the cluster has not decided in time; is a majority of its nodes up?"
                if reason != told:
                    logger.info("waiting_for_cluster node=%s reason=%r", self._started().node, reason)
                told = reason
                await asyncio.sleep(RETRY_S)

    def note(self, state: ClusterState, index: int) -> None:
        """The cluster's state, as of entry `index`."""
        started = self._started()
        own = state.nodes.get(started.node)
        if own is not None and own.start_id == started.start_id:
            self._in_since = index if self._in_since is None else self._in_since
        elif self._in_since is not None:
            self._failed(_over(started.node, own))

    async def watch(self) -> None:
        """A member that was removed hears nothing any more: it asks whether it was."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._in_since is None or self._member.hears_leader or not self._member.others():
                continue
            try:
                self.note(await self._state(self._in_since), self._in_since)
            except NotAMember as error:
                self._failed(error)
            except MirrorlogError:
                continue

    # --- inside ---

    async def _try(self, seen: str, patient_until: float) -> str | None:
        """None: it is in. Else what the cluster's start id was seen to be."""
        started, member = self._command(seen), self._member
        outcome = await self._decided(encode_command(started), patient_until)
        if not outcome.refusal and not seen:
            await self._known_here(outcome.index)
            return None
        told = await self._told(outcome.index)
        facts = decode_state(told.snapshot.state).nodes[started.node]
        known = ("", started.before, *started.since)
        ours = facts.start_id == started.start_id or (facts.start_id in started.since and not self.is_in)
        if ours and facts.member != member.own:
            logger.warning("begun_anew node=%s member=%s was=%s", started.node, facts.member, member.own)
            await member.begin_anew(told)
            return ""
        if not outcome.refusal:
            return ""
        if facts.member != member.own or facts.start_id in known or self.is_in:
            raise NotAMember(f"the cluster does not let this node in: {outcome.refusal}")
        logger.warning("disk_set_back node=%s registered_as=%s", started.node, facts.start_id)
        return facts.start_id

    async def _known_here(self, index: int) -> None:
        """Raises RequestTimeout, and NotAMember when that will never be."""
        loop, member = asyncio.get_running_loop(), self._member
        if self._stuck is None or self._stuck[0] != member.applied_index:
            self._stuck = member.applied_index, loop.time()
        try:
            await member.told(self._started().node, index)
        except RequestTimeout:
            applied, since = self._stuck
            if member.hears_leader and member.applied_index == applied and loop.time() - since >= STUCK_S:
                raise NotAMember(
                    f"the disk of node {self._started().node} lacks what it has answered for: it was set back, or is a "
                    "copy; forget the node, and start it with a blank disk"
                ) from None
            raise

    def _command(self, seen: str) -> NodeStarted:
        return msgspec.structs.replace(self._started(), member=self._member.own, seen=seen)

    async def _decided(self, data: bytes, patient_until: float) -> Outcome:
        """As `ask_leader`. A member that was removed never hears of one: after some time, in s of the loop's clock,
        another one passes it on."""
        others = self._member.others()
        if self._member.hears_leader or not others or asyncio.get_running_loop().time() < patient_until:
            return await self._member.ask_leader(data)
        asked = encode(AskApply(command=data, pass_on=True))
        answer = decode_answer(await self._member.ask(self._next(others), asked), Applied)
        return Outcome(answer.index, answer.refusal)

    async def _told(self, index: int) -> Joined:
        """What the cluster has decided up to `index` of this node, from whoever has applied it."""
        node, others = self._started().node, self._member.others()
        if not others:
            return await self._member.told(node, index)
        asked = encode(AskState(node=node, index=index))
        return decode_answer(await self._member.ask(self._next(others), asked), Joined)

    async def _state(self, index: int) -> ClusterState:
        return decode_state((await self._told(index)).snapshot.state)

    def _next(self, others: list[str]) -> str:
        self._asked += 1
        return others[self._asked % len(others)]


def _over(node: str, now: NodeFacts | None) -> NotAMember:
    if now is None:
        return NotAMember(f"node {node} was forgotten by its cluster; its copies count no more")
    return NotAMember(
        f"another run of node {node} has registered, at {now.addresses.replication or 'no address'}: are there two "
        "processes on copies of one disk? stop one of them for good"
    )


# How a node whose disk is blank comes back to a cluster that knows its name: as another Raft member.
#
# Its disk may have voted and answered for entries, and has forgotten both. So the member that it was ends with the
# entry that registers a run of it which has seen the cluster's start id (`NodeStarted.seen`), as for a disk that was
# set back: the new member's number is that entry's index, its copies are marked, and it begins with what another node
# has applied. That run is the search itself: the node's own one follows it, on a disk that knows it.
#
# A node that never registered may have voted all the same. Its first start id is that of a run which never was: so the
# next one is not its first, and it is another member too.
#
# Done again from the beginning, whenever it was cut short, it comes to the same: what was decided shows in the state.


class ClusterAccess(Protocol):
    """Any member of it."""

    async def apply(self, command: NodeStarted) -> Applied:
        """Have it decided. Raises MirrorlogError."""

    async def state(self, index: int) -> Joined:
        """What is decided of this node, up to `index` at least. Raises NotAMember when the cluster does not know it,
        MirrorlogError."""


@dataclass(frozen=True, slots=True)
class ReturnedNode:
    """`joined`: which member it is now, and what that begins with; `first`: the cluster knew of no run of it."""

    joined: Joined
    first: bool


class _Unknown(Exception):
    """The cluster does not know the node."""


async def come_back(started: NodeStarted, never: str, cluster: ClusterAccess) -> ReturnedNode | None:
    """`started`: the run that sees the disk blank; `never`: the start id of one that never was. None when the cluster
    does not know the node: it may join. Raises MirrorlogError: then it may be tried again with the same arguments; with
    `rival` in its details while the former run is still heard."""
    try:
        return await _come_back(started, never, cluster)
    except _Unknown:
        return None


async def _come_back(started: NodeStarted, never: str, cluster: ClusterAccess) -> ReturnedNode:
    node = started.node
    joined, facts = await _known(cluster, 0, node)
    if facts.start_id == started.start_id:
        return ReturnedNode(joined, first=False)  # decided, and the answer was lost
    if not facts.start_id:
        outcome = await cluster.apply(replace(started, start_id=never))
        _, facts = await _known(cluster, outcome.index, node)
    seen = facts.start_id
    outcome = await cluster.apply(replace(started, seen=seen))
    joined, facts = await _known(cluster, outcome.index, node)
    if facts.start_id != started.start_id:
        raise NotLeader(outcome.refusal or f"run {facts.start_id} of node {node} was registered meanwhile")
    return ReturnedNode(joined, first=seen == never)


async def _known(cluster: ClusterAccess, index: int, node: str) -> tuple[Joined, NodeFacts]:
    try:
        told = await cluster.state(index)
    except NotAMember:
        raise _Unknown from None
    try:
        return told, decode_state(told.snapshot.state).nodes[node]
    except (KeyError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"what the cluster knows of node {node} does not fit: {error}") from None
