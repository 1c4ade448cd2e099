"""A copy that was cut derives what a start derives from what is left: it may be the next master."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.body import Record, encode_batch
from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.format import read_header
from mirrorlog.queues.changes import PositionCommitted
from mirrorlog.queues.checkpoint import CheckpointWriter
from tests.broker.derived import derived
from tests.ha.replicas import flush, open_master, open_replica, settings_of


class Writer:
    """Appends what masters append: declares, batches of a few producers, positions, checkpoints."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.random = random.Random(seed)
        self.now_us = 1

    def step(self) -> None:
        self.now_us += self.random.randrange(3)
        steps = [self.publish, self.publish, self.publish, self.publish, self.declare, self.commit, self.checkpoint]
        self.random.choice(steps)()

    def declare(self) -> None:
        arguments = {"retention_bytes": 1 << 20} if self.random.random() < 0.3 else {}
        batch = self.replica.queues.declare(f"q{len(self.replica.queues)}", arguments)
        assert batch is not None
        self.replica.append_change(batch, self.now_us)

    def publish(self) -> None:
        queue_id = self._queue_id()
        count, producer = self.random.randrange(1, 4), self.random.randrange(1, 6)
        held = self.replica.producers.state((producer, queue_id), brief=False)
        epoch, sequence = (held.producer_epoch, held.next_sequence) if held else (self.replica.producers.epoch_floor, 0)
        if held is not None and self.random.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        batch = encode_batch(
            [Record(b"v")] * count, queue_id=queue_id, producer_id=producer, producer_epoch=epoch, sequence=sequence
        )
        self.replica.append(memoryview(batch), read_header(batch), self.now_us)

    def commit(self) -> None:
        queue_id = self._queue_id()
        change = PositionCommitted(
            group=f"g{self.random.randrange(3)}",
            log_id=str(self.replica.log_id),
            epoch=1,
            queue_offset=self.replica.index.next_appended(queue_id),
        )
        name = self.replica.queues.find_id(queue_id).name
        self.replica.append_change(self.replica.queues.commit_position(name, change), self.now_us)

    def checkpoint(self) -> None:
        replica = self.replica
        writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended)
        steps = self.random.choice((1, 2, 100))
        while steps and (batch := writer.next_batch(replica.end)) is not None:
            replica.append_change(batch, self.now_us)
            steps -= 1

    def _queue_id(self) -> int:
        if not len(self.replica.queues):
            self.declare()
        return self.random.choice(self.replica.queues.queue_ids())


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_leaves_what_a_start_finds(tmp_path: Path, seed: int) -> None:
    """Goal: nothing that was cut is remembered, a producer's sequence least of all: its retry would be answered as
    landed. Method: write at random with few producers allowed, confirm a part, cut somewhere above, and compare all
    that is derived with what another copy of the directory gives when it is opened; go on so a few times."""
    settings = settings_of("n0", ["n0"])
    settings = settings.model_copy(update={"limits": settings.limits.model_copy(update={"max_producers": 4})})
    replica = open_master(tmp_path / "n0", settings)
    writer = Writer(replica, seed)
    for turn in range(3):
        for _ in range(60):
            writer.step()
        borders = [each for each in replica.log._chain.active.borders if each >= replica.confirmed]
        confirmed, cut = sorted(writer.random.sample(borders, 2))
        replica.set_confirmed(confirmed)
        epoch = replica.epochs.current + 1
        replica.align(cut, [*replica.epochs.held(cut), Epoch(epoch, cut, "n9", "s")])
        replica.aligned()
        flush(replica)
        shutil.copytree(tmp_path / "n0", tmp_path / f"again{turn}")
        again = open_replica(tmp_path / f"again{turn}", settings)
        assert derived(replica) == derived(again)
        again.close()
    replica.close()


def test_a_retry_of_what_was_cut_is_taken(tmp_path: Path) -> None:
    """Goal: a confirm is never given for bytes that are gone. Method: let a producer's second batch be cut, and ask
    for its retry."""
    settings = settings_of("n0", ["n0"])
    replica = open_master(tmp_path / "n0", settings)
    writer = Writer(replica, 1)
    writer.declare()
    first, second = (
        encode_batch([Record(b"v")], queue_id=1, producer_id=7, producer_epoch=0, sequence=each) for each in (0, 1)
    )
    for batch in (first, second):
        cut = replica.end
        replica.append(memoryview(batch), read_header(batch), 1)
    header = read_header(second)
    assert replica.producers.check(header) is not None
    replica.align(cut, [*replica.epochs.entries, Epoch(2, cut, "n1", "s")])
    replica.aligned()
    assert replica.producers.check(header) is None
    assert replica.producers.check(read_header(first)) is not None
    replica.close()
