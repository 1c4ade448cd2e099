"""Compressed bodies are opened before their batches are stored: what nobody can open comes into no log. Off the loop.

A helper opens them; what the same connection publishes behind one waits for it, compressed or not, so that batches are
appended in the order in which they came. One of a producer's default size, with nothing before it, is opened where it
is: that takes 15 to 30 µs, less than going to a helper and back.

Nothing is opened beyond `max_batch_bytes`, and one at a time: a bomb takes so much memory, on a core beside the loop's.
Lines take turns of about a MiB, so who sends bombs waits for himself. What waits is bounded, for each line by its
share of `limits.unpacking_bytes`; what is above it is refused with OVERLOADED, and nothing of it is stored.

Rejected: to open them after the append and before the confirm (they would be in the log, and on its mirrors, by then);
all on the loop (8 MiB of zstd take 10 ms); two helpers (one keeps up with what a node takes; bombs would have both).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.codec import check_compressed
from mirrorlog.commitlog.format.header import BatchHeader, check_producer_part, is_packed, read_header
from mirrorlog.config import LimitSettings
from mirrorlog.errors import MirrorlogError, Overloaded, ProtocolError
from mirrorlog.wire.frames import PRODUCE

logger = logging.getLogger(__name__)

_AT_ONCE_BYTES: Final = 320 * 1024
"""Opened: a batch of 256 KiB of small records, with its columns."""
_TURN_BYTES: Final = 1024 * 1024
"""Opened, from when on another line has its turn."""


def batch_of(payload: memoryview) -> tuple[memoryview]:
    """The batch of a PRODUCE frame, or of its copy that waits: what is opened has to be what is stored."""
    return (payload[PRODUCE.size :],)


class PackedFrame(NamedTuple):
    """`payload`: of one frame, copied; `batches`: those in it; `opened_bytes`: of those that are packed;
    `publish` is called with it in its turn, `refuse` with why it is not."""

    payload: memoryview
    batches: Sequence[memoryview]
    opened_bytes: int
    publish: Callable[[memoryview], None]
    refuse: Callable[[MirrorlogError], None]


class Unpacking:
    """Of one node. `helper`: has one thread, and nothing else to do."""

    def __init__(self, helper: Executor, limits: LimitSettings) -> None:
        self.helper = helper
        self.limits = limits
        self.waiting_bytes = 0
        """Copied, of all lines."""
        self.lines = 0
        """With something that waits."""


class PublishLine:
    """What one connection publishes, in its order. `handled`: called when what was opened together is published."""

    def __init__(self, unpacking: Unpacking, handled: Callable[[], None]) -> None:
        self._unpacking = unpacking
        self._handled = handled
        self._limits = unpacking.limits
        self.waiting: deque[PackedFrame] = deque()
        """What comes now has to wait for these."""
        self._opening: asyncio.Future[list[MirrorlogError | None]] | None = None
        self._size = 0

    def take(
        self,
        payload: memoryview,
        batches_of: Callable[[memoryview], Sequence[memoryview]],
        publish: Callable[[memoryview], None],
        refuse: Callable[[MirrorlogError], None],
    ) -> None:
        """Call `publish` with the payload, at once or, with a copy of it, when it is opened; then `refuse` may be
        called instead. `batches_of`: those in a payload. Raises MirrorlogError: it was not published."""
        packed = self._packed(batches_of(payload))
        opened_bytes = sum([header.body_length for _, header in packed])
        if not self.waiting and opened_bytes <= _AT_ONCE_BYTES:
            if packed:
                self._check(packed)
            publish(payload)
            return
        self._check_room(len(payload))
        copied = memoryview(bytes(payload))
        self.waiting.append(PackedFrame(copied, batches_of(copied), opened_bytes, publish, refuse))
        self._size += len(copied)
        self._unpacking.waiting_bytes += len(copied)
        if len(self.waiting) == 1:
            self._unpacking.lines += 1
            self._open_next()

    def close(self) -> None:
        """Its connection is gone: nobody hears of what waits, nothing of it is stored, and what the helper has not
        begun it does not begin."""
        if self._opening is not None:
            self._opening.cancel()
        if self.waiting:
            self._unpacking.lines -= 1
        self._unpacking.waiting_bytes -= self._size
        self.waiting.clear()
        self._size = 0

    # --- inside ---

    def _check_room(self, size: int) -> None:
        unpacking, limit = self._unpacking, self._limits.unpacking_bytes
        total = unpacking.waiting_bytes + size
        above_share = self.waiting and self._size + size > limit // max(1, unpacking.lines)
        if (total > limit and above_share) or total > 2 * limit:
            raise Overloaded(
                f"{self._size} bytes of this connection wait to be opened, of {unpacking.waiting_bytes} in all "
                "(limits.unpacking_bytes); nothing was stored, send it again",
                limit="unpacking_bytes",
            )

    def _open_next(self) -> None:
        turn: list[PackedFrame] = []
        opened_bytes = 0
        for each in self.waiting:
            turn.append(each)
            opened_bytes += each.opened_bytes
            if opened_bytes >= _TURN_BYTES:
                break
        job = partial(self._verdicts, [each.batches for each in turn])
        self._opening = asyncio.get_running_loop().run_in_executor(self._unpacking.helper, job)
        self._opening.add_done_callback(partial(self._opened, turn))

    def _opened(self, turn: Sequence[PackedFrame], verdicts: asyncio.Future[list[MirrorlogError | None]]) -> None:
        if verdicts.cancelled():
            return  # the connection is gone, or the node stops
        self._opening = None
        for each, error in zip(turn, verdicts.result(), strict=True):
            if not self.waiting or self.waiting[0] is not each:
                return  # closed meanwhile
            self.waiting.popleft()
            self._size -= len(each.payload)
            self._unpacking.waiting_bytes -= len(each.payload)
            if not self.waiting:
                self._unpacking.lines -= 1
            self._publish(each, error)
        try:
            self._handled()
        finally:
            if self.waiting:
                self._open_next()

    def _publish(self, waiting: PackedFrame, error: MirrorlogError | None) -> None:
        try:
            if error is None:
                waiting.publish(waiting.payload)
        except MirrorlogError as refusal:
            error = refusal
        except Exception as failure:
            logger.exception("publish_failed")
            error = ProtocolError(f"internal error: {type(failure).__name__}")
        if error is not None:
            waiting.refuse(error)

    def _verdicts(self, all_batches: Sequence[Sequence[memoryview]]) -> list[MirrorlogError | None]:
        """On the helper: why each is not to be stored, or None."""
        verdicts: list[MirrorlogError | None] = []
        for batches in all_batches:
            try:
                self._check(self._packed(batches))
                verdicts.append(None)
            except MirrorlogError as error:
                verdicts.append(error)
            except Exception as failure:  # memory that ran out, say; those behind it are not to wait for ever
                logger.exception("unpacking_failed")
                verdicts.append(MirrorlogError(f"internal error: {type(failure).__name__}"))
        return verdicts

    def _check(self, packed: Sequence[tuple[memoryview, BatchHeader]]) -> None:
        for batch, header in packed:
            try:
                check_compressed(
                    batch,
                    header,
                    body_bytes_max=self._limits.max_batch_bytes,
                    max_record_bytes=self._limits.max_record_bytes,
                )
            except MirrorlogError:
                # Bytes that were damaged on their way are told so: they may be sent again.
                check_producer_part(batch, max_batch_bytes=self._limits.max_batch_bytes)
                raise

    def _packed(self, batches: Sequence[memoryview]) -> list[tuple[memoryview, BatchHeader]]:
        """Those that are, with their headers; without one whose header asks for too much: it is refused by that."""
        packed = [(batch, read_header(batch)) for batch in batches if is_packed(batch)]
        return [(batch, header) for batch, header in packed if 0 < header.body_length <= self._limits.max_batch_bytes]
