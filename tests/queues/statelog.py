"""A log in a list, and what a node derives from it: the ground on which checkpoints are tried."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header, stamp
from mirrorlog.queues.changes import (
    PositionCommitted,
    QueueArriving,
    QueueDeclared,
    StateGone,
    decode_changes,
    encode_change,
)
from mirrorlog.queues.checkpoint import CheckpointTracker, CheckpointWriter, decode_checkpoint
from mirrorlog.queues.dead_letters.forwarding import ForwardingTable
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunTable
from mirrorlog.queues.limits.holds import HoldTable
from mirrorlog.queues.log_state import DerivedState
from mirrorlog.queues.producers import EXPIRY_US, ProducerTable
from mirrorlog.queues.queue_table import id_base_of
from mirrorlog.queues.registry import QueueRegistry

Stored = tuple[BatchHeader, bytes]


def follow_batch(state: DerivedState, header: BatchHeader, batch: bytes) -> None:
    """What a replica does with a batch, of whatever kind it is, for one of its states."""
    if header.kind == Kind.CHECKPOINT:
        state.restore(header, decode_checkpoint(batch))
    elif header.kind in (Kind.CONTROL, Kind.QUEUE_STATE):
        state.follow(header, decode_changes(batch))


class Derived:
    """Queues, producers, next queue offsets and the newest checkpoint, fed batch by batch."""

    def __init__(
        self,
        *,
        producers_max: int = 1000,
        expiry_us: int = EXPIRY_US,
        groups_max: int = 100_000,
        reads_checkpoints: bool = True,
        number: int = 0,
    ) -> None:
        self.registry = QueueRegistry(queues_max=100_000, groups_max=groups_max, id_base=id_base_of(number))
        self.producers = ProducerTable(producers_max=producers_max, expiry_us=expiry_us)
        self.tracker = CheckpointTracker()
        self.holds = HoldTable(per_queue_max=4)
        self.groups = GroupTable(per_queue_max=4, is_arriving=self.registry.moves.is_incomplete)
        self.forwardings = ForwardingTable()
        self.runs = RunTable(runs_max=1000, floors=self.groups.whole_floors)
        self.appended: dict[int, int] = {}
        self._reads_checkpoints = reads_checkpoints

    def follow(self, header: BatchHeader, batch: bytes) -> None:
        if header.kind == Kind.CHECKPOINT and self._reads_checkpoints:
            states = decode_checkpoint(batch)
            tables = (self.registry, self.holds, self.groups, self.runs, self.forwardings, self.producers, self.tracker)
            for table in tables:
                table.restore(header, states)
            return
        if header.kind == Kind.DATA:
            self.appended[header.queue_id] = header.next_queue_offset
            self.runs.apply(header, batch, queue_ttl_ms=self.registry.ttls.get(header.queue_id))
        elif header.kind != Kind.CHECKPOINT:
            changes = decode_changes(batch)
            for table in (self.registry, self.holds, self.groups, self.forwardings, self.tracker):
                table.follow(header, changes)
            self.runs.follow(header)
            for change in changes:
                if isinstance(change, StateGone):
                    self.runs.state_gone(header, change.queue_id)
                if isinstance(change, QueueArriving):
                    self.appended[change.queue_id] = max(change.first, self.appended.get(change.queue_id, 0))
            if header.kind == Kind.CONTROL:
                self.producers.follow(changes)
        self.producers.apply(header)

    def follow_all(self, batches: Iterable[Stored], *, confirmed: int) -> None:
        for header, batch in batches:
            self.follow(header, batch)
        self.confirm(confirmed)

    def confirm(self, log_offset: int) -> None:
        begins = self.registry.confirm(log_offset)
        self.holds.confirm(log_offset)
        self.groups.confirm(log_offset)
        self.forwardings.confirm(log_offset)
        self.runs.confirm(log_offset)
        self.runs.start_moved(begins)
        self.tracker.confirm(log_offset)
        for queue_id in (deleted := self.registry.take_deleted()):
            self.groups.forget_queue(queue_id)
            self.forwardings.forget_queue(queue_id)
            self.appended.pop(queue_id, None)
        self.holds.forget_queues(deleted)
        self.runs.forget_queues(deleted)

    def next_queue_offset(self, queue_id: int) -> int:
        stated = self.registry.find_id(queue_id).next_queue_offset if self.registry.has_id(queue_id) else 0
        return max(stated, self.appended.get(queue_id, 0))

    def writer(self, *, queues_per_batch: int, producers_per_batch: int) -> CheckpointWriter:
        return CheckpointWriter(
            self.registry,
            self.producers,
            self.next_queue_offset,
            holds=self.holds,
            groups=self.groups,
            runs=self.runs,
            forwardings=self.forwardings,
            group_parts_per_batch=queues_per_batch,
            queues_per_batch=queues_per_batch,
            producers_per_batch=producers_per_batch,
        )

    def queue_facts(self) -> object:
        """All that is known of queues, in the order of their ids."""
        queues = sorted(self.registry, key=lambda queue: queue.queue_id)
        facts = [
            (
                each.queue_id,
                each.name,
                each.incarnation,
                each.arguments,
                each.declared_at,
                sorted(each.positions.items()),
                sorted(each.newest.items()),
                self.next_queue_offset(each.queue_id),
            )
            for each in queues
        ]
        return self.registry.queue_id_max, facts

    def hold_facts(self) -> object:
        """All holds, by queue and name, as appended and as confirmed."""
        ids = sorted(self.registry.queue_ids())
        return [
            (each, sorted(self.holds.newest(each).items()), sorted(self.holds.confirmed(each).items())) for each in ids
        ]

    def producer_facts(self) -> object:
        """All that is known of producers, but for the landed batches: a checkpoint carries the newest only."""
        states = [self.producers.state(key, brief=False) for key in sorted(self.producers.known())]
        facts = [
            (each.producer_id, each.queue_id, each.producer_epoch, each.next_sequence, each.last_append_time_us)
            for each in states
            if each is not None
        ]
        return self.producers.epoch_floor, facts


class StateLog:
    """Stamped batches one after another from log offset `begin` on."""

    def __init__(self, *, begin: int = 0) -> None:
        self.batches: list[Stored] = []
        self.end = begin
        self.now_us = 1_000_000
        self.epoch = 1

    def append(self, batch: bytearray, *, base_queue_offset: int = 0) -> Stored:
        stamp(
            batch,
            log_offset=self.end,
            base_queue_offset=base_queue_offset,
            append_time_us=self.now_us,
            epoch=self.epoch,
            flags=0,
            seed=0,
        )
        stored = (read_header(batch), bytes(batch))
        self.batches.append(stored)
        self.end = stored[0].next_log_offset
        return stored

    def since(self, log_offset: int) -> list[Stored]:
        return [stored for stored in self.batches if stored[0].log_offset >= log_offset]

    def cut(self, log_offset: int) -> None:
        self.batches = [stored for stored in self.batches if stored[0].next_log_offset <= log_offset]
        self.end = log_offset


class Master:
    """A log with its derived state, as its master writes both."""

    def __init__(self, *, begin: int = 0, groups_max: int = 100_000, number: int = 0) -> None:
        self.log = StateLog(begin=begin)
        self.number = number
        self.derived = Derived(groups_max=groups_max, number=number)

    def append(self, batch: bytearray | None, *, base_queue_offset: int = 0) -> BatchHeader:
        assert batch is not None
        header, stored = self.log.append(batch, base_queue_offset=base_queue_offset)
        self.derived.follow(header, stored)
        return header

    def declare(self, name: str, **arguments: object) -> int:
        """The queue's id."""
        self.append(self.derived.registry.declare(name, arguments, incarnation=f"of {name}"))
        return self.derived.registry.find(name).queue_id

    def declare_as_before(self, name: str, **arguments: object) -> int:
        """As a version did that kept whatever arguments it was given; the queue's id."""
        queue_id = self.derived.registry.queue_id_max + 1
        change = QueueDeclared(name=name, queue_id=queue_id, incarnation=f"of {name}", arguments=arguments)
        self.append(encode_change(change))
        return queue_id

    def commit(self, name: str, group: str, queue_offset: int) -> BatchHeader:
        change = PositionCommitted(group=group, log_id="l", epoch=self.log.epoch, queue_offset=queue_offset)
        return self.append(self.derived.registry.commit_position(name, change))

    def publish(self, queue_id: int, *, count: int = 1, **producer: int) -> BatchHeader:
        """`producer`: id, epoch and sequence; the batch must be accepted."""
        batch = data(queue_id, count=count, **producer)
        assert self.derived.producers.check(read_header(batch)) is None
        return self.append(batch, base_queue_offset=self.derived.next_queue_offset(queue_id))

    def checkpoint(self, *, queues_per_batch: int = 250, producers_per_batch: int = 400) -> list[Stored]:
        """Write one, with nothing in between; its batches."""
        writer = self.derived.writer(queues_per_batch=queues_per_batch, producers_per_batch=producers_per_batch)
        began_at = self.log.end
        while (batch := writer.next_batch(self.log.end)) is not None:
            self.append(batch)
        return self.log.since(began_at)

    def confirm_all(self) -> None:
        self.derived.confirm(self.log.end)

    def rebuilt(self, log_offset: int) -> Derived:
        """What a node derives that has the log from `log_offset` on, all of it confirmed."""
        derived = Derived(number=self.number)
        derived.follow_all(self.log.since(log_offset), confirmed=self.log.end)
        return derived


def data(
    queue_id: int,
    *,
    count: int = 1,
    value: bytes = b"v",
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
) -> bytearray:
    """A data batch as a producer sends it."""
    return encode_batch(
        [Record(value)] * count,
        queue_id=queue_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )
