"""Users with limits, and their connections to this node: who is held, and when he goes on. Thin: `wire.quotas` decides.

A held connection is not read: what it sends waits in its kernel's buffers and in its client. So that its client does
not take the node for one that hangs, it gets PONGs that it has not asked for while it is held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from mirrorlog.cluster.state.topology import User
from mirrorlog.config import LimitSettings
from mirrorlog.errors import Overloaded
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.fairness.quotas import CONNECTIONS, RATES, READ, Quota, UserLimits
from mirrorlog.wire.frames import Credit, Fetch, FrameType, frame

TELL_S: Final = 0.25
"""A client takes half a second of silence as a reason to look elsewhere."""
_WAIT_S_MIN: Final = 0.001
"""As fine as the loop's timers are."""
_PONG: Final = frame(FrameType.PONG)


class UserMeter:
    """Of one user that has limits: an `endpoint.Meter`."""

    def __init__(self, limits: UserLimits) -> None:
        self.connections: set[Endpoint] = set()
        self._quota = Quota(limits, time.monotonic())
        self._waiting: dict[Endpoint, str] = {}
        """By which rate each is held; who came first goes on first."""
        self._not_given: dict[Endpoint, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = 0.0

    @property
    def limits(self) -> UserLimits:
        return self._quota.limits

    @property
    def held_by(self) -> set[str]:
        """The rates that hold any of its connections now."""
        return {*self._waiting.values(), *((READ,) if self._not_given else ())}

    def change(self, limits: UserLimits) -> None:
        if limits != self.limits:
            self._quota.change(limits, time.monotonic())
            self._go_on()

    def end(self) -> None:
        """The user has no limits any more, or is gone."""
        for endpoint in self.connections:
            endpoint.meter = None
        self.connections.clear()
        self._quota.change(UserLimits(), time.monotonic())
        self._go_on()

    def forget(self, endpoint: Endpoint) -> None:
        """It is none of the user's any more."""
        self.connections.discard(endpoint)
        self._waiting.pop(endpoint, None)
        self._not_given.pop(endpoint, None)

    def show_life(self, now: float) -> None:
        """To the clients of those that are held."""
        if self._waiting and now - self._told_at >= TELL_S:
            self._told_at = now
            for endpoint in list(self._waiting):
                endpoint.send((_PONG,))

    def clipped(self, fetch: Fetch) -> Fetch:
        """It is answered with a second's worth at once: one of 64 MiB would hold the connection for long."""
        rate = self.limits.read_byte_rate
        return fetch if rate is None else fetch._replace(max_bytes=min(fetch.max_bytes, rate))

    # --- endpoint.Meter ---

    def takes(self, endpoint: Endpoint, frame_type: int, size: int) -> bool:
        now = time.monotonic()
        rate = self._quota.waits_for(frame_type, now)
        if rate:
            self._waiting[endpoint] = rate
            self._plan(now)
            return False
        self._quota.took(frame_type, size, now)
        return True

    def read(self, size: int) -> None:
        self._quota.read(size, time.monotonic())

    def holds_reading(self, endpoint: Endpoint) -> bool:
        now = time.monotonic()
        if not self._quota.wait_s(READ, now):
            return False
        self._not_given[endpoint] = None
        self._plan(now)
        return True

    # --- inside ---

    def _plan(self, now: float) -> None:
        if self._timer is None and (rates := self.held_by):
            wait_s = min(self._quota.wait_s(rate, now) for rate in rates)
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _WAIT_S_MIN), self._go_on)

    def _go_on(self) -> None:
        """Those who may, in the order in which they came; each until he is held again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            for endpoint, rate in list(self._waiting.items()):
                if not self._quota.wait_s(rate, time.monotonic()) and self._waiting.pop(endpoint, None) is not None:
                    endpoint.go_on()
            if self._not_given and not self._quota.wait_s(READ, time.monotonic()):
                not_given, self._not_given = self._not_given, {}
                for endpoint in not_given:
                    endpoint.reads_on()
        finally:
            self._plan(time.monotonic())


class UserQuotas:
    """Of one node. `held`: is told which user was held for how many ms."""

    def __init__(self, held: Callable[[str, int], None]) -> None:
        self._held = held
        self._meters: dict[str, UserMeter] = {}
        self._looked_at = time.monotonic()
        self.held_s: dict[str, float] = dict.fromkeys(RATES, 0.0)
        """By rate, of all users together."""

    def follow(self, users: Mapping[str, User]) -> None:
        """Users have changed. What one owes stays while he has limits, with connections or without."""
        for name, meter in list(self._meters.items()):
            user = users.get(name)
            if user is None or user.limits is None:
                del self._meters[name]
                meter.end()
            else:
                meter.change(user.limits)

    def meter(self, endpoint: Endpoint, name: str, limits: UserLimits | None, *, is_new: bool) -> UserMeter | None:
        """What a connection of that user is held to; None: nothing. `is_new`: it has just logged in. Raises Overloaded
        when he has as many connections as he may."""
        if limits is None:
            return None
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = UserMeter(limits)
        most = limits.max_connections
        if is_new and endpoint not in meter.connections and most is not None and len(meter.connections) >= most:
            raise Overloaded(
                f"user {name!r} has {most} connections to this node, as many as he may (mqtool user-limits, "
                "max_connections); close one, or raise the limit",
                limit=CONNECTIONS,
            )
        meter.connections.add(endpoint)
        return meter

    def tick(self, now: float) -> None:
        """Whoever is held is told that the node lives; and for how long he has been is counted."""
        elapsed_s, self._looked_at = now - self._looked_at, now
        for name, meter in self._meters.items():
            if rates := meter.held_by:
                for rate in rates:
                    self.held_s[rate] += elapsed_s
                self._held(name, round(elapsed_s * 1000))
                meter.show_life(now)


_BOUNDED_MAX: Final = 1_024


class ProducerBounds:
    """What producers of one connection shall have under way: a second's worth of their user's limit. What is beyond it
    waits in the client, which knows of that what was not stored."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self.bytes_max = limits.credit_bytes
        """Of one producer in a queue."""
        self._told: dict[tuple[int, int], None] = {}

    def hold_to(self, meter: UserMeter | None) -> list[Credit]:
        """Its user has these limits from now on; what the connection is to be told of that."""
        former, rate = self.bytes_max, None if meter is None else meter.limits.publish_byte_rate
        self.bytes_max = self._limits.credit_bytes if rate is None else rate
        return [] if self.bytes_max == former else [self._credit(*each) for each in ((0, 0), *self._told)]

    def published(self, producer_id: int, queue_id: int) -> list[Credit]:
        """What the connection is to be told of a producer, once."""
        if (producer_id, queue_id) in self._told:
            return []
        if len(self._told) >= _BOUNDED_MAX:
            del self._told[next(iter(self._told))]
        self._told[producer_id, queue_id] = None
        return [self._credit(producer_id, queue_id)]

    def _credit(self, producer_id: int, queue_id: int) -> Credit:
        return Credit(producer_id, 0, self._limits.credit_bytes, queue_id, self._limits.credit_batches)
