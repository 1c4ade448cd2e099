"""The data directory of a node: its lock and its identity."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.errors import DirectoryGone, DirectoryInUse, DiskFailed, ForeignDirectory
from sim.disk import SimulatedFiles
from tests.commitlog.logs import CLUSTER_ID, LOG_ID, append, make_batch, open_log


def open_directory(path: Path, node_id: str = "n1") -> DataDirectory:
    return DataDirectory.open(path, cluster_id=CLUSTER_ID, node_id=node_id)


def test_a_directory_is_made_once_and_opened_again(tmp_path: Path) -> None:
    """Goal: the happy way. Open a directory that is absent, close, open again."""
    with open_directory(tmp_path / "deep" / "data") as directory:
        assert directory.log_directory(LOG_ID) == tmp_path / "deep" / "data" / "logs" / str(LOG_ID)
    with open_directory(tmp_path / "deep" / "data"):
        pass


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    """Goal: two nodes never share a directory. Hold it in a child process, then in this one."""
    code = (
        "import sys; from pathlib import Path; from uuid import UUID;"
        "from mirrorlog.commitlog.directory import DataDirectory;"
        f"held = DataDirectory.open(Path({str(tmp_path)!r}), cluster_id=UUID({str(CLUSTER_ID)!r}), node_id='n1');"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUse, match=f"in use by process {child.pid}"):
            open_directory(tmp_path)
        child.stdin.close()
        assert child.wait(timeout=20) == 0
    with open_directory(tmp_path), pytest.raises(DirectoryInUse, match=f"in use by process {os.getpid()}"):
        open_directory(tmp_path)
    open_directory(tmp_path).close()


def test_a_directory_of_another_node_or_cluster_is_refused_and_not_kept_locked(tmp_path: Path) -> None:
    """Goal: a copied configuration cannot mix two nodes' data. Open as another node, another cluster, then rightly."""
    open_directory(tmp_path).close()
    with pytest.raises(ForeignDirectory, match="node_id 'n1', this is node_id 'n2'"):
        open_directory(tmp_path, "n2")
    with pytest.raises(ForeignDirectory, match="cluster_id"):
        DataDirectory.open(tmp_path, cluster_id=LOG_ID, node_id="n1")
    open_directory(tmp_path).close()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "a file now"])
def test_a_directory_that_is_not_there_any_more_is_told(tmp_path: Path, how: str) -> None:
    """Goal: what is open goes on working without its name, so it must be asked for. Each way to lose it, and none."""
    path = tmp_path / "data"
    with open_directory(path) as directory:
        directory.check_in_place()
        path.rename(tmp_path / "moved")
        if how == "removed":
            shutil.rmtree(tmp_path / "moved")
        elif how == "replaced":
            open_directory(path).close()
        elif how == "a file now":
            path.touch()
        with pytest.raises(DirectoryGone, match=f"{path} was removed, moved or replaced") as caught:
            directory.check_in_place()
        assert caught.value.exit_code == 19


@pytest.mark.parametrize("files", [OS_FILES, SimulatedFiles(Path("/sim"))], ids=["real", "simulated"])
def test_a_log_whose_directory_is_gone_flushes_no_more(tmp_path: Path, files: Files) -> None:
    """Goal: the next checkpoint, which is written once a second at most, tells. Real and simulated files alike."""
    path = (tmp_path if files is OS_FILES else Path("/sim")) / "log"
    log = open_log(path, files=files, epoch=1)
    append(log, make_batch())
    log.start_flush().run()
    if isinstance(files, SimulatedFiles):
        files.remove_tree(path)
    else:
        shutil.rmtree(path)
    with pytest.raises(DirectoryGone, match="was removed"):
        log.start_flush().run()
    with pytest.raises(DiskFailed):
        append(log, make_batch())
    log.close()
