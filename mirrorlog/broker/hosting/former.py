"""Former copies: what a node still has on its disk of logs that the cluster does not name it for any more.

A copy that was replaced while its node was away, one that was retired, one of a log that was removed. Nobody reads or
changes it. It is kept for a while, for two reasons: the log may be wanted on this node again, and goes on with what is
there instead of fetching all of it anew; and an operator may want to look at it. Then it is freed: by command, or when
it was a former one for `cluster.former_keep_ms`.

Nothing is freed that may be the last there is: not while the cluster names it, and not while no other node is up with
a whole copy of its log in sync. That is judged by what was decided up to that moment. A copy of a log of which the
cluster knows nothing, and that was not seen to go, is freed only by its name: the cluster may have been recovered from
an older state, and then it is all that is left of that log.

Since when a copy is a former one stands in the file `former` in the node's directory: a start changes nothing in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.operators import FormerFreed, FormerKept
from mirrorlog.wire.messages.status import FormerStatus

logger = logging.getLogger(__name__)

FILE_NAME: Final = "former"
LOOK_S: Final = 10.0
"""How often is looked which copies there are, and which are due."""
COPIES_MAX: Final = 1000
"""So many are told of and noted; more are found once these are freed."""
GOING: Final = ".freed"
"""A directory of this name is going: a start goes on with it."""

_FILE_BYTES_MAX: Final = 1024 * 1024


class Note(msgspec.Struct, frozen=True):
    """Of a former copy. `since_us`: µs UTC; `seen`: the cluster was seen to take it away, or knows the log."""

    since_us: int
    seen: bool


class FoundCopy(msgspec.Struct, frozen=True):
    """A log's directory on this disk."""

    log_id: str
    name: str
    size_bytes: int


# --- What is former, and what may go: pure --------------------------------------------------------------------------


def named_here(state: ClusterState, node: str) -> set[str]:
    """The logs that the cluster names a node for."""
    return {log_id for log_id, facts in state.logs.items() if node in facts.replicas}


def why_kept(state: ClusterState, node: str, log_id: str, *, is_up: Callable[[str], bool]) -> str:
    """Why the copy must not be freed; empty when it may."""
    log = state.logs.get(log_id)
    if log is None:
        return ""
    if node in log.replicas:
        return f"the cluster names node {node} for log {log.name}: its copy is no former one"
    if not any(is_up(other) for other in log.promotable):
        return (
            f"no node that is up has a whole copy of log {log.name} in sync; this one may be all that is left: wait "
            "until mqtool offsets shows one"
        )
    return ""


def due(notes: Mapping[str, Note], *, now_us: int, keep_ms: int) -> list[str]:
    """Former copies that have been kept long enough, the longest first; none when they are kept for ever (0)."""
    old = [log_id for log_id, note in notes.items() if note.seen and now_us - note.since_us >= keep_ms * 1000]
    return sorted(old, key=lambda log_id: notes[log_id].since_us) if keep_ms else []


def noted(
    notes: Mapping[str, Note], found: Collection[str], *, known: Collection[str], seen: Collection[str], now_us: int
) -> dict[str, Note]:
    """The notes of the copies that are there now. `known`: logs that the cluster knows; `seen`: those seen to go."""
    return {
        log_id: Note(
            since_us=notes[log_id].since_us if log_id in notes else now_us,
            seen=log_id in known or log_id in seen or (log_id in notes and notes[log_id].seen),
        )
        for log_id in found
    }


# --- The disk: blocking ---------------------------------------------------------------------------------------------


