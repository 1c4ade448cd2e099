"""What a member of the cluster answers the others: requests of members, and of a node that wants to join. Thin."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Protocol

from mirrorlog import versions
from mirrorlog.cluster import requests
from mirrorlog.cluster.coordinator_runner import CoordinatorRunner
from mirrorlog.cluster.decisions import Decisions
from mirrorlog.cluster.membership.joining import check_joining
from mirrorlog.cluster.ports import MemberHost
from mirrorlog.cluster.state.commands import NodeJoined, NodeStarted
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.errors import NotAMember, NotLeader, ProtocolError

logger = logging.getLogger(__name__)


class AnsweringMember(Protocol):
    """Whose answers these are."""

    @property
    def identity(self) -> NodeStarted: ...
    @property
    def state(self) -> ClusterState: ...
    @property
    def coordination(self) -> CoordinatorRunner: ...
    @property
    def decisions(self) -> Decisions: ...
    async def told(self, node: str, index: int) -> requests.Joined:
        """Of a node, once everything up to `index` is applied here. Raises NotAMember, RequestTimeout."""

    async def applied_here(self, index: int) -> None:
        """Until everything up to `index` is applied here. Raises RequestTimeout."""


_OF_DEAD_LETTERS = requests.AskQueue | requests.AskTake | requests.AskBatch


class Answers:
    """`dead_letters`: answers what other nodes' queues ask of the logs that are mastered here; `arrivals`: takes
    queues that move to them; `syncs`: gives what queues have left in them."""

    def __init__(self, member: AnsweringMember, host: MemberHost) -> None:
        self.dead_letters: Callable[[_OF_DEAD_LETTERS], Awaitable[requests.AnyAnswer]] | None = None
        self.arrivals: Callable[[requests.AskArrival | requests.AskFree], Awaitable[requests.AnyAnswer]] | None = None
        self.syncs: Callable[[requests.AskOfFormer], Awaitable[requests.AnyAnswer]] | None = None
        self._member = member
        self._host = host

    async def to(self, question: bytes) -> bytes:
        """To a member's request. Raises MirrorlogError, which is an answer too."""
        return requests.encode(await self._to(requests.decode_question(question)))

    async def _to(self, asked: requests.AnyQuestion) -> requests.AnyAnswer:
        member = self._member
        told: requests.AnyAnswer = requests.Noted()
        if isinstance(asked, requests.AskApply):
            decide = member.decisions.ask_leader if asked.pass_on else member.decisions.lead
            outcome = await decide(asked.command)
            told = requests.Applied(
                index=outcome.index, refusal=outcome.refusal, code=outcome.code, details=dict(outcome.details)
            )
        elif isinstance(asked, requests.AskFence):
            told = await self.fence_here(asked)
        elif isinstance(asked, requests.AskElection):
            told = member.coordination.elect(asked)
        elif isinstance(asked, requests.AskState):
            told = await member.told(asked.node, asked.index)
        elif isinstance(asked, requests.AskApplied):
            await member.applied_here(asked.index)
        elif isinstance(asked, requests.AskIndex):
            told = requests.Applied(index=await member.decisions.decided_up_to())
        elif isinstance(asked, requests.AskSizes):
            told = requests.LogSizes(sizes=dict(self._host.sizes()), lags=member.coordination.known_lags())
        else:
            told = await self._of_queues(asked)
        return told

    async def _of_queues(self, asked: requests.AnyQuestion) -> requests.AnyAnswer:
        """By the logs that are mastered here."""
        if isinstance(asked, requests.AskArrival | requests.AskFree) and self.arrivals is not None:
            return await self.arrivals(asked)
        if isinstance(asked, requests.AskOfFormer) and self.syncs is not None:
            return await self.syncs(asked)
        if (
            isinstance(asked, requests.AskQueue | requests.AskTake | requests.AskBatch)
            and self.dead_letters is not None
        ):
            return await self.dead_letters(asked)
        raise ProtocolError(f"{type(asked).__name__} from a member")

    async def fence_here(self, asked: requests.AskFence) -> requests.Fenced:
        """Raises NotLeader when another run was meant, MirrorlogError when it cannot be."""
        identity = self._member.identity
        if asked.start_id != identity.start_id:
            raise NotLeader(f"node {identity.node} runs as {identity.start_id}, not as {asked.start_id}")
        report = await self._host.fence(asked.log_id, asked.epoch, gently=asked.gently)
        return requests.Fenced(**asdict(report))

    async def let_in(self, asked: requests.AskJoin) -> requests.Joined:
        """A node asks to be in. Raises NotAMember when the cluster does not want it; after any other MirrorlogError it
        may ask again, by the same token."""
        check_joining(asked)
        member = self._member
        if reason := versions.misfit(asked.version, member.state.cluster_version):
            if versions.misfit(versions.version_of(member.identity.start_id), member.state.cluster_version):
                raise NotLeader("this node does not know yet what its cluster has decided; ask again")
            raise NotAMember(f"the cluster does not let this node in: {reason}")
        joined = NodeJoined(node=asked.node, addresses=asked.addresses, witness=asked.witness, token=asked.token)
        outcome = await member.decisions.decide_once(joined)
        if outcome.refusal:
            raise NotAMember(f"the cluster does not let this node in: {outcome.refusal}")
        told = await member.told(asked.node, outcome.index)
        if member.state.nodes[asked.node].token != asked.token:
            raise NotAMember(f"the cluster does not let this node in: node {asked.node} was forgotten meanwhile")
        logger.info("let_in node=%s member=%s index=%s", asked.node, told.member, outcome.index)
        return told
