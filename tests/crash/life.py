"""One process's life with a log on a simulated disk: random calls, jobs run at chosen moments, and an end.

Every call is told to the witness before and after. An operation that the log learns is added as a method and a line in
`MASTERS` or `MIRRORS`. Helper threads are played by the same thread: while a job runs, what the loop may do meanwhile
is done at the job's own disk operations.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import FlushJob
from mirrorlog.commitlog.format.envelope import EnvelopePart, seal_envelope
from mirrorlog.commitlog.format.header import ALIGNMENT, HEADER_SIZE, Kind, read_header, stamp, write_producer_part
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.recovery import FILE_NAME as LOSS_NAME
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.errors import BadBatch, DiskFailed, DiskFull
from sim.disk import DiskModel, Moment, SimulatedFiles
from sim.inode import Inode
from tests.commitlog.logs import mapped, stored
from tests.crash.crashes import Crashes, Opener
from tests.crash.finder import Finder, copy_past, with_inner
from tests.crash.lines import watching_lines
from tests.crash.witness import Place, Witness, require

JOBS_MAX: Final = 3


class Job(Protocol):
    def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Story:
    """What kind of life a seed leads. `durable_confirms`: only what is flushed is confirmed, as under flush=disk.
    `keeps_past`: the index of the past is kept beside the log. `begin`: of a copy that does not have all of its log.
    `transactions`: half of what is stored are envelopes."""

    disk: DiskModel
    segment_bytes: int
    batch_bytes_max: int
    steps: int
    point_chance: float
    line_chance: float
    durable_confirms: bool
    write_through: bool
    faults: bool
    kept_mapped_bytes: int
    keeps_past: bool
    begin: int
    prepare_bytes: int
    transactions: bool = False


def draw_story(random: Random) -> Story:
    keeps_past = random.random() < 0.3
    segment_bytes = random.choice([4096, 8192] if keeps_past else [4096, 8192, 16384, 65536])
    faults = random.random() < 0.3
    capacity = random.randrange(4, 10) * segment_bytes + 16384 if faults and random.random() < 0.3 else None
    return Story(
        disk=DiskModel(
            unit_bytes=random.choice([512, 4096]),
            ordered_names=random.random() < 0.5,
            write_back=random.choice([0.0, 0.05, 0.3]),
            forgets=random.random() < 0.5,
            capacity_bytes=capacity,
        ),
        segment_bytes=segment_bytes,
        batch_bytes_max=random.choice([400, 2000, segment_bytes]),
        # A past takes its time.
        steps=random.randrange(40, 100) if keeps_past else random.randrange(5, 40),
        point_chance=random.choice([0.01, 0.03] if keeps_past else [0.05, 0.1, 0.2]),
        line_chance=random.choice([0.0, 0.1] if keeps_past else [0.0, 0.1, 0.3]),
        durable_confirms=random.random() < 0.5,
        write_through=random.random() < 0.4,
        faults=faults,
        kept_mapped_bytes=random.choice([0, segment_bytes, 1 << 28]),
        keeps_past=keeps_past,
        begin=random.choice([0, 0, 0, 8000]),
        prepare_bytes=random.choice([0, 1 << 20]),
    )


class Life:
    """From the opening of a log to its crash or close. `over`: the log takes nothing more, or must not be asked to."""

    def __init__(
        self, disk: SimulatedFiles, witness: Witness, story: Story, *, open_log: Opener, random: Random,
        crashes: Crashes, cache_whole: bool,
    ) -> None:  # fmt: skip
        """`cache_whole`: the process before lost nothing that it had stored."""
        self.disk = disk
        self.over = False
        self.closed = False
        self._witness = witness
        self._story = story
        self._open = open_log
        self._random = random
        self._crashes = crashes
        self._flushes: list[FlushJob] = []
        self._run_flushes: list[FlushJob] = []
        self._is_master = random.random() < 0.5
        self._copying: Sequence[tuple[Inode, bytes]] = ()
        self._copy_watched = False
        self._beside_job = False
        self._began_whole = cache_whole
        # Bytes that were spoiled on their way stand before whole batches until they are checked.
        self._looks_lossy = False
        self._opened: CommitLog | None = None
        self._finder = Finder(crashes.past / "now" if crashes.past is not None else None, rotten=crashes.rotten)

    def run(self) -> None:
        """Lead the life up to its end; `disk` is then as its process left it, and `closed` says whether cleanly."""
        if self._crashes.past is not None:
            copy_past(self._crashes.past / "now", self._crashes.past / "before")
        self.disk.observer = self._at_operation
        try:
            self._start()
            for _ in range(self._story.steps):
                if self.over:
                    break
                self._step()
            if not self.over and self._random.random() < 0.3:
                self._close()
        finally:
            self.disk.observer = None
            self._finder.release()

    @property
    def write_failed(self) -> bool:
        """A part of what it was to store may be there."""
        return self._log.state is LogCondition.FAILED

    @property
    def cache_whole(self) -> bool:
        """Whether all that was stored can be read: not after a failed sync, when the kernel may forget it."""
        return not self.disk.sync_failed and (self._began_whole or self._opened is not None)

    @property
    def _log(self) -> CommitLog:
        assert self._opened is not None
        return self._opened

    # --- Beginning and end ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        found: list[bytes] = []
        self._opened = log = self._open(self.disk, found, self._finder)
        self._witness.restart(
            found, begin=log.begin, flushed=log.flushed, confirmed=log.confirmed, epochs=log.epochs,
            lossy=log.recovery.lossy,
        )  # fmt: skip
        if self._is_master:
            self._open_epoch()
        if self._story.faults:
            self._plan_faults()

    def _plan_faults(self) -> None:
        operation, code = self._random.choice(FAULTS)
        self.disk.faults.fail(operation, code, first=self._random.randrange(1, 12), times=self._random.choice([1, 3]))

    def _close(self) -> None:
        try:
            self._log.close()
        except DiskFailed:
            self.over = True
            return
        self.closed = self.over = True
        self._witness.flushed = self._witness.end
        self._finder.close()
        left = self.disk.after_power_loss()
        found: list[bytes] = []
        again = self._open(left, found)
        report = again.recovery
        require(report.clean or (self._witness.owes_loss and not report.torn), f"after a clean close: {report}")
        require((again.end, again.confirmed) == (self._witness.end, self._witness.confirmed), "a close lost something")

    # --- Steps ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        operations = MASTERS if self._is_master else MIRRORS
        operation = self._random.choices(list(operations), list(operations.values()))[0]
        try:
            try:
                self._do(operation)
            except DiskFull:
                require(self._log.state is LogCondition.OPEN, "a full disk is no failure")
            if not self.over:
                self._look()
        except DiskFailed:
            self.over = True

    def _do(self, operation: Callable[[Life], None]) -> None:
        if self._random.random() < self._story.line_chance:
            self._copy_watched = False
            with watching_lines(self._at_line):
                operation(self)
        else:
            operation(self)

    def _look(self) -> None:
        log, witness = self._log, self._witness
        state, expected = (log.end, log.confirmed), (witness.end, witness.confirmed)
        require(state == expected, f"end and confirmed are {state}, what was done to the log makes {expected}")
        require(log.epochs == witness.epochs[-1], "the epochs are not those that were stored")
        noted = self.disk.exists(witness.directory / LOSS_NAME)
        require(noted == witness.owes_loss or witness.settling, "a loss is noted or forgotten without a reason")
        if self._random.random() < 0.03:
            content = witness.content(log.begin)
            require(stored(log) == content and mapped(log) == content, "the log reads other bytes than it took")

    def _append(self) -> None:
        log = self._log
        if not log.epochs.current or log.epochs.at(log.end) != log.epochs.current:
            return
        if self._transacts():
            self._append_transaction(max(self._random.randrange(10**6), log.last_append_time_us))
            return
        batch = self._new_batch()
        time_us = self._random.randrange(10**6)
        stamped = self._stamped(batch, log.end, log.epochs.current, max(time_us, log.last_append_time_us))
        self._witness.offer(stamped)
        try:
            log.append(memoryview(batch), base_queue_offset=_queue_offset(log.end), append_time_us=time_us)
        except DiskFull:
            self._witness.refuse(stamped)
            raise
        self._take([stamped])

    def _append_transaction(self, time_us: int) -> None:
        log = self._log
        parts = self._parts(log.end)
        stamped = self._sealed(parts, log.end, log.epochs.current, time_us)
        self._witness.offer(stamped)
        try:
            log.append_transaction(parts, append_time_us=time_us)
        except DiskFull:
            self._witness.refuse(stamped)
            raise
        self._take([stamped])

    def _take(self, batches: Sequence[bytes]) -> None:
        self._witness.take(batches)
        for batch in batches:
            for header, _ in with_inner(batch):
                self._finder.add(header)

    def _append_run(self) -> None:
        batches = self._new_run()
        if not batches:
            return
        self._log.append_run(memoryview(b"".join(batches)), log_offset=self._log.end)
        self._take(batches)

    def _receive_in_place(self) -> None:
        batches = self._new_run()
        run = b"".join(batches)
        memory = self._log.place_for(len(run)) if run else None
        if memory is None:
            return
        spoiled, dropped = self._random.random() < 0.2, self._random.random() < 0.2
        self._looks_lossy = spoiled
        try:
            self._receive(memory, _with_a_flipped_bit(run, self._random) if spoiled else run)
            if dropped:
                self._log.drop_placed(memory)
            else:
                self._log.keep_placed(memory, log_offset=self._log.end)
                require(not spoiled, "a spoiled run was kept")
                self._take(batches)
        except BadBatch:
            require(spoiled, "a good run was refused")
        finally:
            self._looks_lossy = False

    def _receive(self, memory: memoryview, run: bytes) -> None:
        """As the kernel does: in pieces, in order."""
        at = 0
        while at < len(run):
            size = self._random.choice([64, 500, 4096])
            memory[at : at + size] = run[at : at + size]
            at += size
            self._maybe_crash(copying=True)
        self._copy_watched = False  # it was no copy of the log's, and in order

    def _confirm(self) -> None:
        limit = self._witness.flushed if self._story.durable_confirms else self._log.end
        point = self._random.choice([border for border in self._witness.borders() if border <= limit])
        self._witness.confirmed = max(self._witness.confirmed, point)
        self._log.set_confirmed(point)
        self._finder.confirm(self._log.confirmed)

    def _move_begin(self) -> None:
        """What stands below is needed for no queue's state any more, or for nothing: then its files are freed, and used
        again, once that is on disk."""
        borders = [border for border in self._witness.borders() if border <= self._witness.confirmed]
        state_from = self._random.choice(borders)
        self._log.set_state_from(state_from)
        if self._random.random() < 0.5:
            self._witness.move_start(self._random.choice([border for border in borders if border <= state_from]))
            self._log.move_start(self._witness.begin)

    def _measure_disk(self) -> None:
        """As the watch over the disk does: data may take so much more of it, and leaves so much to other batches."""
        segment_bytes = self._story.segment_bytes
        self._log.allow_bytes(self._random.choice([0, segment_bytes, 1 << 40, 1 << 40]))
        self._log.keep_reserve(self._random.choice([0, 0, 500, segment_bytes // 2]))

    def _seal(self) -> None:
        """As a helper does: jobs, one after the other, with the loop going on beside it."""
        with self._helping():
            self._finder.drop(self._log)
            self._crashes.counts["sealed"] += self._finder.seal(self._log)

    def _rot_table(self) -> None:
        """A bit of a table turns. It is found when it is read, or by who looks after the index."""
        tables = [path for path in sorted(self.disk.tree()) if path.name.endswith(".table")]
        if tables and self._crashes.past is not None:
            path = self._random.choice(tables)
            self.disk.flip_bit(path, self._random.randrange(len(self.disk.content(path))), self._random.randrange(8))
            self._finder.rotten = self._crashes.rotten = True
            if self._random.random() < 0.5:
                with self._helping():
                    self._finder.rebuild(self._log)

    def _look_up(self) -> None:
        witness = self._witness
        with disk_errors_named(witness.directory):
            self._finder.check(self._log, witness.live, self._random, freed_to=witness.freed_to)

    def _open_epoch(self) -> None:
        epoch = self._next_epoch()
        epochs = EpochList.of([*self._log.epochs.held(self._log.end), Epoch(epoch, self._log.end, "n1", "s")])
        self._store(epochs, lambda: self._log.open_epoch(epoch, node_id="n1", start_id="s"))

    def _adopt_epochs(self) -> None:
        beyond = self._log.end + self._random.choice([0, 0, 400, 5000])
        entries = [entry for entry in self._log.epochs.entries if entry.start <= beyond]
        epochs = EpochList.of([*entries, Epoch(self._next_epoch(), beyond, "n2", "t")])
        self._store(epochs, lambda: self._log.adopt_epochs(epochs.entries))

    def _store(self, epochs: EpochList, store: Callable[[], None]) -> None:
        self._witness.offer_epochs(epochs)
        try:
            store()
        except DiskFull:
            self._witness.refuse_epochs()
            raise
        self._witness.take_epochs()

    def _truncate(self) -> None:
        allowed = [border for border in self._witness.borders() if border >= self._witness.confirmed]
        point = self._random.choice(allowed[-6:])
        kept = [entry for entry in self._log.epochs.entries if entry.start < point]
        epochs = EpochList.of([*kept, Epoch(self._next_epoch(), point, "n3", "u")])
        self._witness.begin_cut(point, epochs)
        try:
            self._log.truncate(point, epochs.entries)
        except DiskFull:
            self._witness.refuse_cut(flushed=self._log.flushed)
            raise
        self._witness.end_cut()
        self._finder.cut(self._log.end)

    def _settle_loss(self) -> None:
        """Whoever looks after the log has compared it with other copies."""
        self._witness.settling = self._witness.owes_loss
        self._log.settle_loss()
        self._witness.settle()

    def _flush(self) -> None:
        job = self._log.start_flush(record=self._random.random() < 0.5)
        self._run(job)
        self._complete(job)

    def _start_flush(self) -> None:
        if len(self._flushes) + len(self._run_flushes) < JOBS_MAX:
            self._flushes.append(self._log.start_flush(record=self._random.random() < 0.5))

    def _run_flush(self) -> None:
        if self._flushes:
            job = self._flushes.pop(self._random.randrange(len(self._flushes)))
            try:
                self._run(job)
            finally:
                self._run_flushes.append(job)

    def _complete_flush(self) -> None:
        if self._run_flushes:
            self._complete(self._run_flushes.pop(self._random.randrange(len(self._run_flushes))))

    def _complete(self, job: FlushJob) -> None:
        flushed = self._log.complete_flush(job)
        require(self._witness.flushed <= flushed <= self._witness.end, f"flushed went to {flushed}")
        self._witness.flushed = flushed

    def _warm(self) -> None:
        job = self._log.start_warm()
        if job is not None:
            self._run(job)
            self._log.complete_warm(job)

    def _prepare(self) -> None:
        job = self._log.start_prepare(idle=self._random.random() < 0.5)
        if job is not None:
            self._run(job)
            self._log.complete_prepare(job)

    def _run(self, job: Job) -> None:
        """As a helper would, with the loop going on beside it."""
        with self._helping():
            job.run()

    @contextmanager
    def _helping(self) -> Iterator[None]:
        was_beside, self._beside_job = self._beside_job, True
        try:
            with disk_errors_named(self._witness.directory):
                yield
        finally:
            self._beside_job = was_beside

    # --- Moments --------------------------------------------------------------------------------------------------

    def _at_operation(self, moment: Moment) -> None:
        if self._beside_job and self._random.random() < 0.2:
            self._beside_job = False
            operations = MASTERS if self._is_master else MIRRORS
            try:
                self._random.choice([operation for operation in operations if operation in BESIDE_JOBS])(self)
            except DiskFull:
                pass
            finally:
                self._beside_job = True
        self._maybe_crash(copying=moment.when == "during")

    def _at_line(self) -> None:
        """In front of a line of the log: the line before it may have been a copy."""
        if self._copy_watched:
            self._copy_watched = False
            if any(inode.cache != before for inode, before in self._copying):
                self._crash(copying=True, since=self._copying)
        elif self._random.random() < 0.1:
            self._copying = self.disk.caches()
            self._copy_watched = True

    def _maybe_crash(self, *, copying: bool = False) -> None:
        if self._random.random() < self._story.point_chance:
            self._crash(copying=copying)

    def _crash(self, *, copying: bool = False, since: Sequence[tuple[Inode, bytes]] = ()) -> None:
        killed = self._random.random() < 0.4
        disk = self.disk.after_kill(copying_since=since) if killed else self.disk.after_power_loss(copying_since=since)
        kind = self._random.random()
        if kind < 0.1:
            self._crashes.check_flipped(disk)
        elif kind < 0.2:
            operation = self._random.choice(["pwrite", "fdatasync", "rename", "unlink", "create", "allocate", "pread"])
            code = self._random.choice([errno.EIO, errno.ENOSPC])
            self._crashes.check_faulty(disk, operation, self._random.randrange(1, 6), code)
        else:
            whole = killed and self.cache_whole and not self._looks_lossy
            # Until the log is open, what the process before left half written is there.
            self._crashes.check(disk, killed=whole, copying=copying or self._opened is None)

    # --- Material -------------------------------------------------------------------------------------------------

    def _new_batch(self) -> bytearray:
        size = self._random.choice([8, 200, self._story.batch_bytes_max - 200])
        value = bytearray(self._random.randbytes(self._random.randrange(max(1, size)) // 8 * 8))
        if len(value) > 1200 and self._random.random() < 0.3:
            value[100:1100] = bytes(1000)  # sectors that look as if nothing was written
        if self._witness.live and self._random.random() < 0.1:
            value = bytearray(self._random.choice(self._witness.live)[: self._story.batch_bytes_max - 200])
        return self._batch(bytes(value))

    def _batch(self, body: bytes, others: Sequence[Kind] = (Kind.QUEUE_STATE, Kind.CONTROL)) -> bytearray:
        """The log reads no body. As many records as units of 8 bytes, so that queue offsets are dense where a queue
        goes on, and leap where another one was in between."""
        batch = bytearray(HEADER_SIZE) + body
        data = self._random.random() < 0.9
        write_producer_part(
            batch,
            kind=Kind.DATA if data else self._random.choice(others),
            queue_id=self._random.choice([1, 1, 1, 2, 3]),
            record_count=_queue_offset(len(batch)) if data else 1,
            columns=0,
        )
        return batch

    def _stamped(self, batch: bytearray, log_offset: int, epoch: int, append_time_us: int) -> bytes:
        copy = bytearray(batch)
        stamp(
            copy, log_offset=log_offset, base_queue_offset=_queue_offset(log_offset), append_time_us=append_time_us,
            epoch=epoch, flags=0, seed=self._log.seed,
        )  # fmt: skip
        return bytes(copy)

    def _transacts(self) -> bool:
        return self._story.transactions and self._random.random() < 0.5

    def _new_stamped(self, log_offset: int, epoch: int, time_us: int) -> bytes:
        if self._transacts():
            return self._sealed(self._parts(log_offset), log_offset, epoch, time_us)
        return self._stamped(self._new_batch(), log_offset, epoch, time_us)

    def _parts(self, log_offset: int) -> list[EnvelopePart]:
        """What an envelope there holds; two or three batches at most, that fit as a whole."""
        parts: list[EnvelopePart] = []
        at = log_offset + HEADER_SIZE
        most = (self._story.batch_bytes_max - HEADER_SIZE) // 3 - HEADER_SIZE
        for _ in range(self._random.randrange(1, 4)):
            batch = self._batch(self._random.randbytes(self._random.randrange(most) // 8 * 8), (Kind.QUEUE_STATE,))
            parts.append(EnvelopePart(batch, _queue_offset(at)))
            at += len(batch)
        return parts

    def _sealed(self, parts: Sequence[EnvelopePart], log_offset: int, epoch: int, time_us: int) -> bytes:
        seed = self._log.seed
        return bytes(seal_envelope(parts, log_offset=log_offset, append_time_us=time_us, epoch=epoch, seed=seed)[0])

    def _new_run(self) -> list[bytes]:
        """What a master would send: the same bytes again where it has sent some before."""
        log = self._log
        batches: list[bytes] = []
        at, time_us = log.end, log.last_append_time_us
        for _ in range(self._random.choice([1, 1, 2, 6])):
            epoch = log.epochs.at(at)
            if not epoch:
                break
            known = self._witness.offered.get(Place(at, epoch))
            batch = known or self._new_stamped(at, epoch, time_us)
            following = [entry.start for entry in log.epochs.entries if entry.start > at]
            if following and at + len(batch) > following[0]:
                break  # an epoch begins at a border of its master's batches
            self._witness.offer(batch)
            batches.append(batch)
            at += len(batch)
            time_us = max(time_us, read_header(batch).append_time_us)
        return batches

    def _next_epoch(self) -> int:
        return max(self._witness.top_epoch, self._log.epochs.current) + 1


@contextmanager
def disk_errors_named(directory: Path) -> Iterator[None]:
    """As whoever runs the work of helpers does."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, "work in", directory) from None


