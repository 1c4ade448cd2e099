"""The `async with` block of what publishes: at its end it is closed, or given up at once when it was cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

from mirrorlog.errors import MirrorlogError


class WithBlock(ABC):
    """Started by entering the block, closed by leaving it."""

    @abstractmethod
    async def start(self) -> Self: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None: ...

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            with suppress(MirrorlogError):  # what the block ended with is the one to tell
                await self.close()
        else:
            self.abandon()  # cancelled or interrupted: whoever did that is not to wait for confirms
