"""Queues with limits of their own, on real nodes with small segments: what goes, what is copied, and that nobody loses
or sees twice a record that is alive."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typer.testing import CliRunner

from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.node import BrokerNode
from mirrorlog.broker.retention import queue_retention
from mirrorlog.client import Client
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import Kind
from mirrorlog.commitlog.index.live import LiveRun, LiveRuns
from mirrorlog.commitlog.index.past import Past
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.retention import RetentionLimits
from mirrorlog.config import HaSettings, LogAssignment, Settings
from mirrorlog.errors import OffsetOutOfRange, Overloaded
from mirrorlog.tools.main import app
from tests.broker.hosting import KIB, SEGMENT_BYTES, running_all, small
from tests.ha.nodes import cluster_settings, hosted_by, replica_of, until

HOUR_MS = 3600 * 1000
LONG = {"retention_ms": HOUR_MS}
SHORT = {"retention_ms": 1}


def cluster_of(root: Path, copies: int, **log: Any) -> list[Settings]:
    return small(cluster_settings(root, copies=copies, ha=HaSettings(reconnect_interval_ms=20)), **log)


class Traffic:
    """Publishes to queues and knows what was confirmed. `arguments`: of the queues, by name."""

    def __init__(self, settings: Settings, arguments: dict[str, dict[str, int]], seed: int = 1) -> None:
        self._address = settings.client_bind
        self._arguments = arguments
        self._random = random.Random(seed)
        self.sent: dict[str, list[bytes]] = {name: [] for name in arguments}

    async def publish(self, total_bytes: int, weights: dict[str, int]) -> None:
        """So many bytes in turns, each record for a queue drawn by its weight."""
        async with Client(self._address) as client:
            producers = {}
            for name in weights:
                await client.admin.declare(name, arguments=self._arguments[name])
                producers[name] = await client.producer(name, batch_bytes=8 * KIB).start()
            names, chances = list(weights), list(weights.values())
            while total_bytes > 0:
                (name,) = self._random.choices(names, chances)
                value = self._random.randbytes(self._random.randrange(1, 3 * KIB))
                total_bytes -= len(value)
                self.sent[name].append(value)
                while True:
                    try:
                        producers[name].send_nowait(value)
                        break
                    except Overloaded:
                        await producers[name].room()
            for producer in producers.values():
                await producer.flush()

    async def read(self, name: str, *, start: int | str = "earliest", read_from: str = "master") -> list[bytes]:
        async with (
            Client(self._address) as client,
            client.consumer(name, start=start, until="confirmed", read_from=read_from) as consumer,
        ):
            found: list[bytes] = []
            expected = None
            async for record in consumer:
                assert expected in (None, record.queue_offset), "in order, and none twice or left out"
                expected = record.queue_offset + 1
                found.append(record.value or b"")
            return found

    async def assert_readable(self, name: str, *, read_from: str = "master") -> None:
        """All of a queue, from its start and from within."""
        sent = self.sent[name]
        assert await self.read(name, read_from=read_from) == sent
        for start in range(0, len(sent), max(1, len(sent) // 5)):
            assert await self.read(name, start=start, read_from=read_from) == sent[start:]

    async def assert_gone_below_begin(self, names: Iterable[str]) -> None:
        """Queues that have lost their first records say so, and begin where they say."""
        async with Client(self._address) as client:
            infos = {info.name: info for info in await client.admin.queues()}
        for name in names:
            info = infos[name]
            assert 0 < info.begin <= info.next == len(self.sent[name])
            assert await self.read(name) == self.sent[name][info.begin :]
            with pytest.raises(OffsetOutOfRange):
                await self.read(name, start=0)


def held(replica: Replica, name: str) -> tuple[int, list[bytes]]:
    """(begin, values) of all confirmed records of a queue, as a node that opened this copy finds them; blocking."""
    index, past, log = replica.index, replica.past, replica.log
    assert past is not None
    queue_id = replica.queues.find(name).queue_id
    at = begin = index.begin(queue_id)
    values: list[bytes] = []
    while at < index.next_confirmed(queue_id):
        until_offset = index.past_until(queue_id, at)
        runs: list[QueuedBatch] = []
        if until_offset is not None:
            runs = past.entries(queue_id, at, 64 * KIB, until=until_offset)
            at = at if runs else until_offset
        else:
            runs = index.entries(queue_id, at, 64 * KIB)
        for run in runs:
            header, batch = log.read_batch_at(run.log_offset)
            assert (header.base_queue_offset, header.next_queue_offset) == (
                run.base_queue_offset,
                run.next_queue_offset,
            )
            assert run.base_queue_offset <= at, "nothing is left out"
            values += [
                bytes(value or b"") for value in list(parse_batch_body(batch).values)[at - run.base_queue_offset :]
            ]
            at = run.next_queue_offset
    return begin, values


def files_of(replica: Replica) -> list[int]:
    return sorted(int(path.name) for path in replica.log.directory.iterdir() if path.name.isdigit())


async def shrunk(traffic: Traffic, nodes: Sequence[BrokerNode], files: int, queue: str = "busy") -> None:
    """Wait until all copies have at most so many segments. Something is published meanwhile: the log's begin follows
    its state checkpoints, and they follow its growth."""
    replicas = [replica_of(node) for node in nodes]
    async with asyncio.timeout(20):
        while any(len(files_of(each)) > files for each in replicas) or len({each.log.begin for each in replicas}) > 1:
            await traffic.publish(8 * KIB, {queue: 1})
            await asyncio.sleep(0.01)  # a round of retention comes with each flush


def assignment_of(settings: Sequence[Settings], master: int) -> list[Settings]:
    """The same cluster with another node as its master."""
    names = [each.node.id for each in settings]
    log = LogAssignment(
        master=names[master], mirrors=tuple(name for name in names if name != names[master]), min_in_sync=1
    )
    return [each.model_copy(update={"cluster": each.cluster.model_copy(update={"logs": (log,)})}) for each in settings]


def wiped(settings: Settings) -> None:
    shutil.rmtree(settings.node.data_dir)


def copy_directory(directory: Path, path: Path) -> None:
    """As a kill leaves it. The checkpoint first: files that helpers rename meanwhile are those below its begin."""
    path.mkdir()
    for file in sorted(directory.iterdir(), key=lambda file: file.name != "checkpoint"):
        if not file.name.startswith("spare") and not file.is_dir():
            with suppress(FileNotFoundError):
                shutil.copyfile(file, path / file.name)


def assert_sound(directory: Path) -> None:
    """`mqtool verify` finds nothing, in a log's directory or a node's."""
    result = CliRunner().invoke(app, ["verify", str(directory)])
    assert result.exit_code == 0, result.stdout


# --- tests ---


def test_one_small_queue_does_not_keep_the_log_of_many(tmp_path: Path) -> None:
    """Goal: disk use is bounded by what is alive. A queue that is kept for long and has little, beside six that are
    busy and short: the log shrinks to a few segments while all of the long one is read byte for byte, from master and
    mirror, after a restart, from the mirror's files, of another size, under a new master, and from a mirror that begins
    anew."""
    settings = cluster_of(tmp_path, 2)
    settings[1] = small(settings[1:], segment_bytes=320 * KIB)[0]
    busy = {"busy": SHORT} | {f"busy{number}": SHORT for number in range(5)}
    traffic = Traffic(settings[0], {"kept": LONG, **busy})
    weights = {"kept": 1, **dict.fromkeys(busy, 20)}

    async def grow_and_shrink() -> None:
        async with running_all(settings) as nodes:
            await traffic.publish(4 * 1024 * KIB, weights)
            await shrunk(traffic, nodes, 4)
            master = replica_of(nodes[0])
            assert master.log.begin > 2 * 1024 * KIB
            assert sum(map(len, traffic.sent["kept"])) > 10 * KIB
            for read_from in ("master", "mirror"):
                await traffic.assert_readable("kept", read_from=read_from)
            await traffic.assert_gone_below_begin(busy)

    async def restart() -> None:
        async with running_all(settings) as nodes:
            await until(lambda: replica_of(nodes[1]).log.confirmed == replica_of(nodes[0]).log.confirmed)
            for read_from in ("master", "mirror"):
                await traffic.assert_readable("kept", read_from=read_from)
            await traffic.publish(1024 * KIB, weights)
            await shrunk(traffic, nodes, 4)
            await traffic.assert_readable("kept")

    async def change_places() -> None:
        changed = assignment_of(settings, 1)
        async with running_all([changed[1], changed[0]]) as nodes:
            traffic._address = changed[1].client_bind
            await traffic.publish(1024 * KIB, weights)
            await shrunk(traffic, nodes, 4)
            await traffic.assert_readable("kept")

    async def begin_anew() -> None:
        wiped(settings[0])
        changed = assignment_of(settings, 1)
        async with running_all([changed[1], changed[0]]) as nodes:
            first, second = replica_of(nodes[0]), replica_of(nodes[1])
            await until(
                lambda: second.usable and second.log.confirmed == first.log.confirmed > 0 and not second.index.partial
            )
            assert second.log.first_segment > 0
            for read_from in ("master", "mirror"):
                await traffic.assert_readable("kept", read_from=read_from)

    for part in (grow_and_shrink, restart, change_places, begin_anew):
        uvloop.run(part())
        for each in settings:
            assert_sound(each.node.data_dir)


def test_records_are_read_while_their_segments_go(tmp_path: Path) -> None:
    """Goal: each reader sees each record once and in order, whatever is copied and freed beside it. Read a queue over
    and over, from both copies, small piece by piece, while it and a busy one are written and segments go."""
    settings = cluster_of(tmp_path, 2)
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=2)
    rounds = 0

    async def read_on(done: asyncio.Event, read_from: str) -> None:
        nonlocal rounds
        while not done.is_set():
            confirmed = list(traffic.sent["kept"])
            if not confirmed:
                await asyncio.sleep(0)
                continue
            async with (
                Client(settings[0].client_bind) as client,
                client.consumer(
                    "kept", until="confirmed", read_from=read_from, max_bytes=4 * KIB, prefetch_bytes=8 * KIB
                ) as consumer,
            ):
                at = 0
                async for record in consumer:
                    assert record.queue_offset == at
                    assert record.value == traffic.sent["kept"][at]
                    at += 1
            rounds += 1

    async def check() -> None:
        async with running_all(settings) as nodes:
            done = asyncio.Event()
            await traffic.publish(32 * KIB, {"kept": 1})
            readers = [asyncio.ensure_future(read_on(done, read_from)) for read_from in ("master", "mirror")]
            for _ in range(10):
                await traffic.publish(512 * KIB, {"kept": 1, "busy": 60})
            await shrunk(traffic, nodes, 4)
            done.set()
            await asyncio.gather(*readers)
            await traffic.assert_readable("kept")

    uvloop.run(check())
    assert rounds > 2


def test_a_read_that_its_segment_left_is_made_again(tmp_path: Path) -> None:
    """Goal: a reader is not told that a live record is gone. Hold the disk reads up behind a job, ask for records of a
    sealed segment, free it, and let the reads go on: the records come, from where they stand then."""
    settings = cluster_of(tmp_path, 1, retention_copy_percent=0)  # until the reads wait: they would come from memory
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=7)

    async def check() -> None:
        held_up = threading.Event()
        with ThreadPoolExecutor(1) as helper:
            try:
                async with running_all(settings) as nodes:
                    replica = replica_of(nodes[0])
                    await traffic.publish(4 * KIB, {"kept": 1})
                    await traffic.publish(300 * KIB, {"busy": 1})
                    first = replica.log.directory / f"{0:020d}"
                    await until(lambda: 0 in replica.past.tables.heads)
                    assert replica.log.begin == 0
                    begun = threading.Event()
                    helper.submit(lambda: (begun.set(), held_up.wait(30)))
                    await until(begun.is_set)
                    log = hosted_by(nodes[0])
                    log.fetcher._helper = helper
                    reading = asyncio.ensure_future(traffic.read("kept"))
                    await until(lambda: helper._work_queue.qsize() >= 1)
                    assert first.exists()
                    log.role.retention.queues._copy_share = 0.125
                    await shrunk(traffic, nodes, 3)
                    await until(lambda: not first.exists())
                    assert not reading.done()
                    held_up.set()
                    assert await reading == traffic.sent["kept"]
            finally:
                held_up.set()

    uvloop.run(check())


def test_nothing_is_freed_before_its_copies_are_confirmed(tmp_path: Path) -> None:
    """Goal: space is freed only for what stands elsewhere on disk. A log whose confirms wait for the disk: hold its
    flushes up, let the copies be appended, and have many rounds look: the log's begin is not moved, and nothing is
    copied twice; let the flushes go on, and the segments go."""
    settings = small(
        cluster_settings(tmp_path, copies=1, ha=HaSettings(), flush="disk"),
        retention_copy_percent=0,
        flush_interval_ms=10,
    )
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=8)

    async def check() -> None:
        held_up = threading.Event()
        async with running_all(settings) as nodes:
            replica, maintenance = replica_of(nodes[0]), hosted_by(nodes[0]).maintenance
            queues = hosted_by(nodes[0]).role.retention.queues
            await traffic.publish(8 * KIB, {"kept": 1})
            await traffic.publish(600 * KIB, {"busy": 1})
            await until(lambda: len(replica.past.tables.heads) >= 2 and replica.log.state_from > SEGMENT_BYTES)
            flush_helper = maintenance._flush_helper
            with ThreadPoolExecutor(1) as helper:
                begun = threading.Event()
                helper.submit(lambda: (begun.set(), held_up.wait(30)))
                await until(begun.is_set)
                maintenance._flush_helper = helper
                await until(lambda: helper._work_queue.qsize() >= 1)
                try:
                    queues._copy_share = 0.125
                    begin, end = replica.begin_ahead, replica.log.end
                    await until(lambda: queues.wake(RetentionLimits()) or queues._confirm is not None)
                    copied_to = replica.log.end
                    assert copied_to > end
                    for _ in range(20):
                        queues.wake(RetentionLimits())
                        await asyncio.sleep(0)
                    assert (replica.log.end, replica.begin_ahead) == (copied_to, begin)
                    assert replica.log.confirmed < copied_to
                finally:
                    held_up.set()
                    maintenance._flush_helper = flush_helper
                await shrunk(traffic, nodes, 3)
            await traffic.assert_readable("kept")

    uvloop.run(check())


def test_a_low_disk_is_not_forgotten_while_a_decision_waits(tmp_path: Path) -> None:
    """Goal: a disk that was low once frees a segment, however busy the helper is. Hold the helper up with a round's
    decision behind it, say that the disk is low, have many checks look, let an hour pass, and let the helper go on: the
    begin moves with the next checks, by one segment."""
    settings = cluster_of(tmp_path, 1)
    traffic = Traffic(settings[0], {"kept": LONG, "plain": {}}, seed=9)

    async def check() -> None:
        held_up = threading.Event()
        async with running_all(settings) as nodes:
            replica, retention = replica_of(nodes[0]), hosted_by(nodes[0]).role.retention
            queues, loop, later = retention.queues, asyncio.get_running_loop(), 0.0
            queues._now = lambda: loop.time() + later
            await traffic.publish(4 * KIB, {"kept": 1})
            await traffic.publish(800 * KIB, {"plain": 1})
            await until(lambda: len(replica.past.tables.heads) >= 2 and replica.log.state_from > SEGMENT_BYTES)
            assert replica.begin_ahead == 0
            first_end = replica.log.segments()[0].end
            await until(lambda: queues.ready)
            nodes[0].server.helpers.index.submit(held_up.wait, 30)
            try:
                retention.check()
                assert not queues.ready
                retention.disk_is_low()
                for _ in range(20):
                    retention.check()
                    await asyncio.sleep(0)
                later = 3600.0
            finally:
                held_up.set()
            await until(lambda: retention.check() or replica.begin_ahead > 0)
            assert replica.begin_ahead == first_end
            await traffic.assert_readable("kept")

    uvloop.run(check())


def test_a_disk_that_fills_stops_the_copies_within_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: copies do not fill a disk that takes no data, nor hold the loop up, and go on where they stopped. Copy a
    segment in pieces of some batches, and two in a step of the loop; refuse data at the first copy: the piece is the
    last one; take data again: all is copied, and each batch was looked up once."""
    monkeypatch.setattr(queue_retention, "AT_ONCE", 2)
    monkeypatch.setattr(queue_retention, "PIECE_BYTES", 32 * KIB)
    looked_up: list[int] = []
    next_piece = LiveRuns.next_piece

    def noted(runs: LiveRuns, past: Past, max_bytes: int) -> list[LiveRun]:
        piece = next_piece(runs, past, max_bytes)
        looked_up.extend(live.run.log_offset for live in piece)
        return piece

    monkeypatch.setattr(LiveRuns, "next_piece", noted)
    settings = cluster_of(tmp_path, 1, retention_copy_percent=0)
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=10)
    steps: list[int] = [0]

    async def count_steps() -> None:
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    async def check() -> None:
        async with running_all(settings) as nodes:
            replica, publisher = replica_of(nodes[0]), hosted_by(nodes[0]).publisher
            queues = hosted_by(nodes[0]).role.retention.queues
            # The disk is looked at every second, and has room: a slow run would be told so in between.
            hosted_by(nodes[0]).role.disk_measured = lambda report: None

            def resting() -> bool:
                return queues._task.done()

            def stored() -> None:
                if replica.log.read_batch_at(replica.log._chain.active.borders[-1])[0].flags:
                    steps[-1] += 1
                    if sum(steps) == 1:
                        publisher.data_refused = "the disk is full"

            await traffic.publish(80 * KIB, {"kept": 1})
            await traffic.publish(1200 * KIB, {"busy": 1})
            await until(lambda: len(replica.past.tables.heads) >= 4 and replica.log.state_from > 4 * SEGMENT_BYTES)
            replica.on_stored.append(stored)
            counting = asyncio.ensure_future(count_steps())
            queues._copy_share = 0.125
            await until(lambda: queues.wake(RetentionLimits()) or sum(steps) > 0)
            await until(resting)
            copied = sum(steps)
            for _ in range(20):
                queues._not_before = 0
                queues.wake(RetentionLimits())
                await until(resting)
            assert sum(steps) == copied == len(looked_up)
            publisher.data_refused = ""
            await shrunk(traffic, nodes, 3)
            counting.cancel()
            assert sum(steps) > copied > 2
            assert max(steps) <= 2
            assert len(looked_up) == len(set(looked_up))
            await traffic.assert_readable("kept")

    uvloop.run(check())


