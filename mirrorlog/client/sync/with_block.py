"""How what publishes or subscribes ends with its `with` block: as `mirrorlog.client.with_block`, without `await`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from mirrorlog.errors import MirrorlogError


class SyncWithBlock(ABC):
    """Started by entering the block, closed by leaving it."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            self.abandon()  # interrupted: whoever did that is not to wait for confirms
            return
        try:
            self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise
