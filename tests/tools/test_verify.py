"""`mqtool verify` finds every bad range, tells a torn tail from corruption, and changes nothing."""

import errno
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import lmdb
import pytest
from typer.testing import CliRunner

from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES, OsFile
from mirrorlog.commitlog.flush import Checkpoint, CheckpointFile
from mirrorlog.commitlog.format.header import BatchHeader, Codec, log_seed
from mirrorlog.commitlog.format.rows import pack_row
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import PastIndex
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.log_directory import FILES, read_log_directory
from mirrorlog.errors import BadInput, ForeignDirectory, LogCorrupt, MirrorlogError
from mirrorlog.tools.main import app, main
from mirrorlog.tools.offline import survey as survey_module
from mirrorlog.tools.offline.log_directory import find_log
from tests.commitlog.logs import LOG_ID, open_log, patch
from tests.tools.logs import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    LogMaker,
    contents,
    make_log,
    make_past,
    overwrite,
    segment_starts,
)

RUNNER = CliRunner()


def verify(directory: Path) -> tuple[int, dict[str, Any]]:
    """Exit code of the error, 0 without one, and the report."""
    result = RUNNER.invoke(app, ["verify", str(directory), "--json"])
    code = result.exception.exit_code if isinstance(result.exception, MirrorlogError) else result.exit_code
    return code, json.loads(result.stdout)


def verify_text(directory: Path) -> str:
    return RUNNER.invoke(app, ["verify", str(directory)]).stdout


def test_a_sound_log_is_told_to_be_so(tmp_path: Path) -> None:
    """Goal: no false alarm over several segments. Method: 40 batches, flushed."""
    headers = make_log(tmp_path)
    code, report = verify(tmp_path)
    assert code == 0
    assert report["batches"] == len(headers)
    assert report["segments"] == 3
    assert (report["begin"], report["end"]) == (0, headers[-1].next_log_offset)
    assert report["checkpoint"] == {"begin": 0, "flushed": report["end"], "confirmed": report["end"], "state": 0}
    assert report["bad"] == []
    assert report["tail"] is None


