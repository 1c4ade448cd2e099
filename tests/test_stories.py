"""docs/contributing/stories and the tests tell the same stories: every row has its tests, every marked test its row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLES = sorted((ROOT / "docs" / "contributing" / "stories").glob("*.md"))
STORY_ID = re.compile(r"\d{3}:\d+([a-z]|-\d+)?")
SEED_LINES = {"000": 1118, "001": 696, "002": 1077, "003": 31}
MARKED_SEED = "002"
"""Every test of it carries the id of its row. Of others those do that were written for a story."""

Told = set[tuple[str, str]]


@cache
def rows() -> list[list[str]]:
    """All rows of all tables, without their heads."""
    lines = [line for page in TABLES for line in page.read_text().splitlines()]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = [row for row in cells if row[0] not in ("story", "lesson") and not row[0].startswith("---")]
    assert len(found) > 90, "the tables were not found"
    return found


def stories() -> list[tuple[str, str, str, str]]:
    """(story, what, ours, tests) of the rows that have an id."""
    return [(row[0], row[1], row[2], row[3]) for row in rows() if STORY_ID.fullmatch(row[0])]


def named_in(cell: str) -> list[str]:
    """The tests that a row names, comma after comma."""
    return [name.strip().strip("`") for name in cell.split(",")]


@cache
def modules() -> dict[str, str]:
    """Every module of tests, by its path below the root."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def functions_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that a module, or a class in it, has."""
    for node in [*tree.body, *(each for owner in tree.body if isinstance(owner, ast.ClassDef) for each in owner.body)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def stories_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The id of every `pytest.mark.story` that it carries."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.story":
            yield ast.literal_eval(decorator.args[0])


@cache
def all_tests() -> frozenset[str]:
    """Functions by their heads: to parse all modules takes ten seconds."""
    heads = re.compile(r"^(?:    )?(?:async )?def (\w+)\(", re.MULTILINE)
    return frozenset(f"{path}::{name}" for path, source in modules().items() for name in heads.findall(source))


@cache
def _told_by_tests() -> frozenset[tuple[str, str]]:
    return frozenset(
        (story, f"{path}::{function.name}")
        for path, source in modules().items()
        if "pytest.mark.story" in source
        for function in functions_in(ast.parse(source))
        for story in stories_on(function)
    )


def told_by_tests() -> Told:
    """(story, test) of every marker in the sources of the tests."""
    return set(_told_by_tests())


def told_by_tables() -> Told:
    return {(story, test) for story, _, _, tests in stories() for test in named_in(tests)}


def named_by_tables() -> set[str]:
    """Every test that a row names, of whichever table."""
    return {test for row in rows() for test in named_in(row[-1])}


def of_marked_seed(told: Told) -> Told:
    return {(story, test) for story, test in told if story.startswith(MARKED_SEED)}


@pytest.mark.long
def test_every_row_has_its_tests() -> None:
    """Look for each test that a row names: none is missing."""
    assert named_by_tables() - all_tests() == set()


def test_every_row_of_the_first_seed_has_its_marker() -> None:
    """Look for each row's marker on its test: none is missing."""
    assert of_marked_seed(told_by_tables()) - told_by_tests() == set()


def test_every_marked_test_has_its_row() -> None:
    """Look for each marker in the tables: none is missing."""
    assert told_by_tests() - told_by_tables() == set()


def test_each_story_is_told_once_and_points_into_its_seed() -> None:
    """Read the ids: unique, well formed, with lines that the seed has; each row says what is ours."""
    ids = [story for story, *_ in stories()]
    assert len(set(ids)) == len(ids)
    assert {story.partition(":")[0] for story in ids} == SEED_LINES.keys()
    for story, what, ours, _ in stories():
        seed, _, lines = story.partition(":")
        first, _, last = lines.rstrip("abcdefgh").partition("-")
        assert 1 <= int(first) <= int(last or first) <= SEED_LINES[seed], story
        assert what
        assert ours.startswith(("same", "**instead**")), story


def test_each_lesson_is_told_once_with_what_follows() -> None:
    """Read the rows without an id: each another lesson, with what mirrorlog does and a test."""
    lessons = [row for row in rows() if not STORY_ID.fullmatch(row[0])]
    assert len(lessons) > 20
    assert len({row[0] for row in lessons}) == len(lessons)
    assert all(len(row) == 3 and all(row) for row in lessons)


@pytest.mark.parametrize("missing", ["row", "marker", "test"])
def test_the_check_can_fail(missing: str) -> None:
    """Take one row, one marker, or one test away: a comparison finds it."""
    tables, tests = told_by_tables(), told_by_tests()
    if missing == "row":
        tables.discard(max(tests))
        assert tests - tables
    elif missing == "marker":
        tests.discard(max(of_marked_seed(tests)))
        assert of_marked_seed(tables) - tests
    else:
        named = named_by_tables()
        assert named - (all_tests() - {max(named)})
