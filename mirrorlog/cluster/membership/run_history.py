"""The runs of a node as its disk remembers them: by that a start knows whether it may have lost data (invariant 7).

The cluster knows one start id of each node, the last that was registered. The disk tells which one that can be, and
what the runs since may have lost. So a run is written down before it changes anything else on the disk, and what it is
worth stays written down until the cluster is known to have heard of it: a run may die before it hears that it is in,
and what it lost is lost.

The file `starts` in the node's directory is a `RecordFile` of a `RunRecord`, with the magic b"MLST".

Beside it `starts.failed`, an empty file: a disk failed in the last run. It is a name and no field, because a disk that
takes no more bytes may still take a name; and after a failure it is the page cache of this boot that lies, so the name
does its work also when it never reaches the disk. After another boot a run without a clean stop is lossy anyway.

Rejected: one file for each run (who removes them?), a clean mark of its own (two files to be kept in step), two slots
that are overwritten in place (a start is no hot path, and a file that is replaced can never be torn).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, Self
from uuid import uuid4

import msgspec

from mirrorlog.cluster.membership.record_file import RecordFile
from mirrorlog.cluster.state.commands import StartKind
from mirrorlog.commitlog.files import Files, disk_named, replace_file
from mirrorlog.versions import run_id

logger = logging.getLogger(__name__)

FILE_NAME: Final = "starts"
FAILED_NAME: Final = "starts.failed"
SINCE_MAX: Final = 1_000
"""Of the runs that may be registered the newest are remembered. Forgetting one is safe: should it be the one that the
cluster knows, the disk counts as set back, and nothing on it does. It does not happen to a node that can speak to the
cluster, for then one of the newest is registered, nor to one that never could, for then it is `before`."""
FILE_BYTES_MAX: Final = 1024 * 1024
"""What is larger is no file of ours: a thousand runs take 40 KiB."""
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")

_FROM_BEST: Final = (StartKind.CLEAN, StartKind.DIED, StartKind.LOSSY)


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the file says. `before`: the last run that is known to be registered; `since`: the runs after it, the last
    one included; `kind`: the worst of these; `damaged`: logs whose copies lost something in them, or after they were
    registered; `boot_id`: of the last run; `clean`: the run that stopped cleanly."""

    before: str = ""
    since: tuple[str, ...] = ()
    kind: StartKind = StartKind.CLEAN
    damaged: tuple[str, ...] = ()
    boot_id: str = ""
    clean: str = ""

    @property
    def last(self) -> str:
        """The last run that began; empty on a blank disk."""
        return self.since[-1] if self.since else self.before


