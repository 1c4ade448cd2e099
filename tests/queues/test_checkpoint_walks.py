"""A log that is checkpointed while it is written gives the same state from its checkpoint on as from its start on.

A walk does what a master does, in a random order that its seed gives: declarations, positions, batches of producers,
time that goes by, confirms, checkpoints cut in pieces, truncations and restarts. One derived state lives through all of
it by checkpoints; another one, which reads none, is what the whole log says. They must never differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final

import pytest

from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.errors import BadRequest, MirrorlogError, OutOfSequence, StaleProducerEpoch
from mirrorlog.queues.changes import Change, PositionCommitted, QueueDeleted, decode_changes, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from mirrorlog.queues.checkpoint_states import CheckpointBegan, CheckpointEnded, State, decode_checkpoint
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS
from mirrorlog.queues.limits.holds import EXPIRED, RELEASED, TOO_MUCH, HoldRequest
from mirrorlog.queues.producers import RECENT_US, Landed
from tests.queues.ledgers import random_change, random_range, table_facts
from tests.queues.statelog import Derived, StateLog, data

EXPIRY_US: Final = 4 * RECENT_US
STEPS: Final = 300
RECORDS: Final = 3 * CHUNK_RECORDS + 100
"""Of each queue, as far as groups are concerned."""


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.producers_max = self.random.choice([3, 3, 6, 100])
        self.per_batch = self.random.choice([1, 1, 2, 5])
        self.log = StateLog()
        self.confirmed = 0
        self.live = self.new_state()
        self.whole = self.new_state(reads_checkpoints=False)
        self.writer: CheckpointWriter | None = None
        # Where the live state was rebuilt from: where older batches landed it may not know.
        self.live_from = 0
        self.clients: dict[tuple[int, int], tuple[int, int]] = {}
        self.landed: set[tuple[int, ...]] = set()
        self.deleted: set[int] = set()

    def new_state(self, *, reads_checkpoints: bool = True) -> Derived:
        return Derived(producers_max=self.producers_max, expiry_us=EXPIRY_US, reads_checkpoints=reads_checkpoints)

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.declare: 3,
            self.delete: 1,
            self.commit: 10,
            self.hold: 10,
            self.change_group: 30,
            self.give_out: 5,
            self.publish: 40,
            self.retry: 10,
            self.let_time_go_by: 5,
            self.confirm: 12,
            self.write_checkpoint: 25,
            self.cut: 2,
            self.restart: 4,
        }
        self.random.choices(list(steps), list(steps.values()))[0]()
        self.compare()

    def compare(self) -> None:
        assert self.live.queue_facts() == self.whole.queue_facts()
        assert self.live.hold_facts() == self.whole.hold_facts()
        assert self.live.holds.floors() == self.whole.holds.floors()
        assert table_facts(self.live.groups, RECORDS) == table_facts(self.whole.groups, RECORDS)
        assert self.live.producer_facts() == self.whole.producer_facts()
        assert self.live.tracker.state_from == self.newest_checkpoint()
        assert [each for each in self.deleted if self.live.registry.is_gone(each)] == self.known_gone()

    def known_gone(self) -> list[int]:
        """Queues whose deletion is confirmed: nothing is known of any of them, and none has its id."""
        gone = [
            change.queue_id
            for header, batch in self.log.batches
            if header.kind == Kind.CONTROL and header.next_log_offset <= self.confirmed
            for change in decode_changes(batch)
            if isinstance(change, QueueDeleted)
        ]
        assert {queue_id for queue_id, _, _ in self.live.groups}.isdisjoint(gone)
        assert {queue_id for _, queue_id in self.live.producers.known()} <= set(self.live.registry.queue_ids())
        assert not any(self.live.holds.newest(each) or self.live.registry.start_offsets.get(each) for each in gone)
        assert set(gone) <= self.deleted
        return [each for each in self.deleted if each in gone]

    # --- what a master writes ---

    def append(self, batch: bytearray, *, base_queue_offset: int = 0) -> None:
        stored = self.log.append(batch, base_queue_offset=base_queue_offset)
        self.live.follow(*stored)
        self.whole.follow(*stored)

    def declare(self) -> None:
        name = self.random.choice("abcdef")
        batch = self.live.registry.declare(name, {"retention_ms": ord(name)}, incarnation=str(self.log.end))
        if batch is not None:
            self.append(batch)

    def delete(self) -> None:
        """Also while a checkpoint is written, and again under the same name afterwards."""
        for queue_id in self.random.sample(self.live.registry.queue_ids(), min(1, len(self.live.registry))):
            self.append(self.live.registry.delete(queue_id))
            self.deleted.add(queue_id)

    def commit(self) -> None:
        for queue in self.random.sample(list(self.live.registry), min(1, len(self.live.registry))):
            change = PositionCommitted(
                group=self.random.choice("gh"), log_id="l", epoch=1, queue_offset=self.random.randrange(9)
            )
            if self.live.groups.get(queue.queue_id, change.group) is not None:
                continue
            self.append(self.live.registry.commit_position(queue.name, change))

    def hold(self) -> None:
        """Landings register, renew, take over, and end, in any way that is allowed."""
        for queue in self.random.sample(list(self.live.registry), min(1, len(self.live.registry))):
            name, holder = self.random.choice("lmno"), self.random.choice("xy")
            if self.random.random() < 0.3:
                reason = self.random.choice([RELEASED, EXPIRED, TOO_MUCH])
                change = self.live.holds.end(queue.queue_id, name, reason)
            else:
                wish = HoldRequest(
                    name, holder, self.random.randrange(50), 1000, tiered=self.random.random() < 0.5, location="t"
                )
                try:
                    change = self.live.holds.set(queue.queue_id, wish, next_confirmed=50, left_ms=0)
                except BadRequest:
                    continue  # a table that readers look in is not left
            if change is not None:
                self.append(encode_change(change, queue_id=queue.queue_id))

    def change_group(self) -> None:
        """Acking groups come, go, and have their records settled, returned and leased, by one and by the thousand."""
        for queue_id in self.random.sample(self.live.registry.queue_ids(), min(1, len(self.live.registry))):
            group = self.random.choice(["", "g"])
            change: Change
            if self.live.groups.get(queue_id, group) is None or self.random.random() < 0.03:
                change = self.live.groups.reset(
                    queue_id,
                    group,
                    self.random.choice([0, 0, 5000]),
                    streams=self.live.registry.groups(queue_id),
                    replace_stream=True,
                )
            else:
                change = random_change(self.random, group, self.log.end)
            self.append(encode_change(change, queue_id=queue_id))

    def give_out(self) -> None:
        """Only the master knows what is in whose hands."""
        for _, _, ledger in self.live.groups:
            ledger.take(*random_range(self.random))
            ledger.give_back(*random_range(self.random))

    def publish(self) -> None:
        """A client that keeps to the rules sends its next batch; refused, it goes on under another producer epoch."""
        if not len(self.live.registry):
            return
        key = self.random.randint(1, 5), self.random.choice(self.live.registry.queue_ids()[:2])
        producer_epoch, sequence = self.clients.get(key, (0, 0))
        count = self.random.randint(1, 3)
        batch = data(key[1], count=count, producer_id=key[0], producer_epoch=producer_epoch, sequence=sequence)
        verdict = self.verdict(read_header(batch))
        if verdict is None:
            assert (*key, producer_epoch, sequence) not in self.landed, "one batch landed twice"
            self.landed.add((*key, producer_epoch, sequence))
            self.append(batch, base_queue_offset=self.live.next_queue_offset(key[1]))
            self.clients[key] = producer_epoch, sequence + count
        elif isinstance(verdict, StaleProducerEpoch):
            self.clients[key] = verdict.details["producer_epoch"] + 1, 0
        else:
            self.clients[key] = producer_epoch + 1, 0

    def retry(self) -> None:
        """Any batch of the log comes again, however old: it is never taken for a new one."""
        there = self.live.registry.has_id
        sent = [header for header, _ in self.log.batches if header.producer_id and there(header.queue_id)]
        if sent:
            retried = self.random.choice([*sent[-6:], *self.random.sample(sent, 1)])
            assert self.verdict(retried) is not None, "one batch would land twice"

    def let_time_go_by(self) -> None:
        self.log.now_us += self.random.choice([1, RECENT_US // 2, 2 * RECENT_US, EXPIRY_US, EXPIRY_US + 1])

    def confirm(self) -> None:
        borders = [header.next_log_offset for header, _ in self.log.since(self.confirmed)]
        if borders:
            self.confirmed = self.random.choice([*borders, borders[-1]])
            self.live.confirm(self.confirmed)
            self.whole.confirm(self.confirmed)

    def write_checkpoint(self) -> None:
        if self.writer is None:
            self.writer = self.live.writer(queues_per_batch=self.per_batch, producers_per_batch=self.per_batch)
        for _ in range(self.random.choice([1, 1, 1, 2, 100])):
            batch = self.writer.next_batch(self.log.end)
            if batch is None:
                self.writer = None
                return
            self.append(batch)

    # --- what happens to it ---

    def restart(self) -> None:
        self.live_from = self.newest_checkpoint()
        self.live = self.new_state()
        self.live.follow_all(self.log.since(self.live_from), confirmed=self.confirmed)
        self.writer = None

    def cut(self) -> None:
        """A truncation, anywhere above the confirmed offset. Producers are the master's alone, and it is a new one."""
        places = [header.log_offset for header, _ in self.log.since(self.confirmed)]
        if not places:
            return
        place = self.random.choice(places)
        self.log.cut(place)
        self.live.registry.cut(place)
        self.live.holds.cut(place)
        self.live.groups.cut(place)
        self.live.tracker.cut(place)
        self.live_from = self.newest_checkpoint()
        again = self.new_state()
        again.follow_all(self.log.since(self.live_from), confirmed=self.confirmed)
        self.live.producers, self.live.appended = again.producers, again.appended
        self.whole = self.new_state(reads_checkpoints=False)
        self.whole.follow_all(self.log.batches, confirmed=self.confirmed)
        self.landed = {name_of(header) for header, _ in self.log.batches if header.producer_id}
        self.writer = None

    # --- what must be so ---

    def newest_checkpoint(self) -> int:
        """From the bytes alone: where the last one begins whose end is confirmed."""
        began_at, newest = -1, 0
        for header, batch in self.log.batches:
            for state in decoded(batch) if header.kind == Kind.CHECKPOINT else ():
                if isinstance(state, CheckpointBegan):
                    began_at = header.log_offset
                elif isinstance(state, CheckpointEnded):
                    assert state.began_at == began_at
                    newest = began_at if header.next_log_offset <= self.confirmed else newest
        return newest

    def verdict(self, header: BatchHeader) -> Landed | MirrorlogError | None:
        """What both states say to a batch; of old ones the live state may not know the place, and refuses them."""
        live = outcome(lambda: self.live.producers.check(header))
        whole = outcome(lambda: self.whole.producers.check(header))
        if isinstance(whole, Landed) and whole.log_offset < self.live_from and isinstance(live, OutOfSequence):
            assert not self.is_among_the_newest(header), "a checkpoint carries at least the last two"
        elif isinstance(whole, MirrorlogError) and isinstance(live, MirrorlogError):
            assert (type(live), live.details) == (type(whole), whole.details)
        else:
            assert live == whole
        return live

    def is_among_the_newest(self, header: BatchHeader) -> bool:
        theirs = [each for each, _ in self.log.batches if name_of(each)[:3] == name_of(header)[:3]]
        return header in theirs[-2:]


@cache
def decoded(batch: bytes) -> list[State]:
    return decode_checkpoint(batch)


def name_of(header: BatchHeader) -> tuple[int, ...]:
    return header.producer_id, header.queue_id, header.producer_epoch, header.sequence


def outcome(step: Callable[[], Landed | None]) -> Landed | MirrorlogError | None:
    try:
        return step()
    except MirrorlogError as error:
        return error


@pytest.mark.parametrize("seed", range(60))
def test_the_state_from_a_checkpoint_on_is_that_of_the_whole_log(seed: int) -> None:
    """Walk, and compare both states after every step: what is known of queues, positions and producers, who is
    answered what, who holds what, what groups have settled, which queues are gone, and which checkpoint is the newest.
    No batch of a producer may ever land twice."""
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
