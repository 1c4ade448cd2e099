"""What a node tells of its queues: each by itself, or all that somebody may see, made and encoded once for many.

A list of a thousand queues costs milliseconds, is asked for in 34 bytes, and is the same for all who may see the same.
So the facts of a log's queues are kept until its bytes, its epoch or the cluster's decisions have moved, and a whole
answer until one of its parts has. Which queues a user sees: `queues.access.may_see`, asked once for each name.

Queues that go with their node's run come and go without a change of any of these: they are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.decisions import asker
from mirrorlog.cluster.state.placements import Span
from mirrorlog.cluster.state.topology import User
from mirrorlog.config import Settings
from mirrorlog.queues.access import may_see
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import Encoded, encode
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo, SpanInfo, TierInfo

USERS_MAX: Final = 64
"""Whose answers, and what each of them sees, are kept."""


class _Seen:
    """By one user, as he is now: which names he sees, and the last answer with what it was made of."""

    __slots__ = ("answer", "names", "of", "user")

    def __init__(self, user: User | None) -> None:
        self.user = user
        self.names: dict[str, bool] = {}
        self.of: list[Any] | None = None
        self.answer = Encoded(data=b"")

    def sees(self, key: str) -> bool:
        if self.user is None:
            return True
        known = self.names.get(key)
        if known is None:
            known = self.names[key] = may_see(self.user, key)
        return known


class MetadataAnswers:
    """`is_there`: see `LifetimeKeeper`."""

    def __init__(
        self, settings: Settings, logs: HostedLogs, view: ClusterView, is_there: Callable[[HostedLog, Queue], bool]
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._view = view
        self._is_there = is_there
        self._of_logs: dict[UUID, tuple[Replica, tuple[object, ...], list[QueueInfo]]] = {}
        self._seen: dict[str, _Seen] = {}

    def all(self) -> Message:
        """All queues of this node's logs that whoever asks may see, and the names of those that are elsewhere."""
        seen = self._seen_by(asker())
        outages = [each for each in self._view.outages(None) if seen.sees(each.name)]
        lists = [self._of_log(log) for log in self._logs]
        of = [self._view.version(), self._view.has_heard(), outages, lists]
        if seen.of != of:
            found = [each for infos in lists for each in infos if seen.sees(each.name)]
            here = {each.name for each in found}
            elsewhere = [name for name in self._view.names() if name not in here and seen.sees(name)]
            answer = replace(self.of(found, []), placed=elsewhere, outages=outages)
            seen.of, seen.answer = of, Encoded(data=encode(answer))
        return seen.answer

    def of(self, queues: list[QueueInfo], missing: list[str]) -> Metadata:
        """An answer with these."""
        cluster = self._settings.cluster
        nodes = [
            NodeInfo(
                node_id=member.id,
                client=member.client,
                replication=member.replication,
                grpc=member.grpc,
                http=member.http,
            )
            for member in self._view.members()
        ]
        return Metadata(
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id=self._settings.node.id,
            nodes=nodes,
            queues=queues,
            missing=missing,
            placed=[name for name in missing if self._may_be_placed(name)],
            version=self._view.version(),
            heard=self._view.has_heard(),
        )

    def queue(self, log: HostedLog, queue: Queue) -> QueueInfo:
        """One, as it is now."""
        return self._infos(log, (queue,))[0]

    def moving(self, name: str) -> tuple[HostedLog, Queue] | None:
        """A queue that is moving, as it left, or as it has come and is about to be opened: it is there, and takes
        nothing for a moment."""
        found = [
            (log, queue)
            for log in self._logs
            for queue in (log.replica.queues.moves.aside.values() if log.replica.queues.moves else ())
            if queue.name == name
        ]
        placed = self._view.placed(name)
        return next((each for each in found if each[0].log_id == placed), None)

    # --- inside ---

    def _may_be_placed(self, name: str) -> bool:
        """Of one that is not found here. Whoever masters the log that it is placed in would have it: it is not declared
        yet, or its place is about to be given back."""
        log_id = self._view.placed(name)
        log = self._logs.held(str(log_id))
        return log_id is not None and not (log is not None and log.knows_confirmed)

    def _seen_by(self, name: str) -> _Seen:
        """Nobody in particular sees everything: there are no users, or it is one of the node's doors."""
        user = self._view.users().get(name) if name else None
        seen = self._seen.get(name)
        if seen is None or seen.user is not user:
            if name not in self._seen and len(self._seen) >= USERS_MAX:
                del self._seen[next(iter(self._seen))]
            seen = self._seen[name] = _Seen(user)
        return seen

    def _of_log(self, log: HostedLog) -> list[QueueInfo]:
        replica, copy, view = log.replica, log.replica.log, self._view
        if view.is_transient(log.log_id):
            return self._infos(log, [queue for queue in replica.queues if self._is_there(log, queue)])
        stamp = (
            copy.end, copy.confirmed, copy.begin, copy.epochs.current, log.knows_confirmed, log.masters,
            replica.assignment, view.version(), view.has_heard(), view.why_unmastered(log.log_id),
        )  # fmt: skip
        kept = self._of_logs.get(log.log_id)
        if kept is None or kept[0] is not replica or kept[1] != stamp:
            kept = self._of_logs[log.log_id] = replica, stamp, self._infos(log, self._here(log))
            self._drop_gone()
        return kept[2]

    def _here(self, log: HostedLog) -> Iterable[Queue]:
        """Those that the cluster has placed in a log, as far as it has placed them: one that is moving is here until it
        is elsewhere, and a copy that is behind has some that have moved."""
        queues = log.replica.queues
        if self._view.cluster_version() < versions.PLACEMENTS:
            return queues
        placed = set(self._view.placed_in(log.log_id))
        there = [*queues, *queues.moves.leaving()]
        return [each for each in there if each.name in placed or self._view.placed(each.name) in (None, log.log_id)]

    def _drop_gone(self) -> None:
        there = {log.log_id for log in self._logs}
        for log_id in self._of_logs.keys() - there:
            del self._of_logs[log_id]

    def _infos(self, log: HostedLog, queues: Iterable[Queue]) -> list[QueueInfo]:
        replica, index = log.replica, log.replica.index
        log_id, epoch, current = str(replica.log_id), replica.log.epochs.current, log.knows_confirmed
        producer_epoch = replica.producers.epoch_floor
        found = self._view.master(replica.log_id)
        master = found.id if found is not None else ""
        mirrors = [node for node in replica.assignment.nodes if node != master]
        reason = self._view.why_unmastered(replica.log_id)
        # Who has not heard the cluster may know the version of its founding alone: others are asked then (`heard`).
        attributes = self._view.has_heard() and self._view.cluster_version() >= versions.ATTRIBUTES
        return [
            QueueInfo(
                name=queue.name,
                queue_id=queue.queue_id,
                incarnation=queue.incarnation,
                log_id=log_id,
                epoch=epoch,
                master=master,
                mirrors=[] if _expires(log, queue) else mirrors,
                begin=index.begin(queue.queue_id),
                next=index.next_confirmed(queue.queue_id),
                producer_epoch=producer_epoch,
                arguments=queue.arguments,
                current=current,
                tiers=_tiers(log, queue),
                gaps=_gaps(log, queue),
                attributes=attributes,
                reason=reason,
                **self._spans_of(queue.name),
                **self._governed(queue),
            )
            for queue in queues
        ]

    def _spans_of(self, name: str) -> dict[str, Any]:
        if not (spans := self._view.spans(name)):
            return {}
        live = [self._span(span) for span in spans if not span.ended]
        return {"spans": live if len(live) > 1 else [], "former_logs": [span.log_id for span in spans]}

    def _governed(self, queue: Queue) -> dict[str, Any]:
        """Nothing of a queue of which no policy ever said anything."""
        if not self._view.policies_version():
            return {}
        holds, said = self._view.effective(queue.name, queue.arguments), queue.governed
        decided = (holds.policy, holds.operator)
        if said is None:
            return {"policy_pending": True} if any(decided) else {}
        pending = decided != (said.policy, said.operator_policy) or (any(decided) and holds.arguments != said.arguments)
        return {
            "policy": said.policy,
            "operator_policy": said.operator_policy,
            "effective": said.arguments,
            "sources": {} if pending or not any(decided) else holds.sources,
            "policy_version": said.version,
            "policy_pending": pending,
        }

    def _span(self, span: Span) -> SpanInfo:
        facts = self._view.log_facts(span.log_id)
        assert facts is not None, "a log with a live span stays"
        master = facts.master.node if facts.master is not None else ""
        mirrors = [node for node in facts.replicas if node != master]
        return SpanInfo(log_id=span.log_id, first=span.first, epoch=facts.epoch, master=master, mirrors=mirrors)


