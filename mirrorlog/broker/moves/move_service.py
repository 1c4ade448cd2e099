"""Queues that move between logs, on the nodes that master these (decision 0050). Level-triggered: what the cluster has
decided is compared with what stands in the logs, and one step brings them closer. A new master goes on where the former
one stood, for all that is remembered here can be asked again.

The log that a queue leaves says `QueueLeft`, hands its state to the other log's master piece by piece, and, once the
cluster says that it is there, `QueueHandedOver`. The other one has the cluster say so when all of it is confirmed, and
then `QueueOpened`. A move that was cancelled ends with `QueueReturned` here and `ArrivalDropped` there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.after_loss import came_by, elsewhere
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.moves.arrivals import GIVE_UP_S, PROBE, Arrivals, append
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed, publisher_of
from mirrorlog.cluster.requests import AskArrival, AskFree, Noted, QueueArrival, decode_answer, encode
from mirrorlog.cluster.state.commands import Holder, MoveCancelled, QueuesMoved, SpanEnded
from mirrorlog.cluster.state.placements import MovingQueue, Span
from mirrorlog.errors import LogUnavailable, MirrorlogError, QueueMoving
from mirrorlog.queues.arguments import log_group_key
from mirrorlog.queues.changes import encode_change
from mirrorlog.queues.moving import PIECE_WORK_BYTES, QueuePieces, come_back, hand_over, leave, open_arrived
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.02
"""How often the logs are compared with what is decided, while something moves."""
RETRY_S: Final = 0.1
FREE_S: Final = 2.0
"""How often it is looked whether the records of former spans are dead."""
AT_ONCE_MAX: Final = 4
"""Moves whose states this node hands over at once."""

_K = TypeVar("_K", bound=Hashable)
_A = TypeVar("_A", QueueArrival, Noted)
Mastership = tuple[Holder | None, int]
"""Who masters a log, and in which epoch."""


class MoveService:
    """Of one node, `own`."""

    def __init__(self, own: str, logs: HostedLogs, view: ClusterView) -> None:
        self._own = own
        self._logs = logs
        self._view = view
        self.piece_bytes, self.retry_s = PIECE_WORK_BYTES, RETRY_S
        self._giving: dict[tuple[UUID, str], asyncio.Task[None]] = {}
        self._deciding: dict[int, asyncio.Task[None]] = {}
        # Moves whose target would take them now, and those that are asked about.
        self._ready: set[int] = set()
        self._asking: dict[int, asyncio.Task[None]] = {}
        # Of queues that were handed over: the move, and the mastership that took them.
        self._given: dict[tuple[UUID, str], tuple[int, Mastership]] = {}
        self._arrivals = Arrivals(view, self.soon)
        self.is_being_deleted: Callable[[str], bool] = lambda name: False
        """Whether a deletion of a queue is under way here: it does not leave meanwhile. Set before clients come."""
        self.came: Callable[[HostedLog, int], None] = lambda log, queue_id: None
        """Told of each queue that has come to a log, or back. Set before clients come."""
        self._look_at = self._free_at = 0.0
        self._freeing: dict[str, asyncio.Task[None]] = {}
        self._spans_seen: Mapping[str, Sequence[Span]] = {}
        self._with_former: Mapping[str, Sequence[Span]] = {}
        self.waits: dict[str, str] = {}
        """Why a queue does not get on, by its name."""
        self.given_up: dict[str, str] = {}
        """The same, of queues whose last move was given up here."""
        self.sent: dict[str, int] = {}
        """How many pieces of a queue's state have gone over, by its name."""

    def look_soon(self) -> None:
        """The cluster has decided something."""
        if self._view.moves() or any(log.replica.queues.moves.undecided for log in self._logs):
            self.soon()

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if now < self._look_at or self._view.cluster_version() < versions.PLACEMENTS:
            return
        self._look_at = now + LOOK_S
        moves = self._view.moves()
        if not moves:
            self.waits.clear()
            self.sent.clear()
            self._ready.clear()
            self._given.clear()
        if now >= self._free_at:
            self._free_at = now + FREE_S
            placed = self._view.placed
            self.given_up = {name: why for name, why in self.given_up.items() if self._logs.held(str(placed(name)))}
            self._free_spans()
            for log in self._logs:
                moved = log.replica.queues.moves
                if moved.left and log.knows_confirmed:
                    self._free_what_nobody_has(log)
                if (moved.left or moved.gone) and self._view.has_heard():
                    moved.forget(log.replica.log.begin, partial(self._has_span_in, str(log.log_id)))
        for log in self._logs:
            if not log.knows_confirmed:
                continue
            if (
                moves
                or log.replica.queues.moves.undecided
                or (self._view.all_spans() and self._view.lost_from(log.log_id))
            ):
                self._look(log, moves, now)

    async def stop(self) -> None:
        """Nothing is handed over any more."""
        tasks = [*self._giving.values(), *self._deciding.values(), *self._asking.values(), *self._freeing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is to be done in one log ---

    def _look(self, log: HostedLog, moves: Mapping[str, MovingQueue], now: float) -> None:
        publisher, log_id = log.publisher, str(log.log_id)
        if not isinstance(publisher, LogPublisher) or publisher.stopping:
            return
        try:
            self._end_moves(log, moves)
            self._arrivals.drop_what_is_left_alone(log, now)
            if self._view.lost_from(log.log_id):
                self._leave_again(log)
            here = {name: move for name, move in moves.items() if log_id in (move.source, move.target)}
            self._begin_moves(log, {name: move for name, move in here.items() if move.source == log_id})
            self._finish_arrivals(log, {name: move for name, move in here.items() if move.target == log_id})
        except MirrorlogError as error:  # the log takes nothing now; it is looked at again
            logger.debug("move_not_logged log=%s reason=%r", log.name, str(error))

    def _begin_moves(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        queues = log.replica.queues
        for name, move in moves.items():
            queue = queues.get(name)
            if queue is None and queues.named(name) is None and move.number not in self._deciding:
                # It was deleted, or went by itself, before it left.
                self._start(self._deciding, move.number, self._decide(MoveCancelled(number=move.number)))
            elif queue is None or self.is_being_deleted(name):
                continue
            elif move.number in self._ready and self._is_whole(log, move, moves):
                self._leave(log, queue, move)
            elif move.number not in self._asking:
                self._start(self._asking, move.number, self._ask_whether_ready(log, name, queue.queue_id, move))
        for queue_id in queues.moves.undecided & queues.moves.left.keys():
            left, name = queues.moves.left[queue_id], queues.moves.name(queue_id)
            place = (log.log_id, name)
            if not _goes_on(moves, name, left.move) or left.until > log.replica.log.confirmed or place in self._giving:
                continue
            taken = self._given.get(place) == (left.move, self._mastership(left.target))
            if not taken and len(self._giving) < AT_ONCE_MAX:
                self._start(self._giving, place, self.give(log, name, queue_id, moves[name]))

    def _is_whole(self, log: HostedLog, move: MovingQueue, moves: Mapping[str, MovingQueue]) -> bool:
        """Whether all queues of a log group that are here are in its move. One may have been declared into the group
        between the look at who is in it and the decision; from then on none is. Such a move is cancelled: another one
        with all of them follows."""
        queues, of_group = log.replica.queues, move.log_group
        if not of_group or any(each.move == move.number for each in queues.moves.left.values()):
            return True
        if all(each.name in moves for each in queues if log_group_key(each.name, each.arguments) == of_group):
            return True
        if move.number not in self._deciding:
            logger.warning("move_cancelled log=%s move=%s reason='another queue of its group'", log.name, move.number)
            self._ready.discard(move.number)
            self._start(self._deciding, move.number, self._decide(MoveCancelled(number=move.number)))
        return False

    def _mastership(self, log_id: str) -> Mastership:
        facts = self._view.log_facts(log_id)
        return (None, 0) if facts is None else (facts.master, facts.epoch)

    def _leave_again(self, log: HostedLog) -> None:
        """A declared loss may have taken the word that a queue has left: where the cluster has it, it is. Its master
        has said so when the epoch began (`after_loss`), but for what the cluster has decided since."""
        for away in list(elsewhere(log.replica, self._view)):
            queue = log.replica.queues.find_id(away.queue_id)
            self._leave(log, queue, MovingQueue(0, str(log.log_id), away.target), following=away.next_queue_offset)

    def _leave(self, log: HostedLog, queue: Queue, move: MovingQueue, *, following: int | None = None) -> None:
        """`following`: the first queue offset that it does not have here any more; by default that of the next record.
        From here on nothing is taken for it: who waits is told to look where it is."""
        replica, deliverer, queue_id = log.replica, log.deliverer, queue.queue_id
        assert deliverer is not None
        deliverer.flush_queue(queue_id)
        if following is None:
            following = replica.index.next_appended(queue_id)
        self._append(log, leave(replica.queues, queue_id, move.number, move.target, next_queue_offset=following))
        error = QueueMoving(f"queue {queue.name!r} is moving; ask for its place again", queue_id=queue_id)
        deliverer.end_queue(queue_id, error)
        log.fetcher.end_queue(queue_id, error)
        logger.info("queue_left log=%s queue=%r move=%s next=%s", log.name, queue.name, move.number, following)

    def _finish_arrivals(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        """The cluster is told of a move whose queues are all here, and confirmed."""
        by_number: defaultdict[int, list[str]] = defaultdict(list)
        for name, move in moves.items():
            by_number[move.number].append(name)
        known, queues = log.replica.log.confirmed, log.replica.queues
        there = {
            queues.moves.name(queue_id): each
            for queue_id, each in queues.moves.arriving.items()
            if each.arrived and each.until <= known
        }
        for number, names in by_number.items():
            if all(name in there and there[name].move == number for name in names) and number not in self._deciding:
                moved = QueuesMoved(number=number, first={name: there[name].first for name in names})
                self._start(self._deciding, number, self._add_spans(log, moved))

    def _end_moves(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        """What the cluster has decided of queues that left, or arrive, is said in the log."""
        of, view, known = log.replica.queues.moves, self._view, log.replica.log.confirmed
        for queue_id in list(of.undecided & of.left.keys()):
            left, name = of.left[queue_id], of.name(queue_id)
            if left.handed_over or left.until > known or _goes_on(moves, name, left.move):
                continue
            if view.placed(name) == log.log_id:
                self._append(log, come_back(log.replica.queues, queue_id, left.move))
                self._open(log, queue_id, name, "queue_returned")
            else:
                if (batch := hand_over(log.replica.queues, queue_id, left.move)) is not None:
                    self._append(log, batch)
                logger.info("queue_handed_over log=%s queue=%r move=%s", log.name, name, left.move)
        for queue_id, each in list(of.arriving.items()):
            name = of.name(queue_id)
            if each.until > known or _goes_on(moves, name, each.move) or _is_number(moves, each.move):
                continue
            if each.arrived and came_by(view, name, log.log_id, each.first):
                self._append(log, open_arrived(log.replica.queues, queue_id, each.move))
                self._open(log, queue_id, name, "queue_moved")
            else:
                self._arrivals.drop(log, queue_id, each.move)

    def _open(self, log: HostedLog, queue_id: int, name: str, event: str) -> None:
        assert log.deliverer is not None
        log.deliverer.begin_queue(queue_id)
        self.came(log, queue_id)
        self.waits.pop(name, None)
        logger.info("%s log=%s queue=%r next=%s", event, log.name, name, log.replica.index.next_appended(queue_id))

    # --- what was left behind ---

    def _free_what_nobody_has(self, log: HostedLog) -> None:
        """Records of queues of which the cluster knows no span here any more: they were deleted since, or copied."""
        try:
            for queue_id, left in list(log.replica.queues.moves.left.items()):
                if not left.handed_over or left.freed or not left.name:
                    continue
                spans = self._view.spans(left.name)
                if not any(span.log_id == str(log.log_id) and not span.ended for span in spans[:-1]):
                    batch = hand_over(log.replica.queues, queue_id, left.move, freed=True)
                    if batch is not None:
                        self._append(log, batch)
                        logger.info("span_freed log=%s queue=%r move=%s", log.name, left.name, left.move)
        except MirrorlogError as error:
            logger.debug("span_not_freed log=%s reason=%r", log.name, str(error))

    def _has_span_in(self, log_id: str, name: str) -> bool:
        return any(span.log_id == log_id for span in self._view.spans(name))

    def with_former_records(self) -> Mapping[str, Sequence[Span]]:
        """Of the queues that have records in former logs, their spans. Looked for when the cluster has changed some:
        of most queues that ever moved there are none left."""
        all_spans = self._view.all_spans()
        if all_spans is not self._spans_seen:
            self._spans_seen = all_spans
            self._with_former = {
                name: spans for name, spans in all_spans.items() if not all(span.ended for span in spans[:-1])
            }
        return self._with_former

    def _free_spans(self) -> None:
        """Where a queue begins behind one of its former spans, that log is told, and then the cluster."""
        for name, spans in self.with_former_records().items():
            live = [number for number, span in enumerate(spans[:-1]) if not span.ended]
            log = self._logs.held(spans[-1].log_id)
            if log is None or not log.knows_confirmed or name in self._freeing:
                continue
            queue = log.replica.queues.get(name)
            if queue is None:
                continue
            # It may have been in a log several times: all that it has there goes at once.
            oldest = spans[live[0]].log_id
            last = max(number for number in live if spans[number].log_id == oldest)
            if log.replica.index.begin(queue.queue_id) >= spans[last + 1].first:
                # As it is seen while the queue is here: what is decided meanwhile makes it void.
                known = self._view.cluster_version() >= versions.SYNC
                seen = self._view.span_seen(name, spans[live[0]]) if known else None
                ended = SpanEnded(name=name, log_id=oldest, span=seen)
                self._start(self._freeing, name, self._free_span(ended, queue.queue_id))

    async def _free_span(self, ended: SpanEnded, queue_id: int) -> None:
        name, log_id = ended.name, ended.log_id
        try:
            await self.ask_there(AskFree(log_id=log_id, queue_id=queue_id), Noted)
            await self._view.decide_once(ended)
        except MirrorlogError as error:
            logger.debug("span_not_freed queue=%r log=%s reason=%r", name, log_id, str(error))
            await asyncio.sleep(self.retry_s)

    def stage(self, log: HostedLog, queue_id: int) -> str:
        """Of a queue that is to leave a log which this node masters; see `MoveOfQueue`."""
        left, name = log.replica.queues.moves.left.get(queue_id), log.replica.queues.moves.name(queue_id)
        if left is None or left.handed_over:
            return "waits"
        return "arrived" if self._given.get((log.log_id, name), (0,))[0] == left.move else "left"

    # --- giving ---

    async def _ask_whether_ready(self, log: HostedLog, name: str, queue_id: int, move: MovingQueue) -> None:
        """A queue stops only when the other log would take it: has a master that has begun, copies, and room."""
        asked = AskArrival(log_id=move.target, move=move.number, name=name, queue_id=queue_id, piece=PROBE)
        try:
            await self.ask_there(asked, QueueArrival)
            self._ready.add(move.number)
            self.waits.pop(name, None)
        except MirrorlogError as error:
            self.waits[name] = str(error)
            await asyncio.sleep(self.retry_s)

    async def give(self, log: HostedLog, name: str, queue_id: int, move: MovingQueue) -> None:
        """The state of a queue that has left, until the other log has all of it or the move is over."""
        epoch, place = log.replica.log.epochs.current, (log.log_id, name)
        pieces = QueuePieces(
            log.replica.derived, queue_id, move.number, log_id=move.source, epoch=epoch, work_bytes=self.piece_bytes
        )
        arriving = bytes(encode_change(pieces.arriving))
        loop = asyncio.get_running_loop()
        attempt, number, most, give_up_at = uuid4().hex, 0, 0, loop.time() + GIVE_UP_S
        while self._still(log, queue_id, move):
            taker = self._mastership(move.target)
            try:
                asked = AskArrival(
                    log_id=move.target,
                    move=move.number,
                    name=name,
                    queue_id=queue_id,
                    attempt=attempt,
                    piece=number,
                    state=pieces.piece(number),
                    arriving=arriving,
                )
                wanted = (await self.ask_there(asked, QueueArrival)).wanted
            except MirrorlogError as error:  # the same piece once more: it may have come
                self.waits[name] = str(error)
                if loop.time() >= give_up_at:
                    logger.warning("move_given_up move=%s queue=%r reason=%r", move.number, name, str(error))
                    self.given_up[name] = f"its last move was given up: {error}"
                    await self._decide(MoveCancelled(number=move.number))
                await asyncio.sleep(self.retry_s)
                continue
            if wanted < 0:
                self.given_up.pop(name, None)
                self._given[place] = move.number, taker
                self.waits.pop(name, None)
                return
            if wanted != number + 1:  # what came is there no more
                attempt, number = uuid4().hex, 0
                await asyncio.sleep(self.retry_s)
                continue
            self.sent[name] = number = wanted
            if number > most:
                most, give_up_at = number, loop.time() + GIVE_UP_S

    def _still(self, log: HostedLog, queue_id: int, move: MovingQueue) -> bool:
        left = log.replica.queues.moves.left.get(queue_id)
        name = log.replica.queues.moves.name(queue_id)
        return log.knows_confirmed and left is not None and _goes_on(self._view.moves(), name, move.number)

    async def ask_there(self, asked: AskArrival | AskFree, kind: type[_A]) -> _A:
        """Of the master of the log that it is about."""
        master = self._view.master(UUID(asked.log_id))
        if master is None:
            raise LogUnavailable("nobody masters that log at the moment")
        if master.id == self._own:
            answer = await self.asked(asked)
            assert isinstance(answer, kind)
            return answer
        return decode_answer(await self._view.ask(master.id, encode(asked)), kind)

    async def _add_spans(self, log: HostedLog, moved: QueuesMoved) -> None:
        """Not before what came is on the disks of all copies: a power loss would take the queue with it, whose state
        nobody else has any more."""
        try:
            await confirmed(partial(publisher_of(log, self._view).when_confirmed, on_disk=True))
        except MirrorlogError as error:
            logger.debug("arrival_not_on_disk move=%s reason=%r", moved.number, str(error))
            await asyncio.sleep(self.retry_s)
            return
        await self._decide(moved)

    async def _decide(self, moved: QueuesMoved | MoveCancelled) -> None:
        try:
            outcome = await self._view.decide_once(moved)
            if outcome.refusal:
                logger.warning("move_refused move=%s reason=%r", moved.number, outcome.refusal)
        except MirrorlogError as error:
            logger.debug("move_not_decided move=%s reason=%r", moved.number, str(error))
            await asyncio.sleep(self.retry_s)

    # --- taking ---

    async def asked(self, asked: AskArrival | AskFree) -> QueueArrival | Noted:
        """Of another node, about a log that this one masters. Raises NotMaster, LogUnavailable while this node has not
        heard of the move, or what a log that takes nothing says."""
        log = self._logs.get(asked.log_id)
        if log is None or not log.knows_confirmed:
            raise not_master(asked.log_id if log is None else log.name, self._view.master(UUID(asked.log_id)))
        if isinstance(asked, AskFree):
            return await self._free(log, asked)
        return await self._arrivals.take(log, asked)

    async def _free(self, log: HostedLog, asked: AskFree) -> Noted:
        left = log.replica.queues.moves.left.get(asked.queue_id)
        if left is not None and not left.handed_over:
            raise LogUnavailable(f"queue {asked.queue_id} has just left log {log.name}; ask again")
        if left is not None and not left.freed:
            batch = hand_over(log.replica.queues, asked.queue_id, left.move, freed=True)
            if batch is not None:
                self._append(log, batch)
        await confirmed(publisher_of(log, self._view).when_confirmed)
        return Noted()

    # --- inside ---

    def _append(self, log: HostedLog, batch: bytearray) -> None:
        append(log, self._view, batch, self.soon)

    def soon(self) -> None:
        """Something is confirmed, or ended: the logs are looked at in a step of the loop."""
        self._look_at = 0.0
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: self.tick(loop.time()))

    def _start(self, tasks: dict[_K, asyncio.Task[None]], key: _K, work: Coroutine[Any, Any, None]) -> None:
        task = tasks[key] = asyncio.ensure_future(work)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("move_failed what=%r", key, exc_info=error)
                return  # it is begun again at the next look, not at once for ever
            self.soon()

        task.add_done_callback(ended)


def _goes_on(moves: Mapping[str, MovingQueue], name: str, number: int) -> bool:
    return name in moves and moves[name].number == number


def _is_number(moves: Mapping[str, MovingQueue], number: int) -> bool:
    """Whether that move is under way: of a queue whose states have not all come nobody knows the name."""
    return any(move.number == number for move in moves.values())
