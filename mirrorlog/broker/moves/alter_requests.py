"""`AlterQueue`: a queue gets other arguments of its place, and goes where they lead; `CancelMove`: it stays;
`ListMoves`: which ones are on their way.

Three steps, each of which may be done twice: the log that it belongs in is made, if there is none; its own log says its
new arguments, confirmed; the cluster decides the move. Whoever asks again goes on from there. Each of them takes a
while, in which the queue may leave, its log group may get another queue, and its log others: so all of it is looked at
again behind each wait, and only what is still so is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.membership.placing import place_asked
from mirrorlog.broker.moves.evening import QueueEvening
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.broker.moves.wanted_places import WantedPlaces
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed, publisher_of
from mirrorlog.broker.session.queue_requests import Handler, Requests, Respond, loop_time
from mirrorlog.cluster.decisions import asker
from mirrorlog.cluster.requests import AskHeld, HeldTold
from mirrorlog.cluster.state.commands import LogAltered, MoveBegun, MoveCancelled, QueueSyncWished
from mirrorlog.cluster.state.placements import MovingQueue, Placement
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError, QueueMoving, Refused
from mirrorlog.queues.access import check_together, may_see
from mirrorlog.queues.arguments import PLACING, SYNC_MODE, check_values, log_group_key, without_words
from mirrorlog.queues.changes import QueueAltered, encode_change
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import AlteredQueue, AlterQueue, CancelMove, MoveOfQueue, MovesFound, Stays
from mirrorlog.wire.names import shown

TOGETHER_MAX: Final = 1_000
"""Queues of one log group that move at once."""


LOOKS_MAX: Final = 5
"""How often it is decided anew when what it was decided by has changed meanwhile."""


BACK_S: Final = 3.0
"""How long a queue whose move is cancelled is waited for; then whoever asked for that asks again."""
BACK_LOOK_S: Final = 0.02
SIZED_MAX: Final = 50
"""Queues of a list whose bytes are counted; of more nobody looks at each."""


class _Plan(NamedTuple):
    """Which queues change, as they are found now. `in_place`: nobody is in their log who asks for another place, and it
    may get the rule."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    arguments: dict[str, Any]
    holds: dict[str, Any]
    rule: Placement
    in_place: bool
    log_group: str