async def offset_at(log: HostedLog, queue_id: int, time_us: int) -> int:
    """Of the first record of a queue that was appended then or later, in that log."""
    index = log.replica.index
    if not index.is_past_time(queue_id, time_us):
        return index.find_time(queue_id, time_us)
    past = await log.past.find_time(queue_id, time_us)
    found = index.find_time(queue_id, time_us)
    return found if past is None else max(index.begin(queue_id), min(past, found))


def _expires(log: HostedLog, queue: Queue) -> bool:
    """Whether it goes unless it is used: it is read at its master alone, which does not see what mirrors give."""
    lifetime = log.replica.queues.lifetimes.get(queue.queue_id)
    return lifetime is not None and lifetime.expires_ms is not None


def _tiers(log: HostedLog, queue: Queue) -> list[TierInfo]:
    """The tables that have more first. Ended holds too: what was landed is there still; of none that has landed nothing
    yet: its table may not be there."""
    holds = log.replica.holds.confirmed(queue.queue_id).values()
    found = [TierInfo(name=hold.name, location=hold.location, next=hold.queue_offset) for hold in holds if hold.is_tier]
    return sorted(found, key=lambda tier: (-tier.next, tier.name))


def _gaps(log: HostedLog, queue: Queue) -> list[tuple[int, int]]:
    index, queue_id = log.replica.index, queue.queue_id
    begin, confirmed = index.begin(queue_id), index.next_confirmed(queue_id)
    return [gap for gap in index.gaps_of(queue_id) if begin <= gap[0] and gap[1] <= confirmed]
