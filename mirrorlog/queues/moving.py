"""A queue's whole state on its way from one log to another (decision 0050), as the states of a checkpoint. Pure.

`QueuePieces` cuts it where the queue was: everything that the tables of that log know of it. The queue takes nothing
any more, so it may be read over many turns of the loop; a piece takes about a millisecond. `Arrival` writes it where
the queue goes, between QueueArriving and QueueArrived, so that all who follow that log know the same of the queue, and
nothing else has to be told to mirrors, to a restart, or to checkpoints.

What is true of a log's bytes is not true of another's. So log offsets since when something is become that of the batch
in which they arrive: leases and delays begin anew, in full, as with a new master. A batch that landed landed, for
whoever sends it again, where its producer arrived, and is confirmed when that is. Queue offsets, lease numbers,
sequences and times stay.

Rejected: the log offsets resolved by each reader of the log (every table would have two sorts of states); one value
with all of it (a queue may have a million records unsettled).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from msgspec.structs import replace

from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.errors import BadBatch, BadRequest
from mirrorlog.queues.changes import (
    ArrivalDropped,
    QueueArrived,
    QueueArriving,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueReturned,
    encode_change,
)
from mirrorlog.queues.checkpoint import CARRIED_BATCHES, GROUPS_PER_STATE
from mirrorlog.queues.checkpoint_states import (
    ForwardingState,
    GapsState,
    GroupState,
    HoldsState,
    LeasesState,
    LedgerChunk,
    ProducerState,
    QueueState,
    RunState,
    State,
    VerdictsState,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.dead_letters.forwarding import ForwardingTable
from mirrorlog.queues.groups.states import GroupWalk
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunTable, RunWalk
from mirrorlog.queues.limits.holds import HoldTable
from mirrorlog.queues.moves import ArrivingQueue, LeftQueue
from mirrorlog.queues.producers import ProducerTable, landed_at
from mirrorlog.queues.registry import QueueRegistry

PIECE_BYTES_MAX: Final = 256 * 1024
"""A piece of several states ends below this. One state alone may be larger, by the arguments of its queue."""
PIECE_STATES_MAX: Final = 250
PIECE_WORK_BYTES: Final = 16 * 1024
"""A piece is full by then: about 1 ms of the loop, of whichever states."""

PRODUCERS_AT_ONCE: Final = 5_000
"""So many of a log's are looked through in a piece, whosever they are."""
_PAUSE: Final = b""

_ROOM: Final = HEADER_SIZE + 4 + 2 * 8
"""Of a batch besides its values: both columns are padded, and offsets begin with one more than there are values."""


class MovedTables(Protocol):
    """What a copy of a log derives from it, as far as a queue takes it along."""

    @property
    def queues(self) -> QueueRegistry: ...
    @property
    def holds(self) -> HoldTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def forwardings(self) -> ForwardingTable: ...
    @property
    def runs(self) -> RunTable: ...
    @property
    def producers(self) -> ProducerTable: ...
    @property
    def index(self) -> QueueIndex: ...


def leave(registry: QueueRegistry, queue_id: int, move: int, target: str, *, next_queue_offset: int) -> bytearray:
    """The batch by which a queue leaves for the log `target`; `next_queue_offset`: of the next record to be appended.
    Raises NoSuchQueue, or QueueMoving when it has left."""
    registry.find_id(queue_id)
    return encode_change(QueueLeft(queue_id=queue_id, move=move, target=target, next_queue_offset=next_queue_offset))


def come_back(registry: QueueRegistry, queue_id: int, move: int) -> bytearray:
    """The batch by which a queue is here again: its move was cancelled. Raises BadRequest when it has not left by that
    move, or is handed over."""
    left = _left(registry, queue_id, move)
    if left.handed_over:
        raise BadRequest(f"queue {queue_id} is handed over by move {move}, and its state is here no more")
    return encode_change(QueueReturned(queue_id=queue_id, move=move))


def hand_over(registry: QueueRegistry, queue_id: int, move: int, *, freed: bool = False) -> bytearray | None:
    """The batch by which nothing of a queue's state is kept any more where it was: the cluster has added its span.
    `freed`: nor its records. None when that is logged already. Raises BadRequest when it has not left by that move."""
    left = _left(registry, queue_id, move)
    if left.freed or (left.handed_over and not freed):
        return None
    return encode_change(QueueHandedOver(queue_id=queue_id, move=move, freed=freed))


def open_arrived(registry: QueueRegistry, queue_id: int, move: int) -> bytearray:
    """The batch from which on a queue that has arrived, confirmed, is here: the cluster has added its span. Raises
    BadRequest when it has not arrived by that move."""
    if not _arriving(registry, queue_id, move).arrived:
        raise BadRequest(f"of queue {queue_id} not everything has arrived by move {move}")
    return encode_change(QueueOpened(queue_id=queue_id, move=move))


def drop_arrival(registry: QueueRegistry, queue_id: int, move: int) -> bytearray:
    """The batch by which what has arrived of a queue is no more. Raises BadRequest when nothing has by that move."""
    _arriving(registry, queue_id, move)
    return encode_change(ArrivalDropped(queue_id=queue_id, move=move))


