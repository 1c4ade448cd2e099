"""What both drivers of this package need: tasks that do not fail unseen."""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger(__name__)


def log_failure(task: asyncio.Future[None]) -> None:
    """A task that nobody awaits must not fail unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("task_failed", exc_info=error)
