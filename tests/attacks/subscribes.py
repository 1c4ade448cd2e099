"""Somebody who may read a queue subscribes to it ten thousand times on each of a few connections, leaves, and comes
again. Who may read nothing asks all the same, and is refused as often."""

from __future__ import annotations

from random import Random

from mirrorlog.wire.messages.groups import Subscribe
from tests.attacks.requests import flood
from tests.attacks.target import Target

_CONNECTIONS = 2
_AT_ONCE = 10_000


def attack(target: Target, seconds: float, random: Random) -> int:
    asked = [Subscribe(queue=random.choice(target.queues), prefetch_records=1) for _ in range(_CONNECTIONS)]
    return flood(target, seconds, random, [(each, _AT_ONCE) for each in asked])
