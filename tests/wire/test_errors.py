"""What each error says of itself: codes travel in frames, exit codes end commands, so neither may move by a rename."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mirrorlog import errors
from mirrorlog.doors.grpc.receiving import TooLarge
from mirrorlog.errors import BadInput, BadRequest, Closed, MirrorlogError, OutcomeUnknown, Refused, from_code

BRANCHES = (Refused, OutcomeUnknown, BadInput, Closed)
GOLDEN = Path(__file__).parent / "golden" / "errors.txt"


def told(kind: type[MirrorlogError]) -> str:
    retriable = "retriable" if kind.retriable else "final"
    return f"{kind.__name__} {kind.code} {kind.grpc_status} {kind.exit_code} {retriable}"


def every(root: type[MirrorlogError]) -> list[type[MirrorlogError]]:
    return [found for child in root.__subclasses__() for found in (child, *every(child))]


def kinds() -> list[type[MirrorlogError]]:
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MirrorlogError)]
    return sorted(found, key=lambda kind: kind.__name__)


def test_no_class_has_changed_its_code_status_or_exit_code() -> None:
    """Goal: a node and a client of two versions understand each other. Method: all classes against a list; lines are
    added to it, and not changed."""
    assert [told(kind) for kind in kinds()] == GOLDEN.read_text().splitlines()


def test_except_of_four_is_enough() -> None:
    """Goal: whoever catches the four has caught every outcome, and each says one thing. Method: all classes of the
    tree, those of other modules too; below each exactly one of the four."""
    importlib.import_module("mirrorlog.spark.errors")
    importlib.import_module("mirrorlog.client")
    found = every(MirrorlogError)
    assert len(found) > 80
    assert [kind.__name__ for kind in found if sum(issubclass(kind, branch) for branch in BRANCHES) != 1] == []


def test_every_class_says_what_it_stands_for() -> None:
    assert [kind.__name__ for kind in kinds() if not kind.__doc__] == []


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind is not MirrorlogError])
def test_a_code_leads_back_to_its_class(kind: type[MirrorlogError]) -> None:
    error = from_code(kind.code, "what happened", {"detail": 1})
    assert (type(error), str(error), error.details) == (kind, "what happened", {"detail": 1})


def test_a_code_that_nobody_knows_is_told_with_its_text() -> None:
    assert str(from_code("OF_A_NEWER_NODE", "what happened")) == "OF_A_NEWER_NODE: what happened"


def test_a_class_of_another_module_without_a_code_does_not_stand_for_the_one_above() -> None:
    """Goal: what is met within one module stays there. Method: the refusal of a door."""
    assert (TooLarge.code, type(from_code(TooLarge.code, "-"))) == ("BAD_REQUEST", BadRequest)
