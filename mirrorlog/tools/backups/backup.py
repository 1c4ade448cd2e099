"""`mqtool backup`: all that a running cluster holds is copied into a folder, and brought up to date there."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from mirrorlog import versions
from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.header import log_seed
from mirrorlog.commitlog.log import check_run
from mirrorlog.errors import LogUnavailable, MirrorlogError, Refused
from mirrorlog.tools.backups.folder import (
    DEFINITIONS,
    MANIFEST,
    STATE,
    UNFINISHED,
    CopyingProgress,
    Folder,
    Kept,
    KeptLog,
    Manifest,
)
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import emit
from mirrorlog.tools.common.session import session_of
from mirrorlog.wire.messages.operators import LogRead, ReadLog, ReadState, StateRead

if TYPE_CHECKING:
    from mirrorlog.client import Client
    from mirrorlog.cluster.state.state import ClusterState

PART_BYTES: Final = 64 * 1024 * 1024
RUN_BYTES: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
STEADY_S: Final = 30.0
"""How long a moment is waited for at which no queue is between two logs."""
READ_TIMEOUT_MS: Final = 60_000
_PAUSE_S: Final = 0.2


def backup(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made when absent.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Copy all that the cluster holds into a folder while it runs: records, groups, queues, exchanges, users, policies.

    Everything that was confirmed when it began is in it. It is read from mirrors that are in sync, else from masters,
    and each batch is checked. In a folder that has a backup of this cluster only what came since is copied; one that
    was cut short is gone on with. Needs the tag administrator; the folder holds hashes of passwords.

    Example: mqtool backup /srv/backups/main
    """
    target = Folder(folder)
    with target.held():
        done = session_of(context).run(lambda client: _Backup(client, target).run())
    size = sum(part.bytes for log in done.logs for part in log.parts)
    fields = {"folder": str(folder), "logs": len(done.logs), "bytes": size, "cluster_id": done.cluster_id}
    emit(as_json, fields, f"{folder}: {len(done.logs)} logs, {size / 2**20:.1f} MiB of cluster {done.cluster_name}")