class RunHistory:
    """This run, and what the disk knows of those before. `start_id`: of this run; `kind`: the worst of those in `since`
    and this one.

    Every method blocks; any thread may call them. In this order: `begin`, before anything else is written; `damage` and
    `disk_failed` whenever; `registered` once; `stopped` as the last thing.
    """

    def __init__(
        self, files: Files, directory: Path, *, record: RunRecord, start_id: str, boot_id: str, kind: StartKind
    ):
        """`open` makes one."""
        self.start_id = start_id
        self.kind = kind
        self._files = files
        self._directory = directory
        self._record = record
        self._boot_id = boot_id
        self._begun = False
        self._failed = False
        self._unwritten = False
        self._lock = Lock()

    @classmethod
    def open(
        cls, files: Files, directory: Path, *, boot_id: str, new_id: Callable[[], str] = lambda: run_id(str(uuid4()))
    ) -> Self:
        """Read what the runs before left in `directory`; nothing is written yet. No file: a blank disk's first run.

        `boot_id`: see `own_boot_id`. Raises LogCorrupt when the file is damaged, UnsupportedVersion for what a newer
        version wrote, DiskFailed.
        """
        with disk_named("read", directory / FILE_NAME):
            record = RECORD_FILE.read(files, directory / FILE_NAME) or RunRecord()
            failed = files.exists(directory / FAILED_NAME)
        kind = _worse(record.kind, _own_kind(record, boot_id, failed=failed))
        return cls(files, directory, record=record, start_id=new_id(), boot_id=boot_id, kind=kind)

    @property
    def before(self) -> str:
        """The start id of the last run that is known to be registered; empty when none is."""
        return self._record.before

    @property
    def since(self) -> tuple[str, ...]:
        """The start ids of the runs between that one and this one, oldest first: any of them may be registered."""
        return tuple(each for each in self._record.since if each != self.start_id)

    @property
    def known(self) -> tuple[str, ...]:
        """The start ids of former runs that the cluster may know this node by."""
        return tuple(run for run in (self.before, *self.since) if run)

    @property
    def damaged(self) -> tuple[str, ...]:
        """The ids of logs whose copy lost something, and of which the cluster is not known to have heard; sorted."""
        return self._record.damaged

    def begin(self) -> None:
        """This run is written down, and the last one's clean mark is gone, on disk when this returns; before the
        node's first write. What `open` read is on disk then too.

        Raises DiskFull, DiskFailed: then the node must not write; it may call this again.
        """
        with self._lock:
            record = msgspec.structs.replace(
                self._record,
                since=(*self.since, self.start_id)[-SINCE_MAX:],
                kind=self.kind,
                boot_id=self._boot_id,
                clean="",
            )
            self._write(record)
            self._record, self._begun = record, True
            # The failure is in `kind` now. Should the name come back after a power loss, then so be it: what is lossy
            # twice is asked for twice.
            path = self._directory / FAILED_NAME
            with disk_named("remove", path):
                if self._files.exists(path):
                    self._files.unlink(path)

    def registered(self, damaged: Iterable[str] = ()) -> None:
        """The cluster knows of this run, and that the logs in `damaged` are: those that the registration named. What
        was damaged since it was sent stays for the next start, and so does a disk that failed. On disk when this
        returns.

        Raises DiskFull, DiskFailed: then the next start may tell once more what this one told, which is safe.
        """
        told = set(damaged)
        with self._lock:
            assert self._begun, "a run must begin before it is registered"
            self._record = msgspec.structs.replace(
                self._record,
                before=self.start_id,
                since=(),
                kind=StartKind.CLEAN,
                damaged=tuple(each for each in self._record.damaged if each not in told),
            )
            self._write(self._record)

    def damage(self, log_ids: Iterable[str]) -> None:
        """The copies of these logs lost something, or were found to have: an end below what they had recorded as
        confirmed, an fsync that failed. On disk when this returns; nothing is written for what is known.

        Raises DiskFull, DiskFailed: it is remembered in memory then, and written with whatever comes next.
        """
        with self._lock:
            assert self._begun, "a run must begin before it writes"
            damaged = tuple(sorted({*self._record.damaged, *log_ids}))
            if damaged != self._record.damaged or self._unwritten:
                self._record = msgspec.structs.replace(self._record, damaged=damaged)
                self._write(self._record)

    def disk_failed(self) -> None:
        """What the page cache holds can no longer be trusted: the next start is lossy, as far as this disk can still be
        told so, and this one too if it is not registered yet. It will not have stopped cleanly. Raises nothing."""
        with self._lock:
            self._failed, self.kind = True, StartKind.LOSSY
            path = self._directory / FAILED_NAME
            try:
                self._files.open(path, create=True).close()
                self._files.fsync_directory(self._directory)
            except OSError as error:
                logger.error("disk_failure_not_noted path=%s reason=%r", path, str(error))

    def stopped(self) -> None:
        """The clean mark, on disk when this returns. Everything else of this node must be on disk before it is called,
        and nothing may be written after it. After `disk_failed` there is none, and nothing happens.

        Raises DiskFull, DiskFailed: then the next start may count as unclean.
        """
        with self._lock:
            assert self._begun, "a run must begin before it stops"
            if not self._failed:
                self._record = msgspec.structs.replace(self._record, clean=self.start_id)
                self._write(self._record)

    def _write(self, record: RunRecord) -> None:
        path = self._directory / FILE_NAME
        self._unwritten = True
        with disk_named("write", path):
            replace_file(self._files, path, RECORD_FILE.encode(record))
        self._unwritten = False


def own_boot_id(path: Path = BOOT_ID_PATH) -> str:
    """Which boot of this machine it is: a process that died in the same one left its writes in the page cache.

    In a container it is the host's, which is right: so is the page cache. When it cannot be read every call gives
    another one, so that each unclean start counts as lossy.
    """
    with suppress(OSError, UnicodeDecodeError):
        if boot_id := path.read_text(encoding="ascii").strip():
            return boot_id
    logger.warning("boot_id_unknown path=%s effect=%r", path, "each start after an unclean stop counts as lossy")
    return str(uuid4())


# --- What a start is worth ------------------------------------------------------------------------------------------


def _own_kind(record: RunRecord, boot_id: str, *, failed: bool) -> StartKind:
    """Of a start on what the last run left, that run alone."""
    if failed:
        return StartKind.LOSSY
    if record.clean == record.last:  # or nobody ran here yet
        return StartKind.CLEAN
    return StartKind.DIED if record.boot_id == boot_id else StartKind.LOSSY


def _worse(one: StartKind, other: StartKind) -> StartKind:
    return max(one, other, key=_FROM_BEST.index)


# --- The file -------------------------------------------------------------------------------------------------------


RECORD_FILE: Final = RecordFile(
    b"MLST",
    RunRecord,
    FILE_BYTES_MAX,
    "remove it, then the node counts as set back to an earlier state and what it holds is compared with the other "
    "copies",
)
