"""The commit log of one placement on one node: opening it, appending to it, and changing hands: epochs and cuts.

What it holds, and the work that its files need, is `stored_log`'s, with the rule of who may call what on which thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from mirrorlog.commitlog.directory import FORMAT_VERSION, NUMBER
from mirrorlog.commitlog.epochs import EpochLike, EpochList, load_epochs, store_epochs
from mirrorlog.commitlog.files import OS_FILES, Files, disk_error, was_refused
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.format.envelope import EnvelopePart, envelope_bytes, open_envelope, seal_envelope
from mirrorlog.commitlog.format.header import (
    HEADER_SIZE,
    BatchHeader,
    Flag,
    Kind,
    batch_length,
    check_body,
    check_stamped,
    log_seed,
    read_header,
    stamp,
)
from mirrorlog.commitlog.index.table import table_start
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.opening import FirstState, OnPast, open_directory
from mirrorlog.commitlog.segments.scan import OnBatch, without_advice, zero_out
from mirrorlog.commitlog.segments.segment import segment_name, segment_start
from mirrorlog.commitlog.stored_log import StoredLog
from mirrorlog.config import LogSettings
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    DiskFailed,
    DiskFull,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
)

# Plain numbers: an operation with a member of an enum takes a microsecond.
_INNER: Final = int(Flag.INNER)
_TRANSACTION: Final = int(Kind.TRANSACTION)


class CommitLog(StoredLog):
    """A log that changes: a master appends to it, a mirror follows its master's copy."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        log_id: UUID,
        cluster_id: UUID,
        name: str,
        settings: LogSettings,
        max_batch_bytes: int,
        on_batch: OnBatch,
        on_past: OnPast = lambda tables: None,
        on_recorded: Callable[[int], None] = lambda confirmed: None,
        number: int = 0,
        begin: int = 0,
        first_epochs: Iterable[EpochLike] = (),
        write_through: bool = False,
        files: Files = OS_FILES,
        corrupt: LogCorrupt | None = None,
    ) -> CommitLog:
        """Open the log in `directory`, made when absent; blocking. `on_past` is given the tables of the sealed
        segments, then `on_batch` every batch behind them; together that is what the log holds. `on_recorded` is told
        before them what this copy knew to be confirmed; it may hold less.

        `number`: of the log in its cluster, kept with it.
        `begin`, `first_epochs`: of a log that is made now, a mirror's that starts behind the log's first byte.
        `write_through`: its confirms wait for the disk, so batches are stored by pwrite (see `chain`).
        `max_batch_bytes` limits what a mirror takes in; what is stored already may be larger.
        `corrupt`: what was raised at the first attempt, with its range: the log opens as DAMAGED, and no file changes.
        Raises ForeignDirectory, LogCorrupt (nothing was changed on disk but tables, which are derived), DiskFull or
        DiskFailed.
        """
        identity: dict[str, str | int] = {
            "format_version": FORMAT_VERSION, "cluster_id": str(cluster_id), "log_id": str(log_id), "name": name,
            NUMBER: number,
        }  # fmt: skip
        try:
            opened = open_directory(
                files,
                directory,
                identity=identity,
                log_id=log_id,
                seed=log_seed(log_id),
                settings=settings,
                max_batch_bytes=max_batch_bytes,
                first=FirstState(begin, EpochList.of(first_epochs)),
                write_through=write_through,
                on_past=on_past,
                on_recorded=on_recorded,
                on_batch=on_batch,
                corrupt=_range_of(corrupt) if corrupt is not None else None,
            )
        except OSError as error:
            raise disk_error(error, "open the log in", directory) from None
        return cls(opened, log_id=log_id, name=name, max_batch_bytes=max_batch_bytes, files=files)

    # --- Append -------------------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, *, base_queue_offset: int, append_time_us: int, flags: int = 0) -> BatchHeader:
        """Master: stamp one checked batch (`check_producer_part`) with the current epoch and store it.

        The append time is raised to the last one where the clock went back. Raises BadBatch, BatchTooLarge, BadRequest
        before an epoch was opened, DiskFull, DiskFailed, LogUnavailable; nothing has changed then.
        """
        self._require_writable()
        if batch_length(batch) != len(batch):
            raise BadBatch(f"{len(batch)} bytes are not one batch: its header says {batch_length(batch)}")
        append_time_us = max(append_time_us, self.last_append_time_us)
        header = self._store(batch, base_queue_offset, append_time_us, flags)
        self._appended_at(append_time_us)
        return header

    def append_copied(self, batch: memoryview) -> BatchHeader:
        """Master: store a batch of this log, as it was read from it, once more at the end, with flag `copied`.

        It keeps all that it said of its records: queue offsets, append time, the producer's part. The log's own time
        does not go back by it. Raises BadBatch for bytes that do not match their CRC, else as `append`.
        """
        self._require_writable()
        former = read_header(batch)
        check_body(batch, 0, former)
        flags = (former.flags | Flag.COPIED) & ~Flag.INNER
        header = self._store(batch[: former.length], former.base_queue_offset, former.append_time_us, flags)
        self._appended_at(former.append_time_us)
        return header

    def _store(self, batch: memoryview, base_queue_offset: int, append_time_us: int, flags: int) -> BatchHeader:
        """Stamp a batch with the current epoch and place it at the end. Raises as `append`."""
        if len(batch) > self.max_batch_bytes:
            raise BatchTooLarge(f"a batch of {len(batch)} bytes is above max_batch_bytes ({self.max_batch_bytes})")
        header = bytearray(batch[:HEADER_SIZE])
        stamp(
            header,
            log_offset=self.end,
            base_queue_offset=base_queue_offset,
            append_time_us=append_time_us,
            epoch=self._open_epoch(),
            flags=flags,
            seed=self.seed,
        )
        self._place(header, batch[HEADER_SIZE:])
        return read_header(header)

    def _place(self, header: bytearray | memoryview, body: memoryview) -> None:
        try:
            self._chain.place(header, body)
        except DiskFailed as error:
            self._flusher.fail(error)
            raise

    def append_transaction(
        self, parts: Sequence[EnvelopePart], *, append_time_us: int
    ) -> tuple[list[BatchHeader], bytearray]:
        """Master: store checked batches of several queues in one envelope (`envelope`): all of them, or none. The
        headers as stamped, the envelope's first, and its bytes. Raises as `append`."""
        self._require_writable()
        size = envelope_bytes([part.batch for part in parts])
        if size > self.max_batch_bytes:
            raise BatchTooLarge(f"a transaction of {size} bytes is above max_batch_bytes ({self.max_batch_bytes})")
        envelope, headers = seal_envelope(
            parts,
            log_offset=self.end,
            append_time_us=max(append_time_us, self.last_append_time_us),
            epoch=self._open_epoch(),
            seed=self.seed,
        )
        content = memoryview(envelope)
        self._place(content[:HEADER_SIZE], content[HEADER_SIZE:])
        self._chain.note_inside([header.log_offset for header in headers[1:]])
        self._appended_at(headers[0].append_time_us)
        return headers, envelope

    def append_run(self, run: memoryview, *, log_offset: int) -> list[BatchHeader]:
        """Mirror: store 1..n whole batches as its master stamped them; `log_offset` is where they must stand, the end.

        All of the run is checked before any of it is kept: a bad batch keeps nothing. The headers are in log order, of
        a transaction also those inside. Raises BadBatch, BatchTooLarge, DiskFull, DiskFailed, LogUnavailable; nothing
        has changed then.
        """
        self._require_writable()
        if log_offset != self.end:
            raise BadBatch(f"a run from log offset {log_offset} does not follow the end, {self.end}")
        headers = check_run(
            run, log_offset=log_offset, seed=self.seed, epochs=self.epochs, max_batch_bytes=self.max_batch_bytes
        )
        lengths, inside = _units(headers)
        try:
            self._chain.place_run(run, lengths)
        except MirrorlogError as error:
            self._undo_run(log_offset, error)
            self._tail_moved()
            raise
        if inside:
            self._chain.note_inside(inside)
        self._appended_at(headers[-1].append_time_us)
        return headers

    def place_for(self, length: int) -> memoryview | None:
        """Mirror: memory at the end in which a run of `length` bytes may be received, then kept by `keep_placed` or
        given up by `drop_placed`; None when it must come from elsewhere. Nothing else may be appended meanwhile."""
        self._require_writable()
        return self._chain.room_view(length)

    def keep_placed(self, run: memoryview, *, log_offset: int) -> list[BatchHeader]:
        """Mirror: as `append_run`, of the bytes received in the memory of `place_for`; bad ones are zeroed."""
        self._require_writable()
        try:
            headers = check_run(
                run, log_offset=log_offset, seed=self.seed, epochs=self.epochs, max_batch_bytes=self.max_batch_bytes
            )
        except BadBatch:
            self.drop_placed(run)
            raise
        lengths, inside = _units(headers)
        self._chain.keep(lengths)
        if inside:
            self._chain.note_inside(inside)
        self._appended_at(headers[-1].append_time_us)
        return headers

    def drop_placed(self, run: memoryview) -> None:
        """Mirror: what was received there will not be kept. Zeros end a log; bytes that are no batch look torn."""
        self._chain.lent = False
        # From the back, in steps smaller than any batch: a process that is killed in it leaves whole batches in front,
        # and never one behind bytes that are none.
        for end in range(len(run), 0, -HEADER_SIZE):
            begin = max(0, end - HEADER_SIZE)
            run[begin:end] = bytes(end - begin)

    def _appended_at(self, append_time_us: int) -> None:
        self._tail_moved()
        self.last_append_time_us = max(self.last_append_time_us, append_time_us)
        self._chain.active.last_append_time_us = self.last_append_time_us

    def _tail_moved(self) -> None:
        active = self._chain.active
        self.end, self.active_start = active.end, active.start

    def _undo_run(self, log_offset: int, error: MirrorlogError) -> None:
        """A roll inside a run failed: what was placed before it goes, since nobody was told of its headers."""
        if isinstance(error, DiskFailed):
            self._flusher.fail(error)
        if self._chain.end != log_offset:
            # Else batches stand there that nobody was told of, and the log cannot go on behind them.
            with self._whole("undo an append in"):
                self._chain.cut(log_offset)

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """What must not end half done: a full disk is a failure here. Raises DiskFailed."""
        try:
            with self._flusher.disk(what):
                yield
        except (DiskFull, DiskFailed) as error:
            failed = DiskFailed(error.message, **error.details)
            self._flusher.fail(failed)
            raise failed from None

    def _open_epoch(self) -> int:
        """The epoch that writes at the log's end. Raises BadRequest when it is not the list's last one."""
        entries = self.epochs.entries
        if not entries or entries[-1].start > self.end:
            raise BadRequest("no epoch is open at the log's end; open one before appending as its master")
        return entries[-1].epoch

    def _require_writable(self) -> None:
        if self._flusher.failure is not None:
            raise self._flusher.failure
        if self._closed:
            raise LogUnavailable(f"log {self.name} is closed")
        if self.recovery.corrupt is not None:
            raise LogCorrupt(f"log {self.name} is damaged at {self.recovery.corrupt}; it takes nothing")

    # --- Epochs and truncation ----------------------------------------------------------------------------------------

    def open_epoch(self, epoch: int, *, node_id: str = "", start_id: str = "") -> None:
        """Master: `epoch` writes from the end on, by this start of this node; on disk when this returns. Blocking.

        Raises BadRequest for an epoch that is not new, DiskFull, DiskFailed; the list is then as before.
        """
        self._require_writable()
        with self._flusher.disk("store the epochs of"):
            self._store_epochs(self.epochs.opened(epoch, self.end, node_id=node_id, start_id=start_id))

    def adopt_epochs(self, entries: Iterable[EpochLike]) -> None:
        """Mirror: take over its master's whole list; on disk when this returns. Blocking.

        Raises BadRequest when the list gives other epochs to bytes that are held (truncate first),
        DiskFull, DiskFailed.
        """
        self._require_writable()
        epochs = EpochList.of(entries)
        if not epochs.agrees_below(self.end, self.epochs):
            raise BadRequest(
                f"the epoch list does not fit the bytes below {self.end}; truncate to the common point first"
            )
        if epochs != self.epochs:
            with self._flusher.disk("store the epochs of"):
                self._store_epochs(epochs)

    def truncate(self, log_offset: int, entries: Iterable[EpochLike], *, lost: bool = False, state: int = 0) -> None:
        """Mirror: cut everything from `log_offset` on and take over `entries`; on disk when this returns. Blocking.

        `lost`: also what is confirmed and what is sealed, because it is lost by what the cluster has decided. Then all
        that stays has to be flushed before, and the log to be closed and opened again after it; `state`: where the
        newest checkpoint of the queues' state begins that is complete below `log_offset`, 0 for none.

        Raises BadRequest below the confirmed offset or, when `lost`, below the start offset, where no batch begins, and
        when `entries` do not fit what stays; DiskFull: nothing was cut, and it can be asked for again; DiskFailed;
        LogCorrupt when what stays cannot be read. Jobs that are out are void, views that are out may change under their
        reader."""
        self._require_writable()
        epochs = EpochList.of(entries)
        self._check_cut(log_offset, lost=lost)
        if not epochs.agrees_below(log_offset, self.epochs):
            raise BadRequest(f"the epoch list does not fit the bytes below {log_offset}")
        # Each step leaves a log that opens. 0: what the system may refuse is asked for; until the new list is stored a
        # refusal leaves the log as it was, but for what it claims to have flushed. 1: nothing below the flushed offset
        # may be missing later, so it is lowered first, and a confirmed offset with it. 2: under the new list the bytes
        # to be cut count no more. 3: they go; what a crash leaves of them is a torn tail.
        with self._flusher.disk("truncate"), self._flusher.lock:
            self._chain.prepare_cut(log_offset)
            stored = self._flusher.stored
            # The newest state checkpoint may be confirmed, and not be on this disk.
            confirmed, state = (min(self.confirmed, log_offset), state) if lost else (self.confirmed, stored.state)
            flushed = min(max(self.flushed, stored.flushed), log_offset)
            self._flusher.lower(Checkpoint(self.begin, flushed, confirmed, state))
            self.flushed = flushed
            self._store_epochs(epochs)
            if lost:
                self.confirmed, self._state_from = confirmed, state
            # With the new list and the old bytes the log would speak of a history that never was.
            with self._whole("truncate"):
                self._unseal(log_offset)
                self._chain.cut(log_offset)
            self._tail_moved()
            # A flush that the loop asked for meanwhile has the old end as its target.
            self._flusher.void()
            self._cooled()

    def cut_damage(self, *, state: int) -> None:
        """A damaged log: everything from its first bad byte on goes, set aside before; on disk when this returns.
        Blocking. Then the log has to be closed and opened again. `state`: as for `truncate`.

        It starts lossy until `settle_loss`. Raises BadRequest for a sound log, DiskFull and DiskFailed; what a crash
        leaves half done is damaged still, or lossy.
        """
        if self.recovery.corrupt is None:
            raise BadRequest(f"log {self.name} is not damaged: there is nothing to cut")
        begin, flushed, confirmed, _ = self._flusher.stored
        with self._flusher.disk("cut the bad bytes of"), self._flusher.lock:
            # In this order: while bytes are missing below the flushed offset the log is damaged, and found to be.
            self._loss.note(self.recovery)
            self._remove_behind(self.end)
            lowered = Checkpoint(begin, min(flushed, self.end), min(confirmed, self.end), min(state, self.end))
            self._flusher.lower(lowered)
            self._zero_from(self.end)
            self._doubt.settle()

    def _remove_behind(self, log_offset: int) -> None:
        """Files that begin there or behind it, and tables that speak of anything there. Raises OSError."""
        holder = self._chain.active.start
        for name in self._files.listdir(self.directory):
            start, table = segment_start(name), table_start(name)
            behind = start is not None and start >= log_offset and start > holder
            if behind or (table is not None and table >= holder):
                self._files.unlink(self.directory / name)
        self._files.fsync_directory(self.directory)

    def _zero_from(self, log_offset: int) -> None:
        """The bytes of the file that holds it, if it is there. Raises OSError."""
        start = self._chain.active.start
        path = self.directory / segment_name(start)
        if self._files.exists(path):
            with closing(self._files.open(path)) as file:
                zero_out(file, log_offset - start, file.size())
                file.fdatasync()

    def _check_cut(self, log_offset: int, *, lost: bool) -> None:
        if log_offset < self.begin:
            raise BadRequest(f"log offset {log_offset} is below the begin, {self.begin}")
        if log_offset < self.confirmed and not lost:
            raise BadRequest(f"log offset {log_offset} is confirmed (up to {self.confirmed}) and cannot be cut")
        if not (self._chain.is_border(log_offset) or self._is_border_on_disk(log_offset)):
            raise BadRequest(f"log offset {log_offset} is not where a batch begins")

    def _is_border_on_disk(self, log_offset: int) -> bool:
        """As `is_border`, within a sealed segment; blocking."""
        if not self._chain.is_sealed(log_offset):
            return False
        at = max(self.begin, self._chain.find(log_offset).start)

        def pass_by(header: BatchHeader, batch: memoryview) -> None:
            nonlocal at
            at = header.next_log_offset

        self.scan(at, pass_by, until=log_offset)
        return at == log_offset

    def _unseal(self, log_offset: int) -> None:
        """What a cut there reaches is of the past no more. Raises OSError."""
        reached = [segment for segment in self._chain.segments if segment.sealed and segment.end > log_offset]
        for segment in reached:
            self.tables.remove(segment.start)
            segment.sealed = False
        if reached:
            # A table that came back after a crash could be taken for one of what is written there next.
            assert self._chain.names is not None
            self._chain.names.sync()

    def _store_epochs(self, epochs: EpochList) -> None:
        try:
            store_epochs(self._files, self.directory, epochs)
        except OSError as error:
            if was_refused(error):
                raise  # the old one stands
            # Appended under the old list, batches would not count under the new one.
            with self._whole("store the epochs of"):
                if load_epochs(self._files, self.directory) != self.epochs:
                    raise
            raise
        self.epochs = epochs


