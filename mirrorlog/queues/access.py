"""Who may do what: one pure decision, asked by nodes and never by clients.

As RabbitMQ has it: a user has, per virtual host, three regular expressions of names that he may configure (declare,
delete), write (publish, bind to) and read (consume, bind from). They are searched, not matched from end to end, and an
empty one allows nothing. Tags say what else: `administrator` may do everything that is not a message; `monitoring` and
`management` may look; `landing` may hold the records of queues that he may read, which keeps them on the disk, and have
them go from the log of queues that he may configure, for that is to delete them there; `policymaker` may look, and
set policies where he has permissions. One difference: a publish asks
for the right to write to the queues that it lands in, for routing is done at the edge and a node sees queues only.

Expressions come from administrators and meet names of up to 255 characters on the node's loop, so they may not be such
that they take for ever: `check_expression` refuses repeats within repeats, and those that have more ways to match than
a bounded number: each open repeat multiplies them, and each choice whose alternatives may begin alike. It refuses some
that would be harmless. Python's matcher, which tries one way after the other, is given those with few of them, and
`matching` the others. Nothing that is too long for a name is held against an expression at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import prod

# What the matcher itself compiles an expression from; no other look at one is as true.
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from mirrorlog.cluster.state.topology import ADMINISTRATOR, Permissions, User
from mirrorlog.errors import AccessRefused, BadRequest
from mirrorlog.queues.matching import Matcher
from mirrorlog.wire.locations import is_within
from mirrorlog.wire.names import NAME_CHARS_MAX, split

LANDING: Final = "landing"
HOLDERS: Final = frozenset({ADMINISTRATOR, LANDING})
"""Who may keep records from going, and say that they may go: for a landing, beside its permissions."""
POLICYMAKER: Final = "policymaker"
WATCHERS: Final = frozenset({ADMINISTRATOR, "monitoring"})
"""Who is told of other users' connections."""
LOOKERS: Final = WATCHERS | {"management", POLICYMAKER}

EXPRESSION_CHARS_MAX: Final = 1_000
WAYS_MAX: Final = NAME_CHARS_MAX**3
"""In which an expression may be held against a name: three open repeats, of which the search for the place where to
begin is one; or 23 choices of two."""
STEPS_MAX: Final = 1_000
"""Of an expression that is followed all ways at once: 255 characters of a name cost some 0.1 s with so many."""
_WAYS_TRIED_MAX: Final = NAME_CHARS_MAX**2
"""One after the other: at some 50 ns each, 3 ms."""

_COMPILED_MAX: Final = 4_096
_FOUND_MAX: Final = 16_384
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
    if permissions is None or len(name) > NAME_CHARS_MAX:
        return False
    return _found(_expression(permissions, right), name)


def may_see(user: User, key: str) -> bool:
    """Whether the user is told that a queue is there, by its key: who has any right to it, and who may look."""
    return has_tag(user, LOOKERS) or any(allowed(user, right, key) for right in Right)


def check_allowed(user_name: str, user: User, right: Right, virtual_host: str, name: str) -> None:
    """Raises AccessRefused; BadRequest for what is too long for a name."""
    if len(name) > NAME_CHARS_MAX:
        raise BadRequest(f"{name[:64]!r} and so on: a name has up to {NAME_CHARS_MAX} characters")
    if not allowed_in(user, right, virtual_host, name):
        raise AccessRefused(
            f"user {user_name!r} may not {right.value} {name[:64]!r} in virtual host {virtual_host[:64]}; an "
            "administrator gives permissions with mqtool user-permissions"
        )


def check_together(user_name: str, users: Mapping[str, User], keys: Iterable[str]) -> None:
    """Whether whoever asks may configure all these queues of one virtual host: those of an `x-log-group`, which go
    together. A node that acts by itself (without a name) may, and everybody while there are no users. Raises
    AccessRefused, which names none of them: he may not know of them."""
    if not users or not user_name:
        return
    user = users.get(user_name)
    if user is None or not all(allowed(user, Right.CONFIGURE, key) for key in keys):
        raise AccessRefused(
            f"user {user_name!r} may not configure all queues of the x-log-group: what is done to one of them is done "
            "to all; an administrator gives permissions with mqtool user-permissions",
            right=Right.CONFIGURE.value,
        )


def check_location(location: str, places: Sequence[str] | None, *, has_users: bool) -> None:
    """Whether readers may be sent to a table there. `places`: those that the node was given; None: anywhere, as long as
    the cluster has no users. Raises AccessRefused."""
    if not has_users and places is None:
        return
    if not is_within(location, places or ()):
        raise AccessRefused(
            f"this node sends no readers to the table {location[:256]!r}: list its place in log.tier_locations on all "
            "nodes, or land without tiered"
        )


def has_tag(user: User, tags: Iterable[str]) -> bool:
    """Any of them."""
    return not frozenset(tags).isdisjoint(user.tags)


