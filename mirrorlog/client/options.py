"""A producer's options as users write them, as values that the wire knows. Each is checked, and named when wrong."""

from __future__ import annotations

from typing import Final

from mirrorlog.commitlog.format import Codec
from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import Durability, Level

# Above it stand `majority` and `all` on the wire.
_COPIES_MAX: Final = Level.MAJORITY - 1
# What a node remembers of a producer for retries.
_IN_FLIGHT_MAX: Final = 32


def parse_durability(durability: str) -> Durability:
    """`memory` or `disk`. Raises BadRequest."""
    try:
        return Durability[durability.upper()]
    except KeyError:
        raise BadRequest(f"durability {durability!r} is neither memory nor disk") from None


def parse_compression(compression: str) -> Codec:
    """`none`, `lz4` or `zstd`. Raises BadRequest."""
    try:
        return Codec[compression.upper()]
    except KeyError:
        raise BadRequest(f"compression {compression!r} is none of none, lz4, zstd") from None


def parse_level(confirm: str | int) -> int:
    """Raises BadRequest. A number means so many copies; those that stand for names on the wire are none."""
    level = Level.parse(confirm)
    if level > _COPIES_MAX and confirm not in Level.NAMES:
        raise BadRequest(f"confirm {confirm!r}: at most {_COPIES_MAX} copies can be asked for")
    return level


def check_numbers(
    *, batch_bytes: int, linger_ms: int, window_bytes: int, max_in_flight: int, delivery_timeout_ms: int
) -> None:
    """Raises BadRequest naming the one that is out of range."""
    if not 1 <= max_in_flight <= _IN_FLIGHT_MAX:
        raise BadRequest(
            f"max_in_flight {max_in_flight} is not within 1 and {_IN_FLIGHT_MAX}, what a node remembers for retries"
        )
    if linger_ms < 0:
        raise BadRequest(f"linger_ms {linger_ms} is below 0")
    least = {"window_bytes": window_bytes, "batch_bytes": batch_bytes, "delivery_timeout_ms": delivery_timeout_ms}
    for name, value in least.items():
        if value < 1:
            raise BadRequest(f"{name} {value} is below 1")
