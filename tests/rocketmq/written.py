"""Records as RocketMQ writes them, by another way than the one that reads them: a plain concatenation."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from ipaddress import ip_address

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=value < 0)


def host(text: str, port: int = 10911) -> bytes:
    return ip_address(text).packed + number(port, 4)


def record(
    offset: int,
    body: bytes = b"body",
    *,
    topic: str = "T",
    properties: Mapping[str, str] | None = None,
    system_flag: int = 0,
    queue_id: int = 3,
    queue_offset: int = 7,
    v2: bool = False,
    closing_mark: bool = True,
    born: str = "10.0.0.1",
    stored: str = "10.0.0.2",
    crc: int | None = None,
    physical: int | None = None,
) -> bytes:
    """One record at that physical offset. `crc`, `physical`: other than they should be."""
    told = "\x02".join(f"{name}\x01{value}" for name, value in (properties or {}).items())
    end = ("\x02" if told and closing_mark else "").encode()
    text = told.encode() + end
    flag = system_flag | (0x10 if ":" in born else 0) | (0x20 if ":" in stored else 0)
    rest = b"".join(
        (
            number(V2 if v2 else V1, 4),
            number(zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc, 4),
            number(queue_id, 4),
            number(11, 4),
            number(queue_offset, 8),
            number(offset if physical is None else physical, 8),
            number(flag, 4),
            number(1_700_000_000_123, 8),
            host(born),
            number(1_700_000_000_456, 8),
            host(stored),
            number(2, 4),
            number(0, 8),
            number(len(body), 4),
            body,
            number(len(topic.encode()), 2 if v2 else 1),
            topic.encode(),
            number(len(text), 2),
            text,
        )
    )
    return number(len(rest) + 4, 4) + rest


def blank(size: int) -> bytes:
    """What is left of a mapped file."""
    return number(size, 4) + number(BLANK, 4) + bytes(size - 8)


def log(bodies: list[bytes], start: int = 0) -> bytes:
    """Such records, one behind the other."""
    content = b""
    for body in bodies:
        content += record(start + len(content), body)
    return content
