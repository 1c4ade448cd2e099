"""What both drivers of this package need: the message that a frame must carry, and tasks that do not fail unseen."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from mirrorlog.errors import ProtocolError
from mirrorlog.wire.frames import Frame, FrameType
from mirrorlog.wire.messages import Message, decode

logger = logging.getLogger(__name__)

_M = TypeVar("_M", bound=Message)


def expect_message(frame_: Frame, kind: FrameType, expected: type[_M]) -> _M:
    """Raises ProtocolError for a frame of another type and for another message."""
    if frame_.type != kind:
        raise ProtocolError(f"frame type {frame_.type} where {kind.name} was expected")
    message = decode(frame_.payload)
    if not isinstance(message, expected):
        raise ProtocolError(f"{type(message).__name__} where {expected.__name__} was expected")
    return message


def log_failure(task: asyncio.Future[None]) -> None:
    """A task that nobody awaits must not fail unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("task_failed", exc_info=error)
