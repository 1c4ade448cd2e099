"""The offline reader gives exactly what was confirmed, from a directory alone, or says what is missing.

Method: logs are written by the log itself, beside a plain list of what went in, and compared row by row. Then bytes are
damaged, torn, freed and taken away.
"""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.flush import CheckpointFile
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import BadInput, ForeignDirectory, LogCorrupt, NoSuchLog, NoSuchQueue, PositionLost
from mirrorlog.queues.changes import QueueDeclared, encode_change
from mirrorlog.queues.checkpoint_states import GapsState, encode_checkpoint, encode_state
from mirrorlog.spark.errors import BadOption, RecordsMissing
from mirrorlog.spark.offline import BadStretch, LogDirectories
from mirrorlog.spark.offline.log_view import KnownQueues
from tests.commitlog.logs import CLUSTER_ID, LOG_ID, append, open_log
from tests.spark.offline_logs import Row, StoryLog, random_log, range_of, read_all, rows_of
from tests.tools.logs import contents, overwrite, segment_starts


def records(count: int, size: int = 100) -> list[Record]:
    return [Record(b"%06d" % number + bytes(size)) for number in range(count)]


# --- What is there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_random_log_reads_as_it_was_written(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    log = random_log(tmp_path, seed)
    dice = random.Random(seed)
    if seed % 2:
        for table in tmp_path.glob("*.table"):
            if dice.random() < 0.5:
                table.unlink()
    logs = LogDirectories.open(str(tmp_path))
    for facts in logs.facts():
        expected = log.visible(facts.queue_id)
        assert (facts.begin, facts.next) == (log.begins.get(facts.queue_id, 0), log.next_of(facts.queue_id))
        assert rows_of(logs.batches(range_of(facts))) == expected
        for _ in range(5):
            first, following = sorted(dice.randint(facts.begin, facts.next) for _ in range(2))
            part = [row for row in expected if first <= row.offset < following]
            assert rows_of(logs.batches(range_of(facts, first, following))) == part


def test_facts_name_cluster_log_queue_and_what_is_confirmed(tmp_path: Path) -> None:
    log = StoryLog(tmp_path)
    log.publish(2, records(7))
    log.close()
    facts = {each.name: each for each in LogDirectories.open(str(tmp_path)).facts()}
    assert list(facts) == ["q1", "q2", "q3"]
    two = facts["q2"]
    assert (two.cluster_id, two.log_id, two.queue_id) == (str(CLUSTER_ID), str(LOG_ID), 2)
    assert (two.begin, two.next, two.silent_master) == (0, 7, None)
    assert (facts["q1"].begin, facts["q1"].next) == (0, 0)


def test_a_time_is_found_as_the_node_finds_it(tmp_path: Path) -> None:
    log = random_log(tmp_path, 11)
    logs = LogDirectories.open(str(tmp_path))
    for facts in logs.facts(["q1", "q2", "q3"]):
        rows = log.visible(facts.queue_id)
        times = [row.append_time_us for row in rows]
        for time_us in {0, times[0], times[len(times) // 2], times[len(times) // 2] + 1, times[-1], times[-1] + 1}:
            expected = next((row.offset for row in rows if row.append_time_us >= time_us), facts.next)
            assert logs.find_time(facts.name, time_us) == expected
    assert logs.find_time("q4", 0) == 0


def test_the_header_behind_a_position_tells_its_epoch(tmp_path: Path) -> None:
    log = StoryLog(tmp_path)
    log.publish(1, records(3))
    log.log.open_epoch(5)
    log.publish(1, records(2))
    log.close()
    logs = LogDirectories.open(str(tmp_path))
    logs.facts()
    headers = [logs.header("q1", offset) for offset in (0, 2, 3, 4)]
    assert [header.epoch for header in headers if header is not None] == [1, 1, 5, 5]
    assert logs.header("q1", 5) is None


def test_batches_are_proven_and_belong_to_nobody_who_could_change_them(tmp_path: Path) -> None:
    log = StoryLog(tmp_path)
    log.publish(1, records(3))
    log.close()
    logs = LogDirectories.open(str(tmp_path))
    (batch,) = logs.batches(range_of(logs.facts(["q1"])[0], 1, 2))
    assert (batch.first, batch.next, len(batch), batch.raw.readonly) == (1, 2, 1, True)
    assert batch.value_bytes(0) == log.rows[1][1].value


# --- Paths ----------------------------------------------------------------------------------------------------------


def test_a_path_is_a_log_a_node_a_folder_or_a_file_address(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "logs" / str(LOG_ID)
    directory.mkdir(parents=True)
    log = StoryLog(directory)
    log.publish(1, records(3))
    log.close()
    for path in (directory, directory.parent, tmp_path / "node", tmp_path, directory.as_uri()):
        assert read_all(path, "q1") == log.visible(1)


def test_of_two_copies_the_one_is_read_that_knows_most_to_be_confirmed(tmp_path: Path) -> None:
    log = StoryLog(tmp_path / "a")
    log.publish(1, records(3))
    log.confirm()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    log.publish(1, records(3))
    log.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b.aside-1")
    assert len(read_all(tmp_path, "q1")) == 6


def test_what_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "nothing"), "s3://bucket/log", ""):
        with pytest.raises(BadOption, match="path"):
            LogDirectories.open(path)
    (tmp_path / "log.json").write_text("{}")
    with pytest.raises(ForeignDirectory, match=r"log\.json"):
        LogDirectories.open(str(tmp_path))


def test_queues_and_logs_that_are_not_there_are_named(tmp_path: Path) -> None:
    StoryLog(tmp_path).close()
    logs = LogDirectories.open(str(tmp_path))
    with pytest.raises(NoSuchQueue, match="'nobody', 'none'"):
        logs.facts(["q1", "nobody", "none"])
    with pytest.raises(NoSuchQueue, match="'nobody'"):
        logs.find_time("nobody", 0)
    wanted = range_of(logs.facts(["q1"])[0])
    other = type(wanted)(wanted.cluster_id, "q1", "another", 1, 0, 1)
    with pytest.raises(NoSuchLog, match="another"):
        logs.batches(other)
    with pytest.raises(NoSuchQueue, match="77"):
        logs.batches(type(wanted)(wanted.cluster_id, "q1", wanted.log_id, 77, 0, 1))


def test_a_name_in_two_logs_is_ambiguous(tmp_path: Path) -> None:
    StoryLog(tmp_path / "a").close()
    other = open_log(tmp_path / "b", epoch=1, log_id=UUID("99999999-4455-6677-8899-aabbccddeeff"))
    append(other, memoryview(encode_change(QueueDeclared(name="q1", queue_id=1))))
    other.set_confirmed(other.end)
    other.close()
    with pytest.raises(BadInput, match=r"'q1' is in .*a and .*b"):
        LogDirectories.open(str(tmp_path)).facts()


# --- What is confirmed ----------------------------------------------------------------------------------------------


def test_nothing_above_the_confirmed_offset_is_seen_and_what_comes_is_read_on(tmp_path: Path) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    logs = None
    seen = 0
    for _ in range(12):
        log.publish(1, records(10))
        log.confirm()
        log.publish(1, records(10))
        if logs is None:
            logs = LogDirectories.open(str(tmp_path))
        facts = logs.facts(["q1"])[0]
        assert facts.next == log.next_of(1) - 10
        assert rows_of(logs.batches(range_of(facts, seen))) == log.visible(1)[seen : facts.next]
        seen = facts.next
        with pytest.raises(RecordsMissing, match=str(facts.next + 1)):
            next(logs.batches(range_of(facts, seen, seen + 1)))
    log.kill()


def test_reading_changes_nothing_and_takes_no_lock(tmp_path: Path) -> None:
    log = random_log(tmp_path, 3)
    before = contents(tmp_path)
    assert read_all(tmp_path, "q1") == log.visible(1)
    assert contents(tmp_path) == before


def test_a_log_whose_begin_moved_shows_its_queues_from_what_is_left(tmp_path: Path) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    for _ in range(20):
        log.publish(1, records(10))
        log.publish(2, records(1))
    log.publish(3, records(1))
    log.checkpoint()
    log.confirm()
    log.seal()
    begin = segment_starts(tmp_path)[3]
    log.move_start(begin)
    log.publish(1, records(1))
    log.close()
    logs = LogDirectories.open(str(tmp_path))
    for facts in logs.facts():
        expected = [row for row in log.visible(facts.queue_id) if row.offset >= facts.begin]
        assert facts.next == log.next_of(facts.queue_id)
        assert facts.begin > 0 or facts.queue_id == 3
        assert rows_of(logs.batches(range_of(facts))) == expected
    with pytest.raises(RecordsMissing, match="0 up to"):
        next(logs.batches(range_of(logs.facts(["q1"])[0], 0)))


def test_a_queue_whose_records_are_all_gone_begins_and_ends_at_its_next_one(tmp_path: Path) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    log.publish(2, records(5))
    for _ in range(20):
        log.publish(1, records(10))
    log.checkpoint()
    log.confirm()
    log.seal()
    log.move_start(segment_starts(tmp_path)[2])
    log.close()
    facts = LogDirectories.open(str(tmp_path)).facts(["q2"])[0]
    assert (facts.begin, facts.next) == (5, 5)


# --- Leaps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_no_answer_runs_over_a_gap_and_who_may_skip_it_hears_of_it(tmp_path: Path, sealed: bool) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    log.publish(1, records(30))
    go_on_at = log.jump()
    for _ in range(10):
        log.publish(1, records(20))
    log.checkpoint()
    log.confirm()
    if sealed:
        log.seal()
    log.close()
    logs = LogDirectories.open(str(tmp_path))
    one, empty = logs.facts(["q1", "q2"])
    assert (one.begin, one.next) == (0, log.next_of(1))
    assert (empty.begin, empty.next) == (go_on_at, go_on_at)
    with pytest.raises(PositionLost, match=str(go_on_at)) as lost:
        rows_of(logs.batches(range_of(one)))
    assert lost.value.details["go_on_at"] == go_on_at
    skipped: list[BadStretch] = []
    assert rows_of(logs.batches(range_of(one), skipped.append)) == log.visible(1)
    assert [(each.first, each.next, each.given_up) for each in skipped] == [(30, go_on_at, True)]
    assert rows_of(logs.batches(range_of(one, go_on_at))) == [row for row in log.visible(1) if row.offset >= go_on_at]


def test_a_range_that_ends_in_a_gap_ends_with_it(tmp_path: Path) -> None:
    log = StoryLog(tmp_path)
    log.publish(1, records(3))
    go_on_at = log.jump()
    log.close()
    logs = LogDirectories.open(str(tmp_path))
    facts = logs.facts(["q1"])[0]
    assert (facts.begin, facts.next) == (0, go_on_at)
    skipped: list[BadStretch] = []
    assert rows_of(logs.batches(range_of(facts, 0, 10), skipped.append)) == log.visible(1)
    assert [(each.first, each.next, each.go_on_at) for each in skipped] == [(3, 10, go_on_at)]
    with pytest.raises(PositionLost) as lost:
        rows_of(logs.batches(range_of(facts, 5, 10)))
    assert lost.value.details["go_on_at"] == go_on_at


@pytest.mark.parametrize(("former", "ends"), [({}, {90}), ({1: [(3, 20), (25, 40)]}, {20, 40, 90})])
def test_a_checkpoint_says_where_queues_went_on_after_each_loss(
    former: dict[int, list[tuple[int, int]]], ends: set[int]
) -> None:
    """Goal: a hole that a loss of before left is none of bad bytes, where its leap was freed; by checkpoints that say
    the newest alone, too."""
    batch = bytes(encode_checkpoint([encode_state(GapsState(gaps={1: (45, 90), 2: (0, 90)}, former=former))]))
    known = KnownQueues()
    known.apply(read_header(batch), batch)
    assert known.gap_ends == ends


# --- What is damaged ------------------------------------------------------------------------------------------------


def damaged_log(directory: Path, *, sealed: bool) -> StoryLog:
    log = StoryLog(directory, segment_bytes=16 * 1024)
    for number in range(40):
        log.publish(1 + number % 2, records(10))
    log.checkpoint()
    log.confirm()
    if sealed:
        log.seal()
    log.close()
    return log


def without(rows: list[Row], first: int, following: int) -> list[Row]:
    return [row for row in rows if not first <= row.offset < following]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("at", [200, 60, 0], ids=["body", "producer's part", "header"])
def test_a_bad_batch_is_named_by_file_place_queue_and_offsets(tmp_path: Path, at: int, sealed: bool) -> None:
    log = damaged_log(tmp_path, sealed=sealed)
    header = next(header for header, _ in log.stored[10:] if header.queue_id == 1)
    overwrite(tmp_path, header.log_offset + at, b"\xff\xff\xff\xff\xff")
    bad: list[BadStretch] = []
    logs = LogDirectories.open(str(tmp_path))
    facts = logs.facts(["q1"], bad.append)[0]
    assert (facts.begin, facts.next) == (0, log.next_of(1))
    with pytest.raises(LogCorrupt) as error:
        rows_of(logs.batches(range_of(facts)))
    for part in (str(tmp_path), str(header.log_offset), "'q1'", f"{header.base_queue_offset} up to"):
        assert part in error.value.message
    bad.clear()
    rows = rows_of(logs.batches(range_of(facts), bad.append))
    assert rows == without(log.visible(1), header.base_queue_offset, header.next_queue_offset)
    assert [(each.queue, each.first, each.next) for each in bad] == [
        ("q1", header.base_queue_offset, header.next_queue_offset)
    ]
    assert (bad[0].log_first, bad[0].log_last) == (header.log_offset, header.next_log_offset)
    assert bad[0].path.name == f"{max(s for s in segment_starts(tmp_path) if s <= header.log_offset):020d}"


def test_facts_of_a_log_with_bad_headers_need_somebody_who_hears_of_them(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, sealed=False)
    header, _ = log.stored[5]
    overwrite(tmp_path, header.log_offset, bytes(96))
    logs = LogDirectories.open(str(tmp_path))
    with pytest.raises(LogCorrupt, match=str(header.log_offset)):
        logs.facts(["q1"])
    bad: list[BadStretch] = []
    logs.facts(["q1"], bad.append)
    assert [(each.log_first, each.log_last) for each in bad] == [(header.log_offset, header.next_log_offset)]


def test_the_first_records_of_a_queue_are_missed_when_their_batch_is_bad(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, sealed=False)
    header, _ = log.stored[0]
    overwrite(tmp_path, header.log_offset, b"XXXXXXXX")
    bad: list[BadStretch] = []
    assert read_all(tmp_path, "q1", bad.append) == without(log.visible(1), 0, 10)
    assert [(each.first, each.next) for each in bad if each.queue] == [(0, 10)]


def test_a_log_that_ends_too_early_says_so(tmp_path: Path) -> None:
    damaged_log(tmp_path, sealed=True)
    last = segment_starts(tmp_path)[-1]
    (tmp_path / f"{last:020d}").unlink()
    logs = LogDirectories.open(str(tmp_path))
    with pytest.raises(LogCorrupt, match="where one must be"):
        logs.facts()
    with pytest.raises(NoSuchQueue, match="may have stood in bad bytes"):
        logs.facts(["q1"])


def test_a_missing_segment_is_a_hole_with_a_name(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, sealed=True)
    starts = segment_starts(tmp_path)
    (tmp_path / f"{starts[1]:020d}").unlink()
    gone = [header for header, _ in log.stored if starts[1] <= header.log_offset < starts[2] and header.queue_id == 1]
    bad: list[BadStretch] = []
    rows = read_all(tmp_path, "q1", bad.append)
    assert rows == without(log.visible(1), gone[0].base_queue_offset, gone[-1].next_queue_offset)
    assert (bad[-1].queue, bad[-1].first, bad[-1].next) == (
        "q1",
        gone[0].base_queue_offset,
        gone[-1].next_queue_offset,
    )


def test_a_torn_tail_above_what_was_flushed_is_the_end_and_no_fault(tmp_path: Path) -> None:
    log = damaged_log(tmp_path, sealed=False)
    torn = [header for header, _ in log.stored][-6]
    with closing(CheckpointFile.open(OS_FILES, tmp_path, LOG_ID)) as file:
        assert file.stored is not None
        file.write_both(file.stored._replace(flushed=torn.log_offset, state=0))
    overwrite(tmp_path, torn.log_offset + 120, b"\xff\xff\xff")
    expected = {
        queue_id: [row for row in log.visible(queue_id) if row.append_time_us < torn.append_time_us]
        for queue_id in (1, 2)
    }
    for queue_id, rows in expected.items():
        assert read_all(tmp_path, f"q{queue_id}") == rows


@pytest.mark.parametrize("at", [40, 4096 + 10, 4096 * 2 + 3], ids=["head", "stretches", "batches"])
def test_a_damaged_table_is_not_believed(tmp_path: Path, at: int) -> None:
    log = damaged_log(tmp_path, sealed=True)
    tables = sorted(tmp_path.glob("*.table"))
    assert len(tables) > 2
    for table in tables[:2]:
        with table.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff\xff\xff\xff")
    assert read_all(tmp_path, "q1") == log.visible(1)
    assert read_all(tmp_path, "q2") == log.visible(2)


def test_no_checkpoint_means_that_nobody_knows_what_is_confirmed(tmp_path: Path) -> None:
    StoryLog(tmp_path).close()
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(LogCorrupt, match="nobody knows"):
        LogDirectories.open(str(tmp_path))


# --- Beside a node --------------------------------------------------------------------------------------------------


def test_what_is_freed_while_it_is_read_is_missed_by_name(tmp_path: Path) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    for _ in range(30):
        log.publish(1, records(10))
    log.checkpoint()
    log.confirm()
    log.seal()
    logs = LogDirectories.open(str(tmp_path))
    facts = logs.facts(["q1"])[0]
    reading = logs.batches(range_of(facts))
    first = next(reading)
    assert first.first == 0
    starts = segment_starts(tmp_path)
    log.move_start(starts[4])
    log.confirm()
    with pytest.raises(RecordsMissing, match="are gone"):
        list(reading)
    with pytest.raises(RecordsMissing, match="are gone"):
        list(logs.batches(range_of(facts)))
    found = logs.facts(["q1"])[0]
    assert found.begin > 0
    assert rows_of(logs.batches(range_of(found)))[0].offset == found.begin
    log.kill()


def test_copies_of_what_is_freed_are_found_where_they_stand_now(tmp_path: Path) -> None:
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    for _ in range(3):
        log.publish(2, records(3))
    for _ in range(30):
        log.publish(1, records(10))
    log.confirm()
    log.seal()
    logs = LogDirectories.open(str(tmp_path))
    facts = logs.facts(["q2"])[0]
    for number in range(3):
        log.copy(number)
    log.checkpoint()
    log.confirm()
    log.seal()
    log.move_start(segment_starts(tmp_path)[2])
    assert rows_of(logs.batches(range_of(facts))) == log.visible(2)
    assert read_all(tmp_path, "q2") == log.visible(2)
    log.kill()


def test_a_copy_that_began_late_shows_a_queue_from_its_last_hole_on(tmp_path: Path) -> None:
    """Behind a begin that the log has not decided yet: what is in the hole is still to come, as copies."""
    log = StoryLog(tmp_path, segment_bytes=8 * 1024)
    for _ in range(30):
        log.publish(1, records(10))
    begin = log.log.end
    log.say_begin(1, 0)
    log.copy(0)
    log.checkpoint()
    log.publish(1, records(3))
    log.close()
    assert read_all(tmp_path, "q1") == log.visible(1)
    with closing(CheckpointFile.open(OS_FILES, tmp_path, LOG_ID)) as file:
        assert file.stored is not None
        file.write_both(file.stored._replace(begin=begin))
    rows = read_all(tmp_path, "q1")
    assert [row.offset for row in rows] == list(range(300, 308)), "behind the hole, and not 0 to 10"


def test_a_range_of_nothing_gives_nothing(tmp_path: Path) -> None:
    StoryLog(tmp_path).close()
    logs = LogDirectories.open(str(tmp_path))
    assert list(logs.batches(range_of(logs.facts(["q1"])[0]))) == []
