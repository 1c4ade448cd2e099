"""What a node writes is its user's alone, it follows no link that somebody has laid, and it refuses secrets that others
can read."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorlog.errors import ConfigError, DiskFailed, PortTaken
from mirrorlog.testing import Cluster
from mirrorlog.testing.certificates import Certificates
from mirrorlog.testing.ports import HOST
from tests.process.clusters import MIB, declare, fast_cluster
from tests.process.raw import Raw, batch_of
from tests.process.test_bad_start import mqnode, own_ports, said

SECRET = "0123456789 of the tests"
SMALL = {"log.kept_mapped_bytes": 0, "limits.max_batch_bytes": MIB, "limits.max_record_bytes": MIB}


def open_to_others(directory: Path) -> list[str]:
    everything = [directory, *directory.rglob("*")]
    return [f"{stat.filemode(each.lstat().st_mode)} {each}" for each in everything if each.lstat().st_mode & 0o077]


@contextmanager
def held_port() -> Iterator[list[str]]:
    """Flags with which a node gets as far as its ports, and no further."""
    with socket.create_server((HOST, 0)) as holder:
        yield [*own_ports(), "--set", f"client.bind='{HOST}:{holder.getsockname()[1]}'"]


@pytest.mark.long
def test_what_a_node_writes_is_nobody_elses(tmp_path: Path) -> None:
    """Goal: other users of the machine read no records and no hashes. Method: a node that has filled segments, has an
    index of its past and was stopped; all its files. Then its directory as a former version made it: it is closed at
    the next start, which says so."""
    with fast_cluster(1, data_dir=tmp_path, segment_bytes=MIB, settings=SMALL) as cluster:
        queue = declare(cluster.servers[0], "q")
        with Raw(cluster.servers[0]) as raw:
            for _ in range(8):
                raw.produce(batch_of([bytes(512 * 1024)], queue))
        node = cluster.master
        assert list(node.data_dir.rglob("*.mdb")), "an index of what has left the memory is among them"
        assert node.stop() == 0
        assert open_to_others(node.data_dir) == []
        node.data_dir.chmod(0o755)
        node.start()
        assert open_to_others(node.data_dir) == []
        assert "data_directory_closed" in node.log_file.read_text()


def test_a_directory_that_is_not_a_nodes_is_left_as_it_is(tmp_path: Path) -> None:
    """Goal: who names a shared directory by mistake does not lock others out. Method: one with something in it."""
    (tmp_path / "others").write_text("theirs")
    tmp_path.chmod(0o755)
    with held_port() as flags:
        assert "data_directory_open_to_others" in mqnode("--data-dir", str(tmp_path), *flags).stderr
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.long_after(1)
@pytest.mark.parametrize("name", ["lock", "node.json"])
def test_a_link_at_a_nodes_file_is_not_followed(tmp_path: Path, name: str) -> None:
    """Goal: whoever could write into the directory once cannot have the node cut or write what it leads to. Method: a
    link to a file; the node does not start, and says which; the file is as before."""
    target = tmp_path / "precious"
    target.write_text("precious")
    with Cluster(1, data_dir=tmp_path / "nodes") as cluster:
        directory = cluster.master.data_dir
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(target)
    line = said(mqnode("--node-id", "n1", *own_ports(), "--data-dir", str(directory)), DiskFailed.exit_code)
    assert f"{directory / name} is a symbolic link" in line
    assert target.read_text() == "precious"


@pytest.mark.long
def test_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    """Goal: a key on a shared machine is noticed before it is used. Method: the key of TLS, a file with the cluster's
    secret, and a configuration file with it, each closed and then open to a group or to all; a closed one gets further,
    to a port that is taken."""
    certificates = Certificates(tmp_path / "tls")
    certificates.make()
    secret, config = tmp_path / "secret", tmp_path / "node.toml"
    for file, text in ((secret, SECRET), (config, f'[cluster]\nsecret = "{SECRET}"\n')):
        file.touch(0o600)
        file.write_text(text)
    tls = [f"tls.{name}={getattr(certificates, name)}" for name in ("certificate", "key", "ca")]
    flags = {
        certificates.key: [each for setting in (*tls, "tls.client=server") for each in ("--set", setting)],
        secret: ["--set", f"cluster.secret_file={secret}"],
        config: ["--config", str(config)],
    }
    for file, given in flags.items():
        for mode in (0o640, 0o604, 0o644):
            file.chmod(mode)
            line = said(mqnode(*given, *own_ports(), "--data-dir", str(tmp_path / "data")), ConfigError.exit_code)
            assert f"{file} is open to others (mode {mode:04o}): chmod 600" in line
            assert SECRET not in line
        file.chmod(0o600)
        with held_port() as taken:
            said(mqnode(*given, *taken, "--data-dir", str(tmp_path / "data")), PortTaken.exit_code)
