"""Where a queue is, by what several nodes say of it: whom to believe, and what follows. Pure.

While the cluster changes, nodes differ: one that is behind, or cut off, still names the former master. Each says up to
which decision of the cluster it knows (`Metadata.version`), so the one that knows most is believed, also when it says
that there is no master: then whoever names one speaks of the past. Nodes that do not tell a version are compared by
the epoch of their copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mirrorlog.errors import LogUnavailable, MirrorlogError, NoSuchQueue, NotCurrent, NotMaster
from mirrorlog.wire.messages.queues import Metadata, QueueInfo, QueueOutage


class FoundQueue(Struct, frozen=True):
    """A queue as one node, `told_by`, described it at a `version` of the cluster.

    `address`: where its master is reached; empty while that node names none. `outage`: why there will be none. `heard`:
    whether that node had heard its cluster (`Metadata.heard`).
    """

    info: QueueInfo
    version: int
    told_by: str
    address: str
    outage: LogUnavailable | None = None
    heard: bool = True

    @property
    def queue(self) -> str:
        return self.info.name

    @property
    def queue_id(self) -> int:
        return self.info.queue_id

    @property
    def producer_epoch(self) -> int:
        """Where a new producer begins."""
        return self.info.producer_epoch

    @property
    def master(self) -> str:
        """Its node id; empty while there is none."""
        return self.info.master

    @property
    def by_master(self) -> bool:
        """Whether the master says it of itself."""
        return self.told_by == self.info.master

    def newer_than(self, other: FoundQueue) -> bool:
        """Whether the node that told this knew more."""
        return (self.version, self.info.epoch) > (other.version, other.info.epoch)

    def replaces(self, other: FoundQueue) -> bool:
        """Whether the queue has another master now than `other` says."""
        return bool(self.address) and self.master != other.master and self.newer_than(other)


def found_in(queue: str, answers: Iterable[Metadata]) -> list[FoundQueue]:
    """One for each node that knows the queue."""
    return [
        FoundQueue(info, answer.version, answer.node_id, _address_of(info.master, answer), heard=answer.heard)
        for answer in answers
        for info in answer.queues
        if info.name == queue
    ]


def newest(found: Iterable[FoundQueue]) -> FoundQueue | None:
    """The one to believe: of those that know as much the master's own, which has the newest facts. None of none."""
    return max(found, key=lambda each: (each.version, each.info.epoch, each.by_master), default=None)


def whole(answers: Sequence[Metadata], queues: Sequence[str] | None) -> Metadata:
    """What several nodes say, as one answer: each queue as the node that knows most of it describes it, in the order in
    which they are asked for. `queues`: None for all, by name.

    Of all there are, one that is on none of the nodes that answer is an outage, as long as some member does not.
    """
    knows_most = max(answers, key=lambda answer: answer.version)
    versions = {answer.node_id: answer.version for answer in answers}
    listed = {answer.node_id: {info.name for info in answer.queues} for answer in answers}
    best: dict[str, FoundQueue] = {}
    for answer in answers:
        for info in answer.queues:
            found = FoundQueue(info, answer.version, answer.node_id, "", heard=answer.heard)
            best[info.name] = newest((best.get(info.name, found), found)) or found
    # A mirror may not have heard yet that its master has deleted a queue.
    there: dict[str, FoundQueue] = {}
    for name in queues if queues is not None else sorted(best):
        told = best.get(name)
        if told and (name in listed.get(told.master, (name,)) or versions[told.master] < told.version):
            there[name] = told
    own = {name for name, found in there.items() if found.by_master and found.heard}
    outages = [outage for outage in knows_most.outages if outage.name not in own]
    asked = queues if queues is not None else knows_most.placed
    missing = [name for name in asked if name not in there]
    if queues is None:
        outages += _unheard_of(
            missing, outages, [node.node_id for node in knows_most.nodes if node.node_id not in listed]
        )
        missing = []
    return replace(
        knows_most,
        queues=[found.info for found in there.values()],
        missing=missing,
        placed=[name for name in knows_most.placed if name in missing],
        outages=outages,
    )


def _unheard_of(queues: Sequence[str], outages: Sequence[QueueOutage], silent: Sequence[str]) -> list[QueueOutage]:
    """Of queues that are on no node that answers. Without a silent one there are none: a place may be taken before its
    queue is declared."""
    told = {outage.name for outage in outages}
    who, do = ", ".join(silent), "does" if len(silent) == 1 else "do"
    reason = f"is on none of the nodes that answer; {who} {do} not"
    return [
        QueueOutage(name=name, log_id="", node=who, reason=f"queue {name!r} {reason}")
        for name in (queues if silent else ())
        if name not in told
    ]


def settled(found: Iterable[FoundQueue], before: FoundQueue | None) -> bool:
    """Whether others need not be waited for: a node names a master that `before` did not know of, or is one itself."""
    return any(
        each.address and (before is None or each.newer_than(before) or (each.by_master and not before.newer_than(each)))
        for each in found
    )


