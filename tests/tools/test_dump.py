"""`mqtool dump` prints every header as it stands on disk."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog.commitlog.format.header import Codec
from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.tools.main import app
from tests.tools.goldens import golden
from tests.tools.logs import LogMaker, contents, make_log, make_past, make_story, overwrite, segment_starts

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


def lines_of(path: Path, *options: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in dump(path, "--json", *options).splitlines()]


def test_all_kinds_and_changes_are_as_recorded(tmp_path: Path) -> None:
    """Goal: each change can be read, a state checkpoint takes a line per batch. Method: every kind that a node writes,
    with all states and without, against the golden texts."""
    maker = LogMaker(tmp_path, queues=2)
    maker.data(1, 2)
    maker.data(1, 2, codec=Codec.ZSTD)
    maker.data(1, 2, base=0)
    maker.checkpoint()
    maker.move_start(0)
    maker.close()
    for options in ((), ("--states",)):
        text = dump(tmp_path, *options).replace(str(tmp_path), "DIR")
        assert text == golden(f"dump_kinds{''.join(options)}.txt", text)
    checkpoints = lines_of(tmp_path, "--kind", "checkpoint")
    assert [line["states"] for line in checkpoints[:-1]] == [
        {"began": {"queue_id_max": 2}},
        {"queues": 2},
        {"producers": 2},
        {"ended": {"began_at": maker.state, "producer_epoch_floor": 0}},
    ]
    assert all("changes" not in line for line in checkpoints)
    assert len(lines_of(tmp_path, "--kind", "checkpoint", "--states")[1]["changes"]) == 2  # type: ignore[arg-type]


def test_only_what_is_asked_for_is_printed(tmp_path: Path) -> None:
    """Goal: a long log is looked at in parts. Method: each filter, and two together, against the list of batches."""
    maker = make_past(tmp_path)
    headers = {each.log_offset: each for each in maker.headers}
    first, last = segment_starts(tmp_path)[2] + 1000, segment_starts(tmp_path)[4] - 1000

    def found(*options: str) -> list[int]:
        return [int(str(line["log_offset"])) for line in lines_of(tmp_path, *options)[:-1]]

    assert found() == list(headers)
    window = ("--from", str(first), "--until", str(last))
    assert found(*window) == [each for each in headers if first <= each < last]
    assert found("--kind", "control", "--kind", "checkpoint") == [
        each for each in headers if headers[each].kind in (4, 5)
    ]
    for name in ("q2", "2"):
        assert found("--queue", name, *window) == [
            each for each in headers if headers[each].queue_id == 2 and first <= each < last
        ]
    assert found("--from", "99999999") == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (("--kind", "datum"), BadInput, "none of data, transaction"),
        (("--queue", "q9"), NoSuchQueue, "q9"),
        (("--queue", "9"), NoSuchQueue, "9"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, options: tuple[str, ...], error: type[Exception], text: str) -> None:
    """Goal: a slip is not an empty answer. Method: a kind and queues that do not exist."""
    make_past(tmp_path)
    result = RUNNER.invoke(app, ["dump", str(tmp_path), *options])
    assert isinstance(result.exception, error)
    assert text in str(result.exception)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_are_printed_whatever_their_codec(tmp_path: Path, codec: Codec) -> None:
    """Goal: the records themselves, offline. Method: a batch of each codec; for people and as JSON."""
    maker = LogMaker(tmp_path, queues=1)
    maker.data(1, 3, codec=codec)
    maker.close()
    assert maker.headers[-1].codec == codec
    records = lines_of(tmp_path, "--records")
    assert [(each["queue"], each["queue_offset"], each["value"]) for each in records] == [
        ("q1", number, "B" * 100) for number in range(3)
    ]
    assert dump(tmp_path, "--records").splitlines()[1] == "q1\t1\t-\t-\t" + "B" * 100


def test_a_queues_name_is_known_when_its_declaration_is_gone(tmp_path: Path) -> None:
    """Goal: names in a log whose begin moved. Method: free the declarations; the state checkpoint has the names, behind
    records that are printed first."""
    maker = LogMaker(tmp_path)
    maker.fill(120)
    maker.checkpoint()
    maker.confirm()
    maker.move_start(segment_starts(tmp_path)[3])
    maker.close()
    records = lines_of(tmp_path, "--records", "--queue", "q3")
    assert records
    assert {each["queue"] for each in records} == {"q3"}
    assert {each["queue"] for each in lines_of(tmp_path, "--records")} == {"q1", "q2", "q3"}


def test_a_file_below_the_begin_is_shown_whole(tmp_path: Path) -> None:
    """Goal: a file is looked at for itself. Method: a copy of a freed one, put back under its name."""
    maker = LogMaker(tmp_path)
    maker.fill(60)
    maker.checkpoint()
    maker.confirm()
    first = tmp_path / f"{0:020d}"
    content = first.read_bytes()
    maker.move_start(segment_starts(tmp_path)[1])
    maker.close()
    first.write_bytes(content)
    lines = lines_of(first)
    assert lines[0]["log_offset"] == 0
    assert lines[-2]["log_offset"] == max(
        each.log_offset for each in maker.headers if each.log_offset < segment_starts(tmp_path)[1]
    )
    assert lines_of(tmp_path)[0]["log_offset"] == segment_starts(tmp_path)[1]