def check_expression(expression: str) -> None:
    """Raises BadRequest for what is no regular expression, too long, or such that matching it could take too long."""
    if _checked_ways(expression) > _WAYS_TRIED_MAX and (steps := _steps(_parser.parse(expression))) > STEPS_MAX:
        raise BadRequest(
            f"{expression[:64]!r} could take too long: with its repeats written out it has {steps} steps, above the "
            f"limit of {STEPS_MAX}; repeat less, or give several permissions"
        )


def _checked_ways(expression: str) -> int:
    """In which it may be held against a name. Raises BadRequest, as `check_expression`."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise BadRequest(f"an expression of {len(expression)} characters is above the limit of {EXPRESSION_CHARS_MAX}")
    try:
        parsed = list(_parser.parse(expression))
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRequest(f"{expression[:64]!r} is no regular expression: {error}") from None
    ways = _ways(parsed) * (1 if _anchored(parsed) else NAME_CHARS_MAX)
    if ways > WAYS_MAX:
        raise BadRequest(
            f"{expression[:64]!r} could take too long: up to two open repeats in a row are taken, three behind a ^, "
            "and few choices whose alternatives begin alike"
        )
    if ways > _WAYS_TRIED_MAX and _forgets(parsed):
        raise BadRequest(f"{expression[:64]!r} could take too long: a possessive repeat is taken beside few others")
    return ways


def _forgets(parsed: Iterable[Any]) -> bool:
    """Whether a repeat in it is possessive."""
    for operation, argument in parsed:
        name = str(operation)
        if name == "POSSESSIVE_REPEAT":
            return True
        inner = argument[1] if name == "BRANCH" else [argument[-1]] if name in ("SUBPATTERN", *_REPEATS) else []
        if any(map(_forgets, inner)):
            return True
    return False


def _anchored(parsed: Sequence[Any]) -> bool:
    """Whether it can only begin at the beginning."""
    return bool(parsed) and str(parsed[0][0]) == "AT" and str(parsed[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING")


def _ways(parsed: Iterable[Any]) -> int:
    """In which it can be held against the beginning of a name, at most: what follows is tried for each."""
    return prod(_ways_of(str(operation), argument) for operation, argument in parsed)


def _ways_of(operation: str, argument: Any) -> int:
    if operation in _PLAIN:
        return 1
    if operation == "SUBPATTERN":
        return _ways(argument[-1])
    if operation == "BRANCH":
        ways = list(map(_ways, argument[1]))
        return max(ways) if _begin_differently(argument[1]) else sum(ways)
    if operation in _REPEATS:
        least, most, inner = argument
        if most == 1:
            return _ways(inner) + int(least == 0)  # it is there, or it is not
        if not all(str(each[0]) in _PLAIN for each in inner):
            raise BadRequest("a repeat of an expression's group is not taken; repeat single characters or sets of them")
        return int(min(most - least + 1, NAME_CHARS_MAX))
    raise BadRequest(f"{operation.lower().replace('_', ' ')} in an expression is not taken")


def _steps(parsed: Iterable[Any]) -> int:
    """Of a matcher that follows all ways at once, which is what each character of a name may cost."""
    return sum(_steps_of(str(operation), argument) for operation, argument in parsed)


def _steps_of(operation: str, argument: Any) -> int:
    if operation == "SUBPATTERN":
        return _steps(argument[-1])
    if operation == "BRANCH":
        return sum(map(_steps, argument[1]))
    if operation in _REPEATS:
        least, most, inner = argument
        times = least + 1 if most >= NAME_CHARS_MAX else most
        return int(min(times, NAME_CHARS_MAX)) * _steps(inner)
    return 1


def _begin_differently(alternatives: Sequence[Sequence[Any]]) -> bool:
    """Whether one character tells which of them it may be."""
    first = [each[0][1] if len(each) and str(each[0][0]) == "LITERAL" else None for each in alternatives]
    return None not in first and len(set(first)) == len(first)


def _expression(permissions: Permissions, right: Right) -> str:
    if right is Right.CONFIGURE:
        return permissions.configure
    return permissions.write if right is Right.WRITE else permissions.read


def is_found_in(expression: str, name: str) -> bool:
    """Whether a checked expression is found in a name; an empty one is in each."""
    return bool(_search(expression)(name))


@lru_cache(_FOUND_MAX)
def _found(expression: str, name: str) -> bool:
    return bool(expression) and bool(_search(expression)(name))


@lru_cache(_COMPILED_MAX)
def _search(expression: str) -> Callable[[str], object]:
    """One that is not taken matches nothing: it came from software that took it."""
    try:
        ways = _checked_ways(expression)
    except BadRequest:
        return re.compile(r"(?!)").search
    return re.compile(expression).search if ways <= _WAYS_TRIED_MAX else Matcher(expression).found_in
