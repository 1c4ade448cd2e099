"""What follows from a log's changes and checkpoints: one interface for all that a copy keeps of them.

Groups, holds, positions, what leaves for other queues: each is told of the changes that it follows, of every
checkpoint, of what is confirmed, and of a cut. So whoever keeps a copy holds a list of them, and a feature with a state
of its own adds one line to that list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from mirrorlog.commitlog.format.header import BatchHeader


class DerivedState(Protocol):
    """`follows`: the kinds of changes of which it wants to hear."""

    follows: ClassVar[frozenset[type]]

    def follow(self, header: BatchHeader, changes: Iterable[Any]) -> None:
        """A batch of changes was appended; there are some among them that it follows."""

    def restore(self, header: BatchHeader, states: Iterable[Any]) -> None:
        """A batch of a checkpoint was appended, which says again what stood before it."""

    def confirm(self, log_offset: int) -> object:
        """Everything below `log_offset` is confirmed. Asked for as long as something that it follows is not."""

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