def test_every_bad_range_is_found_and_the_first_and_last_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the walk goes on behind damage. Method: one flipped byte in a body of two segments, one in a header."""
    headers = make_log(tmp_path)
    places = [headers[2].log_offset, headers[20].log_offset, headers[21].log_offset]
    for place in places[:2]:
        overwrite(tmp_path, place + 500, b"!")
    overwrite(tmp_path, places[2] + 4, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert report["batches"] == len(headers) - 3
    assert [(each["first"], each["last"]) for each in report["bad"]] == [
        (places[0], places[0] + BATCH_BYTES),
        (places[1], places[2] + BATCH_BYTES),
    ]

    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path)])
    assert ended.value.code == 15
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"2 bad range(s), the first {places[0]}..{places[0] + BATCH_BYTES} (" in error
    assert f"the last {places[1]}..{places[2] + BATCH_BYTES} (" in error


def test_a_torn_tail_is_named_and_is_no_error(tmp_path: Path) -> None:
    """Goal: what a crash leaves is not called corruption. Method: damage the last batch, not yet flushed."""
    headers = make_log(tmp_path, flushed=False)
    overwrite(tmp_path, headers[-1].log_offset + 500, b"!")
    code, report = verify(tmp_path)
    assert code == 0
    assert report["bad"] == []
    assert report["tail"]["first"] == headers[-1].log_offset
    text = RUNNER.invoke(app, ["verify", str(tmp_path)]).stdout
    assert f"torn tail {headers[-1].log_offset}.." in text


def test_a_bad_tail_below_the_flushed_offset_is_corruption(tmp_path: Path) -> None:
    """Goal: what was on disk once does not vanish quietly. Method: damage the last batch of a flushed log."""
    headers = make_log(tmp_path)
    overwrite(tmp_path, headers[-1].log_offset + 500, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert [each["first"] for each in report["bad"]] == [headers[-1].log_offset]


def test_zeros_below_the_flushed_offset_are_corruption(tmp_path: Path) -> None:
    """Goal: a lost last page is seen though nothing stands there. Method: zero the last batch."""
    headers = make_log(tmp_path)
    overwrite(tmp_path, headers[-1].log_offset, bytes(BATCH_BYTES))
    code, report = verify(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [
        (headers[-1].log_offset, headers[-1].next_log_offset)
    ]


def test_a_missing_segment_is_a_bad_range(tmp_path: Path) -> None:
    """Goal: a hole between files is found. Method: remove the middle one of three."""
    headers = make_log(tmp_path)
    middle = sorted(path for path in tmp_path.iterdir() if path.name.isdigit())[1]
    middle.unlink()
    code, report = verify(tmp_path)
    start = int(middle.name)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [(start, start + SEGMENT_BYTES)]
    assert report["end"] == headers[-1].next_log_offset


def test_a_bad_end_of_a_segment_is_one_range_up_to_the_next(tmp_path: Path) -> None:
    """Goal: a tail in the middle of the log is no tail. Method: damage the last batch of the first segment."""
    headers = make_log(tmp_path)
    last_of_first = SEGMENT_BYTES - BATCH_BYTES
    overwrite(tmp_path, last_of_first + 500, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [(last_of_first, SEGMENT_BYTES)]
    assert report["batches"] == len(headers) - 1


def test_an_open_log_is_verified_without_its_lock_and_nothing_changes(tmp_path: Path) -> None:
    """Goal: safe beside a running node. Method: verify while the log is open, even with damage; compare every file."""
    headers = make_log(tmp_path)
    log = open_log(tmp_path, segment_bytes=SEGMENT_BYTES)
    overwrite(tmp_path, headers[3].log_offset + 500, b"!")
    before = contents(tmp_path)
    assert verify(tmp_path)[0] == 15
    assert contents(tmp_path) == before
    log.close()


def test_a_data_directory_with_one_log_stands_for_it(tmp_path: Path) -> None:
    """Goal: `mqtool verify data/n1` works. Method: a log below `logs/`; then a second one, which must be chosen."""
    log = tmp_path / "logs" / "one"
    make_log(log, batches=1)
    assert find_log(tmp_path) == log
    shutil.copytree(log, tmp_path / "logs" / "two")
    with pytest.raises(BadInput, match="holds 2 logs"):
        find_log(tmp_path)


def test_a_directory_that_is_no_log_is_refused(tmp_path: Path) -> None:
    """Goal: a wrong path is said to be one. Method: an empty directory; a log.json of something else."""
    with pytest.raises(BadInput, match="no log directory"):
        find_log(tmp_path)
    for text in ("", "[]", "{}", '{"log_id": 7}', '{"log_id": "x"}'):
        (tmp_path / "log.json").write_text(text)
        with pytest.raises(ForeignDirectory, match="does not name a log"):
            read_log_directory(tmp_path)


def test_a_lost_or_damaged_epoch_list_is_corruption(tmp_path: Path) -> None:
    """Goal: without epochs no batch can be judged. Method: damage the file, then remove it."""
    make_log(tmp_path, batches=1)
    (tmp_path / "epochs").write_bytes(b"MLEPxxxxxxxxxxxxxxxxxx")
    with pytest.raises(LogCorrupt, match="cannot be read"):
        read_log_directory(tmp_path)
    (tmp_path / "epochs").unlink()
    with pytest.raises(LogCorrupt, match="is missing"):
        read_log_directory(tmp_path)


def test_without_a_checkpoint_a_tail_counts_as_torn(tmp_path: Path) -> None:
    """Goal: no checkpoint, no claim about what was flushed. Method: remove it and damage the tail."""
    headers = make_log(tmp_path)
    (tmp_path / "checkpoint").unlink()
    overwrite(tmp_path, headers[-1].log_offset + 500, b"!")
    assert verify(tmp_path)[0] == 0
    assert "none is valid" in RUNNER.invoke(app, ["verify", str(tmp_path)]).stdout


def test_the_files_of_offline_tools_cannot_write(tmp_path: Path) -> None:
    """Goal: a mistake in a tool harms no log. Method: every way of changing something."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for change in (
        lambda: FILES.open(path, create=True),
        lambda: FILES.lock(path, b""),
        lambda: FILES.make_directory(tmp_path / "new"),
        lambda: FILES.rename(path, tmp_path / "new"),
        lambda: FILES.unlink(path),
        lambda: FILES.open(path).pwrite(b"y", 0),
    ):
        with pytest.raises(OSError, match=r"nothing|Bad file descriptor"):
            change()
    assert contents(tmp_path).keys() == {"file"}
    assert path.read_bytes() == b"x"


