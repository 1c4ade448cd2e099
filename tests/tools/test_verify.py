"""`mqtool verify` finds every bad range, tells a torn tail from corruption, and changes nothing."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog.errors import BadInput, ForeignDirectory, LogCorrupt
from mirrorlog.tools.log_directory import FILES, find_log, read_log_directory
from mirrorlog.tools.main import app, main
from tests.commitlog.logs import open_log
from tests.tools.logs import BATCH_BYTES, SEGMENT_BYTES, contents, make_log, overwrite

RUNNER = CliRunner()


def verify(directory: Path) -> tuple[int, dict[str, object]]:
    """Exit code of the error, 0 without one, and the report."""
    result = RUNNER.invoke(app, ["verify", str(directory), "--json"])
    code = result.exception.exit_code if isinstance(result.exception, LogCorrupt) else result.exit_code
    return code, json.loads(result.stdout)


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
    assert [(each["first"], each["last"]) for each in report["bad"]] == [  # type: ignore[attr-defined]
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
    assert report["tail"]["first"] == headers[-1].log_offset  # type: ignore[index]
    text = RUNNER.invoke(app, ["verify", str(tmp_path)]).stdout
    assert f"torn tail {headers[-1].log_offset}.." in text


def test_a_bad_tail_below_the_flushed_offset_is_corruption(tmp_path: Path) -> None:
    """Goal: what was on disk once does not vanish quietly. Method: damage the last batch of a flushed log."""
    headers = make_log(tmp_path)
    overwrite(tmp_path, headers[-1].log_offset + 500, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert [each["first"] for each in report["bad"]] == [headers[-1].log_offset]  # type: ignore[attr-defined]


def test_zeros_below_the_flushed_offset_are_corruption(tmp_path: Path) -> None:
    """Goal: a lost last page is seen though nothing stands there. Method: zero the last batch."""
    headers = make_log(tmp_path)
    overwrite(tmp_path, headers[-1].log_offset, bytes(BATCH_BYTES))
    code, report = verify(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [  # type: ignore[attr-defined]
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
    assert [(each["first"], each["last"]) for each in report["bad"]] == [  # type: ignore[attr-defined]
        (start, start + SEGMENT_BYTES)
    ]
    assert report["end"] == headers[-1].next_log_offset


def test_a_bad_end_of_a_segment_is_one_range_up_to_the_next(tmp_path: Path) -> None:
    """Goal: a tail in the middle of the log is no tail. Method: damage the last batch of the first segment."""
    headers = make_log(tmp_path)
    last_of_first = SEGMENT_BYTES - BATCH_BYTES
    overwrite(tmp_path, last_of_first + 500, b"!")
    code, report = verify(tmp_path)
    assert code == 15
    assert [(each["first"], each["last"]) for each in report["bad"]] == [  # type: ignore[attr-defined]
        (last_of_first, SEGMENT_BYTES)
    ]
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