def _left(registry: QueueRegistry, queue_id: int, move: int) -> LeftQueue:
    left = registry.moves.left.get(queue_id)
    if left is None or left.move != move or queue_id in registry.moves.arriving:
        raise BadRequest(f"queue {queue_id} has not left this log by move {move}")
    return left


def _arriving(registry: QueueRegistry, queue_id: int, move: int) -> ArrivingQueue:
    arriving = registry.moves.arriving.get(queue_id)
    if arriving is None or arriving.move != move:
        raise BadRequest(f"queue {queue_id} is not arriving in this log by move {move}")
    return arriving


class QueuePieces:
    """The state of a queue that has left, confirmed, in pieces by number, from 0 on. `tables`: of the log that it left;
    they must be of the same mastership all the time. `log_id`, `epoch`: the log's, and in which it is written now.

    `arriving`: what `Arrival` has to be told first."""

    def __init__(
        self,
        tables: MovedTables,
        queue_id: int,
        move: int,
        *,
        log_id: str,
        epoch: int,
        work_bytes: int = PIECE_WORK_BYTES,
    ) -> None:
        """`work_bytes`: a piece is full by then. Raises BadRequest when the queue has not left by that move, or is
        handed over."""
        left = _left(tables.queues, queue_id, move)
        if left.handed_over:
            raise BadRequest(f"queue {queue_id} is handed over by move {move}, and its state is here no more")
        self.queue_id = queue_id
        self.arriving = QueueArriving(
            queue_id=queue_id,
            move=move,
            source=log_id,
            first=left.next_queue_offset,
            producer_epoch_floor=tables.producers.epoch_floor,
            grants_epoch=epoch + tables.queues.epoch_shifts.get(queue_id, 0),
            begin=min(tables.index.begin(queue_id), left.next_queue_offset),
        )
        self._tables = tables
        self._work_bytes = work_bytes
        self._begin()

    def _begin(self) -> None:
        self._states = self._all()
        self._held: bytes | None = None
        self._number = -1
        self._last: bytes | None = b""

    def piece(self, number: int) -> bytes | None:
        """One piece, a batch as it stands in no log, or no bytes; None behind the last one. Asked for are the next one,
        the last one once more, or 0, which begins anew. Raises BadRequest."""
        if number == 0 and self._number > 0:
            self._begin()
        if number == self._number + 1:
            self._number, self._last = number, self._next()
        elif number != self._number:
            raise BadRequest(
                f"piece {number} was asked for behind piece {self._number}; ask for the next one, or for 0"
            )
        return self._last

    # --- inside ---

    def _next(self) -> bytes | None:
        values: list[bytes] = []
        left = PIECE_BYTES_MAX - _ROOM
        while len(values) < PIECE_STATES_MAX and left > PIECE_BYTES_MAX - self._work_bytes:
            value, self._held = self._held or next(self._states, None), None
            if value is None:
                return _piece(values) if values else None
            if value == _PAUSE:
                break
            left -= len(value) + 4
            if values and left < 0:
                self._held = value
                break
            values.append(value)
        return _piece(values)

    def _all(self) -> Iterator[bytes]:
        """In this order: what says which records there are and who has settled them comes before what some of these
        have."""
        for states in (self._queue(), self._holds(), self._groups(), self._forwardings(), self._runs(), self._gaps()):
            yield from map(encode_state, states)
        yield from self._producers()

    def _queue(self) -> Iterator[State]:
        registry = self._tables.queues
        groups = sorted(registry.groups(self.queue_id))
        for first in range(0, max(1, len(groups)), GROUPS_PER_STATE):
            some = groups[first : first + GROUPS_PER_STATE]
            state = registry.state(self.queue_id, some, next_queue_offset=self.arriving.first)
            assert state is not None, "it is aside"
            yield state

    def _holds(self) -> Iterator[State]:
        for name in sorted(self._tables.holds.newest(self.queue_id)):
            if (state := self._tables.holds.state(self.queue_id, [name])) is not None:
                yield state

    def _groups(self) -> Iterator[State]:
        for group, ledger in sorted(self._tables.groups.groups(self.queue_id).items()):
            for part in (walk := GroupWalk(self.queue_id, group, ledger)).parts():
                yield walk.state(part)

    def _forwardings(self) -> Iterator[State]:
        if (state := self._tables.forwardings.state(self.queue_id)) is not None:
            yield state

    def _runs(self) -> Iterator[State]:
        if (runs := self._tables.runs.of(self.queue_id)) is not None:
            for part in RunWalk(self.queue_id, runs.end).parts():
                if (state := self._tables.runs.state(part)) is not None:
                    yield state

    def _gaps(self) -> Iterator[State]:
        if gaps := self._tables.index.gaps_of(self.queue_id):
            yield GapsState({self.queue_id: gaps[-1]}, {self.queue_id: list(gaps[:-1])} if len(gaps) > 1 else {})

    def _producers(self) -> Iterator[bytes]:
        producers, left = self._tables.producers, CARRIED_BATCHES
        keys = iter(producers.known())
        while some := list(islice(keys, PRODUCERS_AT_ONCE)):
            for key in some:
                if key[1] != self.queue_id:
                    continue
                if (state := producers.state(key, brief=left <= 0, idle_brief=False)) is not None:
                    left -= len(state.landed)
                    yield encode_state(state)
            yield _PAUSE


