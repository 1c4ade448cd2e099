"""Segment tables, against the plain list of batches they were made of."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.header import BatchHeader, Kind, log_seed
from mirrorlog.commitlog.index.blocks import BLOCK_BYTES
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.table import SegmentTable, table_name, table_start
from mirrorlog.commitlog.index.tables import build_table, table_from_segment
from mirrorlog.commitlog.segments.scan import BatchRules
from mirrorlog.commitlog.segments.segment import Segment
from mirrorlog.errors import BadRequest, IndexDoubtful, LogCorrupt
from tests.commitlog.logs import LOG_ID, abandon, append, flush, make_batch, open_log, patch
from tests.commitlog.rows import SEED, end_of, even_rows, header, rows_of, table_of

START = 80_000
GOLDEN = Path(__file__).parent / "golden" / "table.hex"
FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "format.md"


def random_headers(random: Random, batches: int) -> list[BatchHeader]:
    """A segment of five queues with leaps, copies of its own and of older batches, state and control batches."""
    headers: list[BatchHeader] = []
    following = dict.fromkeys(range(1, 6), 100)
    old = {queue_id: list(range(0, 100, 10)) for queue_id in following}
    at = START
    for number in range(batches):
        queue_id, length = random.randint(1, 5), 8 * random.randint(14, 200)
        kind = random.choices([Kind.DATA, Kind.QUEUE_STATE, Kind.CONTROL], [90, 6, 4])[0]
        place = {"length": length, "time_us": 1000 + number}
        mine = [each for each in headers if each.queue_id == queue_id and each.kind == Kind.DATA]
        if kind == Kind.DATA and random.random() < 0.1 and mine:
            first = random.choice(mine)
            headers.append(first._replace(log_offset=at, flags=1, length=length))
        elif kind == Kind.DATA and random.random() < 0.1 and old[queue_id]:
            base = old[queue_id].pop(random.randrange(len(old[queue_id])))
            headers.append(header(at, queue_id=queue_id, base=base, copied=True, length=length, time_us=base))
        elif kind == Kind.DATA:
            base = following[queue_id] + (1000 if random.random() < 0.05 else 0)
            records = random.randint(1, 20)
            following[queue_id] = base + records
            headers.append(header(at, queue_id=queue_id, base=base, records=records, **place))
        else:
            headers.append(header(at, queue_id=0 if kind == Kind.CONTROL else queue_id, base=0, kind=kind, **place))
        at += length
    return headers


def model_of(headers: list[BatchHeader], queue_id: int) -> list[BatchHeader]:
    """What counts of a queue: in queue order, the later one of two with the same records."""
    found = {each.base_queue_offset: each for each in headers if each.queue_id == queue_id and each.kind == Kind.DATA}
    return [found[base] for base in sorted(found)]


def run_of(each: BatchHeader) -> QueuedBatch:
    return QueuedBatch(each.log_offset, each.base_queue_offset, each.record_count, each.length)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / table_name(START)


@pytest.fixture(params=range(6))
def headers(request: pytest.FixtureRequest) -> list[BatchHeader]:
    """The number of the case is the seed."""
    return random_headers(Random(request.param), 30 if request.param < 3 else 900)


@pytest.fixture
def table(path: Path, headers: list[BatchHeader]) -> Iterator[SegmentTable]:
    path.write_bytes(table_of(headers, START))
    with SegmentTable.open(OS_FILES, path, start=START, end=end_of(headers), seed=SEED) as opened:
        yield opened


def test_every_queue_offset_is_found(headers: list[BatchHeader], table: SegmentTable) -> None:
    """Goal: `find` is the batch that holds the offset or the first one after it. Ask for every offset around every
    batch of random segments."""
    for queue_id in range(7):
        model = model_of(headers, queue_id)
        asked = {each.base_queue_offset + more for each in model for more in (-1, 0, 1, each.record_count)} | {0, 10**9}
        for offset in sorted(max(0, each) for each in asked):
            expected = next((each for each in model if each.next_queue_offset > offset), None)
            assert table.find(queue_id, offset) == (run_of(expected) if expected else None)


def test_entries_end_at_holes_limits_and_the_given_offset(headers: list[BatchHeader], table: SegmentTable) -> None:
    """Goal: what a fetch gets is dense, so that nothing another segment holds is skipped. Compare with the list for
    random limits."""
    random = Random(7)
    for _ in range(200):
        queue_id, offset = random.randint(1, 5), random.randint(0, 2000)
        limits = {"max_bytes": random.randint(0, 5000), "until": random.randint(offset, 2500)}
        found = table.entries(queue_id, offset, limits["max_bytes"], until=limits["until"])
        assert found == expected_entries(model_of(headers, queue_id), offset, **limits)


def expected_entries(model: list[BatchHeader], offset: int, *, max_bytes: int, until: int) -> list[QueuedBatch]:
    expected: list[QueuedBatch] = []
    for each in model:
        if each.next_queue_offset <= offset:
            continue
        max_bytes -= each.length
        hole = expected and each.base_queue_offset != expected[-1].next_queue_offset
        if each.base_queue_offset >= until or hole or (expected and max_bytes < 0):
            break
        expected.append(run_of(each))
    return expected


def test_times_are_found(path: Path) -> None:
    """Goal: the first batch appended at or after a time. Ask around every batch of an even segment."""
    rows = even_rows(1000, queues=3, start=START)
    end = START + 1000 * 1024
    path.write_bytes(build_table([memoryview(rows.tobytes())], start=START, end=end, seed=SEED))
    with SegmentTable.open(OS_FILES, path, start=START, end=end, seed=SEED) as table:
        for queue_id in (1, 2, 3):
            mine = rows[rows["queue_id"] == queue_id]
            for row in mine[::7]:
                assert table.find_time(queue_id, int(row["append_time"])) == row["base"]
                assert table.find_time(queue_id, int(row["append_time"]) - 1) == row["base"]
            assert table.find_time(queue_id, int(mine[-1]["append_time"]) + 1) is None
        assert table.find_time(9, 0) is None


def test_borders_and_states_are_those_of_the_log(headers: list[BatchHeader], table: SegmentTable) -> None:
    """Goal: reads by log offset and state need no walk over headers. Compare with the segment's own borders."""
    segment = Segment(START, Path("unused"), 1 << 30, START)
    for each in headers:
        segment.append_border(each.length)
    random = Random(3)
    for each in headers[:: max(1, len(headers) // 40)]:
        assert table.is_border(each.log_offset)
        assert not table.is_border(each.log_offset + 8)
        max_bytes, until = random.randint(0, 9000), each.log_offset + random.randint(0, 9000)
        assert table.run_end(each.log_offset, max_bytes, until) == segment.run_end(each.log_offset, max_bytes, until)
    with pytest.raises(BadRequest):
        table.run_end(START + 8, 100, table.end)
    assert table.is_border(table.end)
    states = [each for each in headers if each.kind != Kind.DATA]
    found = [(each.log_offset, each.length, each.queue_id, each.kind) for each in table.states()]
    assert found == [(each.log_offset, each.length, each.queue_id, each.kind) for each in states]


def test_the_head_counts(headers: list[BatchHeader], table: SegmentTable) -> None:
    """Goal: retention and lag read heads only."""
    data = [each for queue_id in range(1, 6) for each in model_of(headers, queue_id)]
    head = table.head
    assert (head.start, head.end, head.borders) == (START, end_of(headers), len(headers))
    assert head.records == sum(each.record_count for each in data)
    assert head.first_append_time_us == min(each.append_time_us for each in headers)
    assert head.last_append_time_us == max(each.append_time_us for each in headers)
    table.verify()


def test_a_lookup_reads_few_blocks(path: Path) -> None:
    """Goal: O(log n). 100,000 batches of one queue are 685 blocks: a cold lookup may read 2 + log2(685) of them."""
    rows = even_rows(100_000, queues=1, start=START)
    end = START + 100_000 * 1024
    path.write_bytes(build_table([memoryview(rows.tobytes())], start=START, end=end, seed=SEED))
    random = Random(1)
    for _ in range(50):
        with SegmentTable.open(OS_FILES, path, start=START, end=end, seed=SEED) as table:
            table.find(1, random.randrange(1_000_000))
            assert table.reads <= 1 + 2 + 10
            table.find_time(1, START + random.randrange(100_000))
            assert table.reads <= 1 + 2 * (2 + 10)


def test_the_same_batches_make_the_same_table(headers: list[BatchHeader]) -> None:
    """Goal: a table that was rebuilt is still the one that the index knows. Pieces of one row and one piece of all."""
    together = [memoryview(b"".join(rows_of(headers)))]
    assert table_of(headers, START) == build_table(together, start=START, end=end_of(headers), seed=SEED)


def test_an_empty_segment_and_one_without_data_have_tables(path: Path) -> None:
    """Goal: edges. No batch at all; one control batch."""
    path.write_bytes(build_table([], start=START, end=START, seed=SEED))
    with SegmentTable.open(OS_FILES, path, start=START, end=START, seed=SEED) as table:
        assert (table.find(1, 0), table.find_time(1, 0), table.states()) == (None, None, [])
    control = [header(START, queue_id=0, base=0, kind=Kind.CONTROL)]
    path.write_bytes(table_of(control, START))
    with SegmentTable.open(OS_FILES, path, start=START, end=end_of(control), seed=SEED) as table:
        assert [each.log_offset for each in table.states()] == [START]
        assert len(table.stretches()) == 0


def test_missing_rows_and_overlaps_are_named() -> None:
    """Goal: no table of half a segment, none of a broken log. Leave one row out; let two batches overlap."""
    headers = [header(START, base=0), header(START + 400, base=10), header(START + 800, base=20)]
    with pytest.raises(LogCorrupt, match="not known at log offset 80400"):
        build_table(rows_of([headers[0], headers[2]]), start=START, end=START + 1200, seed=SEED)
    with pytest.raises(LogCorrupt, match="not known at log offset 81600"):
        build_table(rows_of(headers), start=START, end=START + 1600, seed=SEED)
    overlapping = [headers[0], header(START + 400, base=9)]
    with pytest.raises(LogCorrupt, match="queue 1: two batches of one segment hold queue offset 9"):
        table_of(overlapping, START)


def test_damage_is_found_where_it_is_read(path: Path) -> None:
    """Goal: no byte of a table is trusted unchecked. Flip one bit in every block; whatever reads that block says so,
    and so does `verify`."""
    headers = random_headers(Random(11), 900)
    content = table_of(headers, START)
    for block in range(len(content) // BLOCK_BYTES):
        path.write_bytes(content)
        patch(path, block * BLOCK_BYTES + 5, bytes([content[block * BLOCK_BYTES + 5] ^ 16]))
        with pytest.raises(IndexDoubtful):
            _open_and_verify(path, end_of(headers))


def test_a_table_of_something_else_is_doubtful(path: Path) -> None:
    """Goal: names prove nothing. Another end, another log, a version to come, cut short, and blocks of an older table
    of the same segment."""
    headers = random_headers(Random(12), 900)
    content, end = table_of(headers, START), end_of(headers)
    path.write_bytes(content)
    for wrong in ({"end": end + 8}, {"seed": SEED + 1}, {"start": START - 8}):
        with pytest.raises(IndexDoubtful):
            SegmentTable.open(OS_FILES, path, **{"start": START, "end": end, "seed": SEED, **wrong})
    path.write_bytes(content[:-BLOCK_BYTES])
    with pytest.raises(IndexDoubtful):
        _open_and_verify(path, end)
    other = [each._replace(append_time_us=each.append_time_us + 1) for each in headers]
    mixed = table_of(other, START)[: 3 * BLOCK_BYTES] + content[3 * BLOCK_BYTES :]
    path.write_bytes(mixed)
    with pytest.raises(IndexDoubtful):
        _open_and_verify(path, end)
    with pytest.raises(FileNotFoundError):
        _open_and_verify(path.with_name("none"), end)


def _open_and_verify(path: Path, end: int) -> None:
    with SegmentTable.open(OS_FILES, path, start=START, end=end, seed=SEED) as table:
        table.verify()


def test_a_table_is_made_again_from_its_segment(tmp_path: Path) -> None:
    """Goal: tables can be deleted. Write a real log, walk its segment, look its batches up."""
    log = open_log(tmp_path / "log", epoch=1)
    stored = [
        append(log, make_batch(b"x" * 50, records=3, queue_id=1 + number % 2), number // 2 * 3) for number in range(40)
    ]
    flush(log)
    directory, end = log.directory, log.end
    abandon(log)
    rules = BatchRules(log_seed(LOG_ID), EpochList.of([Epoch(1, 0)]))
    content = table_from_segment(OS_FILES, directory / f"{0:020d}", start=0, first=0, end=end, rules=rules)
    assert content == table_of(stored)
    path = tmp_path / table_name(0)
    path.write_bytes(content)
    with SegmentTable.open(OS_FILES, path, start=0, end=end, seed=SEED) as table:
        found = table.find(2, 4)
        assert found is not None
        assert found.log_offset == stored[3].log_offset


def test_a_table_has_exactly_these_bytes() -> None:
    """Goal: the layout never changes unseen. Compare with the stored bytes, the lines that are not all zeros; see
    test_golden for how to write them anew."""
    headers = [
        header(START, queue_id=0, base=0, kind=Kind.CONTROL, time_us=1000),
        header(START + 400, queue_id=2, base=0, time_us=1001),
        header(START + 800, queue_id=1, base=70, records=5, time_us=1002),
        header(START + 1200, queue_id=2, base=10, records=1, time_us=1003, length=800),
        header(START + 2000, queue_id=1, base=20, records=5, time_us=900, copied=True),
    ]
    content = table_of(headers, START)
    lines = [f"{at:5}  {content[at : at + 16].hex(' ')}" for at in range(0, len(content), 16)]
    text = "".join(line + "\n" for line in lines if not line.endswith(bytes(16).hex(" ")))
    if os.environ.get("MIRRORLOG_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    shown = bytearray(len(content))
    section = FORMAT_PAGE.read_text().partition("## A segment's table")[2].partition("\n## ")[0]
    for at, found in re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", section, re.MULTILINE):
        shown[int(at) : int(at) + len(bytes.fromhex(found))] = bytes.fromhex(found)
    assert bytes(shown) == content, "docs/reference/format.md shows other bytes"


def test_names() -> None:
    """Goal: a directory's tables are told from its segments."""
    assert table_start(table_name(1234)) == 1234
    assert [table_start(name) for name in ("1234.table", "0" * 20, "epochs", "x.table")] == [None] * 4


def test_a_million_batches_take_a_moment(path: Path) -> None:
    """Goal: a segment of 1 KiB batches is sealed beside a busy loop. Half a million rows of 10,000 queues, against the
    time a Python loop would need for nothing but touching them."""
    rows = [memoryview(even_rows(500_000, queues=10_000, start=START).tobytes())]
    started = time.process_time()
    content = build_table(rows, start=START, end=START + 500_000 * 1024, seed=SEED)
    assert time.process_time() - started < 2.0
    assert len(content) < 18_000_000