def check_run(
    run: memoryview, *, log_offset: int, seed: int, epochs: EpochList, max_batch_bytes: int
) -> list[BatchHeader]:
    """The headers of the 1..n batches of `run`, each checked whole: header, body, place, and the epoch that the list
    gives there; behind the header of a transaction those of what is inside. Raises BadBatch."""
    headers: list[BatchHeader] = []
    at = 0
    while at < len(run) or not headers:
        place = log_offset + at
        header = check_stamped(run, at, log_offset=place, seed=seed, max_batch_bytes=max_batch_bytes)
        # Nearly always the last one.
        newest = epochs.entries[-1] if epochs.entries else None
        is_newest = newest is not None and newest.start <= place and newest.epoch == header.epoch
        if not is_newest and header.epoch != epochs.at(place):
            raise BadBatch(f"epoch {header.epoch} at log offset {place}, the epoch list has {epochs.at(place)}")
        check_body(run, at, header)
        if header.flags & _INNER:
            raise BadBatch(f"the batch at log offset {place} belongs to a transaction that does not begin there")
        headers.append(header)
        if header.kind == _TRANSACTION:
            headers += open_envelope(run[at : at + header.length], header, seed=seed)
        at += header.length
    return headers


def _units(headers: Sequence[BatchHeader]) -> tuple[list[int], list[int]]:
    """The lengths of those that are copied and cut as a whole, and where others begin inside of them."""
    lengths: list[int] = []
    inside: list[int] = []
    for header in headers:
        if header.flags & _INNER:
            inside.append(header.log_offset)
        else:
            lengths.append(header.length)
    return lengths, inside


def _range_of(error: LogCorrupt) -> Range:
    return Range(error.details["first"], error.details["last"], without_advice(error))
