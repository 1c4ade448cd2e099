"""`AlterQueue`: a queue gets other arguments of its place, and goes where they lead.

Three steps, each of which may be done twice: the log that it belongs in is made, if there is none; its own log says its
new arguments, confirmed; the cluster decides the move. Whoever asks again goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed, publisher_of
from mirrorlog.broker.session.queue_requests import Handler, Requests, Respond
from mirrorlog.cluster.state.commands import LogAltered, MoveBegun
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.errors import BadRequest
from mirrorlog.queues.arguments import PLACING, check_values, log_group_of
from mirrorlog.queues.changes import QueueAltered, encode_change
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import AlteredQueue, AlterQueue
from mirrorlog.wire.names import qualified, shown, split

TOGETHER_MAX: Final = 1_000
"""Queues of one log group that move at once."""


class AlterRequests:
    """Answered by the master of the queue's log."""

    def __init__(self, requests: Requests, view: ClusterView) -> None:
        self.handlers: dict[type[Message], Handler] = {AlterQueue: self._alter}
        self._requests = requests
        self._view = view

    def _alter(self, message: AlterQueue, respond: Respond) -> None:
        needed = versions.PLACEMENTS
        if (older := versions.too_old(self._view.cluster_version(), needed, "queues that move")) is not None:
            respond(older)
            return
        log, queue = self._requests.find(message.name)
        if not log.masters:
            raise not_master(log.name, self._view.master(log.log_id))
        arguments = _altered(queue, message.arguments)
        together = self._together(log, queue)
        self._requests.once_known(
            log, respond, lambda: self._requests.later(self._move(log, together, arguments, message, respond), respond)
        )

    def _together(self, log: HostedLog, queue: Queue) -> list[Queue]:
        """The queues of its log group, it among them."""
        host, group = split(queue.name)[0], log_group_of(queue.arguments)
        if not group:
            return [queue]
        found = [
            each for each in log.replica.queues if log_group_of(each.arguments) == group and split(each.name)[0] == host
        ]
        if len(found) > TOGETHER_MAX:
            raise BadRequest(f"log group {shown(group)} has {len(found)} queues, and {TOGETHER_MAX} can move together")
        return found

    async def _move(
        self, log: HostedLog, queues: Sequence[Queue], arguments: dict[str, Any], message: AlterQueue, respond: Respond
    ) -> None:
        view, name, names = self._view, message.name, tuple(each.name for each in queues)
        rule = view.rule_for(arguments)
        alone = set(view.placed_in(log.log_id)) <= set(names)
        in_place = alone and view.may_alter(log.log_id, rule)
        target = (
            log.log_id if in_place else await view.wanted_log(name, arguments, log.log_id, make=not message.dry_run)
        )
        answer = self._answer(log, queues, rule, in_place=in_place, moves=target != log.log_id, message=message)
        if not message.dry_run:
            await self._log(log, queues, arguments)
            if in_place:
                await self._decide_rule(log, rule)
            elif target is not None and target != log.log_id:
                await self._decide(MoveBegun(names=names, target=str(target), log_group=self._group(queues[0])))
        respond(answer)

    @staticmethod
    def _group(queue: Queue) -> str:
        group = log_group_of(queue.arguments)
        return qualified(split(queue.name)[0], group) if group else ""

    def _answer(
        self,
        log: HostedLog,
        queues: Sequence[Queue],
        rule: Placement,
        *,
        in_place: bool,
        moves: bool,
        message: AlterQueue,
    ) -> AlteredQueue:
        facts, index = self._view.log_facts(str(log.log_id)), log.replica.index
        held = len(facts.replicas) if facts is not None else 0
        copies = log.replica.log.end - log.replica.log.begin
        left = sum(index.next_confirmed(each.queue_id) - index.begin(each.queue_id) for each in queues)
        more = max(0, self._view.copies_of(rule) - held) if in_place else 0
        return AlteredQueue(
            queues=[each.name for each in queues],
            rule=rule.words,
            log=log.name,
            moves=moves,
            copies_change=in_place and self._view.rule_of(log.log_id) != rule,
            copied_bytes=more * copies,
            left_records=left if moves else 0,
            done=not message.dry_run,
        )

    async def _log(self, log: HostedLog, queues: Sequence[Queue], arguments: dict[str, Any]) -> None:
        """All of a group have the same place, so they get the same words about it."""
        changed = {name: arguments.get(name) for name in PLACING}
        for queue in queues:
            wanted = _but_none({**queue.arguments, **changed})
            if wanted == queue.arguments:
                continue
            publisher = publisher_of(log, self._view)
            altered = encode_change(QueueAltered(queue_id=queue.queue_id, arguments=wanted))
            await confirmed(partial(publisher.append_change, altered))

    async def _decide_rule(self, log: HostedLog, rule: Placement) -> None:
        facts = self._view.log_facts(str(log.log_id))
        if facts is not None and self._view.rule_of(log.log_id) != rule:
            await self._decide(LogAltered(log_id=str(log.log_id), seen=facts.seen, placement=rule))

    async def _decide(self, command: LogAltered | MoveBegun) -> None:
        outcome = await self._view.decide_once(command)
        if outcome.refusal:
            raise outcome.error


def _altered(queue: Queue, changes: dict[str, Any]) -> dict[str, Any]:
    """Its arguments with these; None takes one away. Raises BadRequest."""
    if is_transient(queue.arguments):
        raise BadRequest(
            f"queue {shown(queue.name)} goes with its node (exclusive, or not durable): it stays where it is"
        )
    if unknown := sorted(changes.keys() - PLACING):
        raise BadRequest(
            f"argument {unknown[0]!r} of a queue cannot be changed; those of its place can: {', '.join(PLACING)}"
        )
    wanted = {**queue.arguments, **changes}
    if "copies" in changes and changes["copies"] is not None and "nodes" not in changes:
        wanted["nodes"] = None
    if "nodes" in changes and changes["nodes"] is not None and "copies" not in changes:
        wanted["copies"] = None
    wanted = _but_none(wanted)
    check_values(wanted)
    return wanted


def _but_none(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
