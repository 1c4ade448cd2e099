"""A copy that was cut derives what a start derives from what is left: it may be the next master."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.config import Settings
from mirrorlog.queues.changes import Change, PositionCommitted, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from tests.broker.derived import derived
from tests.ha.replicas import content, flush, open_master, open_replica, settings_of
from tests.queues.ledgers import random_change


class Writer:
    """Appends what masters append: declares, batches of a few producers, positions, groups' changes, checkpoints,
    leaps."""

    def __init__(self, replica: Replica, seed: int) -> None:
        self.replica = replica
        self.random = random.Random(seed)
        self.now_us = 1
        self.steps = [self.declare, self.commit, self.change_group, self.change_group, self.checkpoint, self.jump]

    def step(self) -> None:
        self.now_us += self.random.randrange(3)
        self.random.choice([self.publish] * 4 + self.steps)()

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

    def change_group(self) -> None:
        queue_id, group, groups = self._queue_id(), self.random.choice(["", "h"]), self.replica.groups
        if groups.get(queue_id, group) is None:
            change: Change = groups.reset(queue_id, group, 0)
        else:
            change = random_change(self.random, group, self.replica.log.end)
        self.replica.append_change(encode_change(change, queue_id=queue_id), self.now_us)

    def checkpoint(self) -> None:
        replica = self.replica
        writer = CheckpointWriter(
            replica.queues, replica.producers, replica.index.next_appended,
            log_start=lambda: replica.begins.newest, gaps=replica.index.gaps,
            batch_bytes_max=replica.log.max_batch_bytes, groups=replica.groups,
        )  # fmt: skip
        steps = self.random.choice((1, 2, 100))
        while steps and (batch := writer.next_batch(replica.log.end)) is not None:
            replica.append_change(batch, self.now_us)
            steps -= 1

    def jump(self) -> None:
        self.replica.append_change(self.replica.jump_batch(lost_from=self.replica.log.begin), self.now_us)

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
        borders = [each for each in replica.log._chain.active.borders if each >= replica.log.confirmed]
        confirmed, cut = sorted(writer.random.sample(borders, 2))
        replica.set_confirmed(confirmed)
        epoch = replica.log.epochs.current + 1
        replica.align(cut, [*replica.log.epochs.held(cut), Epoch(epoch, cut, "n9", "s")])
        replica.aligned()
        flush(replica)
        shutil.copytree(tmp_path / "n0", tmp_path / f"again{turn}")
        again = open_replica(tmp_path / f"again{turn}", settings)
        assert derived(replica) == derived(again)
        again.close()
    replica.close()


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(8))
def test_what_was_confirmed_and_is_lost_is_cut_from_all_that_is_derived(tmp_path: Path, seed: int) -> None:
    """Goal: a declared loss leaves what a copy has that never had more, also below sealed segments and state
    checkpoints. Method: write at random in tiny segments, confirm, start again so that the past is sealed, cut
    somewhere in what is confirmed; compare all that is derived with a copy that was sent no more than that. What was
    cut is a log directory of its own, byte for byte. Go on so a few times."""
    settings = tiny_segments(settings_of("n0", ["n0"]))
    replica = open_master(tmp_path / "n0", settings)
    writer = Writer(replica, seed)
    sealed = 0
    for turn in range(6):
        for _ in range(100):
            writer.step()
        borders = borders_of(replica)
        confirmed = writer.random.choice(borders[len(borders) // 2 :])
        cut = writer.random.choice([each for each in borders if each <= confirmed])
        replica.set_confirmed(confirmed)
        flush(replica)
        if writer.random.random() < 0.8:
            replica.close()
            replica = writer.replica = open_replica(tmp_path / "n0", settings)
        sealed += replica.log._chain.is_sealed(cut)
        before = content(replica)
        epochs = [*replica.log.epochs.held(cut), Epoch(replica.log.epochs.current + 1, cut, "n9", "s")]

        aside = replica.quarantine_tail(cut)
        assert replica.quarantine_tail(cut) == aside, "who was killed before the cut keeps it once"
        replica.begin_anew()
        replica.align(cut, epochs, lost=True)
        replica.aligned()

        never_more = open_replica(tmp_path / f"other{turn}", settings)
        never_more.align(0, epochs)
        never_more.aligned()
        if cut:
            append_all(never_more, before[:cut])
        never_more.set_confirmed(cut)
        assert hot(replica, derived(replica)) == hot(replica, derived(never_more))
        never_more.close()
        assert read_aside(aside) == before[cut:]
        shutil.rmtree(aside)
    assert sealed, "no cut was below a seal"
    replica.close()


def tiny_segments(settings: Settings) -> Settings:
    log = settings.log.model_copy(update={"segment_bytes": 4096, "prepare_bytes": 0})
    limits = settings.limits.model_copy(update={"max_batch_bytes": 4096, "max_producers": 4})
    return settings.model_copy(update={"log": log, "limits": limits})


def borders_of(replica: Replica) -> list[int]:
    found: list[int] = []
    replica.log.scan(replica.log.begin, lambda header, batch: found.append(header.log_offset))
    return [*found, replica.log.end]


def append_all(replica: Replica, run: bytes) -> None:
    """Batch by batch, as they fit into segments."""
    at = 0
    while at < len(run):
        length = read_header(run[at:]).length
        replica.append_run(memoryview(run)[at : at + length], log_offset=at)
        at += length


def hot(replica: Replica, facts: dict[str, Any]) -> dict[str, Any]:
    """Without the runs that `replica` would have to look for in the past."""
    for queue in facts["queues"].values():
        begin = replica.index.hot_start(queue["queue"][0])
        queue["runs"] = [run for run in queue["runs"] if run.base_queue_offset >= begin]
    return facts


def read_aside(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()) if path.name.isdigit())


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
        cut = replica.log.end
        replica.append(memoryview(batch), read_header(batch), 1)
    header = read_header(second)
    assert replica.producers.check(header) is not None
    replica.align(cut, [*replica.log.epochs.entries, Epoch(2, cut, "n1", "s")])
    replica.aligned()
    assert replica.producers.check(header) is None
    assert replica.producers.check(read_header(first)) is not None
    replica.close()
