"""The entries that a member holds: those behind its snapshot, in memory. Pure.

Entries below `commit` never change. What the disk has of it is the core's concern.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirrorlog.cluster.raft.messages import EntryKind, Members, RaftEntry, Snapshot, decode_members


class RaftLog:
    """`snapshot`: what stands before the first entry; `commit`: the last index that can never change."""

    def __init__(self, snapshot: Snapshot, entries: Sequence[RaftEntry] = ()) -> None:
        self.snapshot = snapshot
        self.commit = snapshot.index
        self._base_index, self._base_term = snapshot.index, snapshot.term
        self._entries = list(entries)
        self._members = [(snapshot.index, snapshot.members)]
        for entry in entries:
            self._note_members(entry)

    # --- what there is ---

    @property
    def last_index(self) -> int:
        return self._base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self._base_term

    @property
    def base_index(self) -> int:
        """The last index that is known by its term alone; what is below is not even that."""
        return self._base_index

    @property
    def members(self) -> Members:
        """The newest configuration, committed or not: it holds from the moment it is appended."""
        return self._members[-1][1]

    @property
    def members_index(self) -> int:
        """The index of that."""
        return self._members[-1][0]

    def term_of(self, index: int) -> int | None:
        """None when the entry is not there, or not any more."""
        if index == self._base_index:
            return self._base_term
        if self._base_index < index <= self.last_index:
            return self._entries[index - self._base_index - 1].term
        return None

    def is_current(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so has all that this one may have committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def entries(self, first: int, last: int) -> tuple[RaftEntry, ...]:
        """`first` to `last`, both included, as far as they are there."""
        base = self._base_index
        return tuple(self._entries[max(first - base - 1, 0) : max(last - base, 0)])

    def entries_from(self, first: int, bytes_max: int) -> tuple[RaftEntry, ...]:
        """From `first` on, as many as fit; one at least, if there is one."""
        return tuple(self._up_to(first, bytes_max))

    def _up_to(self, first: int, bytes_max: int) -> Iterator[RaftEntry]:
        taken = 0
        for at in range(first - self._base_index - 1, len(self._entries)):
            entry = self._entries[at]
            taken += len(entry.data)
            if taken > bytes_max and entry.index > first:
                return
            yield entry

    def last_with_term_up_to(self, index: int, term: int) -> int:
        """The last index, `index` or before, whose term is not above `term`: behind it the logs must differ."""
        index = min(index, self.last_index)
        while index > self._base_index and (self.term_of(index) or 0) > term:
            index -= 1
        return index

    def members_at(self, index: int) -> Members:
        """The configuration as of entry `index`, which is not below the base."""
        return next(members for at, members in reversed(self._members) if at <= index)

    # --- changes ---

    def append(self, entry: RaftEntry) -> None:
        """The next one."""
        assert entry.index == self.last_index + 1, (entry.index, self.last_index)
        self._entries.append(entry)
        self._note_members(entry)

    def take_over(self, entries: Sequence[RaftEntry]) -> int | None:
        """Append what a leader sent, which follows an entry that both have. The first index that changed, if one did.

        Raises AssertionError for a change of what is committed: then the algorithm is broken, here or there.
        """
        for entry in entries:
            if self.term_of(entry.index) != entry.term and entry.index > self._base_index:
                assert entry.index > self.commit, f"entry {entry.index} is committed and would change"
                self._cut(entry.index)
                for each in entries[entry.index - entries[0].index :]:
                    self.append(each)
                return entry.index
        return None

    def compact(self, snapshot: Snapshot, *, keep: int) -> None:
        """`snapshot` stands for everything up to its index; the last `keep` entries of that stay for who is behind."""
        assert snapshot.index <= self.commit
        self.snapshot = snapshot
        base = min(snapshot.index, max(self._base_index, snapshot.index - keep))
        term, members = self.term_of(base), self.members_at(base)
        assert term is not None
        del self._entries[: base - self._base_index]
        self._base_index, self._base_term = base, term
        self._members = [(base, members), *((at, each) for at, each in self._members if at > base)]

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing but `snapshot`: what was held before is another history, or older."""
        self.snapshot = snapshot
        self.commit = snapshot.index
        self._base_index, self._base_term = snapshot.index, snapshot.term
        self._entries.clear()
        self._members = [(snapshot.index, snapshot.members)]

    def _cut(self, first: int) -> None:
        del self._entries[first - self._base_index - 1 :]
        while self._members[-1][0] >= first:
            self._members.pop()

    def _note_members(self, entry: RaftEntry) -> None:
        if entry.kind == EntryKind.MEMBERS:
            self._members.append((entry.index, decode_members(entry.data)))
