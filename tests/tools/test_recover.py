"""`mqtool recover` says what a start does, does it when asked, and saves what is readable of a damaged log."""

import fcntl
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.flush import CheckpointFile
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import PastIndex
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.errors import MirrorlogError
from mirrorlog.tools.main import app
from tests.commitlog.logs import LOG_ID, open_log, patch, stored
from tests.tools.logs import BATCH_BYTES, LogMaker, contents, make_log, make_past, overwrite, segment_starts

RUNNER = CliRunner()


def run(command: str, directory: Path, *options: str) -> tuple[int, str]:
    """Exit code and stdout."""
    result = RUNNER.invoke(app, [command, str(directory), *options])
    assert result.exception is None or isinstance(result.exception, MirrorlogError | SystemExit), result.exception
    return getattr(result.exception, "exit_code", result.exit_code), result.stdout


def recover(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code, text = run("recover", directory, "--json", *options)
    return code, json.loads(text)


def set_flushed(directory: Path, log_offset: int) -> None:
    """As a crash leaves it: what came after was not yet recorded as flushed or confirmed."""
    with closing(CheckpointFile.open(OS_FILES, directory, LOG_ID)) as file:
        assert file.stored is not None
        file.write_both(file.stored._replace(flushed=log_offset, confirmed=log_offset, state=0))


def test_a_sound_log_needs_nothing(tmp_path: Path) -> None:
    """Goal: no needless words, no change. Method: a clean stop; every file is as before, also after --apply, but for
    the index and the checkpoint, which are written again."""
    make_past(tmp_path)
    before = contents(tmp_path)
    code, report = recover(tmp_path)
    assert (code, contents(tmp_path)) == (0, before)
    assert report["start"] == {
        "refused": None, "end": report["end"], "lossy": False, "lost_earlier": None, "torn": None,
        "cut_valid": None, "renamed": [], "removed": [], "tables": [],
    }  # fmt: skip
    assert "a start changes nothing" in run("recover", tmp_path)[1]
    code, report = recover(tmp_path, "--apply")
    assert (code, report["applied"]) == (0, True)
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    written = {name for name in before if after[name][0] != before[name][0]}
    assert written <= {"checkpoint", f"{INDEX_NAME}/data.mdb", f"{INDEX_NAME}/clean"}
    assert run("verify", tmp_path)[0] == 0


def spoil(directory: Path, maker: LogMaker) -> None:
    """What a crash may leave: a torn tail, leftovers, a missing table, a damaged one, no clean index."""
    overwrite(directory, maker.headers[-1].log_offset + 200, b"!")
    (directory / "spare-3").write_bytes(bytes(5000))
    (directory / "checkpoint.new").write_bytes(b"x")
    (directory / table_name(segment_starts(directory)[1])).unlink()
    patch(directory / table_name(segment_starts(directory)[2]), 9000, b"!")
    (directory / INDEX_NAME / "clean").unlink()


def make_crashed(directory: Path) -> LogMaker:
    """A log that was flushed and confirmed up to its last three batches, and `spoil`ed."""
    maker = make_past(directory)
    with closing(CheckpointFile.open(OS_FILES, directory, LOG_ID)) as file:
        assert file.stored is not None
        flushed = maker.headers[-3].log_offset
        file.write_both(file.stored._replace(flushed=flushed, confirmed=flushed))
    spoil(directory, maker)
    return maker


def test_what_a_start_would_do_is_said_and_not_done(tmp_path: Path) -> None:
    """Goal: a dry run by default. Method: everything that a crash may leave; each is named, nothing changes."""
    maker = make_crashed(tmp_path)
    before = contents(tmp_path)
    starts = segment_starts(tmp_path)
    code, report = recover(tmp_path)
    assert contents(tmp_path) == before
    last = maker.headers[-1]
    start = report["start"]
    assert code == 17, "a damaged table is damage until it is made again"
    assert (start["end"], start["lossy"], start["torn"]["first"]) == (last.log_offset, False, last.log_offset)
    assert start["removed"] == ["checkpoint.new", "spare-3"]
    assert start["tables"] == [starts[1]]
    text = run("recover", tmp_path)[1]
    for line in (
        f"a start would: cut {last.log_offset}..",
        "a start would: remove checkpoint.new, spare-3",
        f"a start would: make the tables of the segments {starts[1]}",
        f"--apply would: make the table of segment {starts[2]} again",
        "a start would: make the index",
    ):
        assert line in text


def test_what_was_said_is_done(tmp_path: Path) -> None:
    """Goal: --apply leaves a log that is sound and whole. Method: the same, applied; then verify, and compare what the
    log holds with what was appended; a second time nothing is left to do."""
    maker = make_crashed(tmp_path)
    code, report = recover(tmp_path, "--apply")
    assert (code, report["applied"]) == (0, True)
    code, text = run("verify", tmp_path, "--json")
    verified = json.loads(text)
    assert code == 0
    assert verified["batches"] == len(maker.headers) - 1
    assert (verified["tables"]["compared"], verified["tables"]["missing"]) == (len(segment_starts(tmp_path)) - 1, 1)
    assert verified["index"]["state"] == "agrees"
    assert verified["leftovers"] == []
    code, report = recover(tmp_path)
    assert (code, report["start"]["torn"], report["start"]["removed"]) == (0, None, [])


def test_a_wrong_index_is_made_again(tmp_path: Path) -> None:
    """Goal: what a start would believe is mended. Method: an index without its last entry, closed as it should be,
    of a log whose sealed segments all stand below its state checkpoint."""
    maker = LogMaker(tmp_path)
    maker.fill(100)
    full = maker.log.active_start
    while maker.log.active_start == full:
        maker.fill(1)
    maker.checkpoint()
    maker.confirm()
    maker.seal()
    maker.close()
    index = PastIndex(tmp_path / INDEX_NAME)
    with index._env.begin(write=True, db=index._places) as transaction, transaction.cursor() as cursor:
        assert cursor.last()
        transaction.delete(cursor.key(), db=index._places)
    index.close()
    code, report = recover(tmp_path)
    assert (code, report["index"]["state"]) == (17, "wrong")
    assert run("recover", tmp_path, "--apply")[0] == 0
    assert run("verify", tmp_path)[0] == 0


def test_corruption_is_reported_with_what_stands_behind_and_nothing_is_done(tmp_path: Path) -> None:
    """Goal: exact ranges below the flushed offset, in a sealed segment too, where a start does not look. Method: two
    spoiled batches; --apply is refused and changes nothing."""
    maker = make_past(tmp_path)
    bad = [maker.headers[20], maker.headers[-4]]
    for header in bad:
        overwrite(tmp_path, header.log_offset + 200, b"!")
    before = contents(tmp_path)
    code, report = recover(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [
        (header.log_offset, header.next_log_offset) for header in bad
    ]
    assert [(each["queue_id"], each["first"], each["next"]) for each in report["lost"]] == [
        (header.queue_id, header.base_queue_offset, header.next_queue_offset) for header in bad
    ]
    assert str(bad[1].log_offset) in report["start"]["refused"]
    text = run("recover", tmp_path)[1]
    assert f"whole batches stand behind it, from {bad[0].next_log_offset} to {report['end']}" in text
    assert "a start is refused: " in text
    for options in (("--apply",), ("--apply", "--accept-loss")):
        code, report = recover(tmp_path, *options)
        assert (code, report["applied"]) == (15, False)
    assert contents(tmp_path) == before


def test_damage_that_a_start_does_not_see_is_not_passed_over(tmp_path: Path) -> None:
    """Goal: a log that would start is not called sound. Method: spoil a batch of a sealed segment."""
    maker = make_past(tmp_path)
    overwrite(tmp_path, maker.headers[20].log_offset + 200, b"!")
    code, report = recover(tmp_path, "--apply")
    assert (code, report["start"]["refused"], report["applied"]) == (15, None, False)


def test_a_loss_is_known_until_it_is_accepted(tmp_path: Path) -> None:
    """Goal: the node learns of what a repair cut. Method: a bad batch with good ones behind, above the flushed offset;
    --apply, another look, then --accept-loss and a start."""
    headers = make_log(tmp_path, flushed=False)
    overwrite(tmp_path, headers[30].log_offset + 500, b"!")
    code, report = recover(tmp_path)
    assert (code, report["start"]["lossy"]) == (15, True)
    assert report["start"]["torn"]["first"] == headers[30].log_offset
    assert (report["start"]["cut_valid"]["first"], report["start"]["cut_valid"]["last"]) == (
        headers[31].log_offset,
        headers[-1].next_log_offset,
    )
    code, text = run("recover", tmp_path, "--apply")
    assert code == 0
    assert "(LOSSY)" in text
    assert "counts as lossy until" in text
    code, report = recover(tmp_path)
    assert (code, report["start"]["lossy"], report["start"]["torn"]) == (0, True, None)
    assert report["start"]["lost_earlier"]["last"] == headers[-1].next_log_offset
    assert report["unknown"] == []
    code, text = run("recover", tmp_path, "--apply", "--accept-loss")
    assert code == 0
    assert "what was lost is accepted" in text
    log = open_log(tmp_path, segment_bytes=16 * BATCH_BYTES)
    assert (log.recovery.clean, log.end) == (True, headers[30].log_offset)
    log.close()


def test_accepting_a_loss_goes_with_applying(tmp_path: Path) -> None:
    """Goal: a slip does not pass. Method: the one option without the other."""
    make_log(tmp_path)
    assert run("recover", tmp_path, "--accept-loss")[0] == 2


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    """Goal: never beside a running node. Method: hold the node's lock, then only look; hold that of a log alone."""
    directory = tmp_path / "logs" / str(LOG_ID)
    make_log(directory)
    with DataDirectory.open(tmp_path, cluster_id=UUID(int=1), node_id="n1"):
        assert run("recover", tmp_path, "--apply") == (13, "")
        code, report = recover(tmp_path)
        assert (code, report["start"]) == (0, None)
    assert run("recover", tmp_path, "--apply")[0] == 0
    alone = tmp_path / "alone"
    shutil.copytree(directory, alone)
    fd = os.open(alone / "log.json", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert run("recover", alone, "--apply")[0] == 13
    finally:
        os.close(fd)
    assert run("recover", alone, "--apply")[0] == 0


def test_a_spare_that_holds_batches_gets_its_name(tmp_path: Path) -> None:
    """Goal: bytes that survived a power loss when their file's name did not. Method: name the last segment a spare."""
    headers = make_log(tmp_path)
    last = segment_starts(tmp_path)[-1]
    set_flushed(tmp_path, last)
    (tmp_path / f"{last:020d}").rename(tmp_path / "spare-1")
    code, report = recover(tmp_path)
    assert (code, report["start"]["renamed"]) == (0, [["spare-1", f"{last:020d}"]])
    assert report["end"] == headers[-1].next_log_offset
    assert run("recover", tmp_path, "--apply")[0] == 0
    assert segment_starts(tmp_path)[-1] == last


def test_an_empty_log_is_opened_with_a_small_file(tmp_path: Path) -> None:
    """Goal: repairing takes no gigabyte. Method: all that is left is torn; the file stays as large as it was."""
    headers = make_log(tmp_path, batches=1, flushed=False)
    size = (tmp_path / f"{0:020d}").stat().st_size
    overwrite(tmp_path, headers[0].log_offset + 500, b"!")
    assert run("recover", tmp_path, "--apply")[0] == 0
    assert [(tmp_path / f"{start:020d}").stat().st_size for start in segment_starts(tmp_path)] == [size]


# --- Saving -----------------------------------------------------------------------------------------------------------


def test_every_whole_batch_is_saved_at_its_place(tmp_path: Path) -> None:
    """Goal: nothing that is readable is lost. Method: damage in two places and a torn tail; what is saved is each other
    batch, byte for byte, in a directory that dump and verify read; the source does not change."""
    source, out = tmp_path / "log", tmp_path / "out"
    maker = make_past(source)
    whole = open_log(source, segment_bytes=16 * BATCH_BYTES)
    content = stored(whole)
    whole.close()
    bad = [maker.headers[20], maker.headers[21], maker.headers[70], maker.headers[-1]]
    for header in bad:
        overwrite(source, header.log_offset + 200, b"!")
    before = contents(source)
    code, report = recover(source, "--salvage", str(out))
    assert (code, report["salvaged"]) == (0, str(out))
    assert contents(source) == before
    kept = [each for each in maker.headers if each not in bad]
    for start in segment_starts(out):
        saved = (out / f"{start:020d}").read_bytes()
        assert saved == content[start : start + len(saved)]
    lines = [json.loads(line) for line in run("dump", out, "--json")[1].splitlines()]
    assert [line["log_offset"] for line in lines[:-1]] == [each.log_offset for each in kept]
    said = json.loads((out / "salvage.json").read_bytes())
    assert (said["batches"], said["records"]) == (len(kept), sum(each.record_count for each in kept))
    assert [(each["first"], each["last"]) for each in said["saved"]] == [
        (0, bad[0].log_offset),
        (bad[1].next_log_offset, bad[2].log_offset),
        (bad[2].next_log_offset, bad[3].log_offset),
    ]
    assert [each["first"] for each in said["damaged"]] == [bad[0].log_offset, bad[2].log_offset, bad[3].log_offset]
    assert said["queues"] == {"1": "q1", "2": "q2", "3": "q3"}
    assert run("verify", out)[0] == 15, "it has gaps, and no node takes it for a whole log"


def test_what_a_repair_cuts_is_saved_before(tmp_path: Path) -> None:
    """Goal: save and cut in one call. Method: a lossy log; the batches behind the bad one are in the new directory."""
    source, out = tmp_path / "log", tmp_path / "out"
    headers = make_log(source, flushed=False)
    overwrite(source, headers[30].log_offset + 500, b"!")
    assert run("recover", source, "--apply", "--accept-loss", "--salvage", str(out))[0] == 0
    lines = [
        json.loads(line) for line in run("dump", out, "--json", "--from", str(headers[30].log_offset))[1].splitlines()
    ]
    assert [line["log_offset"] for line in lines[:-1]] == [each.log_offset for each in headers[31:]]
    assert run("verify", source)[0] == 0


def test_a_copy_that_was_set_aside_is_saved_too(tmp_path: Path) -> None:
    """Goal: former copies are within reach. Method: under the name that a node gives it, beside the log."""
    log = tmp_path / "logs" / str(LOG_ID)
    make_past(log)
    aside = log.with_name(f"{log.name}.aside-1")
    shutil.copytree(log, aside)
    assert run("recover", aside, "--salvage", str(tmp_path / "out"))[0] == 0
    assert run("recover", tmp_path)[0] == 0, "the node's directory means its log"


@pytest.mark.parametrize("place", ["full", "inside", "file"])
def test_nothing_is_saved_over_something(tmp_path: Path, place: str) -> None:
    """Goal: no file is overwritten. Method: a directory with something in it, one within the log's, a file."""
    source = tmp_path / "log"
    make_log(source)
    out = {"full": tmp_path, "inside": source / "out", "file": tmp_path / "file"}[place]
    (tmp_path / "file").write_bytes(b"x")
    before = contents(tmp_path)
    assert run("recover", source, "--salvage", str(out))[0] == 2
    assert contents(tmp_path) == before