def test_a_queue_keeps_its_bytes_and_one_without_limits_all(tmp_path: Path) -> None:
    """A log without limits, with a queue that is limited by bytes, and a small one without limits: of the first stays
    what it asks for and not much more, of the second everything, though its segments go."""
    settings = cluster_of(tmp_path, 1)
    limit = 300 * KIB
    traffic = Traffic(settings[0], {"limited": {"retention_bytes": limit}, "plain": {}}, seed=3)

    async def check() -> None:
        async with running_all(settings) as nodes:
            await traffic.publish(3 * 1024 * KIB, {"limited": 60, "plain": 1})
            await shrunk(traffic, nodes, files := 6, "limited")
            await traffic.assert_readable("plain")
            kept = await traffic.read("limited")
            assert kept == traffic.sent["limited"][-len(kept) :]
            assert limit <= sum(map(len, kept)) <= files * SEGMENT_BYTES, "as much as those files can hold"

    uvloop.run(check())


def test_the_logs_limits_take_queues_without_own(tmp_path: Path) -> None:
    """A log of at most 1 MiB: the queue without limits goes with its segments, the one with longer ones stays."""
    settings = cluster_of(tmp_path, 1, retention_bytes=1024 * KIB)
    traffic = Traffic(settings[0], {"kept": LONG, "plain": {}}, seed=4)

    async def check() -> None:
        async with running_all(settings) as nodes:
            await traffic.publish(4 * 1024 * KIB, {"kept": 1, "plain": 60})
            await shrunk(traffic, nodes, 7, "plain")
            await traffic.assert_readable("kept")
            kept = await traffic.read("plain")
            assert kept == traffic.sent["plain"][-len(kept) :]
            assert len(kept) < len(traffic.sent["plain"])

    uvloop.run(check())


