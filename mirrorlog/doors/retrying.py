"""Records without a number: the door's own producer numbers them and tries again, so each lands once on their way.

That holds between door and node. A client that sends them again, on whatever stream, sends new records.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from mirrorlog.client import Client, Producer
from mirrorlog.commitlog.attributes import NO_ATTRIBUTES
from mirrorlog.commitlog.format import HEADER_SIZE
from mirrorlog.doors.batches import read_attributes, read_records
from mirrorlog.doors.incoming import Batch
from mirrorlog.doors.opening import Opening
from mirrorlog.doors.sent import Sent
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.messages import Limits

_IN_FLIGHT_MAX: Final = 16
# The stream's window is the one that counts; the producer's must never be the tighter one.
_NO_WINDOW_BYTES: Final = 2**62


class Retrying:
    """The way of a stream's records when it has no identity. Use it with `async with`."""

    def __init__(self, client: Client, opening: Opening, limits: Limits) -> None:
        self._opening = opening
        # Not by client.producer: the level is the wire's already, and it ends with its stream, never with the client.
        self._producer = Producer(
            client,
            opening.queue,
            level=opening.level,
            durability=opening.durability,
            batch_bytes=limits.max_batch_bytes - HEADER_SIZE,
            linger_ms=0,
            window_bytes=_NO_WINDOW_BYTES,
            max_in_flight=_IN_FLIGHT_MAX,
            delivery_timeout_ms=opening.delivery_timeout_ms,
            idempotent=True,
        )

    async def __aenter__(self) -> Self:
        """Reach the queue's master, so that later on its absence is something to wait for. Raises ConnectionLost."""
        if not self._opening.identified:
            await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End at once: whoever would hear of what is still tried has gone."""
        self._producer.abandon()

    async def send(self, batch: Batch) -> Sent:
        """Raises MirrorlogError when the records were not handed over."""
        assert isinstance(batch.content, pb.Records)
        asked = read_attributes(batch.content) or NO_ATTRIBUTES
        sent = self._producer.send_batch_nowait(read_records(batch.content), **asked._asdict())
        return Sent(sent, idempotent=False)
