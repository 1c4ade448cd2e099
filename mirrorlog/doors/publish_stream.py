"""One Publish stream between its opening and its end: batches in, results out in the same order. Knows no gRPC.

Two tasks: `read` hands batches over, `results` gives their answers. Between them stand the unanswered batches; the
window stops `read` when they are many. A failed batch is a result like any other; what ends the stream is an _End.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from mirrorlog.client import Receipt
from mirrorlog.doors.batches import check_content
from mirrorlog.doors.incoming import Batch
from mirrorlog.doors.opening import Opening
from mirrorlog.doors.sent import Sent, Way
from mirrorlog.doors.status_codes import as_message
from mirrorlog.doors.window import Window
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability

_DURABILITIES = {Durability.MEMORY: common.DURABILITY_MEMORY, Durability.DISK: common.DURABILITY_DISK}


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """`handed`: what is known of the batch so far."""

    tag: int
    size: int
    handed: Sent | MirrorlogError


@dataclass(frozen=True, slots=True)
class _End:
    """No more answers; `error` is why, None after the client's own end."""

    error: Exception | None


class PublishStream:
    """`one_attempt`: for batches with a number of their own. `retrying`: for records without one."""

    def __init__(self, *, opening: Opening, one_attempt: Way, retrying: Way, window: Window) -> None:
        self._opening = opening
        self._one_attempt = one_attempt
        self._retrying = retrying
        self._way: Way = one_attempt
        self._window = window
        self._unanswered: asyncio.Queue[_Unanswered | _End] = asyncio.Queue()

    async def read(self, requests: AsyncIterable[pb.PublishRequest | Batch]) -> None:
        """Hand over what comes, until the client's end or a request that makes no sense."""
        try:
            async for request in requests:
                if not isinstance(request, Batch):
                    raise BadRequest("after `open`, which comes once, every request is a `batch`")
                await self._take(request)
                await self._window.room()
            self._unanswered.put_nowait(_End(None))
        except Exception as error:
            # Whoever reads the results must hear of it, whatever it is: nothing else ends them.
            self._unanswered.put_nowait(_End(error))

    def end(self, error: MirrorlogError) -> None:
        """Answer what is unanswered, then end the stream with `error`."""
        self._unanswered.put_nowait(_End(error))

    async def results(self) -> AsyncIterator[pb.PublishResult]:
        """One result per batch, in order. Raises what ended the stream."""
        while not isinstance(item := await self._unanswered.get(), _End):
            yield await _result(item)
            # Only now: a client that does not read its answers is not read from either.
            self._window.remove(item.size)
        if item.error is not None:
            raise item.error

    async def _take(self, batch: Batch) -> None:
        handed: Sent | MirrorlogError
        try:
            check_content(batch, self._opening)
            await self._choose_way(batch)
            handed = await self._way.send(batch)
        except MirrorlogError as error:
            handed = error
        self._window.add(batch.size)
        self._unanswered.put_nowait(_Unanswered(batch.tag, batch.size, handed))

    async def _choose_way(self, batch: Batch) -> None:
        retried = isinstance(batch.content, pb.Records) and not self._opening.identified
        way = self._retrying if retried else self._one_attempt
        if way is not self._way:
            # What may still be tried again must not be overtaken.
            await self._window.empty()
            self._way = way


async def _result(item: _Unanswered) -> pb.PublishResult:
    if isinstance(item.handed, MirrorlogError):
        # Nothing was sent, so nothing can be doubled.
        return pb.PublishResult(tag=item.tag, error=as_message(item.handed, idempotent=True))
    try:
        receipt = await item.handed.outcome
    except MirrorlogError as error:
        return pb.PublishResult(tag=item.tag, error=as_message(error, idempotent=item.handed.idempotent))
    return pb.PublishResult(tag=item.tag, confirm=_confirm(receipt))


def _confirm(receipt: Receipt) -> pb.Confirm:
    return pb.Confirm(
        base_queue_offset=receipt.queue_offset,
        log_offset=receipt.log_offset,
        epoch=receipt.epoch,
        copies=receipt.copies,
        durability=_DURABILITIES[Durability(receipt.durability)],
        duplicate=receipt.duplicate,
    )