def _piece(values: list[bytes]) -> bytes:
    return bytes(encode_checkpoint(values)) if values else b""


class Arrival:
    """Writes a queue's state into the log that it comes to. `arriving`: see `QueuePieces`; `epoch`: that in which this
    is written; `batch_bytes_max`: what every copy takes."""

    def __init__(self, arriving: QueueArriving, *, epoch: int, batch_bytes_max: int = PIECE_BYTES_MAX) -> None:
        self.arriving = arriving
        self.queue_id = arriving.queue_id
        self.next_piece = 0
        """The number of the piece that is to be added now."""
        self._epoch = epoch
        self._batch_bytes_max = min(batch_bytes_max, PIECE_BYTES_MAX)
        self._waiting: list[State] = []
        self._told = False

    def begin(self, registry: QueueRegistry) -> bytearray:
        """The first batch; `registry`: of the log that it is for. Raises Overloaded when that has no room,
        BadRequest when the queue is there, or is arriving."""
        if registry.has_id(self.queue_id) or self.queue_id in registry.moves.arriving:
            raise BadRequest(f"queue {self.queue_id} is here already, or arriving; drop that first")
        registry.check_room()
        return encode_change(self.arriving)

    def add(self, number: int, piece: bytes | memoryview) -> None:
        """A piece came; `next_batch` gives what is to be appended of it. Raises BadRequest for one out of its turn,
        BadBatch for one that is of another queue, or does not fit."""
        if number != self.next_piece or self._waiting:
            raise BadRequest(f"piece {number} of queue {self.queue_id} came, where {self.next_piece} is the next one")
        states = decode_checkpoint(piece) if len(piece) else []
        if any(not _is_of(state, self.queue_id) for state in states):
            raise BadBatch(f"piece {number} of queue {self.queue_id} has states that are not this queue's")
        self._told = self._told or any(isinstance(state, QueueState) for state in states)
        self._waiting = states
        self.next_piece += 1

    def next_batch(self, log_end: int) -> bytearray | None:
        """The next batch, to be appended at the log's end, `log_end`, before anything else is; None when another piece
        is to be added. If it cannot be appended, the arrival is to be dropped, and begun anew."""
        values: list[bytes] = []
        left = self._batch_bytes_max - _ROOM
        for state in self._waiting:
            value = encode_state(_arrived(state, log_end, epoch=self._epoch, first=self.arriving.first))
            left -= len(value) + 4
            if values and left < 0:
                break
            values.append(value)
        self._waiting = self._waiting[len(values) :]
        return encode_checkpoint(values) if values else None

    def end(self) -> bytearray:
        """The last batch, when all pieces were added. Raises BadRequest while that cannot be."""
        if self._waiting or not self._told:
            raise BadRequest(f"of queue {self.queue_id} not everything has arrived")
        return encode_change(QueueArrived(queue_id=self.queue_id, move=self.arriving.move))


def _is_of(state: State, queue_id: int) -> bool:
    """Whether it speaks of that queue, and of nothing else."""
    match state:
        case GapsState():
            return {*state.gaps, *state.former} <= {queue_id}
        case (
            QueueState()
            | HoldsState()
            | GroupState()
            | LedgerChunk()
            | VerdictsState()
            | LeasesState()
            | ForwardingState()
            | RunState()
            | ProducerState()
        ):
            return state.queue_id == queue_id
        case _:
            return False


def _arrived(state: State, log_offset: int, *, epoch: int, first: int) -> State:
    """A state as it is in the batch at `log_offset` of the log that the queue has come to."""
    match state:
        case QueueState():
            used_at = log_offset if state.used_at >= 0 else -1
            return replace(state, next_queue_offset=first, declared_at=log_offset, used_at=used_at)
        case LedgerChunk() if state.parked:
            return replace(state, parked=[(low, high, delay, log_offset) for low, high, delay, _ in state.parked])
        case LeasesState():
            leases = {number: (holder, ms, log_offset) for number, (holder, ms, _) in state.leases.items()}
            return replace(state, leases=leases)
        case ProducerState():
            landed = {sequence: landed_at(facts, log_offset, epoch) for sequence, facts in state.landed.items()}
            return replace(state, landed=landed)
        case _:
            return state


def batches_of(pieces: QueuePieces, arrival: Arrival, log_end: Callable[[], int]) -> Iterator[bytearray]:
    """All that an arrival appends between its first and its last batch, where both logs are at hand; each is appended
    before the next one is asked for."""
    number = 0
    while (piece := pieces.piece(number)) is not None:
        arrival.add(number, piece)
        while (batch := arrival.next_batch(log_end())) is not None:
            yield batch
        number += 1
