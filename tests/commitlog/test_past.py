"""The past of a log: LMDB and tables, alone and together with the hot index, against a plain list of batches."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mirrorlog.commitlog.format.header import BatchHeader, Kind
from mirrorlog.commitlog.index import memory, row_chunks
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.commitlog.index.past import DIRECTORY_NAME, Past, PastIndex
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.commitlog.index.tables import Tables, build_table
from mirrorlog.errors import IndexDoubtful
from tests.commitlog.logs import patch
from tests.commitlog.rows import SEED, end_of, even_rows, header, table_of, tables_in

QUEUES = (1, 2, 3)
FOREVER = 1 << 60
FOREIGN = (bytes(12), bytes(24))
"""An entry that no table has: where it is seen again, an old file was used."""


def store(tables: Tables, headers: list[BatchHeader]) -> int:
    """A segment of these batches; gives its start."""
    start = headers[0].log_offset
    tables.store(start, end_of(headers), memoryview(table_of(headers, start)))
    return start


def segment(start: int, spans: dict[int, tuple[int, int]], *, copied: bool = False) -> list[BatchHeader]:
    """Queue id → (base, records) of one batch each; appended at their log offset."""
    return [
        header(start + 400 * n, queue_id=queue_id, base=base, records=records, time_us=start + 400 * n, copied=copied)
        for n, (queue_id, (base, records)) in enumerate(spans.items())
    ]


def three_segments(directory: Path) -> Tables:
    """Queue 1: 0..99, 100..199, 200..299 at 0, 1000, 2000; queue 2: 0..9 at 400 and 50..59 at 2400."""
    tables = tables_in(directory)
    store(tables, segment(0, {1: (0, 100), 2: (0, 10)}))
    store(tables, segment(1000, {1: (100, 100)}))
    store(tables, segment(2000, {1: (200, 100), 2: (50, 10)}))
    return tables


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    tables = three_segments(tmp_path)
    opened = Past(PastIndex.open(tmp_path / DIRECTORY_NAME, tables), tables)
    yield opened
    opened.close()


def segments_of(past: Past, queue_id: int, offsets: list[int]) -> list[int | None]:
    places = [past.index.segment_of(queue_id, offset) for offset in offsets]
    return [place.segment if place else None for place in places]


def test_an_offset_is_found_in_its_segment_or_the_next(past: Past) -> None:
    """Goal: one seek. Ask inside, at borders, in a hole, behind the last and for unknown queues."""
    assert segments_of(past, 1, [0, 99, 100, 299, 300]) == [0, 0, 1000, 2000, None]
    assert segments_of(past, 2, [9, 10, 49, 50, 60]) == [0, 2000, 2000, 2000, None]
    assert segments_of(past, 3, [0, 2**64 - 1, 2**70]) == [None] * 3
    assert (past.index.first(1), past.index.first(2), past.index.first(3)) == (0, 0, None)
    assert past.index.queues() == {1: (0, 300), 2: (0, 60)}
    assert past.index.start_offsets() == {1: 0, 2: 0}


def test_entries_go_on_over_segments_and_end_at_until(past: Past) -> None:
    """Goal: a fetch from the past. One batch at least, as many as fit, none at `until`."""
    assert [run.log_offset for run in past.entries(1, 50, FOREVER, until=FOREVER)] == [0, 1000, 2000]
    assert [run.log_offset for run in past.entries(1, 50, 800, until=FOREVER)] == [0, 1000]
    assert [run.log_offset for run in past.entries(1, 50, 1, until=FOREVER)] == [0]
    assert [run.log_offset for run in past.entries(1, 50, FOREVER, until=200)] == [0, 1000]
    assert past.entries(2, 20, FOREVER, until=50) == []
    assert past.entries(2, 20, FOREVER, until=51) == [QueuedBatch(2400, 50, 10, 400)]


def test_times_are_found_in_their_segment(past: Past) -> None:
    """Goal: start at a time. Every batch was appended at its log offset, in µs."""
    assert [past.find_time(1, time_us) for time_us in (-1, 0, 1, 1000, 1001, 2001)] == [0, 0, 100, 100, 200, None]
    assert [past.find_time(2, time_us) for time_us in (400, 401, 2401)] == [0, 50, None]
    assert past.find_time(3, 0) is None


def test_a_dropped_segment_takes_exactly_its_entries(past: Past, tmp_path: Path) -> None:
    """Goal: retention. Drop the first segment, twice."""
    past.drop(0)
    past.drop(0)
    assert segments_of(past, 1, [0, 100]) == [1000, 1000]
    assert past.index.start_offsets() == {1: 100, 2: 50}
    assert not (tmp_path / table_name(0)).exists()


def test_copies_take_the_place_of_older_records(past: Past) -> None:
    """Goal: re-appended batches in a later segment. Copy the middle of queue 1 over a segment's border, then copy part
    of the copy, then drop the oldest: what was copied stays, the rest goes."""
    store(past.tables, segment(3000, {1: (90, 20)}, copied=True))
    past.add(3000)
    assert segments_of(past, 1, [89, 90, 109, 110]) == [0, 3000, 3000, 1000]
    store(past.tables, segment(4000, {1: (95, 5)}, copied=True))
    past.add(4000)
    assert segments_of(past, 1, [94, 95, 99, 100]) == [3000, 4000, 4000, 3000]
    past.drop(0)
    assert past.index.start_offsets() == {1: 90, 2: 50}
    past.drop(1000)
    assert segments_of(past, 1, [0, 94, 95, 109, 110]) == [3000, 3000, 4000, 3000, 2000]
    past.drop(2000)
    past.drop(3000)
    assert past.index.queues() == {1: (95, 100)}


def test_adding_twice_is_adding_once(past: Past) -> None:
    """Goal: invariant 8. Compare all entries."""
    before = past.index.queues()
    for start in (0, 2000):
        past.add(start)
    assert past.index.queues() == before
    assert segments_of(past, 1, [0, 99, 100, 299]) == [0, 0, 1000, 2000]


def put_entry(transaction: Any, *, index: PastIndex, key: bytes, value: bytes) -> None:
    transaction.put(key, value, db=index._places)


def entries_of(index: PastIndex) -> list[tuple[bytes, bytes]]:
    with index._env.begin(db=index._places) as transaction, transaction.cursor() as cursor:
        return list(cursor)


def test_a_closed_index_is_used_again(tmp_path: Path) -> None:
    """Goal: no rebuild at each start. Close, put a foreign entry under the mark, open: it is still there; a table that
    came meanwhile is added."""
    tables = three_segments(tmp_path)
    index = PastIndex.open(tmp_path / DIRECTORY_NAME, tables)
    index._write(partial(put_entry, index=index, key=FOREIGN[0], value=FOREIGN[1]))
    index.close()
    index.close()
    store(tables, segment(3000, {1: (300, 5)}))
    index = PastIndex.open(tmp_path / DIRECTORY_NAME, tables)
    assert FOREIGN in entries_of(index)
    assert index.queues()[1] == (0, 305)
    index.close()
    tables.close()


@pytest.mark.parametrize("damage", ["deleted", "no mark", "flipped bit", "cut", "garbage", "table gone", "other table"])
def test_a_doubtful_index_is_built_anew(tmp_path: Path, damage: str) -> None:
    """Goal: invariant 10. Damage what a clean stop left; the opened index equals one that never was damaged."""
    tables = three_segments(tmp_path)
    path = tmp_path / DIRECTORY_NAME
    index = PastIndex.open(path, tables)
    index._write(partial(put_entry, index=index, key=FOREIGN[0], value=FOREIGN[1]))
    index.close()
    data = path / "data.mdb"
    if damage == "deleted":
        data.unlink()
    elif damage == "no mark":
        (path / "clean").unlink()
    elif damage == "flipped bit":
        content = data.read_bytes()
        at = content.rindex(bytes(11) + bytes(1))
        patch(data, at, bytes([content[at] ^ 1]))
    elif damage == "cut":
        data.write_bytes(data.read_bytes()[:5000])
    elif damage == "garbage":
        data.write_bytes(b"no database" * 1000)
    elif damage == "table gone":
        tables.remove(0)
    else:
        store(tables, segment(0, {1: (0, 100), 3: (0, 10)}))
    opened = PastIndex.open(path, tables)
    fresh = PastIndex.open(tmp_path / "fresh", tables)
    assert entries_of(opened) == entries_of(fresh)
    assert opened.included == fresh.included
    for each in (opened, fresh):
        each.close()
    tables.close()


def test_an_index_that_was_not_closed_is_built_anew(tmp_path: Path) -> None:
    """Goal: LMDB is not synced while in use, so what a crash leaves counts for nothing. A process ends in the middle;
    its file holds an entry that must not be seen."""
    three_segments(tmp_path).close()
    program = (
        "import os, sys; from pathlib import Path; from tests.commitlog.test_past import *;"
        "tables = three_segments(Path(sys.argv[1]));"
        "index = PastIndex.open(Path(sys.argv[1]) / DIRECTORY_NAME, tables);"
        "index._write(partial(put_entry, index=index, key=FOREIGN[0], value=FOREIGN[1])); os._exit(9)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, timeout=60, check=False)
    assert done.returncode == 9
    tables = three_segments(tmp_path)
    index = PastIndex.open(tmp_path / DIRECTORY_NAME, tables)
    assert FOREIGN not in entries_of(index)
    assert index.queues() == {1: (0, 300), 2: (0, 60)}
    index.close()
    tables.close()


@pytest.mark.parametrize("gone", ["the directory", "the mark's place"])
def test_a_close_that_cannot_write_its_mark_says_so_and_is_one(tmp_path: Path, gone: str) -> None:
    """Goal: the index is derived, nothing of it may hold up a stop. Take its directory away while it is open, or put
    another one where the mark goes: a named error, once; and the next open makes all anew."""
    tables = three_segments(tmp_path)
    path = tmp_path / DIRECTORY_NAME
    index = PastIndex.open(path, tables)
    if gone == "the directory":
        shutil.rmtree(path)
    else:
        (path / "clean").mkdir()
    with pytest.raises(IndexDoubtful, match=f"cannot write {path}/clean: .*rebuilt"):
        index.close()
    index.close()
    shutil.rmtree(path, ignore_errors=True)
    index = PastIndex.open(path, tables)
    assert index.queues() == {1: (0, 300), 2: (0, 60)}
    index.close()
    tables.close()


def test_the_map_grows(tmp_path: Path) -> None:
    """Goal: no limit but the disk's. Begin with a map of 64 KiB."""
    tables = tables_in(tmp_path)
    index = PastIndex.open(tmp_path / DIRECTORY_NAME, tables)
    index._env.set_mapsize(64 * 1024)
    rows = even_rows(5000, queues=5000)
    tables.store(0, 5000 * 1024, build_table([memoryview(rows.tobytes())], start=0, end=5000 * 1024, seed=SEED))
    index.add(tables.get(0))
    assert len(index.queues()) == 5000
    index.close()
    tables.close()


