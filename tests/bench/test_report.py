"""The tables: every figure with its durability, the marks with ratio and verdict, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cli, report
from bench.workload import PEER
from tests.bench.runs import results, run

OURS = "3 copies, 1024 B, memory, 1 producer, send"
KAFKA = "Kafka 4.3.1, 3 copies, 1024 B, page cache, confluent-kafka 2.16.0, linger 5 ms"


def test_markdown_has_a_table_per_group_and_the_marks() -> None:
    """Ours at 520 MB/s against Kafka's 100: 5.20, mark reached; the medians of all rounds."""
    measured = results(
        run(1, OURS, 510.0),
        run(2, OURS, 520.0),
        run(3, OURS, 530.0),
        run(1, KAFKA, 100.0, group=PEER),
        run(1, "x", None),
    )
    text = report.markdown(measured)
    assert f"| W1 | {OURS} | throughput | 510 | 520 | 530 | MB/s | 50% | 0% |" in text
    assert f"| W1 | {KAFKA} | throughput | 100 | 100 | 100 | MB/s | 50% | 0% |" in text
    (mark,) = [line for line in text.splitlines() if line.startswith("| W1, 3 copies, send per record")]
    assert mark.endswith("| 520 MB/s | 100 MB/s | 5.20 | ≥ 5 | yes |")
    assert "| W1 x | it broke |" in text
    assert "rounds: 3" in text


def test_a_mark_without_its_other_side_is_not_measured() -> None:
    """Only our own were run: no ratio is made up."""
    text = report.markdown(results(run(1, OURS, 510.0)))
    (mark,) = [line for line in text.splitlines() if line.startswith("| W1, 3 copies, send per record")]
    assert mark.endswith("| 510 MB/s |  |  | ≥ 5 | not measured |")


@pytest.mark.parametrize(("value", "text"), [(1234567.8, "1,234,568"), (12.34, "12"), (9.876, "9.88"), (0.0, "0.00")])
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    """Large ones in groups of three, small ones with two decimals."""
    assert report.number_text(value) == text


def test_the_report_of_a_file_is_printed_as_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command line; a file that is not there is an error of one line."""
    results(run(1, OURS, 510.0)).save(tmp_path / "out.json")
    assert cli.main(["--report", str(tmp_path / "out.json")]) == 0
    assert "### mirrorlog" in capsys.readouterr().out
    assert cli.main(["--report", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
