"""Failed logins, refused rights and held users of one node: what is counted, and what becomes a line or an event.

Whoever guesses could fill a log file, or push everything else out of the ring of events. So both are told of in sums:
the first at once, those that follow together, at first a minute later and then ever more seldom while it goes on. Only
the names of users that there are come into an event: another one may be a password that was typed in the wrong place.
By reason, logins are not told apart by whether there is such a user: whoever sees the metrics could find out who is.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from mirrorlog.cluster.state.events import Event

PASSWORD: Final = "password"
"""No such user, or another password."""
IN_THE_OPEN: Final = "in_the_open"
"""Over a connection that others could read."""
DOOR: Final = "door"
"""No user, and not the token of one of the node's doors."""
NO_USERS: Final = "no_users"
"""From elsewhere, while there are none."""
CONNECTIONS: Final = "connections"
"""He has as many as he may."""
LOGIN: Final = "login"
"""Somebody wanted something without a login."""
TAG: Final = "tag"
FIRST_USER: Final = "first_user"

LOGIN_REASONS: Final = (PASSWORD, IN_THE_OPEN, DOOR, NO_USERS, CONNECTIONS)
RIGHTS: Final = ("configure", "write", "read", TAG, LOGIN, FIRST_USER)

REST_S: Final = 60.0
"""How long after an event the next one of its kind comes, at first."""
REST_S_MAX: Final = 3_600.0
NAMED_MAX: Final = 8
"""So many users, and addresses, an event names: those with most."""
_REMEMBERED_MAX: Final = 256


class _Sum:
    """Of one kind of event, since the last one."""

    def __init__(self, kind: str, words: str) -> None:
        self._kind = kind
        self._words = words
        self._count = 0
        self._users: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._rest_s = REST_S
        self._next_at: float | None = None

    def note(self, user: str, address: str, count: int = 1) -> None:
        self._count += count
        for counter, name in ((self._users, user), (self._addresses, address)):
            if name and (name in counter or len(counter) < _REMEMBERED_MAX):
                counter[name] += count

    def due(self, now: float, node: str) -> Event | None:
        if self._next_at is not None and now < self._next_at:
            return None
        if not self._count:
            self._next_at, self._rest_s = None, REST_S
            return None
        if self._next_at is not None:
            self._rest_s = min(2 * self._rest_s, REST_S_MAX)
        self._next_at = now + self._rest_s
        event = self._event(node)
        self._count = 0
        self._users.clear()
        self._addresses.clear()
        return event

    def _event(self, node: str) -> Event:
        users, addresses = (dict(each.most_common(NAMED_MAX)) for each in (self._users, self._addresses))
        whose = ", ".join(f"{name} {count}" for name, count in users.items())
        text = f"{self._count} {self._words} on node {node}" + (f": {whose}" if whose else "")
        return Event(
            kind=self._kind,
            text=text,
            node=node,
            details={"count": self._count, "users": users, "addresses": addresses},
        )


class RefusedAccess:
    """`node`: whose. Addresses and users are empty where there is none, or none that exists."""

    def __init__(self, node: str = "") -> None:
        self._node = node
        self.logins: Counter[str] = Counter(dict.fromkeys(LOGIN_REASONS, 0))
        """Failed since the process began, by reason."""
        self.rights: Counter[str] = Counter(dict.fromkeys(RIGHTS, 0))
        """Refused since the process began, by right."""
        self._sums: Sequence[_Sum] = (
            _Sum("logins_failed", "failed logins"),
            _Sum("rights_refused", "refused rights"),
            _Sum("users_held", "ms in which users were held by their limits"),
        )

    def login_failed(self, reason: str, user: str, address: str) -> None:
        """`user`: empty unless there is one of that name."""
        self.logins[reason] += 1
        self._sums[0].note(user, address)

    def right_refused(self, right: str, user: str, address: str) -> None:
        """Who has not logged in is counted, and no event."""
        self.rights[right] += 1
        if right != LOGIN:
            self._sums[1].note(user, address)

    def held(self, user: str, ms: int) -> None:
        """By his limits (`wire.quotas`)."""
        self._sums[2].note(user, "", ms)

    def due(self, now: float) -> Iterator[Event]:
        """What is to be told of now; s of a clock that only goes on."""
        return (event for each in self._sums if (event := each.due(now, self._node)) is not None)
