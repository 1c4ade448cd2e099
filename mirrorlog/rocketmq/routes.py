"""What becomes of a record that is followed: which queue or exchange it goes to, and what it is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorlog.errors import BadInput
from mirrorlog.rocketmq.records import RecordKind, RocketRecord

PREFIX: Final = "rocketmq."
"""Of headers that say where a record stood. Its properties are headers by their own names."""


@dataclass(frozen=True, slots=True)
class FollowedMessage:
    """For a queue, or for an exchange when that is named: then `routing_key` is topic and tag."""

    queue: str
    exchange: str
    routing_key: str
    value: bytes
    key: str | None
    headers: Mapping[str, bytes]
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class TopicRoutes:
    """`queues`: by topic; `exchange`: of all other topics that are no topics of RocketMQ's own, if it is named."""

    queues: Mapping[str, str]
    exchange: str = ""

    def __post_init__(self) -> None:
        if not self.queues and not self.exchange:
            raise BadInput("nothing is to be followed: give --map TOPIC=QUEUE, or --exchange")

    def of(self, record: RocketRecord) -> FollowedMessage | None:
        """None for what nobody asked for. Halves, verdicts and what is delayed are written once more under their own
        topic when they are messages."""
        queue = self.queues.get(record.topic)
        own = record.kind is not RecordKind.PLAIN or record.topic.startswith(_SYSTEM)
        if queue is None and (own or not self.exchange):
            return None
        if record.kind is RecordKind.INNER_BATCH:
            raise BadInput(
                f"the record at physical offset {record.physical_offset} of topic {record.topic} is a batch of several "
                "messages: topics of that type are not followed"
            )
        return FollowedMessage(
            queue=queue or "",
            exchange="" if queue else self.exchange,
            routing_key=f"{record.topic}.{record.tag}" if record.tag else record.topic,
            value=record.body,
            key=record.keys or None,
            headers=_headers(record),
            timestamp_us=record.born_ms * 1000,
        )


_SYSTEM: Final = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "%RETRY%", "%DLQ%", "TBW102", "BenchmarkTest", "SELF_TEST")
"""What topics begin with that are RocketMQ's own; one of them is followed when it is mapped by name."""


def _headers(record: RocketRecord) -> dict[str, bytes]:
    place = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "flag": record.flag,
        "kind": record.kind.value,
        "born_host": record.born_host,
        "store_ms": record.store_ms,
        "times_consumed_again": record.times_consumed_again,
    }
    named = {**record.properties, **{PREFIX + name: str(told) for name, told in place.items()}}
    return {name: told.encode() for name, told in named.items()}
