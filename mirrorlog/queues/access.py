"""Who may do what: one pure decision, asked by nodes and never by clients.

As RabbitMQ has it: a user has, per virtual host, three regular expressions of names that he may configure (declare,
delete), write (publish, bind to) and read (consume, bind from). They are searched, not matched from end to end, and an
empty one allows nothing. Tags say what else: `administrator` may do everything that is not a message; `monitoring` and
`management` may look. One difference: a publish asks for the right to write to the queues that it lands in, for routing
is done at the edge and a node sees queues only.

Expressions come from administrators and meet names of up to 255 characters on the node's loop, so they may not be such
that Python's matcher takes for ever: `check_expression` refuses repeats within repeats, and more repeats in a row than
a bounded number of steps allows. It refuses some that would be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

# What the matcher itself compiles an expression from; no other look at one is as true.
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from mirrorlog.cluster.topology import ADMINISTRATOR, Permissions, User
from mirrorlog.errors import AccessRefused, BadRequest
from mirrorlog.wire.names import split

LOOKERS: Final = frozenset({ADMINISTRATOR, "monitoring", "management", "policymaker"})

EXPRESSION_CHARS_MAX: Final = 1_000
REPEATS_MAX: Final = 3
"""In a row, of those whose length is open; the search for the place where to begin counts as one."""

_COMPILED_MAX: Final = 4_096
_PLAIN: Final = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "RANGE", "CATEGORY"})
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class Right(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


def allowed(user: User, right: Right, key: str) -> bool:
    """Whether the user has a right to a queue, by its key."""
    virtual_host, name = split(key)
    return allowed_in(user, right, virtual_host, name)


def allowed_in(user: User, right: Right, virtual_host: str, name: str) -> bool:
    """The same for a name within a virtual host."""
    permissions = user.permissions.get(virtual_host)
    return permissions is not None and _found(_expression(permissions, right), name)


def check_allowed(user_name: str, user: User, right: Right, virtual_host: str, name: str) -> None:
    """Raises AccessRefused."""
    if not allowed_in(user, right, virtual_host, name):
        raise AccessRefused(
            f"user {user_name!r} may not {right.value} {name[:64]!r} in virtual host {virtual_host}; an administrator "
            "gives permissions with mqtool user-permissions"
        )


def has_tag(user: User, tags: Iterable[str]) -> bool:
    """Any of them."""
    return not frozenset(tags).isdisjoint(user.tags)


def check_expression(expression: str) -> None:
    """Raises BadRequest for what is no regular expression, too long, or such that matching it could take too long."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise BadRequest(f"an expression of {len(expression)} characters is above the limit of {EXPRESSION_CHARS_MAX}")
    try:
        parsed = list(_parser.parse(expression))
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRequest(f"{expression[:64]!r} is no regular expression: {error}") from None
    repeats = _repeats(parsed) + (not _anchored(parsed))
    if repeats > REPEATS_MAX:
        raise BadRequest(
            f"{expression[:64]!r} has {repeats - (not _anchored(parsed))} repeats in a row; up to {REPEATS_MAX - 1} "
            f"are taken, {REPEATS_MAX} behind a ^"
        )


def _anchored(parsed: Sequence[Any]) -> bool:
    """Whether it can only begin at the beginning."""
    return bool(parsed) and str(parsed[0][0]) == "AT" and str(parsed[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")


def _repeats(parsed: Iterable[Any]) -> int:
    """How many open repeats follow each other at most: each multiplies the steps by the name's length."""
    return sum(_repeats_of(str(operation), argument) for operation, argument in parsed)


def _repeats_of(operation: str, argument: Any) -> int:
    if operation in _PLAIN:
        return 0
    if operation == "SUBPATTERN":
        return _repeats(argument[-1])
    if operation == "BRANCH":
        return max(map(_repeats, argument[1]), default=0)
    if operation in _REPEATS:
        least, most, inner = argument
        if not all(str(each[0]) in _PLAIN for each in inner):
            raise BadRequest("a repeat of an expression's group is not taken; repeat single characters or sets of them")
        return int(least != most)
    raise BadRequest(f"{operation.lower().replace('_', ' ')} in an expression is not taken")


def _expression(permissions: Permissions, right: Right) -> str:
    if right is Right.CONFIGURE:
        return permissions.configure
    return permissions.write if right is Right.WRITE else permissions.read


def _found(expression: str, name: str) -> bool:
    return bool(expression) and _compiled(expression).search(name) is not None


@lru_cache(_COMPILED_MAX)
def _compiled(expression: str) -> re.Pattern[str]:
    """One that is not taken matches nothing: it came from software that took it."""
    try:
        check_expression(expression)
        return re.compile(expression)
    except BadRequest:
        return re.compile(r"(?!)")
