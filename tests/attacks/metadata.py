"""Whoever is let in asks for everything that there is, thousands of times before he reads an answer: 34 bytes each."""

from __future__ import annotations

from random import Random

from mirrorlog.wire.messages.queues import GetMetadata
from tests.attacks.requests import flood
from tests.attacks.target import Target

_CONNECTIONS = 3
_AT_ONCE = 3_000


def attack(target: Target, seconds: float, random: Random) -> int:
    return flood(target, seconds, random, [(GetMetadata(), _AT_ONCE)] * _CONNECTIONS)
