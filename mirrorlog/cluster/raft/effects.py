"""What the core wants done: one bundle, its fields in the order in which they are due."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mirrorlog.cluster.raft.messages import AnyMessage, Entry, HardState, Snapshot


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read that was asked for may be answered once entry `index` is applied; None: this member leads no more."""

    token: Hashable
    index: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a member finds on its disk when it starts; `entries` follow the snapshot without a gap."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Effects:
    """Do the first three and sync them to disk, all or in this order; then the rest; then say `Raft.done`.

    `hard_state`: replaces the one before. `snapshot`: from the leader; it replaces log and state. `entries`: each
    replaces the one of its index and all behind it. `messages`: may leave now, not before. `committed`: to be applied,
    in order. `reads`: may be answered, or never will be.
    """

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[AnyMessage, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadReady, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.must_sync or self.messages or self.committed or self.reads)

    @property
    def must_sync(self) -> bool:
        """Whether something is to be stored before the messages may leave."""
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)