# --- What else a log says of itself -----------------------------------------------------------------------------------


def test_a_log_with_a_past_is_sound(tmp_path: Path) -> None:
    """Goal: no false alarm over all that a node writes. Method: sealed segments, copied batches, an index, a state
    checkpoint, a clean stop; nothing on disk changes, not a name and not a time."""
    maker = make_past(tmp_path)
    before = contents(tmp_path)
    code, report = verify(tmp_path)
    assert code == 0
    assert contents(tmp_path) == before
    assert report["batches"] == len(maker.headers)
    assert (report["tables"]["compared"], report["tables"]["missing"]) == (report["segments"] - 1, 1)
    assert report["index"]["state"] == "agrees"
    assert report["index"]["places"] > report["segments"]
    assert {each["name"]: each["first"] for each in report["queues"]} == {"q1": 0, "q2": 0, "q3": 0}
    assert [(each["epoch"], each["start"], each["end"]) for each in report["epochs"]] == [(1, 0, report["end"])]
    assert report["notes"] == []


def test_a_begin_that_moved_and_recycled_files_are_sound(tmp_path: Path) -> None:
    """Goal: old content behind the zeros that end a file is nobody's. Method: free the begin again and again, so that
    every file is a recycled one; stop cleanly, then kill."""
    maker = LogMaker(tmp_path)
    for _ in range(30):
        maker.fill(6)
        maker.checkpoint()
        maker.confirm()
        maker.seal()
        maker.move_start(max(each for each in segment_starts(tmp_path) if each <= maker.state))
    maker.fill(1)
    assert maker.log._chain.active.recycled
    maker.confirm()
    maker.kill()
    code, report = verify(tmp_path)
    assert (code, report["tail"], report["bad"]) == (0, None, [])
    assert report["begin"] == min(segment_starts(tmp_path)) > 0
    assert report["batches"] == len([each for each in maker.headers if each.log_offset >= report["begin"]])
    assert report["end"] == maker.headers[-1].next_log_offset
    assert report["tables"]["bad"] == []
    assert report["index"]["state"] == "missing"


def test_a_begin_within_a_file_is_sound(tmp_path: Path) -> None:
    """Goal: a copy whose files are divided elsewhere keeps a table of batches below its begin. Method: set the begin of
    the checkpoint into the third segment; spoil a batch below it."""
    maker = make_past(tmp_path)
    begin = next(each.log_offset for each in maker.headers if each.log_offset > segment_starts(tmp_path)[2] + 4000)
    set_checkpoint(tmp_path, begin=begin)
    code, report = verify(tmp_path)
    assert (code, report["begin"], report["bad"]) == (0, begin, [])
    assert report["leftovers"] == [
        name for start in segment_starts(tmp_path)[:2] for name in (f"{start:020d}", table_name(start))
    ]
    overwrite(tmp_path, segment_starts(tmp_path)[2] + 200, b"!!!!!!!!")
    assert verify(tmp_path)[0] == 0


def set_checkpoint(directory: Path, **fields: int) -> None:
    """Change fields of the checkpoint."""
    with closing(CheckpointFile.open(OS_FILES, directory, LOG_ID)) as file:
        assert file.stored is not None
        file.write_both(file.stored._replace(**fields))


def test_what_queues_lost_in_bad_bytes_is_named(tmp_path: Path) -> None:
    """Goal: the exact lost range, shown. Method: spoil two batches of queue 1 and one of queue 2, at two places."""
    maker = make_past(tmp_path)
    spoiled = [maker.headers[10], maker.headers[14], maker.headers[40]]
    for header in spoiled:
        overwrite(tmp_path, header.log_offset + 200, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [
        (header.log_offset, header.next_log_offset) for header in spoiled
    ]
    assert sorted((each["queue_id"], each["first"], each["next"]) for each in report["lost"]) == sorted(
        (header.queue_id, header.base_queue_offset, header.next_queue_offset) for header in spoiled
    )
    assert report["faults"] == [], "what follows is no fault of its own"
    assert report["tables"]["bad"] == [], "the table is right, its segment is not"
    assert f"LOST queue {spoiled[0].queue_id}: " in verify_text(tmp_path)


def test_compressed_batches_that_nobody_can_open_are_named(tmp_path: Path) -> None:
    """Goal: what stops the readers of a stream is found by who looks after the nodes, also in a transaction's log with
    sound checksums. Method: garbage under each codec among batches that can be opened."""
    maker = LogMaker(tmp_path)
    maker.data(1, codec=Codec.ZSTD)
    bad = [maker.garbage(queue_id, codec) for queue_id, codec in ((1, Codec.LZ4), (2, Codec.ZSTD))]
    maker.data(2, codec=Codec.LZ4)
    maker.close()
    code, report = verify(tmp_path)
    assert code == 0
    assert report["unopened_count"] == 2
    assert [(each["log_offset"], each["queue_id"], each["first"], each["next"]) for each in report["unopened"]] == [
        (each.log_offset, each.queue_id, each.base_queue_offset, each.next_queue_offset) for each in bad
    ]
    assert f"cannot be opened, here and in every copy: {bad[0].log_offset}: queue 1: 5..10, producer 1:" in verify_text(
        tmp_path
    )


def test_many_bad_ranges_are_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded memory. Method: keep three of ten, the last one is still named."""
    monkeypatch.setattr(survey_module, "RANGES_MAX", 3)
    headers = make_log(tmp_path)
    for header in headers[2:22:2]:
        overwrite(tmp_path, header.log_offset + 500, b"!")
    code, report = verify(tmp_path)
    assert (code, len(report["bad"]), report["bad_count"]) == (15, 3, 10)
    assert f"BAD and 7 further ranges, the last {headers[20].log_offset}.." in verify_text(tmp_path)


def test_batches_that_cannot_stand_here_are_named(tmp_path: Path) -> None:
    """Goal: right checksums are not enough. Method: a hole in a queue's offsets and in its producer's sequence."""
    maker = LogMaker(tmp_path)
    maker.fill(5)
    wrong = maker.data(2, skip=3)
    maker.fill(5)
    maker.close()
    code, report = verify(tmp_path)
    assert code == 15
    assert {each["log_offset"] for each in report["faults"]} == {wrong.log_offset}
    assert "queue 2 goes on at queue offset 13 and not at 10" in report["faults"][0]["what"]
    assert "sequence 13 and not 10" in report["faults"][1]["what"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "another"])
def test_a_wrong_table_is_found(tmp_path: Path, damage: str) -> None:
    """Goal: a table that readers trust says what its segment holds. Method: flip a byte; cut the file; write one with
    right checksums that leaves a batch's last record out."""
    maker = make_past(tmp_path)
    start, end = segment_starts(tmp_path)[1:3]
    path = tmp_path / table_name(start)
    if damage == "flipped":
        patch(path, 9000, b"!")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-4096])
    else:
        inside = [each for each in maker.headers if start <= each.log_offset < end]
        last = max(n for n, each in enumerate(inside) if each.queue_id == 1)
        inside[last] = inside[last]._replace(record_count=inside[last].record_count - 1)
        path.write_bytes(build_table(rows(inside), start=start, end=end, seed=log_seed(LOG_ID)))
    code, report = verify(tmp_path)
    assert code == 17
    assert [each["segment"] for each in report["tables"]["bad"]] == [start]
    assert report["bad"] == []
    assert report["index"]["state"] == "outdated"


def test_a_wrong_table_of_the_file_with_the_begin_is_found(tmp_path: Path) -> None:
    """Goal: that it may speak of batches below the begin excuses nothing else. Method: the begin within the third file,
    and a table of it with right checksums that leaves a batch's last record out."""
    maker = make_past(tmp_path)
    start, end = segment_starts(tmp_path)[2:4]
    inside = [each for each in maker.headers if start <= each.log_offset < end]
    set_checkpoint(tmp_path, begin=inside[9].log_offset)
    last = max(n for n, each in enumerate(inside) if each.queue_id == 1)
    inside[last] = inside[last]._replace(record_count=inside[last].record_count - 1)
    (tmp_path / table_name(start)).write_bytes(build_table(rows(inside), start=start, end=end, seed=log_seed(LOG_ID)))
    code, report = verify(tmp_path)
    assert (code, [each["segment"] for each in report["tables"]["bad"]]) == (17, [start])


def rows(headers: list[BatchHeader]) -> list[memoryview]:
    return [memoryview(pack_row(each)) for each in headers]


def test_a_missing_table_is_no_error(tmp_path: Path) -> None:
    """Goal: what is derived may be deleted. Method: delete one table; the index that spoke of it is made anew too."""
    make_past(tmp_path)
    (tmp_path / table_name(segment_starts(tmp_path)[1])).unlink()
    code, report = verify(tmp_path)
    assert (code, report["tables"]["missing"], report["index"]["state"]) == (0, 2, "outdated")


@pytest.mark.parametrize(("damage", "state", "code"), [("gone", "missing", 0), ("unmarked", "unclean", 0)])
def test_an_index_that_a_start_makes_anew_is_a_note(tmp_path: Path, damage: str, state: str, code: int) -> None:
    """Goal: no alarm for what mends itself. Method: delete the index; delete its mark."""
    make_past(tmp_path)
    if damage == "gone":
        shutil.rmtree(tmp_path / INDEX_NAME)
    else:
        (tmp_path / INDEX_NAME / "clean").unlink()
    found, report = verify(tmp_path)
    assert (found, report["index"]["state"]) == (code, state)
    assert f"index: {state}" in verify_text(tmp_path)


def test_an_index_that_says_something_else_is_found(tmp_path: Path) -> None:
    """Goal: readers are not sent to the wrong segment. Method: delete one entry and close the index as it should be."""
    maker = make_past(tmp_path)
    log = read_log_directory(tmp_path)
    index = PastIndex(tmp_path / INDEX_NAME)
    with index._env.begin(write=True, db=index._places) as transaction, transaction.cursor() as cursor:
        assert cursor.last()
        transaction.delete(cursor.key(), db=index._places)
    index.close()
    code, report = verify(tmp_path)
    assert (code, report["index"]["state"]) == (17, "wrong")
    assert "queue 3" in report["index"]["what"]
    assert report["end"] == maker.headers[-1].next_log_offset == log.flushed