def _address_of(node_id: str, answer: Metadata) -> str:
    return next((node.client for node in answer.nodes if node.node_id == node_id), "") if node_id else ""


# --- No node that holds it is up ------------------------------------------------------------------------------------

# Who asks for such a queue is told at once: to wait helps only when somebody starts the node. Who was at work with it
# already waits on, as long as he was told to: it may be a restart.


def is_outage(error: MirrorlogError) -> bool:
    """Whether this says so."""
    return isinstance(error, LogUnavailable) and "since" in error.details


def outage_of(queue: str, answers: Iterable[Metadata]) -> LogUnavailable | None:
    """By the node that knows most of the cluster, if that says so."""
    newest = max(answers, key=lambda answer: answer.version, default=None)
    for outage in newest.outages if newest is not None else ():
        if outage.name == queue:
            return LogUnavailable(outage.reason, node=outage.node, since=outage.since_us, queue=queue)
    return None


# --- No node that answers has it ------------------------------------------------------------------------------------

# One that has a place is there: the node that has it is slow, or down and not declared so yet; or the queue moves, and
# those that were asked had not all heard of its new place. Who asks again, as of one without a master, will find it.


def not_found(queue: str, answers: Sequence[Metadata]) -> NoSuchQueue | NotMaster:
    """Why a queue is on none of the nodes that answer (there is one), by those that know most: of these only the master
    of the log that it is placed in denies it."""
    knows_most = max(answers, key=lambda answer: answer.version)
    if any(queue not in answer.placed for answer in answers if answer.version == knows_most.version):
        return NoSuchQueue(f"no queue {queue!r}; make it with: mqtool declare {queue}", queue=queue)
    heard_of = {answer.node_id for answer in answers}
    silent = [node.node_id for node in knows_most.nodes if node.node_id not in heard_of]
    who = f"; {', '.join(silent)} did not answer in time" if silent else ""
    return NotMaster(f"queue {queue!r} is there, and no node that answers has it at the moment{who}", queue=queue)


# --- It is another one, or is no more -------------------------------------------------------------------------------

# A queue that was deleted, or lost, may have been declared anew under its name. It has another id, and its offsets
# begin again: who reads on where he stood would pass over records, and who settles would settle others than he has.
# Its incarnation is looked at beside the id: a log that lost declarations of a software that did not know how many ids
# it had given out may give an id again.


def check_same(queue: str, known: QueueInfo | None, found: QueueInfo) -> None:
    """`known`: None when it is found for the first time. Raises NoSuchQueue, for good."""
    if known is None:
        return
    told = known.incarnation and found.incarnation
    if known.queue_id != found.queue_id or (told and known.incarnation != found.incarnation):
        raise NoSuchQueue(
            f"queue {queue!r} was deleted, and declared anew since; begin anew to have the new one",
            queue=queue,
            declared_anew=True,
        )


def ended_with_its_node(known: QueueInfo, version: int, answer: Metadata) -> bool:
    """Whether a queue that a node described at a `version` of the cluster is no more, by the `answer` of one that knows
    as much: it has no place. So it is of those that go with a node or a connection only. Another one's place may be
    unknown to a node that its log has not reached: it is waited for."""
    passing = known.arguments.get("exclusive") is True or known.arguments.get("durable") is False
    told = version and answer.version >= version
    return bool(passing and told) and known.name in answer.missing and known.name not in answer.placed


def is_another(error: MirrorlogError) -> bool:
    """Whether this says that it is another one, or is no more: asking again cannot change it."""
    return isinstance(error, NoSuchQueue) and bool(error.details.get("declared_anew") or error.details.get("ended"))


# --- Whether what a node says is all that is confirmed --------------------------------------------------------------

# Only a master whose epoch has begun knows that (invariant 4), and only it can say of itself that it is one: a node
# that was promoted may not have heard of it yet, and describes the queue as the mirror that it was, with less than its
# predecessor confirmed. What others say of it does not help: they may know of the promotion before it does. Rejected:
# to compare the versions of the cluster that nodes know (a node that has heard has not begun for that).


def is_known(info: QueueInfo, *, told_by: str) -> bool:
    """Whether `info.next`, as the node `told_by` gave it, is behind all that is confirmed."""
    return info.current and info.master == told_by


def not_known(info: QueueInfo, *, told_by: str) -> NotCurrent:
    """What is said to who wanted to know it of that node."""
    if told_by == info.master:
        why = f"node {told_by} has just become master of queue {info.name!r}, or is no more"
    elif info.master:
        why = f"node {told_by} does not master queue {info.name!r}, as far as it has heard"
    else:
        why = f"nobody masters queue {info.name!r} at the moment"
    return NotCurrent(
        f"{why}: what is confirmed by now it cannot say; ask again, or read what one copy knows: read_from a node's id"
    )
