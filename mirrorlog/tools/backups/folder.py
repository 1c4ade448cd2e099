"""The folder of a backup: all that a running cluster held.

The folder has, of each log, the bytes that its copies have, from its begin up to a point that was confirmed when the
backup began, in files of some 64 MiB; what the cluster has decided; and the definitions, for people:

    backup.json                         what is here: sizes, checksums, log offsets
    unfinished.json                     the same of a run that has not come to its end
    <checksum>.state                    queues and their logs, exchanges, users with their hashes, policies
    <checksum>.definitions.json         as of `mqtool export-definitions`
    logs/<log id>/<log offset>.part     bytes of a log from that log offset on

A file is named once it is whole and on disk, and is listed after that. So what was cut short is not taken for a backup,
and the next run goes on from there; one that is complete is brought up to date by what came since, and stays as it
was until that is complete, too.

Why bytes and no records: queue offsets, headers, times, what groups have acknowledged and what they have not, and
producers' sequences are all in them, and checked as on every copy (decision 0063).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from mirrorlog import __version__
from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.files import OS_FILES, disk_error, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadInput, DirectoryInUse

MANIFEST: Final = "backup.json"
UNFINISHED: Final = "unfinished.json"
STATE: Final = "state"
DEFINITIONS: Final = "definitions.json"
FORMAT_VERSION: Final = 1
READ_BYTES: Final = 1024 * 1024
_PROGRESS_S: Final = 1.0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the folder, by its path in there."""

    file: str
    bytes: int
    crc32c: int
    first: int = 0


class KeptLog(msgspec.Struct, kw_only=True):
    """Log offsets [begin, end) of a log, in `parts`; of these the first may have some below `begin`."""

    id: str
    name: str
    number: int
    begin: int = 0
    end: int = 0
    epochs: list[tuple[int, int, str, str]] = []
    parts: list[Kept] = []

    @property
    def epoch_list(self) -> EpochList:
        return EpochList.of([Epoch(*each) for each in self.epochs])

    @property
    def held(self) -> int:
        """Up to where there are bytes."""
        return self.parts[-1].first + self.parts[-1].bytes if self.parts else self.begin


class Manifest(msgspec.Struct, kw_only=True):
    """What `backup.json` says. Times are seconds since 1970."""

    format_version: int = FORMAT_VERSION
    software: str = __version__
    cluster_id: str
    cluster_name: str
    cluster_version: int
    began: float = 0.0
    ended: float = 0.0
    logs: list[KeptLog] = []
    files: list[Kept] = []
    """The cluster's state and the definitions."""


class Folder:
    """A backup on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Against another run, made when absent. Raises DirectoryInUse, BadInput for a folder of something else."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = {each.name for each in self.path.iterdir()}
            if names - {"lock"} and not names & {MANIFEST, UNFINISHED}:
                raise BadInput(f"{self.path} holds something else than a backup: name a new folder")
            with (self.path / "lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DirectoryInUse(f"another backup or restore is at work in {self.path}") from None
                yield
        except OSError as error:
            raise disk_error(error, "use the backup", self.path) from None

    def read(self, name: str) -> Manifest | None:
        """None when nothing is there. Raises BadInput for what cannot be used."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_bytes())
            checksum = told.pop("checksum", None)
            if told.get("format_version") != FORMAT_VERSION:
                raise BadInput(
                    f"{path} is of format {told.get('format_version')}, this software reads {FORMAT_VERSION}"
                )
            if checksum != _checksum(told):
                raise BadInput(f"{path} is damaged: it is not what its checksum says")
            return msgspec.convert(told, Manifest)
        except (ValueError, AttributeError, msgspec.ValidationError) as error:
            raise BadInput(f"{path} is damaged: {error}") from None

    def write(self, name: str, manifest: Manifest) -> None:
        told = msgspec.to_builtins(manifest)
        content = json.dumps({**told, "checksum": _checksum(told)}, indent=1)
        replace_file(OS_FILES, self.path / name, content.encode())

    def keep(self, kind: str, content: bytes) -> Kept:
        """A file by its checksum: an earlier one stays."""
        kept = Kept(file=f"{crc32c(content):08x}.{kind}", bytes=len(content), crc32c=crc32c(content))
        replace_file(OS_FILES, self.path / kept.file, content)
        return kept

    def finish(self, manifest: Manifest) -> None:
        """It is the backup now; what was of an earlier one alone goes."""
        self.write(MANIFEST, manifest)
        (self.path / UNFINISHED).unlink(missing_ok=True)
        named = {part.file for log in manifest.logs for part in log.parts} | {each.file for each in manifest.files}
        for pattern in (f"*.{STATE}", f"*.{DEFINITIONS}", "logs/*/*"):
            for path in self.path.glob(pattern):
                if str(path.relative_to(self.path)) not in named:
                    path.unlink()

    def check(self, kept: Kept) -> None:
        """It is what it was. Raises BadInput."""
        path, found, size = self.path / kept.file, 0, 0
        try:
            with path.open("rb") as file:
                while piece := file.read(READ_BYTES):
                    found, size = crc32c(piece, found), size + len(piece)
        except FileNotFoundError:
            raise BadInput(f"{path} is missing") from None
        if (size, found) != (kept.bytes, kept.crc32c):
            raise BadInput(f"{path} is damaged: {size} bytes, {kept.bytes} were written, or others than these")


def _checksum(told: dict[str, Any]) -> int:
    return crc32c(json.dumps(told, sort_keys=True).encode())


class CopyingProgress:
    """Tells, once a second, how far something is, on stderr."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._told, self._done = what, total, time.monotonic(), 0

    def add(self, size: int) -> None:
        self._done += size
        if (now := time.monotonic()) - self._told >= _PROGRESS_S:
            self._told = now
            typer.echo(f"{self._what}: {self._done / 2**20:.1f} of {self._total / 2**20:.1f} MiB", err=True)