def test_a_table_that_does_not_hold_what_the_index_says_is_doubtful(past: Past) -> None:
    """Goal: the two check each other. Put an entry of a segment that is not there, and one of a queue that is not."""
    index = past.index
    for queue_id, start in ((7, 0), (8, 5000)):
        key, value = struct.pack(">IQ", queue_id, 0), struct.pack("<QQq", start, 10, 0)
        index._write(partial(put_entry, index=index, key=key, value=value))
        with pytest.raises(IndexDoubtful):
            past.entries(queue_id, 0, 1000, until=FOREVER)


class Log:
    """A log that lives: the hot index and the past as a node would drive them, and the plain list of its batches."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.directory = directory
        self.random = random
        self.index = QueueIndex()
        self.tables = tables_in(directory)
        self.past = Past(PastIndex.open(directory / DIRECTORY_NAME, self.tables), self.tables)
        self.batches: list[BatchHeader] = []
        self.following = dict.fromkeys(QUEUES, 0)
        self.end = 0
        self.confirmed = 0
        self.starts = [0]
        self.sealed = 0
        self.next_sealed: dict[int, int] = {}

    # --- what happens ---

    def append(self) -> None:
        """Data mostly, at times with a leap; a copy of an old batch; state."""
        queue_id, chance = self.random.choice(QUEUES), self.random.random()
        live = [each for each in self.live(queue_id) if each.log_offset < self.confirmed]
        if chance < 0.15 and live:
            batch = self.random.choice(live)._replace(log_offset=self.end, flags=1)
        elif chance < 0.25:
            batch = header(self.end, queue_id=queue_id, base=0, kind=Kind.QUEUE_STATE, time_us=self.end)
        else:
            base = self.following[queue_id] + (50 if self.random.random() < 0.05 else 0)
            batch = header(self.end, queue_id=queue_id, base=base, records=self.random.randint(1, 4), time_us=self.end)
            self.following[queue_id] = batch.next_queue_offset
        self.index.add(batch)
        self.batches.append(batch)
        self.end = batch.next_log_offset

    def confirm(self) -> None:
        ends = [each.next_log_offset for each in self.batches if each.next_log_offset >= self.confirmed]
        self.confirmed = self.random.choice(ends[:10]) if ends else self.confirmed
        self.index.confirm(self.confirmed)

    def cut(self) -> None:
        borders = [each.log_offset for each in self.batches if each.log_offset >= max(self.confirmed, self.starts[-1])]
        if borders:
            self.end = self.random.choice(borders)
            self.index.cut(self.end)
            self.batches = [each for each in self.batches if each.log_offset < self.end]
            for queue_id in QUEUES:
                data = [each for each in self.batches if each.queue_id == queue_id and each.kind == Kind.DATA]
                last = max((each.next_queue_offset for each in data), default=0)
                self.following[queue_id] = max(last, self.index.next_confirmed(queue_id))

    def roll(self) -> None:
        if self.end > self.starts[-1]:
            self.starts.append(self.end)

    def seal(self) -> None:
        """The next sealed and confirmed segment gets its table and leaves the memory."""
        if self.sealed + 1 < len(self.starts) and self.starts[self.sealed + 1] <= self.confirmed:
            start, end = self.starts[self.sealed : self.sealed + 2]
            content = build_table(self.index.rows(start, end), start=start, end=end, seed=SEED)
            self.tables.store(start, end, content)
            self.past.add(start)
            self.index.evict(end)
            self.sealed += 1
            for each in self.batches:
                if start <= each.log_offset < end and each.kind == Kind.DATA:
                    known = self.next_sealed.get(each.queue_id, 0)
                    self.next_sealed[each.queue_id] = max(known, each.next_queue_offset)

    def drop(self) -> None:
        """The first segment goes, when every copy that was made of it is confirmed."""
        pending = any(each.flags and each.log_offset >= self.confirmed for each in self.batches)
        if self.sealed and not pending:
            start, begin = self.starts[:2]
            del self.starts[0]
            self.sealed -= 1
            self.past.drop(start)
            self.batches = [each for each in self.batches if each.log_offset >= begin]
            begins = {queue_id: self.begin(queue_id) for queue_id in QUEUES}
            self.index.start_moved(begin, begins)

    def restart(self) -> None:
        """Clean or not; the tail above the tables is walked again, the queues go on where the tables end."""
        nexts = {queue_id: self.index.next_appended(queue_id) for queue_id in QUEUES}
        begins = {queue_id: self.index.begin(queue_id) for queue_id in QUEUES}
        self.past.close()
        if self.random.random() < 0.5:
            (self.directory / DIRECTORY_NAME / "clean").unlink()
        self.tables, self.index = tables_in(self.directory), QueueIndex()
        tail = self.starts[self.sealed]
        for start, end in pairwise(self.starts[: self.sealed + 1]):
            head = self.tables.load(start, end)
            time_us = head.first_append_time_us
            self.index.set_past(first=start, end=end, first_append_time_us=time_us, records=head.records)
        self.past = Past(PastIndex.open(self.directory / DIRECTORY_NAME, self.tables), self.tables)
        for queue_id, following in self.next_sealed.items():
            self.index.set_queue(queue_id, begin=min(begins[queue_id], following), next_offset=following)
        self.index.confirm(self.confirmed)
        for each in self.batches:
            if each.log_offset >= tail:
                self.index.add(each)
        assert {queue_id: self.index.next_appended(queue_id) for queue_id in QUEUES} == nexts

    # --- what must hold ---

    def live(self, queue_id: int) -> list[BatchHeader]:
        """The confirmed batches of a queue that count, in queue order."""
        found = {
            each.base_queue_offset: each
            for each in self.batches
            if (each.queue_id, each.kind) == (queue_id, Kind.DATA) and each.log_offset < self.confirmed
        }
        return [found[base] for base in sorted(found)]

    def begin(self, queue_id: int) -> int:
        live = self.live(queue_id)
        return live[0].base_queue_offset if live else self.index.next_confirmed(queue_id)

    def entries(self, queue_id: int, offset: int, max_bytes: int) -> list[QueuedBatch]:
        """As a fetch asks: the memory, or the past and then the memory."""
        until = self.index.past_until(queue_id, offset)
        if until is not None:
            runs = self.past.entries(queue_id, offset, max_bytes, until=until)
            if runs:
                return runs
            offset = until
        return self.index.entries(queue_id, offset, max_bytes)

    def find_time(self, queue_id: int, time_us: int) -> int:
        found = self.index.find_time(queue_id, time_us)
        past = self.past.find_time(queue_id, time_us) if self.index.is_past_time(queue_id, time_us) else None
        return found if past is None else min(past, found)

    def check(self) -> None:
        for queue_id in QUEUES:
            live = self.live(queue_id)
            begin, following = self.index.begin(queue_id), self.index.next_confirmed(queue_id)
            if live:
                assert following >= live[-1].next_queue_offset
                assert begin <= live[0].base_queue_offset
            for offset in range(begin, following):
                expected = next((each for each in live if each.next_queue_offset > offset), None)
                found = self.entries(queue_id, offset, 1)
                assert [run.log_offset for run in found] == ([expected.log_offset] if expected else []), (
                    queue_id,
                    offset,
                )
            self._check_reading(queue_id, live, begin, following)
            for time_us in self.random.sample(range(self.end + 1), min(10, self.end + 1)):
                later = [each.base_queue_offset for each in live if each.append_time_us >= time_us]
                assert self.find_time(queue_id, time_us) == (later[0] if later else following)

    def _check_reading(self, queue_id: int, live: list[BatchHeader], begin: int, following: int) -> None:
        """Reading from begin to end gives every batch once, in order."""
        read: list[int] = []
        offset = begin
        while offset < following and (runs := self.entries(queue_id, offset, self.random.randint(1, 3000))):
            read += [run.log_offset for run in runs]
            offset = runs[-1].next_queue_offset
        assert read == [each.log_offset for each in live]


@pytest.mark.parametrize("seed", range(25))
def test_memory_and_past_together_are_the_list_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Goal: whatever happens to a log, every lookup by offset and time equals filtering the plain list of what is left
    of it. Chunks of 8 rows, so that their borders are met everywhere."""
    for name, value in {"CHUNK_ROWS": 8, "CHUNK_BITS": 3, "IN_CHUNK": 7, "_CHUNK_BYTES": 320}.items():
        for module in (row_chunks, memory):
            monkeypatch.setattr(module, name, value, raising=module is row_chunks)
    random = Random(seed)
    log = Log(tmp_path, random)
    steps = [log.append] * 12 + [log.confirm] * 5 + [log.cut, log.roll, log.seal, log.seal, log.drop, log.restart]
    for number in range(250):
        random.choice(steps)()
        if number % 25 == 24:
            log.check()
    log.past.close()


