"""The HTTP door, with requests nearly as they should be."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.attacks.fuzz import at_ports, mutated
from tests.attacks.target import Target

_PATHS = (
    "/", "/health", "/metrics", "/status", "/queues", "/api/queues/%2f/q", "/api/definitions", "/api/%ff//%2f",
    "/%2e%2e/%2e%2e/etc/passwd", "/" + "a" * 9_000, "/q?x=%ff",
)  # fmt: skip
_LINES = (
    "Host: node",
    "Connection: keep-alive",
    "Transfer-Encoding: chunked",
    "Content-Length: 5",
    "Content-Length: 99999999999999999999",
    "Authorization: Basic ////",
    "Authorization: Basic dXNlcjpwYXNz",
    "X: " + "y" * 70_000,
    "Upgrade: h2c",
    "Expect: 100-continue",
)


def attack(target: Target, seconds: float, random: Random) -> int:
    """Several requests on a connection, whole and mutated."""
    return at_ports(target, target.http, seconds, random, _said, tls=False)


def _said(random: Random) -> Sequence[bytes]:
    return [_request(random) for _ in range(random.randint(1, 4))]


def _request(random: Random) -> bytes:
    method = random.choice(["GET", "GET", "HEAD", "POST", "DELETE", "PRI", "OPTIONS"])
    lines = random.sample(_LINES, random.randint(0, 4))
    head = "\r\n".join([f"{method} {random.choice(_PATHS)} HTTP/1.{random.choice('011')}", *lines])
    whole = head.encode() + b"\r\n\r\n" + random.randbytes(random.choice((0, 0, 5, 500)))
    return mutated(random, whole) if random.random() < 0.6 else whole
