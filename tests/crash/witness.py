"""The oracle: what was asked of a log and what it answered, kept outside of it, and what may be found after a crash.

It reads a crashed disk by itself: which of the batches that were ever offered stand there whole, at their place, of
the epoch that the list on the disk gives there. From that follows what recovery must keep, drop and report; it is then
held to that, and so is the second recovery, which must find nothing to say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from mirrorlog.commitlog.epochs import FILE_NAME as EPOCHS_NAME
from mirrorlog.commitlog.epochs import EpochList, decode_epochs
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.flush import SLOT_BYTES, Checkpoint, decode_slot
from mirrorlog.commitlog.format.header import ALIGNMENT, HEADER_SIZE, MAGIC_AT, read_header
from mirrorlog.commitlog.recovery.recovery import FILE_NAME as LOSS_NAME
from sim.disk import SimulatedFiles
from tests.commitlog.logs import LOG_ID

_MAGIC: Final = b"MLB1"


class Violation(AssertionError):
    """The log broke a promise."""


def require(condition: object, what: str) -> None:
    """Raises Violation."""
    if not condition:
        raise Violation(what)


class Place(NamedTuple):
    """Where a batch stands, and under which epoch."""

    log_offset: int
    epoch: int


def place_of(batch: bytes) -> Place:
    header = read_header(batch)
    return Place(header.log_offset, header.epoch)


@dataclass(slots=True)
class Witness:
    """What must and what may be found. Log offsets.

    `offered`: every batch that the log was ever asked to take. `live`: those it took and still has, in order, from
    `base` on; those below `begin` may be gone.
    `flushed`: what it said to be on disk. `epochs`: the lists that may be on disk, the last one asked for at the end.
    `floor`: while a cut is under way, the point from which on bytes may be gone. `freed_to`: the highest begin that
    was ever asked for; what stands below is needed by nobody, even where a crash took the begin back. `owes_loss`: a
    start has reported a loss that was not settled; `settling`: it is being settled.
    """

    directory: Path
    offered: dict[Place, bytes] = field(default_factory=dict)
    live: list[bytes] = field(default_factory=list)
    base: int = 0
    begin: int = 0
    end: int = 0
    flushed: int = 0
    confirmed: int = 0
    epochs: list[EpochList] = field(default_factory=lambda: [EpochList()])
    floor: int | None = None
    top_epoch: int = 0
    freed_to: int = 0
    owes_loss: bool = False
    settling: bool = False

    # --- What happens ---------------------------------------------------------------------------------------------

    def offer(self, batch: bytes) -> None:
        """The log is about to be given a batch, stamped as it must store it."""
        place = place_of(batch)
        require(self.offered.setdefault(place, batch) == batch, f"the story gives {place} twice, differently")

    def refuse(self, batch: bytes) -> None:
        """The log has refused it, and nothing is stored."""
        del self.offered[place_of(batch)]

    def take(self, batches: Iterable[bytes]) -> None:
        """The log has taken them."""
        for batch in batches:
            self.live.append(batch)
            self.end += len(batch)

    def offer_epochs(self, epochs: EpochList) -> None:
        """A list is about to be stored."""
        self.epochs.append(epochs)
        self.top_epoch = max(self.top_epoch, epochs.current)

    def take_epochs(self) -> None:
        """It is on disk."""
        del self.epochs[:-1]

    def begin_cut(self, log_offset: int, epochs: EpochList) -> None:
        self.floor = log_offset
        self.flushed = min(self.flushed, log_offset)
        self.offer_epochs(epochs)

    def end_cut(self) -> None:
        assert self.floor is not None
        self.take_epochs()
        while self.end > self.floor:
            self.end -= len(self.live.pop())
        self.floor = None

    def refuse_epochs(self) -> None:
        """It was not stored."""
        self.epochs.pop()

    def refuse_cut(self, *, flushed: int) -> None:
        """Nothing was cut."""
        self.refuse_epochs()
        self.floor = None
        self.flushed = flushed

    def settle(self) -> None:
        """The loss is settled, on disk."""
        self.owes_loss = self.settling = False

    def move_start(self, begin: int) -> None:
        self.begin = begin
        self.freed_to = max(self.freed_to, begin)

    def borders(self) -> list[int]:
        """Where the batches that it holds begin, and the end."""
        found = [self.base]
        for batch in self.live:
            found.append(found[-1] + len(batch))
        return [border for border in found if border >= self.begin]

    def content(self, begin: int) -> bytes:
        """Every byte from there on."""
        return b"".join(self.live)[begin - self.base :]

    # --- What a disk shows ----------------------------------------------------------------------------------------

    def expect(self, disk: SimulatedFiles) -> Expected:
        """What recovery must make of `disk`."""
        tree = {path.name: content for path, content in disk.tree().items() if path.parent == self.directory}
        recorded = recorded_checkpoint(tree.get(CHECKPOINT_NAME, b""))
        noted = noted_loss(tree.get(LOSS_NAME))
        require(noted or not self.owes_loss or self.settling, "a loss that nobody has settled is forgotten")
        if EPOCHS_NAME not in tree:
            return Expected(recorded, (), None, noted, base=self.base)
        try:
            epochs = decode_epochs(tree[EPOCHS_NAME])
        except ValueError as error:
            raise Violation(f"the epoch list is damaged: {error}") from None
        require(epochs in self.epochs, f"the epoch list on disk was never asked for: {epochs}")
        at = recorded.begin if recorded is not None else self.base
        whole = self._whole(self._segments(tree, recorded or Checkpoint(at, 0, 0), epochs), epochs)
        chain: list[bytes] = []
        while at in whole:
            chain.append(whole[at])
            at += len(chain[-1])
        behind = [offset for offset in whole if offset > at]
        cut = (min(behind), max(behind) + len(whole[max(behind)])) if behind else None
        return Expected(recorded, tuple(chain), cut, noted, base=self.base)

    def _whole(self, segments: list[tuple[int, bytes]], epochs: EpochList) -> dict[int, bytes]:
        """By log offset, the offered batches that stand at their place under the epoch of the list."""
        found: dict[int, bytes] = {}
        for (log_offset, epoch), batch in self.offered.items():
            if epochs.at(log_offset) == epoch and any(
                content[log_offset - start : log_offset - start + len(batch)] == batch
                for start, content in segments
                if start <= log_offset
            ):
                found[log_offset] = batch
        return found

    def _segments(self, tree: dict[str, bytes], recorded: Checkpoint, epochs: EpochList) -> list[tuple[int, bytes]]:
        """(log offset of the first byte, bytes): files that are named as segments, and files whose new name was lost:
        spares, and freed segments that are used again. These have bytes that are not flushed only, and may belong to
        several places."""
        named = {int(name): content for name, content in tree.items() if len(name) == 20 and name.isdigit()}
        first = max((start for start in named if start <= recorded.begin), default=0)
        found = {start: content for start, content in named.items() if start >= first}
        renamed = [(f"{start:020}", content) for start, content in named.items() if start < first]
        renamed += [(name, content) for name, content in tree.items() if name.startswith("spare-")]
        for _, content in sorted(renamed):
            for start in self._starts_of(content, max(recorded.begin, recorded.flushed), epochs):
                found.setdefault(start, content)
        return sorted(found.items())

    def known_as_segment(self, content: bytes, log: EpochList) -> bool:
        """Whether a whole batch stands in it."""
        return bool(self._starts_of(content, 0, log))

    def _starts_of(self, content: bytes, lowest: int, epochs: EpochList) -> list[int]:
        """Where a file may belong by the batches in it, from `lowest` on; those that most of its bytes say."""
        votes: Counter[int] = Counter()
        at = content.find(_MAGIC) - MAGIC_AT
        while at >= -MAGIC_AT:
            step = 1
            if at >= 0 and at % ALIGNMENT == 0 and len(content) - at >= HEADER_SIZE:
                place = place_of(content[at : at + HEADER_SIZE])
                batch = self.offered.get(place)
                counts = batch is not None and epochs.at(place.log_offset) == place.epoch
                if batch is not None and counts and place.log_offset - at >= lowest and content.startswith(batch, at):
                    votes[place.log_offset - at] += len(batch)
                    step = len(batch)
            following = content.find(_MAGIC, at + MAGIC_AT + step)
            at = following - MAGIC_AT if following >= 0 else -MAGIC_AT - 1
        return sorted(votes, key=lambda start: (-votes[start], -start))[:4]

    # --- What must hold whatever the crash did --------------------------------------------------------------------

    def check_kept(self, found: Sequence[bytes], begin: int, *, flushed: int | None = None) -> None:
        """Everything that was said to be on disk is among `found`, and nothing that was not offered. `flushed`: only up
        to there."""
        flushed = self.flushed if flushed is None else min(self.flushed, flushed)
        at = begin
        for batch in found:
            header = read_header(batch)
            require(header.log_offset == at, f"a batch of {header.log_offset} was given out at {at}")
            require(self.offered.get(Place(at, header.epoch)) == batch, f"the batch at {at} is not what was appended")
            at += len(batch)
        require(at >= flushed, f"the log ends at {at}, and {flushed} was said to be on disk")
        require(self.base <= begin <= self.begin, f"the begin went to {begin}")
        kept, lived = b"".join(found), self.content(begin)
        same = max(0, min(len(kept), len(lived), flushed - begin))
        require(kept[:same] == lived[:same], "bytes below the flushed offset are not those that were appended")

    def check_nothing_lost(self, end: int) -> None:
        """After a kill the page cache is there: the end may be beyond what was taken, never before."""
        least = self.end if self.floor is None else self.floor
        require(end >= least, f"a kill left the end at {end}, and the log had taken {least}")

    def restart(
        self, found: Sequence[bytes], *, begin: int, flushed: int, confirmed: int, epochs: EpochList, lossy: bool
    ) -> None:
        """A log was opened that holds `found`: go on from there."""
        self.owes_loss, self.settling = lossy, False
        self.live = list(found)
        self.base = self.begin = begin
        self.end = begin + sum(map(len, found))
        self.flushed = flushed
        self.confirmed = confirmed
        self.epochs = [epochs]
        self.floor = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What recovery must find. `recorded`: the checkpoint on disk; `base`: where the log begins without one. `chain`:
    the batches of the log. `cut`: from the first to the end of the last whole batch behind it. `noted`: what earlier
    starts lost."""

    recorded: Checkpoint | None
    chain: tuple[bytes, ...]
    cut: tuple[int, int] | None
    noted: tuple[int, int] | None = None
    base: int = 0

    @property
    def begin(self) -> int:
        return self.recorded.begin if self.recorded is not None else self.base

    @property
    def end(self) -> int:
        return self.begin + sum(map(len, self.chain))

    @property
    def lost(self) -> tuple[int, int] | None:
        """From the first to the last of what this start loses."""
        confirmed = self.recorded.confirmed if self.recorded is not None else 0
        return _hull(self.cut, (self.end, confirmed) if self.end < confirmed else None)

    @property
    def lossy(self) -> bool:
        return self.lost is not None or self.noted is not None

    @property
    def reported(self) -> tuple[int, int] | None:
        """What the start must call cut: its own, or all that was lost when earlier ones have lost something too."""
        return _hull(self.noted, self.lost) if self.noted is not None else self.cut

    @property
    def owed(self) -> tuple[int, int] | None:
        """What the next start must report."""
        return _hull(self.noted, self.lost)


def recorded_checkpoint(content: bytes) -> Checkpoint | None:
    """The newest valid slot."""
    slots = [decode_slot(content[at : at + SLOT_BYTES], LOG_ID) for at in (0, SLOT_BYTES)]
    valid = [slot for slot in slots if slot is not None]
    return max(valid)[1] if valid else None


def noted_loss(content: bytes | None) -> tuple[int, int] | None:
    """What the note of a loss says; None without one."""
    if content is None:
        return None
    note = json.loads(content)
    return note["first"], note["last"]


def _hull(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
