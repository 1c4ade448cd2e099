"""What a node does past the protocols `Files` and `File`, on the simulated disk of the machine that it runs on.

Each patch here stands for a parameter that the node does not have yet; with the last one this file goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from mirrorlog.broker.log import derived
from mirrorlog.commitlog.index import past
from sim.disk import SimulatedFile, SimulatedFiles
from sim.machines import ROOT, Machine
from sim.processes import current_process
from sim.world import World


@contextmanager
def node_disks(world: World) -> Iterator[None]:
    """Nodes of this world, whose data is somewhere below `ROOT`, live on their machines' disks.

    The index is LMDB's and no protocol is below it: it is in memory of the real machine, and every run of a program
    begins without one, as after a kill.
    """

    def machine() -> Machine:
        process = current_process()
        assert process is not None
        return world.machines[process.machine]

    with ExitStack() as patches, TemporaryDirectory(dir=_memory()) as directory:

        def real(path: Path) -> Path:
            process = current_process()
            return Path(directory) / repr(process) / path.relative_to(ROOT)

        open_index = past.PastIndex.open.__func__  # type: ignore[attr-defined]
        for owner, name, new in (
            (SimulatedFile, "map", _map),
            (past.PastIndex, "open", classmethod(lambda cls, path, tables: open_index(cls, real(path), tables))),
            (derived, "delete_index", lambda path: past.delete(real(path))),
        ):
            patches.enter_context(patch.object(owner, name, new))
        _patch_paths(patches, lambda: machine().files)
        patches.callback(world.loop.close)  # last words are not for the real disk
        yield


def _patch_paths(patches: ExitStack, files: Callable[[], SimulatedFiles]) -> None:
    """Former copies of logs: looked for, set aside and removed as directories."""
    exists, iterdir, rename, rmtree = Path.exists, Path.iterdir, Path.rename, shutil.rmtree

    def below(path: Path | str) -> bool:
        return Path(path).is_relative_to(ROOT)

    def renamed(path: Path, target: Path) -> Path:
        if not below(path):
            return rename(path, target)
        files().rename(path, target)
        files().fsync_directory(path.parent)
        return target

    def removed(path: Path | str, *args: Any, **options: Any) -> None:
        if not below(path):
            rmtree(path, *args, **options)
            return
        for each in _files_below(files(), Path(path)):
            files().unlink(each)

    for owner, name, new in (
        (Path, "exists", lambda path: files().exists(path) if below(path) else exists(path)),
        (Path, "iterdir", lambda path: map(path.joinpath, files().listdir(path)) if below(path) else iterdir(path)),
        (Path, "rename", renamed),
        (shutil, "rmtree", removed),
    ):
        patches.enter_context(patch.object(owner, name, new))


def _files_below(files: SimulatedFiles, directory: Path) -> list[Path]:
    paths = [directory / name for name in files.listdir(directory)] if files.exists(directory) else []
    return [path for path in paths if path in files.tree()]


def _map(file: SimulatedFile) -> memoryview:
    """As `SimulatedFile.map`, over an object that can be watched: the log asks whether somebody still holds a map."""
    file._files._fault("map")
    return np.frombuffer(file._open().cache, np.uint8).data


def _memory() -> Path | None:
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None
