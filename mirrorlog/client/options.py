"""Options of clients and producers as users write them, as values that the wire knows. Each is checked, and named
when wrong: what slips through would fail where nobody waits for it."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeGuard

from msgspec import Struct

from mirrorlog.client.serializers import Deserializer, Serializer
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.config import split_address
from mirrorlog.errors import BadRequest, ConfigError
from mirrorlog.wire.frames import Durability, Level
from mirrorlog.wire.messages.queues import Position, QueueInfo
from mirrorlog.wire.policies import CONFIRM

# Above it stand `majority` and `all` on the wire.
_COPIES_MAX: Final = Level.MAJORITY - 1
# What a node remembers of a producer for retries.
_IN_FLIGHT_MAX: Final = 32
# What a frame has room for.
_TIMEOUT_MS_MAX: Final = 2**32 - 1
_BYTES_MAX: Final = 2**63 - 1
_FETCH_BYTES_MAX: Final = 2**28
_WAIT_MS_MAX: Final = 60_000
# Records; what a node allows by default is less.
_PREFETCH_MAX: Final = 2**31 - 1
_PRIORITY_MAX: Final = 2**31 - 1
# Of a name in the domain name system.
_HOST_BYTES_MAX: Final = 253


def parse_durability(durability: str) -> Durability:
    """`memory` or `disk`. Raises BadRequest."""
    try:
        return Durability[durability.upper()]
    except (KeyError, AttributeError, TypeError):
        raise BadRequest(f"durability {durability!r} is neither memory nor disk") from None


def parse_compression(compression: str) -> Codec:
    """`none`, `lz4` or `zstd`. Raises BadRequest."""
    try:
        return Codec[compression.upper()]
    except (KeyError, AttributeError, TypeError):
        raise BadRequest(f"compression {compression!r} is none of none, lz4, zstd") from None


def level_for(asked: int | None, info: QueueInfo) -> int:
    """Of a producer of a queue: the one that it asks for, else that which policies say of the queue, else `all`."""
    return Level.said(info.effective.get(CONFIRM)) if asked is None else asked


def parse_level(confirm: str | int) -> int:
    """Raises BadRequest. A number means so many copies; those that stand for names on the wire are none."""
    if not isinstance(confirm, str) and not _is_number(confirm):
        raise BadRequest(f"confirm {confirm!r:.32} is {type(confirm).__name__}; give the name of a level, or an int")
    level = Level.parse(confirm)
    if level > _COPIES_MAX and confirm not in Level.NAMES:
        raise BadRequest(f"confirm {confirm!r}: at most {_COPIES_MAX} copies can be asked for")
    return level


class ProducerOptions(Struct, frozen=True):
    """How a producer sends; see `Client.producer`. `level`: None for the queue's (`level_for`). Raises BadRequest
    naming the one that is out of range, or no int."""

    level: int | None
    durability: Durability
    batch_bytes: int
    linger_ms: int
    window_bytes: int
    max_in_flight: int
    delivery_timeout_ms: int
    idempotent: bool = True
    codec: Codec = Codec.NONE
    serializer: Serializer | None = None
    retry_full: bool = True

    def __post_init__(self) -> None:
        _check("max_in_flight", self.max_in_flight, 1, _IN_FLIGHT_MAX, ", what a node remembers for retries")
        _check("linger_ms", self.linger_ms, 0, _TIMEOUT_MS_MAX)
        _check("window_bytes", self.window_bytes, 1, _BYTES_MAX)
        _check("batch_bytes", self.batch_bytes, 1, _BYTES_MAX)
        check_timeout("delivery_timeout_ms", self.delivery_timeout_ms)


class ConsumerOptions(Struct, frozen=True):
    """What a consumer reads, and how; see `Client.consumer`. Raises BadRequest naming the one that is out of range, or
    no int."""

    start: str | int | Position | datetime | None
    until: int | str | None
    group: str | None
    read_from: str
    turn: int
    max_bytes: int
    max_wait_ms: int
    prefetch_bytes: int
    outage_timeout_ms: int | None = None
    deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        _check("max_bytes", self.max_bytes, 1, _FETCH_BYTES_MAX)
        _check("max_wait_ms", self.max_wait_ms, 0, _WAIT_MS_MAX)
        _check("prefetch_bytes", self.prefetch_bytes, 0, _FETCH_BYTES_MAX)
        if self.outage_timeout_ms is not None:
            check_timeout("outage_timeout_ms", self.outage_timeout_ms)


def check_subscribing(*, prefetch: int, prefetch_bytes: int, priority: int = 0, settle_timeout_ms: int = 1) -> None:
    """A subscription's. Raises BadRequest naming the one that is out of range, or no int."""
    _check("prefetch", prefetch, 0, _PREFETCH_MAX)
    _check("prefetch_bytes", prefetch_bytes, 0, _BYTES_MAX)
    _check("priority", priority, -_PRIORITY_MAX, _PRIORITY_MAX)
    check_timeout("settle_timeout_ms", settle_timeout_ms)


def check_leasing(*, max_records: int, lease_ms: int, wait_ms: int) -> None:
    """What is asked for with leases. Raises BadRequest naming the one that is out of range, or no int."""
    _check("max_records", max_records, 1, _PREFETCH_MAX)
    _check("wait_ms", wait_ms, 0, _WAIT_MS_MAX)
    check_timeout("lease_ms", lease_ms)


def check_delay(delay_ms: int) -> None:
    """Before a record may be given out again. Raises BadRequest for what is no int of 0 to 2**32 - 1 ms."""
    _check("delay_ms", delay_ms, 0, _TIMEOUT_MS_MAX)


def check_timeout(name: str, timeout_ms: int) -> None:
    """Raises BadRequest for what is no int of 1 to 2**32 - 1 ms."""
    _check(name, timeout_ms, 1, _TIMEOUT_MS_MAX)


def parse_server(server: str) -> str:
    """A node's address, `host:port`, checked. Raises BadRequest."""
    if not isinstance(server, str) or any(each == "," or each.isspace() for each in server):
        raise BadRequest(f"server {server!r:.80}: give each as a string of its own, as in Client('a:7401', 'b:7401')")
    try:
        host, port = split_address(server)
    except (ConfigError, ValueError):  # ValueError: digits of other scripts, or thousands of them
        raise BadRequest(f"server {server!r:.80} is no host:port") from None
    if not port:
        raise BadRequest(f"server {server!r:.80}: a port is from 1 to 65535")
    if not host.isprintable() or not _may_be_resolved(host):
        raise BadRequest(f"server {server!r:.80}: there can be no such host name")
    return server


def _may_be_resolved(host: str) -> bool:
    try:
        return len(host.encode("idna")) <= _HOST_BYTES_MAX
    except UnicodeError:
        return False


def _check(name: str, value: int, least: int, most: int, why: str = "") -> None:
    if not _is_number(value):
        raise BadRequest(f"{name} {value!r:.32} is {type(value).__name__}; give an int")
    if not least <= value <= most:
        raise BadRequest(f"{name} {value} is not within {least} and {most}{why}")


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
