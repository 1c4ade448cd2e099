"""docs/stories.md and the tests tell the same stories: every row has its test, every marked test its row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "stories.md"
STORY_ID = re.compile(r"\d{3}:\d+(-\d+)?")
SEED_LINES = {"002": 1077}

Told = set[tuple[str, str]]


def rows() -> list[tuple[str, str, str, str]]:
    """(story, what, ours, test) of the table."""
    lines = TABLE.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = [(row[0], row[1], row[2], row[3].strip("`")) for row in cells[2:]]
    assert len(found) > 40, "the table was not found"
    return found


def told_by_tests() -> Told:
    """(story, test) of every marker in the sources of the tests."""
    found: Told = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function, story in stories_in(ast.parse(path.read_text())):
            found.add((story, f"{path.relative_to(ROOT).as_posix()}::{function}"))
    return found


def stories_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(test function, story) of every `pytest.mark.story` in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.story":
                    yield node.name, ast.literal_eval(decorator.args[0])


def told_by_table() -> Told:
    return {(story, test) for story, _, _, test in rows()}


def test_every_row_has_its_test() -> None:
    """Look for each row's test and its marker: none is missing."""
    assert told_by_table() - told_by_tests() == set()


def test_every_marked_test_has_its_row() -> None:
    """Look for each marker in the table: none is missing."""
    assert told_by_tests() - told_by_table() == set()


def test_each_story_is_told_once_and_points_into_its_seed() -> None:
    """Read the ids: unique, well formed, with lines that the seed has; each row says what is ours."""
    stories = [story for story, *_ in rows()]
    assert len(set(stories)) == len(stories)
    for story, what, ours, _ in rows():
        assert STORY_ID.fullmatch(story), story
        seed, _, lines = story.partition(":")
        first, _, last = lines.partition("-")
        assert 1 <= int(first) <= int(last or first) <= SEED_LINES[seed], story
        assert what
        assert ours.startswith(("same", "**instead**")), story


@pytest.mark.parametrize("missing", ["row", "marker"])
def test_the_check_can_fail(missing: str) -> None:
    """Take one row, or one marker, away: the comparison finds it."""
    table, tests = told_by_table(), told_by_tests()
    (table if missing == "row" else tests).pop()
    assert table != tests
