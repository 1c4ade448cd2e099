"""The data directory of a node: its lock and its identity."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.errors import DirectoryInUse, ForeignDirectory
from tests.commitlog.logs import CLUSTER_ID, LOG_ID


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
