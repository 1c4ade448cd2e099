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
from collections.abc import Coroutine, Hashable, Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed
from mirrorlog.cluster.requests import AskArrival, AskFree, Noted, QueueArrival, decode_answer, encode
from mirrorlog.cluster.state.commands import MoveCancelled, QueuesMoved, SpanEnded
from mirrorlog.cluster.state.placements import MovingQueue
from mirrorlog.errors import BadBatch, LogUnavailable, MirrorlogError, QueueMoving
from mirrorlog.queues.changes import QueueArriving, decode_changes, encode_change
from mirrorlog.queues.moves import ArrivingQueue
from mirrorlog.queues.moving import Arrival, QueuePieces, come_back, drop_arrival, hand_over, leave, open_arrived
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.02
"""How often the logs are compared with what is decided, while something moves."""
RETRY_S: Final = 0.1
STATE_BYTES_MAX: Final = 1024 * 1024
"""Of a piece: one state alone may be larger than others are together."""
FREE_S: Final = 1.0
"""How often it is looked whether the records of former spans are dead."""
GIVE_UP_S: Final = 8.0
"""A queue that has left waits no longer for a log that does not take it: the move is cancelled. By then a node that
hangs has been replaced."""
PROBE: Final = -1
"""The number of a piece that asks only whether more may come."""
AT_ONCE_MAX: Final = 4
"""Moves whose states this node hands over at once."""

_K = TypeVar("_K", bound=Hashable)
_A = TypeVar("_A", QueueArrival, Noted)
_Place = tuple[UUID, int]
"""A log, and a queue's id."""


