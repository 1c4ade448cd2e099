"""Whether a regular expression is found in a name, in a time that grows with both and no faster. Pure.

Python's matcher tries one way after the other: 23 choices between alternatives that begin alike are 8 million ways, a
second of the node's loop for one name. Here all ways are followed at once, one step for each character (Thompson). The
parser is Python's own, and so is the test of a single character: what an expression means is the same, but for time.
Names have no line breaks, so where a line begins and ends is where the name does.

Possessive repeats are not of this kind, for they forget ways; whoever checks expressions refuses them where Python's
own matcher could take long. Rejected: RE2 (a dependency for some lines of code, and another dialect).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

# What Python's matcher itself compiles an expression from; no other look at one is as true.
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from mirrorlog.wire.names import NAME_CHARS_MAX

_CHARACTERS: Final = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "RANGE", "CATEGORY"})

_Test = Callable[[str], Any]
_At = Callable[[str, int], bool]
# A character to pass and what follows it, a place to be at and what follows that, or several ways.
_Step = tuple[_Test, int] | tuple[None, _At, int] | list[int]


class Matcher:
    """One expression, of which `access.check_expression` says that it is one. Raises re.error."""

    def __init__(self, expression: str) -> None:
        parsed = _parser.parse(expression)
        self._steps: list[_Step] = []
        self._end = self._add([])
        self._begin = self._sequence(list(parsed), self._end, parsed.state.flags)

    def found_in(self, name: str) -> bool:
        """Anywhere, as `re.search`."""
        waiting: set[int] = set()
        for at in range(len(name) + 1):
            waiting.add(self._begin)
            ready = self._reached(waiting, name, at)
            if ready is None:
                return True
            if at < len(name):
                waiting = {following for test, following in ready if test(name[at])}
        return False

    # --- following ---

    def _reached(self, waiting: Iterable[int], name: str, at: int) -> list[tuple[_Test, int]] | None:
        """The characters that may come next; None when the end is reached."""
        left, seen = list(waiting), set(waiting)
        ready: list[tuple[_Test, int]] = []
        while left:
            number = left.pop()
            if number == self._end:
                return None
            step = self._steps[number]
            if isinstance(step, list):
                ways: Iterable[int] = step
            elif step[0] is None:
                ways = (step[2],) if step[1](name, at) else ()
            else:
                ready.append(step)
                continue
            for way in ways:
                if way not in seen:
                    seen.add(way)
                    left.append(way)
        return ready

    # --- making, from the end to the beginning ---

    def _add(self, step: _Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def _sequence(self, parsed: Sequence[Any], following: int, flags: int) -> int:
        for operation, argument in reversed(parsed):
            following = self._item(operation, argument, following, flags)
        return following

    def _item(self, operation: Any, argument: Any, following: int, flags: int) -> int:
        name = str(operation)
        if name in _CHARACTERS:
            return self._add((self._test(operation, argument, flags), following))
        if name == "AT":
            return self._add((None, _place(str(argument), flags), following))
        if name == "SUBPATTERN":
            _, added, removed, inner = argument
            return self._sequence(inner, following, _compiler._combine_flags(flags, added, removed))
        if name == "BRANCH":
            return self._add([self._sequence(each, following, flags) for each in argument[1]])
        least, most, inner = argument  # a repeat; a lazy one finds the same
        return self._repeat(inner, following, flags, least=least, most=most)

    def _repeat(self, inner: Sequence[Any], following: int, flags: int, *, least: int, most: int) -> int:
        if most >= NAME_CHARS_MAX:
            again: list[int] = [following]
            loop = self._add(again)
            again.append(self._sequence(inner, loop, flags))
            following = loop
        else:
            end = following
            for _ in range(most - least):
                following = self._add([end, self._sequence(inner, following, flags)])
        for _ in range(min(least, NAME_CHARS_MAX + 1)):
            following = self._sequence(inner, following, flags)
        return following

    @staticmethod
    def _test(operation: Any, argument: Any, flags: int) -> _Test:
        """Of one character, as Python's matcher does it under these flags: the whole expression's are not its own where
        a group has taken them away."""
        state = _parser.State()
        state.flags = flags
        compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, [(operation, argument)]))
        return compiled.fullmatch


def _place(what: str, flags: int) -> _At:
    """Whether a name is at it there, under these flags."""
    if what in _PLACES:
        return _PLACES[what]
    word = re.compile(r"\w", flags & re.ASCII).match

    def at_boundary(name: str, at: int) -> bool:
        before = at > 0 and word(name[at - 1]) is not None
        return before != (at < len(name) and word(name[at]) is not None)

    if what == "AT_BOUNDARY":
        return at_boundary
    return lambda name, at: len(name) > 0 and not at_boundary(name, at)


_PLACES: Final[dict[str, _At]] = {
    "AT_BEGINNING": lambda name, at: at == 0,
    "AT_BEGINNING_STRING": lambda name, at: at == 0,
    "AT_END": lambda name, at: at == len(name),
    "AT_END_STRING": lambda name, at: at == len(name),
}
