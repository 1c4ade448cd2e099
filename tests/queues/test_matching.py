"""An expression finds what Python's own matcher finds, and never takes long over it."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.errors import BadRequest
from mirrorlog.queues.access import WAYS_MAX, check_expression
from mirrorlog.queues.matching import Matcher

PIECES = [
    "a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", r"\.", "(a|ab)", "(ab|a|)", "(?:a|b)", "a?", "b*", "a+", "a{2}",
    "a{1,3}", "b{0,}", "^", "$", r"\b", r"\B", r"\A", r"\Z", "(?i:A)", "(?-i:b)", "(a(b|c))", "x*?", "a??", ".*", "é",
    r"(?a:\w)", r"(?a:\b)", r"(?u:\w)", r"(?u:\B)", "(?i:É)", "(?ai:É)", "(?i:k)", "(?i-s:[^b])",
]  # fmt: skip
SLOW = ["^" + "(ab|a.)" * 23 + "$", "^" + "(a|ab|abc)" * 15 + "$", "^a*a*a*b", "a*a*b", "^" + "(aa|a)" * 23 + "x"]


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(["", "(?i)", "(?a)"]),
    st.lists(st.sampled_from(PIECES), max_size=6),
    st.lists(st.text("abcxAB1._éÉ\u212a", max_size=9), max_size=6),
)
def test_it_finds_what_pythons_matcher_finds(flags: str, pieces: list[str], names: list[str]) -> None:
    """Any expression that is taken, over short names, with that matcher as the oracle."""
    expression = flags + "".join(pieces)
    try:
        check_expression(expression)
    except (BadRequest, re.error):
        return
    matcher, oracle = Matcher(expression), re.compile(expression)
    for name in ["", *names]:
        assert matcher.found_in(name) == found(oracle, name), name


def found(oracle: re.Pattern[str], name: str) -> bool:
    """Where `re.search` looks first for a character that may begin a match, it asks for it under the flags of the whole
    expression: `(?a)(?u:\\w)a` is not found in "Éa", though it matches there. So each place is tried."""
    return any(oracle.match(name, at) for at in range(len(name) + 1))


@pytest.mark.parametrize(
    "expression",
    [
        "(?i)^(?-i:b)$",
        r"^(?a:\w)$",
        r"(?a)^(?u:\w)$",
        r"(?a)(?u:\w)a",
        r"(?a)é\b",
        r"(?a:\b)é",
        "(?i)^(?a:É)$",
        "(?a)^(?ui:É)$",
    ],
)
def test_flags_hold_for_their_part_alone(expression: str) -> None:
    """Those of a group and of the whole, over names that tell them apart, with Python's matcher as the oracle."""
    check_expression(expression)
    matcher, oracle = Matcher(expression), re.compile(expression)
    for name in ("b", "B", "a", "é", "É", "aé", "éa", "Éa", ""):
        assert matcher.found_in(name) == found(oracle, name), name


@pytest.mark.parametrize("expression", SLOW)
def test_no_expression_that_is_taken_takes_long(expression: str) -> None:
    """Those with the most ways that are taken, over the longest names: less processor time than one heartbeat has
    (Python's own matcher takes up to a second)."""
    check_expression(expression)
    matcher = Matcher(expression)
    for name in ("a" * 255, "ab" * 127, "abc" * 85):
        began = time.thread_time()
        matcher.found_in(name)
        assert time.thread_time() - began < 0.25


def test_possessive_repeats_are_taken_beside_few_others_only() -> None:
    """They forget ways, so they are Python's matcher's alone: with few others."""
    check_expression("^a*+b")
    with pytest.raises(BadRequest, match="possessive"):
        check_expression("^a*+" + "(ab|a.)" * 14)
    assert WAYS_MAX > 2**23
