"""Quotas: the limits that the cluster gives a user on each node, and whether he is within them. Pure.

Each rate is a bucket of one second's worth. What is taken is taken off whole, so a frame that is larger leaves a debt,
and who is in debt waits until it is paid off: nothing is refused, and over any time not more than the rate, one second
of it and one frame have passed. All connections of a user on a node pay from the same buckets. A debt is of ten seconds
at most, or who publishes large batches at a low rate would not hear of them within his deadline: so a frame of more
than ten seconds' worth passes as one of ten.

A frame waits for the buckets that it pays from and no other: settlements and pings of a subscriber go on while he is
given nothing for having read too much. Every frame but a ping is a request.

Rejected: windows that are counted (twice the rate passes at their border); one bucket for each connection (a flood
opens more of them); rates of the whole cluster (nodes would have to tell each other of each batch).
"""

from __future__ import annotations

from typing import Final

import msgspec

from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import FrameType

BURST_S: Final = 1.0
"""How much of a rate may be taken at once by who took nothing before."""
DEBT_S_MAX: Final = 10.0
"""A third of what a producer waits for a confirm by default."""
MAX: Final = 1 << 50
"""Of any limit; what is above is no limit."""

REQUESTS: Final = "request_rate"
PUBLISHED: Final = "publish_byte_rate"
READ: Final = "read_byte_rate"
RATES: Final = (REQUESTS, PUBLISHED, READ)
CONNECTIONS: Final = "user_connections"
"""What an error names that refuses the newest connection."""

_PING: Final = int(FrameType.PING)
_FETCH: Final = int(FrameType.FETCH)
_PUBLISHES: Final = frozenset({int(FrameType.PRODUCE), int(FrameType.TRANSACT)})


class UserLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one user on each node; None: without. `max_connections`: that are logged in; `request_rate`: frames a second;
    `publish_byte_rate`, `read_byte_rate`: bytes a second."""

    max_connections: int | None = None
    request_rate: int | None = None
    publish_byte_rate: int | None = None
    read_byte_rate: int | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self != _NONE

    @property
    def given(self) -> dict[str, int]:
        """Those that there are, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def check(self) -> None:
        """Raises BadRequest."""
        for name, value in self.given.items():
            if not 1 <= value <= MAX:
                raise BadRequest(f"{name} {value} is not within 1 and {MAX}; leave it out for no limit")


_NONE: Final = UserLimits()


class TokenBucket:
    """`rate`: a second. `now`: s of a clock that only goes on."""

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._left = rate * BURST_S
        self._at = now

    def take(self, amount: int, now: float) -> None:
        left = min(self.rate * BURST_S, self._left + (now - self._at) * self.rate) - amount
        self._left = max(left, -self.rate * DEBT_S_MAX)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Until the debt is paid off; 0 without one."""
        return max(0.0, -self._left / self.rate - (now - self._at))


class Quota:
    """Of one user on one node."""

    def __init__(self, limits: UserLimits, now: float) -> None:
        self.limits = limits
        self._buckets: dict[str, TokenBucket] = {}
        self.change(limits, now)

    def change(self, limits: UserLimits, now: float) -> None:
        """He has others from now on. A rate that stays keeps what is owed."""
        self.limits = limits
        rates = {name: limits.given[name] for name in RATES if name in limits.given}
        former = self._buckets
        self._buckets = {
            name: former[name] if name in former and former[name].rate == rate else TokenBucket(rate, now)
            for name, rate in rates.items()
        }

    def waits_for(self, frame_type: int, now: float) -> str:
        """Which rate holds a frame of that type for now; empty: none."""
        if frame_type == _PING:
            return ""
        if self.wait_s(REQUESTS, now):
            return REQUESTS
        of_bytes = PUBLISHED if frame_type in _PUBLISHES else READ if frame_type == _FETCH else ""
        return of_bytes if of_bytes and self.wait_s(of_bytes, now) else ""

    def took(self, frame_type: int, size: int, now: float) -> None:
        """A frame with so much payload is taken."""
        if frame_type != _PING:
            self._take(REQUESTS, 1, now)
            if frame_type in _PUBLISHES:
                self._take(PUBLISHED, size, now)

    def read(self, size: int, now: float) -> None:
        """He was given so many bytes of records."""
        self._take(READ, size, now)

    def wait_s(self, rate: str, now: float) -> float:
        """Until more is taken at that rate; 0: it is now."""
        bucket = self._buckets.get(rate)
        return 0.0 if bucket is None else bucket.wait_s(now)

    def _take(self, rate: str, amount: int, now: float) -> None:
        if (bucket := self._buckets.get(rate)) is not None:
            bucket.take(amount, now)
