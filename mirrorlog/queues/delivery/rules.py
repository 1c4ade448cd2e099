"""What a queue's arguments say of its delivery. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mirrorlog.commitlog.format.attributes import PRIORITY_MAX

CONSUMER_TIMEOUT_MS: Final = 30 * 60 * 1000
_ATTEMPTS_MAX: Final = 254


@dataclass(frozen=True, slots=True)
class Rules:
    """`delivery_limit`: a record that came back more often is dead. `priority_max`: higher priorities count as that; 0
    tells none apart."""

    single_active: bool = False
    consumer_timeout_s: float = CONSUMER_TIMEOUT_MS / 1000
    delivery_limit: int | None = None
    priority_max: int = 0

    @staticmethod
    def of(arguments: dict[str, Any]) -> Rules:
        """From a queue's arguments, which may be older than their check."""
        timeout, limit = arguments.get("x-consumer-timeout"), arguments.get("x-delivery-limit")
        priority = arguments.get("x-max-priority")
        return Rules(
            single_active=arguments.get("x-single-active-consumer") is True,
            consumer_timeout_s=(timeout if type(timeout) is int and timeout > 0 else CONSUMER_TIMEOUT_MS) / 1000,
            delivery_limit=min(limit, _ATTEMPTS_MAX) if type(limit) is int and limit >= 0 else None,
            priority_max=min(priority, PRIORITY_MAX) if type(priority) is int and priority > 0 else 0,
        )