class MoveService:
    """Of one node, `own`."""

    def __init__(self, own: str, logs: HostedLogs, view: ClusterView) -> None:
        self._own = own
        self._logs = logs
        self._view = view
        self._giving: dict[tuple[UUID, str], asyncio.Task[None]] = {}
        self._deciding: dict[int, asyncio.Task[None]] = {}
        # Moves whose target would take them now, and those that are asked about.
        self._ready: set[int] = set()
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._arrivals: dict[_Place, Arrival] = {}
        self._look_at = self._free_at = 0.0
        self._freeing: dict[str, asyncio.Task[None]] = {}
        self.waits: dict[str, str] = {}
        """Why a queue does not get on, by its name."""

    def look_soon(self) -> None:
        """The cluster has decided something."""
        if self._view.moves() or any(log.replica.queues.moves.undecided for log in self._logs):
            self._soon()

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if now < self._look_at or self._view.cluster_version() < versions.PLACEMENTS:
            return
        self._look_at = now + LOOK_S
        moves = self._view.moves()
        if not moves:
            self.waits.clear()
            self._ready.clear()
        if now >= self._free_at:
            self._free_at = now + FREE_S
            self._free_spans()
        for log in self._logs:
            if (moves or log.replica.queues.moves.undecided) and log.knows_confirmed:
                self._look(log, moves)

    async def stop(self) -> None:
        """Nothing is handed over any more."""
        tasks = [*self._giving.values(), *self._deciding.values(), *self._asking.values(), *self._freeing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is to be done in one log ---

    def _look(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        publisher, log_id = log.publisher, str(log.log_id)
        if not isinstance(publisher, LogPublisher) or publisher.stopping:
            return
        try:
            self._end_moves(log, moves)
            here = {name: move for name, move in moves.items() if log_id in (move.source, move.target)}
            self._begin_moves(log, {name: move for name, move in here.items() if move.source == log_id})
            self._finish_arrivals(log, {name: move for name, move in here.items() if move.target == log_id})
        except MirrorlogError as error:  # the log takes nothing now; it is looked at again
            logger.debug("move_not_logged log=%s reason=%r", log.name, str(error))

    def _begin_moves(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        queues = log.replica.queues
        for name, move in moves.items():
            queue = queues.get(name)
            if queue is not None and move.number in self._ready:
                self._leave(log, queue, move)
            elif queue is not None and move.number not in self._asking:
                self._start(self._asking, move.number, self._ask_whether_ready(log, name, queue.queue_id, move))
        for queue_id, left in queues.moves.left.items():
            name = queues.moves.name(queue_id)
            place = (log.log_id, name)
            if not _goes_on(moves, name, left.move) or left.until > log.replica.log.confirmed or place in self._giving:
                continue
            if len(self._giving) < AT_ONCE_MAX:
                self._start(self._giving, place, self._give(log, name, queue_id, moves[name]))

    def _leave(self, log: HostedLog, queue: Queue, move: MovingQueue) -> None:
        """From here on nothing is taken for it: who waits is told to look where it is."""
        replica, deliverer, queue_id = log.replica, log.deliverer, queue.queue_id
        assert deliverer is not None
        deliverer.flush_queue(queue_id)
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
                self._start(self._deciding, number, self._decide(moved))

    def _end_moves(self, log: HostedLog, moves: Mapping[str, MovingQueue]) -> None:
        """What the cluster has decided of queues that left, or arrive, is said in the log."""
        of, view, known = log.replica.queues.moves, self._view, log.replica.log.confirmed
        for queue_id, left in list(of.left.items()):
            name = of.name(queue_id)
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
            if each.arrived and _came_by(view, name, log.log_id, each.first):
                self._append(log, open_arrived(log.replica.queues, queue_id, each.move))
                self._open(log, queue_id, name, "queue_moved")
            else:
                self._drop(log, queue_id, each.move)

    def _open(self, log: HostedLog, queue_id: int, name: str, event: str) -> None:
        assert log.deliverer is not None
        log.deliverer.begin_queue(queue_id)
        self.waits.pop(name, None)
        logger.info("%s log=%s queue=%r next=%s", event, log.name, name, log.replica.index.next_appended(queue_id))

    def _drop(self, log: HostedLog, queue_id: int, move: int) -> None:
        self._append(log, drop_arrival(log.replica.queues, queue_id, move))
        self._arrivals.pop((log.log_id, queue_id), None)

    # --- what was left behind ---

    def _free_spans(self) -> None:
        """Where a queue begins behind one of its former spans, that log is told, and then the cluster."""
        for name, spans in self._view.all_spans().items():
            live = [number for number, span in enumerate(spans[:-1]) if not span.ended]
            log = self._logs.held(spans[-1].log_id) if live else None
            if log is None or not log.knows_confirmed or name in self._freeing:
                continue
            queue = log.replica.queues.get(name)
            if queue is None:
                continue
            # It may have been in a log several times: all that it has there goes at once.
            oldest = spans[live[0]].log_id
            last = max(number for number in live if spans[number].log_id == oldest)
            if log.replica.index.begin(queue.queue_id) >= spans[last + 1].first:
                self._start(self._freeing, name, self._free_span(name, oldest, queue.queue_id))

    async def _free_span(self, name: str, log_id: str, queue_id: int) -> None:
        try:
            await self._ask_there(AskFree(log_id=log_id, queue_id=queue_id), Noted)
            await self._view.decide_once(SpanEnded(name=name, log_id=log_id))
        except MirrorlogError as error:
            logger.debug("span_not_freed queue=%r log=%s reason=%r", name, log_id, str(error))
            await asyncio.sleep(RETRY_S)

    # --- giving ---

    async def _ask_whether_ready(self, log: HostedLog, name: str, queue_id: int, move: MovingQueue) -> None:
        """A queue stops only when the other log would take it: has a master that has begun, copies, and room."""
        asked = AskArrival(log_id=move.target, move=move.number, name=name, queue_id=queue_id, piece=PROBE)
        try:
            await self._ask_there(asked, QueueArrival)
            self._ready.add(move.number)
            self.waits.pop(name, None)
        except MirrorlogError as error:
            self.waits[name] = str(error)
            await asyncio.sleep(RETRY_S)

    async def _give(self, log: HostedLog, name: str, queue_id: int, move: MovingQueue) -> None:
        """The state of a queue that has left, until the other log has all of it or the move is over."""
        epoch = log.replica.log.epochs.current
        pieces = QueuePieces(log.replica.derived, queue_id, move.number, log_id=move.source, epoch=epoch)
        arriving = bytes(encode_change(pieces.arriving))
        wanted = 0
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + GIVE_UP_S
        while wanted >= 0 and self._still(log, queue_id, move):
            try:
                asked = AskArrival(
                    log_id=move.target,
                    move=move.number,
                    name=name,
                    queue_id=queue_id,
                    piece=wanted,
                    state=pieces.piece(wanted),
                    arriving=arriving,
                )
                wanted = (await self._ask_there(asked, QueueArrival)).wanted
                give_up_at = loop.time() + GIVE_UP_S
                self.waits.pop(name, None)
            except MirrorlogError as error:
                self.waits[name] = str(error)
                wanted = 0
                if loop.time() >= give_up_at:
                    logger.warning("move_given_up move=%s queue=%r reason=%r", move.number, name, str(error))
                    await self._decide(MoveCancelled(number=move.number))
                await asyncio.sleep(RETRY_S)

    def _still(self, log: HostedLog, queue_id: int, move: MovingQueue) -> bool:
        left = log.replica.queues.moves.left.get(queue_id)
        name = log.replica.queues.moves.name(queue_id)
        return log.knows_confirmed and left is not None and _goes_on(self._view.moves(), name, move.number)

    async def _ask_there(self, asked: AskArrival | AskFree, kind: type[_A]) -> _A:
        """Of the master of the log that it is about."""
        master = self._view.master(UUID(asked.log_id))
        if master is None:
            raise LogUnavailable("nobody masters that log at the moment")
        if master.id == self._own:
            answer = await self.asked(asked)
            assert isinstance(answer, kind)
            return answer
        return decode_answer(await self._view.ask(master.id, encode(asked)), kind)

    async def _decide(self, moved: QueuesMoved | MoveCancelled) -> None:
        try:
            outcome = await self._view.decide_once(moved)
            if outcome.refusal:
                logger.warning("move_refused move=%s reason=%r", moved.number, outcome.refusal)
        except MirrorlogError as error:
            logger.debug("move_not_decided move=%s reason=%r", moved.number, str(error))
            await asyncio.sleep(RETRY_S)

    # --- taking ---

    async def asked(self, asked: AskArrival | AskFree) -> QueueArrival | Noted:
        """Of another node, about a log that this one masters. Raises NotMaster, LogUnavailable while this node has not
        heard of the move, or what a log that takes nothing says."""
        log = self._logs.get(asked.log_id)
        if log is None or not log.knows_confirmed:
            raise not_master(asked.log_id if log is None else log.name, self._view.master(UUID(asked.log_id)))
        if isinstance(asked, AskFree):
            return await self._free(log, asked)
        return await self._take(log, asked)

    async def _take(self, log: HostedLog, asked: AskArrival) -> QueueArrival:
        """A piece, or the word that there are no more."""
        self._check(asked)
        if asked.piece == PROBE:
            _publisher(log).check_admitted()
            log.replica.queues.check_room()
            return QueueArrival(wanted=0)
        place, queues = (log.log_id, asked.queue_id), log.replica.queues
        there = queues.moves.arriving.get(asked.queue_id)
        if there is not None and there.arrived and there.move == asked.move:
            return await self._arrived(log)
        arrival = self._arrivals.get(place)
        if there is None or arrival is None or not arrival.arriving.move == there.move == asked.move:
            if asked.piece:
                return QueueArrival(wanted=0)
            arrival = self._begin_arrival(log, asked, there)
        if asked.piece != arrival.next_piece:
            return QueueArrival(wanted=arrival.next_piece)
        if asked.state is None:
            self._append(log, arrival.end())
            del self._arrivals[place]
            return await self._arrived(log)
        arrival.add(asked.piece, asked.state)
        while (batch := arrival.next_batch(log.replica.log.end)) is not None:
            self._append(log, batch)
        return QueueArrival(wanted=arrival.next_piece)

    def _check(self, asked: AskArrival) -> None:
        if asked.state is not None and len(asked.state) > STATE_BYTES_MAX:
            raise BadBatch(f"a piece of {len(asked.state)} bytes is above {STATE_BYTES_MAX}")
        move = self._view.moves().get(asked.name)
        if move is None or (move.number, move.target) != (asked.move, asked.log_id):
            raise LogUnavailable(f"nothing is known here of move {asked.move}; ask again")

    def _begin_arrival(self, log: HostedLog, asked: AskArrival, there: ArrivingQueue | None) -> Arrival:
        if there is not None:
            self._drop(log, asked.queue_id, there.move)
        arrival = Arrival(_arriving(asked), epoch=log.replica.log.epochs.current)
        self._append(log, arrival.begin(log.replica.queues))
        self._arrivals[log.log_id, asked.queue_id] = arrival
        return arrival

    async def _free(self, log: HostedLog, asked: AskFree) -> Noted:
        left = log.replica.queues.moves.left.get(asked.queue_id)
        if left is not None and left.handed_over and not left.freed:
            batch = hand_over(log.replica.queues, asked.queue_id, left.move, freed=True)
            if batch is not None:
                self._append(log, batch)
        await confirmed(_publisher(log).when_confirmed)
        return Noted()

    async def _arrived(self, log: HostedLog) -> QueueArrival:
        await confirmed(_publisher(log).when_confirmed)
        self._soon()
        return QueueArrival(wanted=-1)

    # --- inside ---

    def _append(self, log: HostedLog, batch: bytearray) -> None:
        """What follows from it is seen to when it is confirmed."""
        publisher = _publisher(log)
        publisher.append_control(batch)
        publisher.when_confirmed(lambda error: self._soon())

    def _soon(self) -> None:
        self._look_at = 0.0
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: self.tick(loop.time()))

    def _start(self, tasks: dict[_K, asyncio.Task[None]], key: _K, work: Coroutine[Any, Any, None]) -> None:
        task = tasks[key] = asyncio.ensure_future(work)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("move_failed what=%r", key, exc_info=error)
            self._soon()

        task.add_done_callback(ended)


def _arriving(asked: AskArrival) -> QueueArriving:
    """Raises BadBatch when it does not say that, of this queue and move."""
    match decode_changes(asked.arriving):
        case [QueueArriving() as arriving] if (arriving.queue_id, arriving.move) == (asked.queue_id, asked.move):
            return arriving
    raise BadBatch(f"queue {asked.queue_id} does not arrive by move {asked.move} with that")


def _publisher(log: HostedLog) -> LogPublisher:
    """Raises NotMaster."""
    publisher = log.publisher
    if not isinstance(publisher, LogPublisher) or publisher.stopping:
        raise not_master(log.name, None)
    return publisher


def _goes_on(moves: Mapping[str, MovingQueue], name: str, number: int) -> bool:
    return name in moves and moves[name].number == number


def _is_number(moves: Mapping[str, MovingQueue], number: int) -> bool:
    """Whether that move is under way: of a queue whose states have not all come nobody knows the name."""
    return any(move.number == number for move in moves.values())


def _came_by(view: ClusterView, name: str, log_id: UUID, first: int) -> bool:
    """Whether the cluster has added the span that a queue has here."""
    spans = view.spans(name)
    return bool(spans) and (spans[-1].log_id, spans[-1].first) == (str(log_id), first)
