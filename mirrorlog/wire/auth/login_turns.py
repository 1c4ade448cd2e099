"""Turns of logins: whose password is compared next, and how long a wrong one waits for its answer. Pure.

A comparison is dear on purpose, and one helper makes them: in order of arrival, forty guessers are forty comparisons
ahead of everybody else. So addresses take turns, and within an address its users do: who guesses is in line behind
himself. Of one user from one address the connection that has failed least often comes first, and of these the newest:
whoever has waited long has mostly gone, and guessers must make new connections to be taken for somebody else.

Who was wrong is told so later each time, for that user from that address; when there are many failures from an address
for that address alone. Who is right is told at once. Rejected: to let the next attempt wait instead: whoever shares
user and address with a guesser could not log in any more. A guesser who does not wait for the answer saves nothing but
the wait: the turns are what bounds his guesses.
"""

from __future__ import annotations

from bisect import insort
from typing import Final, Generic, Protocol, TypeVar

HOLD_S: Final = 0.25
"""For the first failure; twice as long for each further one."""
HOLD_S_MAX: Final = 4.0
"""Below the 5 s in which a client connects by default: who was wrong is to hear that he was."""
ADDRESS_FAILURES: Final = 16
"""From one address, for all users together, before each further one counts for the address."""
FORGOTTEN_S: Final = 60.0
"""Without a failure."""
REMEMBERED_MAX: Final = 10_000

_DOUBLINGS_MAX: Final = 10


class Attempt(Protocol):
    """`failures`: of the connection that makes it."""

    @property
    def user(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def failures(self) -> int: ...


_A = TypeVar("_A", bound=Attempt)


class LoginTurns(Generic[_A]):
    """Attempts that wait for their comparison, at most `waiting_max`. In a door: that a node is asked about; `add`,
    `remove` and the limit are the same there, and nobody asks whose turn is next."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._count = 0
        self._serial = 0
        # By address and by user, both in the order of their turns; of one the best is last.
        self._lines: dict[str, dict[str, list[tuple[int, int, _A]]]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, attempt: _A) -> _A | None:
        """It waits from now on. When too many do, one of the address and user with most has to go: that one."""
        self._serial += 1
        self._count += 1
        line = self._lines.setdefault(attempt.address, {}).setdefault(attempt.user, [])
        insort(line, (-attempt.failures, self._serial, attempt), key=lambda each: each[:2])
        return self._evicted() if self._count > self._waiting_max else None

    def next(self) -> _A | None:
        """Whose turn it is; it waits no more."""
        for address, users in self._lines.items():
            user, line = next(iter(users.items()))
            attempt = line[-1][2]
            self._take(address, user, -1)
            # Both go to the end of their lines.
            if user in users:
                users[user] = users.pop(user)
            if address in self._lines:
                self._lines[address] = self._lines.pop(address)
            return attempt
        return None

    def remove(self, attempt: _A) -> None:
        """Nobody waits for it any more. One that does not wait is no error."""
        line = self._lines.get(attempt.address, {}).get(attempt.user, [])
        for place, (_, _, each) in enumerate(line):
            if each is attempt:
                self._take(attempt.address, attempt.user, place)
                return

    def _evicted(self) -> _A:
        address = max(self._lines, key=lambda each: sum(map(len, self._lines[each].values())))
        users = self._lines[address]
        user = max(users, key=lambda each: len(users[each]))
        attempt = users[user][0][2]
        self._take(address, user, 0)
        return attempt

    def _take(self, address: str, user: str, place: int) -> None:
        users = self._lines[address]
        del users[user][place]
        self._count -= 1
        if not users[user]:
            del users[user]
        if not users:
            del self._lines[address]


class LoginFailures:
    """What was wrong lately, by user and address, and by address."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str | None, str], tuple[int, float]] = {}

    def failed(self, user: str, address: str, now: float) -> float:
        """One more; for how long its answer is held, in s. `now`: s of any clock that only goes on."""
        count = max(self._more((user, address), now), self._more((None, address), now) - ADDRESS_FAILURES)
        return min(HOLD_S_MAX, HOLD_S * 2.0 ** min(count - 1, _DOUBLINGS_MAX))

    def _more(self, whose: tuple[str | None, str], now: float) -> int:
        count, last = self._failed.pop(whose, (0, now))
        count = 1 if now - last > FORGOTTEN_S else count + 1
        self._failed[whose] = (count, now)
        if len(self._failed) > REMEMBERED_MAX:
            del self._failed[next(iter(self._failed))]  # the one that is longest ago
        return count