QUEUES_MANY = 10_000
SEGMENT_BYTES = 1 << 30


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def measure_memory(directory: Path, segments: int, hot_batches: int) -> None:
    """Print what a past of `segments` segments with 10,000 queues each, and a hot index, take: bytes."""
    before = anonymous_bytes()
    tables = tables_in(directory)
    length = SEGMENT_BYTES // QUEUES_MANY // 8 * 8
    end = 0
    for number in range(segments):
        rows = even_rows(QUEUES_MANY, queues=QUEUES_MANY, start=end, base=number * 10, length=length)
        start, end = end, end + QUEUES_MANY * length
        tables.store(start, end, build_table([memoryview(rows.tobytes())], start=start, end=end, seed=SEED))
    past = Past(PastIndex.open(directory / DIRECTORY_NAME, tables), tables)
    index = QueueIndex()
    for queue_id, (begin, following) in past.index.queues().items():
        index.set_queue(queue_id, begin=begin, next_offset=following)
    for number in range(hot_batches):
        turn, queue = divmod(number, QUEUES_MANY)
        index.add(header(end + 400 * number, queue_id=1 + queue, base=(segments + turn) * 10))
    index.confirm(end + 400 * hot_batches)
    assert past.entries(77, 15, 1, until=FOREVER)[0].base_queue_offset == 10
    assert index.find(77, segments * 10).log_offset == end + 400 * 76
    print(anonymous_bytes() - before)
    past.close()