class AlterRequests:
    """Answered by the master of the queue's log."""

    def __init__(self, requests: Requests, view: ClusterView) -> None:
        self.handlers: dict[type[Message], Handler] = {AlterQueue: self._alter, CancelMove: self._cancel}
        self.staying: set[str] = set()
        """Queues of which moves are being cancelled: until that is done they ask for the place that they had."""
        self.stays: Callable[[Queue], None] = lambda queue: None
        """Told of each queue that is to stay where it is. Set before clients come."""
        self._requests = requests
        self._view = view

    def _alter(self, message: AlterQueue, respond: Respond) -> None:
        active, needed = self._view.cluster_version(), versions.SYNC if message.sync else versions.PLACEMENTS
        what = "sync of queues that have moved" if message.sync else "queues that move"
        if (older := versions.too_old(active, needed, what)) is not None:
            respond(older)
            return
        log = self._requests.mastered(message.name)

        async def alter() -> None:
            answer = await self.alter(log, message.name, message.arguments, dry_run=message.dry_run)
            # Also when it has moved already: the answer of an attempt before may be lost.
            for name in answer.queues if message.sync and answer.done else ():
                await self._view.decide_once(QueueSyncWished(name=name))
            respond(answer)

        self._requests.once_known(log, respond, lambda: self._requests.later(alter(), respond))

    def _cancel(self, message: CancelMove, respond: Respond) -> None:
        active = self._view.cluster_version()
        if (older := versions.too_old(active, versions.PLACEMENTS, "queues that move")) is not None:
            respond(older)
            return
        log = self._requests.mastered(message.name)

        async def cancel() -> None:
            answer = await self.cancel(log, message.name)
            for name in set(answer.queues) & self._view.places().syncs.keys():
                if not any(not span.ended for span in self._view.spans(name)[:-1]):  # it was to have records left
                    await self._view.decide_once(QueueSyncWished(name=name, wished=False))
            respond(answer)

        self._requests.once_known(log, respond, lambda: self._requests.later(cancel(), respond))

    async def cancel(self, log: HostedLog, name: str) -> Stays:
        """Let a queue of a log that this node masters stay there, with those that move with it, if the cluster has not
        added a span for it yet. May be asked twice. Raises NoSuchQueue, AccessRefused, NotMaster, QueueMoving while it
        comes back, Refused when it is elsewhere."""
        queues = log.replica.queues
        if (queue := queues.named(name)) is None:
            queue = queues.find(name)
        move = self._view.moves().get(name)
        if move is None:
            names = [each.name for each in self._together(log, queue)]
        else:
            names = [each for each, other in self._view.moves().items() if other.number == move.number]
        check_together(asker(), self._view.users(), names)
        self.staying.update(names)
        try:
            if move is not None:
                outcome = await self._view.decide_once(MoveCancelled(number=move.number))
                if outcome.refusal:
                    raise outcome.error
                if self._view.placed(name) != log.log_id:
                    raise Refused(f"queue {shown(name)} has just moved: alter it once more to bring it back")
                await self._are_back(log, names)
            for each in names:
                if (there := queues.get(each)) is not None:
                    unlike = self._view.unlike(there, log.log_id).items()
                    stays = {**there.arguments, **{each: has for each, has in unlike if each in PLACING}}
                    await self._log_arguments(log, there, _but_none(stays))
                    self.stays(queues.find(each))
            return Stays(queues=names, log=log.name, cancelled=move is not None, arguments=queues.find(name).arguments)
        finally:
            self.staying.difference_update(names)

    async def _are_back(self, log: HostedLog, names: Sequence[str]) -> None:
        """Until queues whose move is cancelled are found in the log again, unless they are deleted meanwhile."""
        give_up_at = loop_time() + BACK_S
        while any(log.replica.queues.moves.leaving_as(name) is not None for name in names):
            if loop_time() >= give_up_at or not log.masters:
                raise QueueMoving(f"the move of queue {shown(names[0])} is cancelled, and it is coming back; ask again")
            await asyncio.sleep(BACK_LOOK_S)

    async def alter(
        self, log: HostedLog, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> AlteredQueue:
        """Let a queue of a log that this node masters go where its arguments lead, with these changes of them. What it
        is decided by may change while it waits for the cluster, or for copies: then it is decided anew.

        Raises BadRequest, NoSuchQueue, AccessRefused, QueueMoving, NotMaster, Refused, or what a log says that takes
        nothing."""
        refused: MirrorlogError | None = None
        for _ in range(LOOKS_MAX):
            plan = self._plan(log, name, changes)
            target: UUID | None = log.log_id
            if not plan.in_place:
                target = await self._view.wanted_log(name, plan.holds, log.log_id, make=not dry_run)
            if plan != self._plan(log, name, changes):
                continue
            moves = target != log.log_id
            made = moves and target is not None  # a log that is to be made first takes every queue
            moved = MoveBegun(names=plan.names, target=str(target), log_group=plan.log_group) if made else None
            refusal = self._view.move_refusal(moved) if moved is not None else self._leaves(plan)
            if refusal:
                raise Refused(refusal)
            answer = self._answer(log, plan, moves=moves, done=not dry_run)
            if dry_run:
                return answer
            await self._log(log, plan)
            if plan != self._plan(log, name, changes):
                continue
            command = moved if moved is not None else self._rule_change(log, plan)
            outcome = await self._view.decide_once(command) if command is not None else None
            if outcome is None or not outcome.refusal:
                return answer
            refused = outcome.error
        raise refused or LogUnavailable(f"what is in log {log.name} changes all the time; ask again")

    def _leaves(self, plan: _Plan) -> str:
        """Why nothing is changed where a queue is; empty when something may be."""
        leaving = next((name for name in plan.names if name in self._view.moves()), None)
        if leaving is None:
            return ""
        return (
            f"queue {shown(leaving)} is on its way to another log; wait for that, or cancel it (mqtool alter-queue "
            "--cancel, Admin.cancel_move), and it stays as it is"
        )

    def _plan(self, log: HostedLog, name: str, changes: Mapping[str, Any]) -> _Plan:
        """What is so now. Raises as `alter`."""
        if not log.masters:
            raise not_master(log.name, self._view.master(log.log_id))
        queue = log.replica.queues.find(name)
        arguments = _altered(queue, changes)
        together = self._together(log, queue)
        names = tuple(each.name for each in together)
        check_together(asker(), self._view.users(), names)
        holds = self._view.effective(queue.name, arguments).arguments
        rule = self._view.rule_for(holds)
        alone = all(name in names or self._goes_along(log, name, holds) for name in self._view.placed_in(log.log_id))
        return _Plan(
            ids=tuple(each.queue_id for each in together),
            names=names,
            arguments=arguments,
            holds=holds,
            rule=rule,
            # Copies that are added to a log get all of it: where that is not wanted the queue goes to another one.
            in_place=alone and holds.get(SYNC_MODE) != "manual" and self._view.may_alter(log.log_id, rule),
            log_group=log_group_key(queue.name, queue.arguments),
        )

    def _goes_along(self, log: HostedLog, name: str, holds: Mapping[str, Any]) -> bool:
        """Whether another queue asks for another place than this log's, too, and for the same one as a queue for which
        this holds: then the log goes there, and none of its queues has to."""
        queue = log.replica.queues.named(name)
        if queue is None or place_asked(queue.effective) != place_asked(holds):
            return False
        return queue.effective.get(SYNC_MODE) != "manual" and bool(self._view.unlike(queue, log.log_id))

    def _together(self, log: HostedLog, queue: Queue) -> list[Queue]:
        """The queues of its log group, it among them."""
        group = log_group_key(queue.name, queue.arguments)
        if not group:
            return [queue]
        found = [each for each in log.replica.queues if log_group_key(each.name, each.arguments) == group]
        if len(found) > TOGETHER_MAX:
            raise BadRequest(f"log group {shown(group)} has {len(found)} queues, and {TOGETHER_MAX} can move together")
        return found

    def _answer(self, log: HostedLog, plan: _Plan, *, moves: bool, done: bool) -> AlteredQueue:
        facts, index = self._view.log_facts(str(log.log_id)), log.replica.index
        held = len(facts.replicas) if facts is not None else 0
        left = sum(index.next_confirmed(each) - index.begin(each) for each in plan.ids)
        will = self._view.copies_of(plan.rule)
        changes = plan.in_place and self._view.rule_of(log.log_id) != plan.rule
        return AlteredQueue(
            queues=list(plan.names),
            rule=plan.rule.words,
            log=log.name,
            moves=moves,
            copies_change=changes,
            copied_bytes=max(0, will - held) * (log.replica.log.end - log.replica.log.begin) if plan.in_place else 0,
            left_records=left if moves else 0,
            done=done,
            copies_before=held,
            copies=will if moves or changes else held,
        )

    async def _log(self, log: HostedLog, plan: _Plan) -> None:
        """All of a group have the same place, so they get the same words about it."""
        changed = {name: plan.arguments.get(name) for name in PLACING}
        for queue_id in plan.ids:
            queue = log.replica.queues.find_id(queue_id)
            await self._log_arguments(log, queue, _but_none({**queue.arguments, **changed}))

    async def _log_arguments(self, log: HostedLog, queue: Queue, wanted: dict[str, Any]) -> None:
        if wanted != queue.arguments:
            publisher = publisher_of(log, self._view)
            altered = encode_change(QueueAltered(queue_id=queue.queue_id, arguments=wanted))
            await confirmed(partial(publisher.append_change, altered))

    def _rule_change(self, log: HostedLog, plan: _Plan) -> LogAltered | None:
        """None when the log has that rule already, or is not the queues' alone."""
        facts = self._view.log_facts(str(log.log_id))
        if facts is None or not plan.in_place or self._view.rule_of(log.log_id) == plan.rule:
            return None
        return LogAltered(log_id=str(log.log_id), seen=facts.seen, placement=plan.rule)


def _altered(queue: Queue, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Its arguments with these; None takes one away. Raises BadRequest."""
    if is_transient(queue.arguments):
        raise BadRequest(
            f"queue {shown(queue.name)} goes with its node (exclusive, or not durable): it stays where it is"
        )
    if unknown := sorted(changes.keys() - PLACING):
        raise BadRequest(
            f"argument {unknown[0]!r} of a queue cannot be changed; those of its place can: {', '.join(PLACING)}"
        )
    changes = without_words(changes)
    wanted = {**queue.arguments, **changes}
    if "copies" in changes and changes["copies"] is not None and "nodes" not in changes:
        wanted["nodes"] = None
    if "nodes" in changes and changes["nodes"] is not None and "copies" not in changes:
        wanted["copies"] = None
    wanted = _but_none(wanted)
    check_values(wanted)
    return wanted


def _unlike_words(name: str, asked: Any, has: Any) -> str:
    """What a queue asks for, and its log has instead."""
    asks = f"names no {name}" if asked is None else f"asks for {name} {_listed(asked)}"
    return f"{asks}, its log has {_listed(has) if has is not None else _UNNAMED.get(name, 'none')}"


_UNNAMED: Final = {"nodes": "any", "copies": "another number", "min_in_sync": "the default"}
"""What a log has by a rule that does not name it."""


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _but_none(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


class MovingList:
    """What the other three of this node know, and of other nodes what the cluster has decided. `records`: counts the
    bytes of a queue."""

    def __init__(
        self,
        logs: HostedLogs,
        view: ClusterView,
        service: MoveService,
        wanted: WantedPlaces,
        *,
        evening: QueueEvening,
        records: FormerRecords | None = None,
    ) -> None:
        self._logs = logs
        self._view = view
        self._service = service
        self._wanted = wanted
        self._evening = evening
        self._counted = records

    async def found(self) -> MovesFound:
        """All that whoever asks may see."""
        user = self._view.users().get(asker())
        found = (*self._under_way(), *self._astray(), *self._evened())
        rows = [row for row in found if user is None or may_see(user, row.queue)]
        rows.sort(key=lambda row: row.queue)
        sized = [await self._sized(row) for row in rows[:SIZED_MAX]]
        return MovesFound(moves=[*sized, *rows[SIZED_MAX:]], paused=self._view.moving_paused())

    async def _sized(self, row: MoveOfQueue) -> MoveOfQueue:
        """With the bytes that it has in the log that it is in, as far as they can be counted."""
        log = next((log for log in self._logs if log.name == row.source), None) if row.told else None
        queue = log.replica.queues.named(row.queue) if log is not None else None
        if log is None or queue is None or self._counted is None:
            return row
        until = log.replica.index.next_confirmed(queue.queue_id)
        first = log.replica.queues.moves.firsts.get(queue.queue_id, 0)
        try:
            asked = AskHeld(log_id=str(log.log_id), queue_id=queue.queue_id, first=first, until=until)
            held = await self._counted.asked(asked)
        except MirrorlogError:
            return row
        return replace(row, size_bytes=held.size) if isinstance(held, HeldTold) else row

    def _under_way(self) -> Iterator[MoveOfQueue]:
        for name, move in self._view.moves().items():
            log = self._logs.held(move.source)
            here = log if log is not None and log.knows_confirmed else None
            queue = here.replica.queues.named(name) if here is not None else None
            row = MoveOfQueue(
                queue=name, source=self._name(move.source), target=self._name(move.target), number=move.number
            )
            yield row if here is None or queue is None else self._told(here, queue, move)

    def _told(self, log: HostedLog, queue: Queue, move: MovingQueue) -> MoveOfQueue:
        name = queue.name
        return MoveOfQueue(
            queue=name,
            source=log.name,
            target=self._name(move.target),
            number=move.number,
            stage=self._service.stage(log, queue.queue_id),
            why=self._why(log, queue),
            records=_records(log, queue.queue_id),
            pieces=self._service.sent.get(name, 0),
            reason=self._service.waits.get(name, ""),
            told=True,
        )

    def _astray(self) -> Iterator[MoveOfQueue]:
        moving = self._view.moves()
        for name, each in self._wanted.astray.items():
            log = self._logs.held(str(each.log_id))
            queue = log.replica.queues.get(name) if log is not None else None
            if name in moving or log is None or queue is None or not self._view.unlike(queue, log.log_id):
                continue
            target, futile = self._rule(queue)
            yield MoveOfQueue(
                queue=name,
                source=log.name,
                target=target,
                stage="wanted",
                why=self._why(log, queue),
                records=_records(log, queue.queue_id),
                reason=futile or each.reason or self._service.given_up.get(name, ""),
                told=True,
            )

    def _evened(self) -> Iterator[MoveOfQueue]:
        for log, queue, why in self._evening.planned():
            target, futile = self._rule(queue)
            yield MoveOfQueue(
                queue=queue.name,
                source=log.name,
                target=target,
                stage="planned",
                why=why,
                records=_records(log, queue.queue_id),
                reason=futile,
                told=True,
            )

    def _rule(self, queue: Queue) -> tuple[str, str]:
        """In words, and why there can be none: settings are others by now, say."""
        try:
            return self._view.rule_for(queue.effective).words, ""
        except BadRequest as error:
            return "", error.message

    def _why(self, log: HostedLog, queue: Queue) -> str:
        """What the queue asks for that its log has not."""
        there = self._view.unlike(queue, log.log_id)
        words = [_unlike_words(name, queue.effective.get(name), has) for name, has in there.items()]
        return "; ".join(words) or "its log group goes there, or masters are evened out"

    def _name(self, log_id: str) -> str:
        facts = self._view.log_facts(log_id)
        return facts.name if facts is not None else log_id


def _records(log: HostedLog, queue_id: int) -> int:
    index = log.replica.index
    return max(0, index.next_confirmed(queue_id) - index.begin(queue_id))
