"""Who may do what, by RabbitMQ's rules, and which expressions are taken."""

from __future__ import annotations

import re
import time

import pytest

from mirrorlog.cluster.state.topology import Permissions, User
from mirrorlog.errors import AccessRefused, BadRequest
from mirrorlog.queues.access import LOOKERS, Right, allowed, check_allowed, check_expression, has_tag
from mirrorlog.wire.names import qualified


def user(configure: str = "", write: str = "", read: str = "") -> User:
    return User(permissions={"/": Permissions(configure, write, read), "v": Permissions(read=".*")})


def test_each_right_has_an_expression_of_its_own() -> None:
    """Goal: configure, write and read are three. Method: one that matches for each, the others empty."""
    for right in Right:
        found = user(**{right.value: "^orders"})
        assert [allowed(found, each, "orders.eu") for each in Right] == [each is right for each in Right]
        assert not allowed(found, right, "new orders")


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        (".*", "anything", True),
        ("", "anything", False),
        ("^$", "anything", False),
        ("orders", "my orders here", True),
        (r"^(app-.*|amq\.gen.*)$", "app-1", True),
        (r"^(app-.*|amq\.gen.*)$", "application", False),
        (r"^(app-.*|amq\.gen.*)$", "amq.gen-x", True),
    ],
)
def test_expressions_are_searched_and_an_empty_one_matches_nothing(expression: str, name: str, expected: bool) -> None:
    assert allowed(user(read=expression), Right.READ, name) is expected


def test_a_virtual_host_without_permissions_is_shut() -> None:
    """Goal: rights of one host are none in another. Method: the same name in three."""
    found = user(read=".*")
    assert allowed(found, Right.READ, "q")
    assert allowed(found, Right.READ, qualified("v", "q"))
    assert not allowed(found, Right.READ, qualified("w", "q"))
    assert not allowed(found, Right.WRITE, qualified("v", "q"))
    with pytest.raises(AccessRefused, match="user 'u' may not read 'q' in virtual host w"):
        check_allowed("u", found, Right.READ, "w", "q")


def test_who_looks_has_one_of_four_tags() -> None:
    """RabbitMQ's tags, all of them; nothing else."""
    assert {"administrator", "monitoring", "management", "policymaker"} == LOOKERS
    for tag in ("administrator", "monitoring", "management", "policymaker"):
        assert has_tag(User(tags=(tag,)), LOOKERS)
    assert not has_tag(User(tags=("impersonator", "")), LOOKERS)


def test_tags() -> None:
    assert has_tag(User(tags=("monitoring",)), ("administrator", "monitoring"))
    assert not has_tag(User(tags=("monitoring",)), ("administrator",))


@pytest.mark.parametrize(
    "expression",
    [
        "", ".*", "^$", "^orders", "orders$", r"^(app-.*|amq\.gen.*)$", "[a-z]+", "^(a|b|c)$", r"\d{3}-x",
        "^a.*b.*c.*$", "^(?:a|b).*", "a?", "^[^.]+\\.[^.]+$",
        "^a?b?c?d?$", "^(orders|invoices|returns)-(eu|us)-(new|paid|late)(\\.dlq)?$",
        "^(" + "|".join(map(str, range(99))) + ")$",
    ],
)  # fmt: skip
def test_usual_expressions_are_taken(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("(", "no regular expression"),
        ("(a+)+$", "repeat"),
        ("(a|a)*$", "repeat"),
        ("(a|b.*)+", "repeat"),
        ("((a*)*)*", "repeat"),
        (".*.*.*x", "too long"),
        ("^.*.*.*.*x", "too long"),
        ("a?" * 30 + "a" * 30, "too long"),
        ("^" + "(ab|[a]b)" * 100 + "c$", "too long"),
        ("^" + "(ab|[ax]b)" * 25 + "c$", "too long"),
        ("^" + "(a|ab|)" * 20, "too long"),
        ("^" + "[a]{0,200}" * 4, "too long"),
        ("^" + "(ab?)?" * 30, "too long"),
        ("((a+)?)+", "repeat"),
        (".*(?:" + "|".join(["a{250}b"] * 110) + ")", "steps, above the limit of 1000"),
        ("(?:" + "|".join(["a{0,250}b"] * 90) + ")", "steps, above the limit of 1000"),
        (r"(a)\1", "not taken"),
        ("(?=a)b", "not taken"),
        ("x" * 1001, "above the limit"),
        ("(" * 400, "no regular expression"),
    ],
)
def test_an_expression_that_could_take_for_ever_is_refused(expression: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        check_expression(expression)


@pytest.mark.parametrize(
    "expression", ["^.*a.*a.*$", ".*a.*b", "a*a*b", "^a*a*a*b", "^" + "(a|[ab])" * 23 + "c", "^" + "a?" * 23 + "c"]
)
def test_the_worst_that_is_taken_ends_soon(expression: str) -> None:
    """Goal: the node's loop is not held up. Method: names that match as late as can be; a bound that is far above what
    it takes."""
    check_expression(expression)
    began = time.perf_counter()
    for name in ("a" * 255, "a" * 254 + "\n", "b" * 255):
        re.search(expression, name)
    assert time.perf_counter() - began < 2


def test_what_is_too_long_for_a_name_is_held_against_no_expression() -> None:
    """Goal: no user makes a node search a name of megabytes. Method: an expression that takes the square of the length,
    and a length at which that would be minutes."""
    found, name = user(read=r".*x\.public$"), "a" * 1_000_000
    assert not allowed(found, Right.READ, name)
    with pytest.raises(BadRequest, match="255 characters"):
        check_allowed("u", found, Right.READ, "/", name)


def test_what_older_software_took_and_this_does_not_matches_nothing() -> None:
    assert not allowed(user(read="(a+)+$"), Right.READ, "a")
