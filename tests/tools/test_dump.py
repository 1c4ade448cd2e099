"""`mqtool dump` prints every header as it stands on disk."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog.errors import BadInput
from mirrorlog.tools.main import app
from tests.tools.goldens import golden
from tests.tools.logs import contents, make_log, make_story, overwrite

RUNNER = CliRunner()


def dump(path: Path, *options: str) -> str:
    result = RUNNER.invoke(app, ["dump", str(path), *options])
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_a_log_is_printed_as_recorded(tmp_path: Path) -> None:
    """Goal: the layout changes on purpose only. Method: one batch of every kind, against the golden text."""
    make_story(tmp_path)
    text = dump(tmp_path).replace(str(tmp_path), "DIR")
    assert text == golden("dump.txt", text)


def test_json_lines_are_as_recorded(tmp_path: Path) -> None:
    """Goal: programs can rely on the names. Method: the same log, against the golden lines."""
    make_story(tmp_path)
    text = dump(tmp_path, "--json")
    assert text == golden("dump.jsonl", text)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["kind"] for line in lines] == ["control", "control", "data", "end"]
    assert lines[1]["changes"] == [
        {"type": "QueueDeclared", "name": "flights", "queue_id": 1, "arguments": {"x-max-age": "7D"}}
    ]


def test_one_segment_can_be_dumped(tmp_path: Path) -> None:
    """Goal: a file of a long log is enough. Method: the middle one of three; no range is called bad for the rest."""
    headers = make_log(tmp_path)
    middle = sorted(path for path in tmp_path.iterdir() if path.name.isdigit())[1]
    lines = [json.loads(line) for line in dump(middle, "--json").splitlines()]
    inside = [header for header in headers if int(middle.name) <= header.log_offset < int(middle.name) + 16 * 1024]
    assert [line["log_offset"] for line in lines[:-1]] == [header.log_offset for header in inside]
    assert lines[-1]["no_batch"] == []


def test_a_file_that_is_no_segment_is_refused(tmp_path: Path) -> None:
    """Goal: other files are not read as batches. Method: the epoch list."""
    make_story(tmp_path)
    result = RUNNER.invoke(app, ["dump", str(tmp_path / "epochs")])
    assert isinstance(result.exception, BadInput)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_damage_is_shown_and_nothing_changes(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Goal: what is no batch is named, with the batches around it. Method: damage one in the middle, and the last."""
    headers = make_log(tmp_path)
    overwrite(tmp_path, headers[5].log_offset + 500, b"!")
    overwrite(tmp_path, headers[-1].log_offset + 500, b"!")
    before = contents(tmp_path)
    text = dump(tmp_path, *options)
    assert contents(tmp_path) == before
    if options:
        ranges = json.loads(text.splitlines()[-1])["no_batch"]
        assert [each["first"] for each in ranges] == [headers[5].log_offset, headers[-1].log_offset]
    else:
        assert f"no batch at {headers[5].log_offset}..{headers[6].log_offset} (" in text
        assert f"no batch at the end, {headers[-1].log_offset}.." in text