def _queue_offset(log_offset: int) -> int:
    """The same in every history of the log, so that what was offered once can be offered again."""
    return log_offset // ALIGNMENT


def _with_a_flipped_bit(run: bytes, random: Random) -> bytes:
    spoiled = bytearray(run)
    spoiled[random.randrange(len(run))] ^= 1 << random.randrange(8)
    return bytes(spoiled)


Operation = Callable[[Life], None]
_BOTH: Final[dict[Operation, int]] = {
    Life._confirm: 3, Life._move_begin: 1, Life._flush: 4,
    Life._start_flush: 2, Life._run_flush: 2, Life._complete_flush: 2, Life._warm: 1,
    Life._prepare: 2, Life._settle_loss: 1, Life._seal: 3, Life._look_up: 1, Life._rot_table: 1,
}  # fmt: skip
FAULTS: Final = [
    ("fdatasync", errno.EIO), ("fdatasync", errno.ENOSPC), ("pwrite", errno.EIO), ("pwrite", errno.ENOSPC),
    ("pwritev", errno.EIO), ("pwritev", errno.ENOSPC), ("allocate", errno.EIO), ("allocate", errno.ENOSPC),
    ("create", errno.ENOSPC), ("rename", errno.EIO), ("rename", errno.ENOSPC), ("fsync_directory", errno.EIO),
    ("fsync_directory", errno.ENOSPC), ("unlink", errno.EIO), ("open", errno.EIO), ("pread", errno.EIO),
]  # fmt: skip
# How often each is drawn.
MASTERS: Final[dict[Operation, int]] = {Life._append: 14, Life._open_epoch: 1, Life._measure_disk: 1, **_BOTH}
MIRRORS: Final[dict[Operation, int]] = {
    Life._append_run: 8, Life._receive_in_place: 4, Life._adopt_epochs: 2, Life._truncate: 2, **_BOTH
}  # fmt: skip
# What the loop may do while a helper is at work.
BESIDE_JOBS: Final = frozenset({
    Life._append, Life._append_run, Life._confirm, Life._start_flush, Life._complete_flush, Life._move_begin
})  # fmt: skip
