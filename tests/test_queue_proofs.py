"""docs/contributing/queue-proofs.md: every promise of queues names tests, and those that it names are there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.test_stories import all_tests, named_in

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "docs" / "contributing" / "queue-proofs.md"


@cache
def promises() -> dict[str, list[str]]:
    """The tests, or files of tests, that each row names."""
    lines = TABLES.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: named_in(row[1]) for row in cells if row[0] not in ("promise", "---")}


def missing(named: list[str], tests: frozenset[str]) -> list[str]:
    files = {test.partition("::")[0] for test in tests}
    return [each for each in named if each not in tests and each not in files]


def test_every_promise_has_its_tests() -> None:
    """Look for each test that a row names: none is missing."""
    assert len(promises()) > 50, "the tables were not found"
    assert {what: gone for what, named in promises().items() if (gone := missing(named, all_tests()))} == {}


def test_the_check_can_fail() -> None:
    """Take one test away: the row that names it is told of it."""
    named = next(tests for tests in promises().values() if "::" in tests[0])
    assert missing(named, all_tests() - {named[0]}) == [named[0]]
