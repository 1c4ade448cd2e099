"""Addresses and numbers that clients need of the settings, without what checks settings: pydantic takes its time."""

from __future__ import annotations

from typing import Final

from mirrorlog.errors import ConfigError

CLIENT_PORT: Final = 7401
REPLICATION_PORT: Final = 7402
GRPC_PORT: Final = 7403
HTTP_PORT: Final = 7404
COPIES_MAX: Final = 16
"""Of a log, and of a queue."""
RECORD_BYTES_MAX: Final = 128 * 1024 * 1024
"""What `limits.max_record_bytes` can be at most."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` → (host, port), brackets of an IPv6 address removed. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)