def test_retries_of_copied_batches_are_known(tmp_path: Path) -> None:
    """Goal: no record lands twice. Publish with a producer, have its batches copied and their segments freed, and go on
    under the same identity: its sequence goes on, in this start and after another."""
    settings = cluster_of(tmp_path, 1)
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=5)

    async def check() -> None:
        async with running_all(settings) as nodes:
            replica = replica_of(nodes[0])
            async with Client(settings[0].client_bind) as client:
                await client.admin.declare("kept", arguments=LONG)
                async with client.producer("kept") as producer:
                    await producer.send(b"first")
                    known = replica.producers.known()
                    await traffic.publish(1024 * KIB, {"busy": 1})
                    await shrunk(traffic, nodes, 4)
                    assert replica.producers.known() != []
                    assert (await producer.send(b"second")).queue_offset == 1
            (key,) = [key for key in known if key[1] == replica.queues.find("kept").queue_id]
            state = replica.producers.state(key, brief=False)
            assert state is not None
            assert (state.next_sequence, list(state.landed)) == (2, [0, 1])
            assert await traffic.read("kept") == [b"first", b"second"]

    uvloop.run(check())


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_every_live_record_once(tmp_path: Path) -> None:
    """Goal: nothing is freed before it stands elsewhere. Take the log's directory as a kill would leave it, after each
    stored batch of the decisions and the copies; open it: of the queue that is kept all is there, each record once, in
    order, byte for byte; and opening it twice finds the same."""
    settings = cluster_of(tmp_path / "node", 1)
    traffic = Traffic(settings[0], {"kept": LONG, "busy": SHORT}, seed=6)
    taken: list[tuple[Path, int]] = []
    seen = {"copied": 0, "begins": 0}

    def take(replica: Replica) -> None:
        """Called after each stored batch; helpers may be at work beside it."""
        last = replica.log.read_batch_at(replica.log._chain.active.borders[-1])[0]
        queue_id = replica.queues.find("kept").queue_id
        seen["copied"] += last.flags
        seen["begins"] += last.kind == Kind.CONTROL
        if (last.flags or last.kind == Kind.CONTROL) and len(taken) < 60:
            path = tmp_path / f"taken{len(taken)}"
            copy_directory(replica.log.directory, path)
            taken.append((path, replica.index.next_appended(queue_id)))

    async def live() -> None:
        async with running_all(settings) as nodes:
            replica = replica_of(nodes[0])
            await traffic.publish(256 * KIB, {"kept": 1, "busy": 20})
            replica.on_stored.append(lambda: take(replica))
            rounds = 0
            while rounds < 6 or (rounds < 60 and (len(taken) <= 20 or min(seen.values()) <= 5)):
                await traffic.publish(256 * KIB, {"kept": 1, "busy": 20})  # a busy machine decides less often
                rounds += 1
            await shrunk(traffic, nodes, 4)

    uvloop.run(live())
    assert seen["copied"] > 5
    assert seen["begins"] > 5
    assert len(taken) > 20
    for path, count in taken:
        for _ in range(2):
            replica = Replica(
                settings[0].cluster.logs[0], settings[0].cluster.log_id(settings[0].cluster.logs[0]), settings[0]
            )
            replica.open(path)
            replica.set_confirmed(replica.log.end)  # an only copy confirms what it holds
            assert held(replica, "kept") == (0, traffic.sent["kept"][:count])
            replica.close()
    for path, _ in taken[::10]:
        assert_sound(path)