class FormerDisk:
    """The directories of a node's logs, and the file of notes. Everything blocks, and raises OSError."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._notes_path = path / FILE_NAME
        self._logs = path / LOGS_NAME

    def read_notes(self) -> dict[str, Note]:
        """Nothing of a file that is damaged: then copies are former ones from now on."""
        try:
            content = read_file(self._files, self._notes_path, max_bytes=_FILE_BYTES_MAX)
            return msgspec.json.decode(content, type=dict[str, Note])
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, ValueError) as error:
            logger.warning("former_not_read path=%s reason=%r", self._notes_path, str(error))
            return {}

    def write_notes(self, notes: Mapping[str, Note]) -> None:
        replace_file(self._files, self._notes_path, msgspec.json.encode(dict(notes)))

    def find(self, named: Collection[str]) -> list[FoundCopy]:
        """Copies of logs that are not `named`; and what a start that died has left of one that was going goes."""
        found: list[FoundCopy] = []
        for name in sorted(self._files.listdir(self._logs)):
            if name.endswith(GOING):
                shutil.rmtree(self._logs / name, ignore_errors=True)
            elif (
                _is_log_id(name)
                and name not in named
                and len(found) < COPIES_MAX
                and (identity := self._identity(self._logs / name)) is not None
            ):
                found.append(FoundCopy(name, str(identity.get("name", "")), self._size(self._logs / name)))
        return found

    def remove(self, log_id: str) -> None:
        """First it has another name: nobody opens half a copy."""
        going = self._logs / f"{log_id}{GOING}"
        self._files.rename(self._logs / log_id, going)
        self._files.fsync_directory(self._logs)
        shutil.rmtree(going, ignore_errors=True)

    def _identity(self, directory: Path) -> Mapping[str, Any] | None:
        try:
            identity = json.loads(read_file(self._files, directory / IDENTITY_NAME, max_bytes=64 * 1024))
        except (OSError, ValueError):
            return None  # made half, or no log's
        return identity if isinstance(identity, dict) else None

    def _size(self, directory: Path) -> int:
        size = 0
        for name in self._files.listdir(directory):
            with suppress(OSError), closing(self._files.open(directory / name)) as file:  # not the index, a directory
                size += file.size()
        return size


def _is_log_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


# --- On the node ----------------------------------------------------------------------------------------------------


class FormerCopies:
    """Of one node. `state`: what is decided, None before that is known; `held`: logs that are open, or being opened;
    `up_to_date`: until all is known that was decided."""

    def __init__(
        self,
        disk: FormerDisk,
        *,
        node: str,
        keep_ms: int,
        helper: Executor,
        state: Callable[[], ClusterState | None],
        held: Callable[[], Iterable[str]],
        is_up: Callable[[str], bool],
        up_to_date: Callable[[], Awaitable[None]],
        now_us: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._node = node
        self._keep_ms = keep_ms
        self._helper = helper
        self._state = state
        self._held = held
        self._is_up = is_up
        self._up_to_date = up_to_date
        self._now_us = now_us
        self._notes: dict[str, Note] | None = None
        self._found: dict[str, FoundCopy] = {}
        self._seen: set[str] = set()
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._wake.set()
        self._task: asyncio.Task[None] | None = None

    # --- life ---

    def start(self) -> None:
        """Look from time to time. Idempotent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_for_ever())

    async def stop(self) -> None:
        """What is being removed is removed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._turn:
            pass

    # --- for who opens and closes copies ---

    async def wanted(self, log_id: str) -> None:
        """The log is to be opened here: its copy is a former one no more, and is not about to be freed."""
        async with self._turn:
            self._found.pop(log_id, None)
            self._seen.discard(log_id)

    def left(self, log_id: str) -> None:
        """The cluster has taken the log away from this node; its copy is closed."""
        self._seen.add(log_id)
        self._wake.set()

    # --- for operators ---

    def told(self) -> list[FormerStatus]:
        """Those that are there, the oldest first; as they were found last."""
        notes, state = self._notes or {}, self._state()
        copies = [
            FormerStatus(
                log_id=copy.log_id,
                name=copy.name,
                size_bytes=copy.size_bytes,
                since_us=notes[copy.log_id].since_us,
                removed=state is not None and copy.log_id not in state.logs,
                goes_us=self._goes_us(notes[copy.log_id]),
            )
            for copy in self._found.values()
            if copy.log_id in notes
        ]
        return sorted(copies, key=lambda copy: (copy.since_us, copy.log_id))

    async def free(self, log: str = "") -> FormerFreed:
        """Free them, or that of one log (name or id). What stays is told with the reason. Raises MirrorlogError when
        nothing could be judged, as while no coordinator is known."""
        await self._look()
        await self._up_to_date()
        freed, kept = [], []
        for copy in self.told():
            if log not in ("", copy.name, copy.log_id):
                continue
            if not log and not (self._notes or {})[copy.log_id].seen:
                reason = f"the cluster knows of no log {copy.name}: name it, {copy.log_id}, if it may be lost for good"
            else:
                reason = await self._free(copy.log_id, why="command")
            if reason:
                kept.append(FormerKept(log_id=copy.log_id, name=copy.name, reason=reason))
            else:
                freed.append(copy)
        state = self._state()
        for log_id, facts in (state.logs if state is not None else {}).items():
            if log in (facts.name, log_id) and self._node in facts.replicas:
                reason = why_kept(state, self._node, log_id, is_up=self._is_up) if state is not None else ""
                kept.append(FormerKept(log_id=log_id, name=facts.name, reason=reason, named=True))
        return FormerFreed(node=self._node, freed=freed, kept=kept)

    # --- inside ---

    def _goes_us(self, note: Note) -> int:
        return note.since_us + self._keep_ms * 1000 if self._keep_ms and note.seen else 0

    async def _look_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
                await self._free_due()
            except (OSError, MirrorlogError) as error:
                logger.info("former_not_looked_at reason=%r", str(error))

    async def _look(self) -> None:
        async with self._turn:
            if self._notes is None:
                self._notes = await self._helped(self._disk.read_notes)
            state = self._state()
            if state is None:
                return
            named = named_here(state, self._node) | set(self._held())
            found = {copy.log_id: copy for copy in await self._helped(lambda: self._disk.find(named))}
            notes = noted(self._notes, found, known=state.logs, seen=self._seen, now_us=self._now_us())
            if notes != self._notes:
                for log_id in notes.keys() - self._notes.keys():
                    copy = found[log_id]
                    logger.info("former_copy log=%s id=%s bytes=%s", copy.name, log_id, copy.size_bytes)
                await self._helped(lambda: self._disk.write_notes(notes))
            self._found, self._notes = found, notes

    async def _free_due(self) -> None:
        notes = {log_id: note for log_id, note in (self._notes or {}).items() if log_id in self._found}
        log_ids = due(notes, now_us=self._now_us(), keep_ms=self._keep_ms)
        if log_ids:
            await self._up_to_date()
        for log_id in log_ids:
            await self._free(log_id, why="time")

    async def _free(self, log_id: str, *, why: str) -> str:
        """Why it is kept; empty when it was freed."""
        async with self._turn:
            state, copy = self._state(), self._found.get(log_id)
            if state is None or copy is None or log_id in self._held():
                return "it is a former copy no more"
            if reason := why_kept(state, self._node, log_id, is_up=self._is_up):
                return reason
            try:
                await self._helped(lambda: self._disk.remove(log_id))
            except OSError as error:
                return f"its directory cannot be removed: {error.strerror or error}"
            self._found.pop(log_id)
            logger.info("former_freed log=%s id=%s bytes=%s by=%s", copy.name, log_id, copy.size_bytes, why)
            return ""

    async def _helped(self, work: Callable[[], Any]) -> Any:
        # What is begun on the disk comes to its end, whoever gives up on it.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._helper, work))
