"""What finds records beside a log: the index in memory and the past on a real disk, put together as a node does it.

The past is LMDB, which knows no simulated file, so it stands in a real directory: a kill leaves that as it is, without
the mark of a clean end; after a power loss it is there, gone, cut short, garbage, or as it was when the process began.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Kind, is_envelope, read_header
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.commitlog.index.past import Past, PastIndex, delete
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.tables import Tables, build_table
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.errors import IndexDoubtful
from tests.crash.witness import require

QUEUES = (1, 2, 3)
_ASKED = 4


class Finder:
    """Of one process. `path`: where its past stands, None for none. `rotten`: a table was damaged, and perhaps nobody
    has noticed."""

    def __init__(self, path: Path | None, *, rotten: bool = False) -> None:
        self.path = path
        self.rotten = rotten
        self._memory = QueueIndex()
        self._past: Past | None = None

    # --- As the log opens -----------------------------------------------------------------------------------------

    def open_past(self, tables: Tables) -> None:
        if self.path is not None:
            self._past = Past(PastIndex.open(self.path, tables), tables)
            for queue_id, (begin, following) in self._past.index.queues().items():
                self._memory.set_queue(queue_id, begin=begin, next_offset=following)
        for start, head in sorted(tables.heads.items()):
            self._memory.set_past(
                first=start, end=head.end, first_append_time_us=head.first_append_time_us, records=head.records
            )

    def add(self, header: BatchHeader) -> None:
        self._memory.add(header)

    def confirm(self, log_offset: int) -> None:
        self._memory.confirm(log_offset)

    def cut(self, log_offset: int) -> None:
        self._memory.cut(log_offset)

    # --- Into the past --------------------------------------------------------------------------------------------

    def seal(self, log: CommitLog) -> bool:
        """The next segment that can be sealed; False without one. Raises OSError."""
        segment = log.next_to_seal()
        if segment is None:
            return False
        start, end = segment
        pieces = self._memory.rows(max(start, log.begin), end)
        log.tables.store(start, end, build_table(pieces, start=start, end=end, seed=log.seed))
        if self._past is not None:
            with self._rebuilt_when_doubtful(log):
                self._past.add(start)
        log.seal(end)
        self._memory.evict(end)
        return True

    def drop(self, log: CommitLog) -> None:
        """The segments below the log's begin. Raises OSError."""
        with self._rebuilt_when_doubtful(log):
            for start in [start for start, head in log.tables.heads.items() if head.end <= log.begin]:
                if self._past is not None:
                    self._past.drop(start)
                else:
                    log.tables.remove(start)
        begins = self._past.index.start_offsets() if self._past is not None else {}
        self._memory.evict(log.begin)
        for queue_id in self._memory.queue_ids():
            begins.setdefault(queue_id, self._memory.hot_start(queue_id))
        self._memory.start_moved(log.begin, begins)

    def rebuild(self, log: CommitLog) -> None:
        """All of the past from the tables, and damaged tables from their segments. Raises OSError."""
        for start in sorted(log.tables.heads):
            log.check_table(start)
        if self._past is not None and self.path is not None:
            self.release()
            delete(self.path)
            self._past.index = PastIndex.open(self.path, self._past.tables)

    # --- The end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._past is not None:
            self._past.close()

    def release(self) -> None:
        """The process ends without closing it."""
        if self._past is not None:
            self._past.index._env.close()

    # --- What must hold -------------------------------------------------------------------------------------------

    def check(self, log: CommitLog, batches: Sequence[bytes], random: Random, *, freed_to: int) -> None:
        """Lookups by queue offset and time, and reads of what they give, are those of the list of `batches`, which the
        log holds. `freed_to`: tables may not speak of what stands below. Raises OSError."""
        batches = [batch for batch in batches if read_header(batch).log_offset >= max(log.begin, freed_to)]
        if self._past is None:
            return
        asked = False
        with self._rebuilt_when_doubtful(log):
            self._check(log, batches, random)
            asked = True
        if not asked:
            self._check(log, batches, random)

    @contextmanager
    def _rebuilt_when_doubtful(self, log: CommitLog) -> Iterator[None]:
        try:
            yield
        except IndexDoubtful as error:
            require(self.rotten, f"the index is doubtful, and nothing was damaged: {error}")
            self.rebuild(log)

    def _check(self, log: CommitLog, batches: Sequence[bytes], random: Random) -> None:
        stored = [each for batch in batches for each in with_inner(batch)]
        for queue_id in QUEUES:
            live = [
                (header, batch)
                for header, batch in stored
                if (header.queue_id, header.kind) == (queue_id, Kind.DATA) and header.log_offset < log.confirmed
            ]
            if live:
                self._check_queue(log, queue_id, live, random)

    def _check_queue(
        self, log: CommitLog, queue_id: int, live: Sequence[tuple[BatchHeader, bytes]], random: Random
    ) -> None:
        first, following = live[0][0].base_queue_offset, live[-1][0].next_queue_offset
        require(self._memory.next_confirmed(queue_id) == following, f"queue {queue_id} does not go on at {following}")
        for header, batch in random.sample(live, min(_ASKED, len(live))):
            offset = header.base_queue_offset + random.randrange(header.record_count)
            found = self._entries(queue_id, offset, 1)[:1]
            require(found == [_run(header)], f"{header.log_offset} holds {offset} of queue {queue_id}, not {found}")
            run = log.read(header.log_offset, 1, until=log.confirmed)
            content = log.read_cold(header.log_offset, 1, until=log.confirmed).run() if run is None else bytes(run)
            require(content == batch, f"the batch at {header.log_offset} reads differently")
            # Where the begin is in the middle of a segment, its table speaks of what stands before, too.
            at = max(self._find_time(queue_id, header.append_time_us), first)
            expected = next(h.base_queue_offset for h, _ in live if h.append_time_us >= header.append_time_us)
            require(at == expected, f"queue {queue_id} reaches the time of {header.log_offset} at {expected}, not {at}")
        read: list[QueuedBatch] = []
        at = first
        while at < following and (runs := self._entries(queue_id, at, random.randrange(1, 20_000))):
            read += runs
            at = runs[-1].next_queue_offset
        require(
            read == [_run(header) for header, _ in live], f"queue {queue_id} read on from {first} is not what it is"
        )

    def _entries(self, queue_id: int, offset: int, max_bytes: int) -> list[QueuedBatch]:
        """As a fetch asks: the memory, or the past and then the memory."""
        assert self._past is not None
        until = self._memory.past_until(queue_id, offset)
        if until is not None:
            if runs := self._past.entries(queue_id, offset, max_bytes, until=until):
                return runs
            offset = until
        return self._memory.entries(queue_id, offset, max_bytes)

    def _find_time(self, queue_id: int, time_us: int) -> int:
        assert self._past is not None
        found = self._memory.find_time(queue_id, time_us)
        past = self._past.find_time(queue_id, time_us) if self._memory.is_past_time(queue_id, time_us) else None
        return found if past is None else min(past, found)


