"""Results survive in their file, and say per figure what all rounds gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.results import Results
from bench.workload import PEER
from mirrorlog.errors import BadInput
from tests.bench.runs import counting, results, run


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    """Figures, failures and conditions, through the file; nothing else is left beside it."""
    written = results(run(1, "a", 10.0), run(1, "b", None), run(2, "a", 30.0, foreign=0.25))
    written.save(tmp_path / "deep" / "out.json")
    read = Results.load(tmp_path / "deep" / "out.json")
    assert (read.conditions, read.runs) == (written.conditions, written.runs)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out.json"]


def test_a_row_holds_all_rounds_and_the_others_load() -> None:
    """Three rounds of one case: medians of the figure and of the foreign share."""
    (row,) = results(*(run(n, "a", value, foreign=value / 100) for n, value in enumerate((30.0, 10.0, 20.0), 1))).rows()
    assert (row.summary.minimum, row.summary.median, row.summary.maximum) == (10.0, 20.0, 30.0)
    assert row.foreign == pytest.approx(0.2)


def test_rows_are_kept_apart_by_group() -> None:
    """The same workload and case of two groups are two rows."""
    both = results(run(1, "a", 10.0), run(1, "a", 20.0, group=PEER))
    assert [(row.group, row.summary.median) for row in both.rows()] == [("own", 10.0), ("peer", 20.0)]
    assert [row.summary.median for row in both.rows(PEER)] == [20.0]


def test_a_failure_is_told_only_where_no_round_succeeded() -> None:
    """One case fails once and then succeeds, another never does."""
    both = results(run(1, "a", None), run(2, "a", 5.0), run(1, "b", None))
    assert both.errors() == {"W1 b": "it broke"}


def test_only_rounds_with_figures_count_as_done() -> None:
    """A failed one is due again, and its success replaces it."""
    kept = results(run(1, "a", None))
    workload = counting("a", [])
    assert not kept.has(1, workload)
    kept.add(run(1, "a", 5.0))
    assert kept.has(1, workload)
    assert not kept.has(2, workload)
    assert len(kept.runs) == 1


def test_rounds_of_other_conditions_are_not_mixed() -> None:
    """Another version, or quick and full rounds, cannot stand in one table; another date can."""
    kept = results()
    kept.check_same({**kept.conditions, "date": "2000-01-01", "load_before": 9.0})
    for name in ("version", "quick", "machine"):
        with pytest.raises(BadInput, match=name):
            kept.check_same({**kept.conditions, name: "another"})


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 1}', '{"format": 2}', '{"format": 2, "conditions": {}}']
)
def test_a_file_that_is_no_results_file_is_refused(tmp_path: Path, content: str) -> None:
    """Cut, of an older format, or something else: an error that names the file."""
    (path := tmp_path / "out.json").write_text(content)
    with pytest.raises(BadInput, match=r"out\.json"):
        Results.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """`--resume` without a run to go on with."""
    with pytest.raises(BadInput, match="No such file"):
        Results.load(tmp_path / "out.json")


def test_the_file_can_be_read_without_this_program(tmp_path: Path) -> None:
    """The medians stand in it as plain JSON."""
    results(run(1, "a", 10.0), run(2, "a", 20.0)).save(tmp_path / "out.json")
    (summary,) = json.loads((tmp_path / "out.json").read_text())["summaries"]
    assert (summary["group"], summary["case"], summary["median"], summary["rounds"]) == ("own", "a", 15.0, 2)