class _Backup:
    def __init__(self, client: Client, folder: Folder) -> None:
        self._client = client
        self._folder = folder

    async def run(self) -> Manifest:
        from mirrorlog.client.definitions.transfer import document_of

        status = await self._client.admin.status()
        if status.cluster is None:
            raise LogUnavailable("the node that answers is in no cluster yet; try again")
        error = versions.too_old(status.cluster.cluster_version, versions.BACKUP, "a backup")
        if error is not None:
            raise error
        state, ends = await self._point(status.node_id)
        known = self._folder.read(UNFINISHED) or self._folder.read(MANIFEST)
        if known is not None and known.cluster_id != state.cluster_id:
            raise Refused(
                f"{self._folder.path} is of cluster {known.cluster_name}, {known.cluster_id}, this is {state.name}, "
                f"{state.cluster_id}: name another folder"
            )
        manifest = Manifest(
            cluster_id=state.cluster_id,
            cluster_name=state.name,
            cluster_version=state.cluster_version,
            began=time.time(),
            logs=known.logs if known is not None else [],
        )
        self._begin(manifest, state, ends)
        progress = CopyingProgress("copied", sum(log.end - log.held for log in manifest.logs))
        for log in manifest.logs:
            await self._copy(manifest, log, state, progress)
        definitions = json.dumps(await document_of(self._client), indent=2).encode()
        manifest.files = [self._folder.keep(STATE, self._state), self._folder.keep(DEFINITIONS, definitions)]
        manifest.ended = time.time()
        self._folder.finish(manifest)
        return manifest

    async def _point(self, node: str) -> tuple[ClusterState, dict[str, LogRead]]:
        """What is decided, and up to where each log is confirmed, at a moment when no queue is between two logs: what
        one log says of it and the other does not would not fit together. Raises Refused."""
        from mirrorlog.cluster.membership.recovering import check_state

        deadline = time.monotonic() + STEADY_S
        address = await self._client.node_address(node)
        before: ClusterState | None = None
        while True:
            ends: dict[str, LogRead] = {}
            if before is not None:
                ends = await self._ends(before)
            told = await (await self._client.connection_to(address)).request(
                ReadState(), StateRead, timeout_ms=READ_TIMEOUT_MS
            )
            state = check_state(told.state, "the state that was told")
            moves = sorted(state.placing.moves)
            if before is not None and not moves and _steady(before, state):
                self._state = told.state
                return state, ends
            if time.monotonic() > deadline:
                why = f"queues are moving ({', '.join(moves)[:200]})" if moves else "queues and logs come and go"
                raise Refused(f"{why}: a backup needs a moment without that; mqtool rebalance --pause, and try again")
            if before is not None:
                await asyncio.sleep(_PAUSE_S)
            before = state

    async def _ends(self, state: ClusterState) -> dict[str, LogRead]:
        wanted = _lasting(state)
        found = await asyncio.gather(*(self._end(state, log_id) for log_id in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _end(self, state: ClusterState, log_id: str) -> LogRead:
        """Of its master. Raises LogUnavailable when nobody is."""
        log = state.logs[log_id]
        if log.master is not None:
            read = await self._ask(log.master.node, ReadLog(log_id=log_id))
            if read.masters:
                return read
        raise LogUnavailable(f"nobody masters log {log.name} at the moment; try again")

    async def _ask(self, node: str, asked: ReadLog) -> LogRead:
        connection = await self._client.reach(await self._client.node_address(node))
        return await connection.request(asked, LogRead, timeout_ms=READ_TIMEOUT_MS)

    def _begin(self, manifest: Manifest, state: ClusterState, ends: dict[str, LogRead]) -> None:
        """What is there already and still right is gone on with."""
        known = {log.id: log for log in manifest.logs}
        manifest.logs = []
        for log_id, read in ends.items():
            facts = state.logs[log_id]
            log = known.pop(log_id, None) or KeptLog(id=log_id, name=facts.name, number=facts.number)
            epochs = EpochList.of([Epoch(each.epoch, each.start, each.node_id, each.start_id) for each in read.epochs])
            self._check_goes_on(manifest, log, read, epochs)
            log.parts = [part for part in log.parts if part.first + part.bytes > read.begin]
            log.begin, log.end = read.begin, read.confirmed
            log.epochs = [(each.epoch, each.start, each.node_id, each.start_id) for each in epochs.entries]
            manifest.logs.append(log)
        self._folder.write(UNFINISHED, manifest)

    def _check_goes_on(self, manifest: Manifest, log: KeptLog, read: LogRead, epochs: EpochList) -> None:
        """Of a cluster that was founded anew under its name, or has lost what is here, nothing here is written over.
        Raises Refused."""
        first = max(read.begin, log.begin)
        same = log.held <= first or log.epoch_list.covering(first, log.held) == epochs.covering(first, log.held)
        if log.parts and not (same and log.held <= max(read.confirmed, read.begin)):
            raise Refused(
                f"log {log.name} of cluster {manifest.cluster_name} does not go on from what {self._folder.path} has "
                "of it: the cluster was founded anew, or has lost that; name another folder"
            )

    async def _copy(self, manifest: Manifest, log: KeptLog, state: ClusterState, progress: CopyingProgress) -> None:
        directory = self._folder.path / "logs" / log.id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in directory.glob("*.making"):
            left.unlink()
        runs = self._runs(log, state)
        while log.held < log.end:
            first, size, checksum = log.held, 0, 0
            name = f"logs/{log.id}/{first:020}.part"
            making = self._folder.path / f"{name}.making"
            with making.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                async for run in runs:
                    file.write(run)
                    size, checksum = size + len(run), crc32c(run, checksum)
                    progress.add(len(run))
                    if size >= PART_BYTES:
                        break
                file.flush()
                os.fsync(file.fileno())
            making.rename(self._folder.path / name)
            OS_FILES.fsync_directory(directory)
            log.parts.append(Kept(file=name, bytes=size, crc32c=checksum, first=first))
            self._folder.write(UNFINISHED, manifest)

    async def _runs(self, log: KeptLog, state: ClusterState) -> AsyncIterator[bytes]:
        """From where there are bytes up to the end, each batch checked; from a mirror as long as one gives them."""
        facts = state.logs[log.id]
        master = facts.master.node if facts.master is not None else ""
        sources = [node for node in facts.in_sync if node != master and node not in facts.marked] + [master]
        at, seed, epochs, why = log.held, log_seed(UUID(log.id)), log.epoch_list, ""
        while at < log.end and sources:
            try:
                read = await self._ask(sources[0], ReadLog(log_id=log.id, first=at, until=log.end, max_bytes=RUN_BYTES))
                if not read.data:
                    raise LogUnavailable(f"it knows of {read.confirmed} bytes that are confirmed")
                run = memoryview(read.data)
                check_run(run, log_offset=at, seed=seed, epochs=epochs, max_batch_bytes=BATCH_BYTES_MAX)
            except MirrorlogError as error:
                why = f"node {sources.pop(0)}: {error}"
                continue
            yield read.data
            at += len(run)
        if at < log.end:
            raise LogUnavailable(
                f"log {log.name} could be read up to {at} of {log.end} only; try again, it goes on from there: {why}"
            )


def _lasting(state: ClusterState) -> list[str]:
    """The logs that a backup has: those that end with a node's run are not worth it."""
    transient = set(state.transient.values())
    return [log_id for log_id, log in state.logs.items() if log.replicas and log_id not in transient]


def _steady(before: ClusterState, state: ClusterState) -> bool:
    return (
        before.placing == state.placing
        and before.granted_ids == state.granted_ids
        and _lasting(before) == _lasting(state)
        and all(before.logs[each].epoch == state.logs[each].epoch for each in _lasting(state))
    )