def with_inner(batch: bytes) -> list[tuple[BatchHeader, bytes]]:
    """A stored batch, and what is inside of it when it is a transaction."""
    found = [(read_header(batch), batch)]
    at = HEADER_SIZE
    while is_envelope(found[0][0]) and at < len(batch):
        inner = read_header(batch, at)
        found.append((inner, batch[at : at + inner.length]))
        at += inner.length
    return found


def _run(header: BatchHeader) -> QueuedBatch:
    return QueuedBatch(header.log_offset, header.base_queue_offset, header.record_count, header.length)


def copy_past(path: Path, copy: Path) -> None:
    """The directory of a past as it is now; `copy` is replaced."""
    shutil.rmtree(copy, ignore_errors=True)
    with suppress(FileNotFoundError):
        shutil.copytree(path, copy)


def lose_power(path: Path, before: Path, random: Random) -> None:
    """What a power loss leaves of a past that nobody synced. `before`: a copy of it from before the process began."""
    data, mark = path / "data.mdb", path / "clean"
    if not data.exists():
        return
    content = data.read_bytes()
    kind = random.choice(["there", "gone", "cut", "garbage", "before", "mark of before"])
    if kind == "gone":
        shutil.rmtree(path)
    elif kind == "cut":
        data.write_bytes(content[: random.randrange(len(content) + 1)])
    elif kind == "garbage":
        at = random.randrange(len(content) + 1)
        data.write_bytes(content[:at] + random.randbytes(min(5000, len(content) - at)) + content[at + 5000 :])
    elif kind == "before":
        copy_past(before, path)
    elif kind == "mark of before" and (before / "clean").exists():
        mark.write_bytes((before / "clean").read_bytes())