def test_an_index_is_opened_without_a_trace(tmp_path: Path) -> None:
    """Goal: LMDB writes nothing either. Method: an index in a directory that cannot be written to is read."""
    make_past(tmp_path)
    names = sorted(path.name for path in (tmp_path / INDEX_NAME).iterdir())
    assert verify(tmp_path)[1]["index"]["state"] == "agrees"
    assert sorted(path.name for path in (tmp_path / INDEX_NAME).iterdir()) == names == ["clean", "data.mdb"]
    with lmdb.open(str(tmp_path / INDEX_NAME), lock=False, max_dbs=2):
        pass  # it is not left open in this process


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"state": 160}, "no complete state checkpoint begins at 160"),
        ({"begin": 10_000, "state": 8_000}, "state 8000 is below begin 10000"),
        ({"confirmed": 10_000_000}, "confirmed 10000000 is above the end"),
        ({"begin": 10_000, "confirmed": 160}, "begin 10000 is above"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_named(tmp_path: Path, fields: dict[str, int], what: str) -> None:
    """Goal: its offsets are sane. Method: one that is not, of each kind."""
    maker = make_past(tmp_path)
    if "begin" in fields:
        fields = {**fields, "begin": min(x.log_offset for x in maker.headers if x.log_offset >= fields["begin"])}
        what = what.replace("10000", str(fields["begin"]))
    set_checkpoint(tmp_path, **fields)
    code, report = verify(tmp_path)
    assert code == 15
    assert any(what in each for each in report["checkpoint_faults"]), report["checkpoint_faults"]


def test_a_state_checkpoint_must_be_complete(tmp_path: Path) -> None:
    """Goal: a start finds all queues and producers. Method: one that was not ended, named by the checkpoint."""
    maker = LogMaker(tmp_path)
    maker.fill(20)
    maker.checkpoint(ended=False)
    maker.close()
    code, report = verify(tmp_path)
    assert code == 15
    assert report["checkpoint_faults"] == [f"no complete state checkpoint begins at {maker.state}"]


def test_one_good_slot_is_enough_and_is_said(tmp_path: Path) -> None:
    """Goal: what a crash in a checkpoint leaves is no damage. Method: spoil one slot, then none is named as lost."""
    make_past(tmp_path)
    patch(tmp_path / "checkpoint", 20, b"!!!!")
    code, report = verify(tmp_path)
    assert code == 0
    assert any("one slot" in note for note in report["notes"])


def test_leftovers_and_unknown_files_are_listed(tmp_path: Path) -> None:
    """Goal: every name is accounted for. Method: one of each kind beside the log's own, and a copy set aside."""
    log = tmp_path / "logs" / "one"
    make_past(log)
    (log / "spare-7").write_bytes(bytes(1000))
    (log / "epochs.new").write_bytes(b"x")
    (log / table_name(77)).write_bytes(b"x")
    (log / "notes.txt").write_bytes(b"x")
    shutil.copytree(log, log.with_name("one.aside-1"))
    code, report = verify(tmp_path)
    assert code == 0
    assert report["leftovers"] == [table_name(77), "epochs.new", "spare-7"]
    assert report["unknown"] == ["notes.txt"]
    assert report["set_aside"] == [str(log.with_name("one.aside-1"))]


def test_a_directory_in_use_is_said_to_be(tmp_path: Path) -> None:
    """Goal: what moves is not called damage. Method: hold the node's lock; above the flushed offset, a whole batch
    behind a bad one, as if the walk had met an append; then without the lock."""
    directory = tmp_path / "logs" / "one"
    headers = make_log(directory, flushed=False)
    overwrite(directory, headers[30].log_offset + 500, b"!")
    with DataDirectory.open(tmp_path, cluster_id=UUID(int=1), node_id="n1"):
        code, report = verify(tmp_path)
        assert (code, report["bad"], report["lost"]) == (0, [], [])
        assert report["in_use_by"] is not None
        assert "may move" in verify_text(tmp_path)
    code, report = verify(tmp_path)
    assert (code, report["in_use_by"]) == (15, None)
    assert len(report["bad"]) == 1


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_a_node_frees_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Goal: beside a running node retention goes on. Method: when the second file is opened, the begin moves behind it,
    and it is used again: by another name, or with other bytes under the walk."""
    make_past(tmp_path)
    starts = segment_starts(tmp_path)
    opened = survey_module.open_segment

    def freed(segment: Any) -> Any:
        if segment.start == starts[1]:
            set_checkpoint(tmp_path, begin=starts[2])
            (tmp_path / table_name(starts[1])).unlink()
            overwrite(tmp_path, starts[1] + 2000, b"?" * 8000)
            if gone:
                segment.path.unlink()
        return opened(segment)

    monkeypatch.setattr(survey_module, "open_segment", freed)
    code, report = verify(tmp_path)
    assert (code, report["bad"], report["faults"], report["tables"]["bad"]) == (0, [], [], [])
    assert report["batches"] > 100


def test_bad_sectors_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a disk that gives errors is read to its end. Method: 4 KiB of one file give EIO, however they are read."""
    headers = make_log(tmp_path)
    pread = OsFile.pread
    inode = (tmp_path / f"{SEGMENT_BYTES:020d}").stat().st_ino
    bad = range(4096, 8192)

    def failing(self: OsFile, into: memoryview, at: int) -> int:
        if os.fstat(self._fd).st_ino == inode and at < bad.stop and at + len(into) > bad.start:
            raise OSError(errno.EIO, "Input/output error")
        return pread(self, into, at)

    monkeypatch.setattr(OsFile, "pread", failing)
    code, report = verify(tmp_path)
    first, last = SEGMENT_BYTES + bad.start, SEGMENT_BYTES + bad.stop
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["unreadable"]] == [(first, last)]
    assert [(each["first"], each["last"]) for each in report["bad"]] == [(first, last)]
    assert report["batches"] == len(headers) - 4


def test_without_segments_there_is_nothing_to_say(tmp_path: Path) -> None:
    """Goal: an empty log is sound. Method: a checkpoint that claims nothing, no file."""
    make_log(tmp_path, batches=1)
    set_checkpoint(tmp_path, **Checkpoint(0, 0, 0)._asdict())
    for start in segment_starts(tmp_path):
        (tmp_path / f"{start:020d}").unlink()
    assert verify(tmp_path)[1]["batches"] == 0