def test_the_memory_of_ten_thousand_queues_is_small(tmp_path: Path) -> None:
    """Goal: 100 GB of log with 10,000 queues under 300 MB of private memory. A process of its own holds 20 segments of
    1 GiB, one batch of each queue in each, and 100,000 batches in memory: 16 MB in all. The past must not count: five
    times as many segments took 1 MB more."""
    call = "import sys; from pathlib import Path; from tests.commitlog.test_past import *;"
    program = f"{call} measure_memory(Path(sys.argv[1]), segments=20, hot_batches=100_000)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        timeout=100,
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) < 40 << 20


def test_entries_before_come_from_the_newest_stretch_down_and_as_many_as_fit(past: Past) -> None:
    """Goal: whoever goes through a queue backwards meets each batch once. Ask at borders, in a hole, before the first
    and behind the last; then with a copied middle, which takes its part of the older stretch."""

    def before(until: int, max_bytes: int = FOREVER) -> list[tuple[int, int]]:
        return [(run.log_offset, run.base_queue_offset) for run in past.entries_before(1, until, max_bytes)]

    assert [before(until) for until in (0, 1, 100, 101, 300, 999)] == [
        [], [(0, 0)], [(0, 0)], [(1000, 100)], [(2000, 200)], [(2000, 200)],
    ]  # fmt: skip
    assert [run.base_queue_offset for run in past.entries_before(2, 50, FOREVER)] == [0]
    assert past.entries_before(3, 50, FOREVER) == []
    runs = [header(3000 + 400 * n, queue_id=1, base=300 + 10 * n, records=10) for n in range(4)]
    store(past.tables, runs)
    past.add(3000)
    assert [at for _, at in before(340)] == [300, 310, 320, 330]
    assert [at for _, at in before(330, 800)] == [310, 320]
    assert [at for _, at in before(330, 799)] == [320]
    assert [at for _, at in before(330, 1)] == [320]
    store(past.tables, [header(5000, queue_id=1, base=310, records=10, copied=True)])
    past.add(5000)
    assert [before(until) for until in (340, 320, 310)] == [
        [(3800, 320), (4200, 330)], [(5000, 310)], [(3000, 300)],
    ]  # fmt: skip


def test_the_size_of_a_part_of_a_queue_is_that_of_its_batches(past: Past) -> None:
    """By batches that begin in it; the one of a copy once."""
    assert [past.size(1, *part) for part in ((0, 300), (0, 200), (100, 101), (1, 100), (300, 999))] == [
        1200, 800, 400, 0, 0,
    ]  # fmt: skip
    assert (past.size(2, 0, 60), past.size(2, 10, 60), past.size(3, 0, 9)) == (800, 400, 0)
    store(past.tables, segment(3000, {1: (100, 100)}, copied=True))
    past.add(3000)
    assert past.size(1, 0, 300) == 1200
