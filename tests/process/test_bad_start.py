"""A node that cannot start says why in one line, with an exit code that says the same, and touches nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import ConfigError, DirectoryInUse, ForeignDirectory, OutcomeUnknown, PortTaken, RequestTimeout
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.queues import DeclareQueue
from tests.process.clusters import declare, error_of, eventually, fast_cluster, log_of
from tests.process.raw import Raw, batch_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1) as one:
        yield one


def mqnode(*flags: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a node that is not expected to serve."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MIRRORLOG__")}
    return subprocess.run(
        [sys.executable, "-m", "mirrorlog.broker.main", *flags],
        env={**clean, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that the node said before it ended with `code`."""
    assert done.returncode == code, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("mqnode: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def own_ports() -> list[str]:
    """Flags that bind free ports."""
    client, replication = free_ports(2)
    return [
        *("--set", f"client.bind='{HOST}:{client}'", "--set", f"replication.bind='{HOST}:{replication}'"),
        *("--set", "grpc.enabled=false"),
    ]


@pytest.mark.long
def test_a_directory_in_use(cluster: Cluster) -> None:
    """Goal: one process per directory. Method: a second node on the directory of a running one, on other ports."""
    node = cluster.master
    line = said(mqnode("--config", str(node.config_file), *own_ports()), DirectoryInUse.exit_code)
    assert f"in use by process {node.pid}" in line
    assert log_of(node).state == "serving"


def freeze_door(node: Node) -> int:
    """Stop the process of a node's gRPC door, before it serves; its id."""
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children")

    def found() -> list[int]:
        return [pid for pid in map(int, children.read_text().split()) if b"grpc_door" in command_of(pid)]

    (pid,) = eventually(found, "the door is started")
    os.kill(pid, signal.SIGSTOP)
    return pid


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.long
def test_a_door_that_never_serves_holds_up_nothing_else_and_the_node_is_not_ready(tmp_path: Path) -> None:
    """Goal: while a node waits for its gRPC door, its own port keeps every promise, and it does not say that it serves.
    Method: stop both nodes' doors as they start. One of the nodes masters; a publish and a declare while the other one
    stands still end at their deadline, the mirror goes on when it can. A door that goes on makes its node ready, and
    SIGTERM in the middle of the wait is a clean stop."""
    with fast_cluster(2, min_in_sync=1, data_dir=tmp_path) as two:
        queue = declare(two.servers[0], "q")
        for node in two.nodes.values():
            node.kill()
        frozen = {}
        for node, port in zip(two.nodes.values(), free_ports(2), strict=True):
            node.launch("--set", "grpc.enabled=true", "--set", f"grpc.bind='{HOST}:{port}'")
            frozen[node.id] = freeze_door(node)
        two.wait_in_sync(timeout=10)
        master, (mirror,) = two.master, two.mirrors
        assert master.status().awaited == ["grpc"]
        mirror.pause()
        with Raw(master.client, timeout=5) as raw:
            requests = [raw.start_produce(batch_of([b"x"], queue)), raw.ask(DeclareQueue(name="r"))]
            assert isinstance(error_of(lambda: raw.confirm(requests[0])), OutcomeUnknown)
            # A new queue's place is for the cluster to decide: it has no majority.
            assert type(error_of(lambda: raw.answer(requests[1]))) is RequestTimeout
        mirror.resume()
        two.wait_in_sync(timeout=10)
        assert said_ready(master) == 1, "that of the first start"
        os.kill(frozen[mirror.id], signal.SIGCONT)
        eventually(lambda: said_ready(mirror) == 2, "its door serves")
        assert (mirror.status().awaited, said_ready(master)) == ([], 1)
        assert [node.stop(timeout=20) for node in (mirror, master)] == [0, 0]
        assert said_ready(master) == 1


def said_ready(node: Node) -> int:
    return node.log_file.read_text().count(" serving client=")


@pytest.mark.long
def test_a_directory_of_another_node(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: no node writes into another's directory, nor one of another cluster. Method: start on a directory that was
    made by n1, as n2, then as n1 of another cluster; its files are as before."""
    flags = [*own_ports(), "--data-dir", str(tmp_path / "data")]
    with Cluster(1, data_dir=tmp_path / "first") as first:
        directory = first.master.data_dir
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}
    flags[-1] = str(directory)
    line = said(mqnode("--node-id", "n2", *flags), ForeignDirectory.exit_code)
    assert "belongs to" in line
    line = said(mqnode("--node-id", "n1", "--set", "cluster.name=other", *flags), ForeignDirectory.exit_code)
    assert "cluster_id" in line
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}
    assert before == after


@pytest.mark.long_after(2)
@pytest.mark.parametrize("port", ["client", "http", "grpc", "replication"])
def test_a_port_taken(tmp_path: Path, port: str) -> None:
    """Goal: the address is named, a door's too. Method: hold the port."""
    with socket.create_server((HOST, 0)) as holder:
        address = f"{HOST}:{holder.getsockname()[1]}"
        flags = [*own_ports(), "--set", f"{port}.bind='{address}'", "--data-dir", str(tmp_path / "data")]
        flags += ["--set", f"{port}.enabled=true"] if port in ("grpc", "http") else []
        line = said(mqnode(*flags), PortTaken.exit_code)
    assert f"cannot listen on {address}" in line


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """Goal: a file where the directory should be is named. Method: put one there."""
    (tmp_path / "data").write_text("in the way")
    done = mqnode(*own_ports(), "--data-dir", str(tmp_path / "data"))
    assert str(tmp_path / "data") in said(done, 16)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "environment", "match"),
    [
        pytest.param(["--set", "log.no_such=1"], {}, "log.no_such: no such key", id="key"),
        pytest.param(["--set", "nowhere.key=1"], {}, "nowhere: no such", id="section"),
        pytest.param(["--set", "log"], {}, "section.key=value", id="no-value"),
        pytest.param(["--set", "log.segment_bytes=many"], {}, "log.segment_bytes", id="no-number"),
        pytest.param(["--set", "log.segment_bytes=1"], {}, "log.segment_bytes", id="too-small"),
        pytest.param(["--no-such-flag"], {}, "--no-such-flag", id="flag"),
        pytest.param(["--config"], {}, "--config", id="flag-without-value"),
        pytest.param(["stray"], {}, "stray", id="argument"),
        pytest.param([], {"MIRRORLOG__NOWHERE__KEY": "1"}, "MIRRORLOG__NOWHERE__KEY", id="variable-section"),
        pytest.param([], {"MIRRORLOG__LOG__NO_SUCH": "1"}, "log.NO_SUCH: no such key", id="variable-key"),
        pytest.param([], {"MIRRORLOG__LOG": "{"}, "MIRRORLOG__LOG", id="variable-of-a-section"),
        pytest.param(["--config", "/no/such/file.toml"], {}, "/no/such/file.toml", id="no-file"),
        pytest.param(["--config", "/"], {}, "/:", id="a-directory"),
        pytest.param(["--node-id", "no spaces allowed"], {}, "node.id", id="bad-name"),
        pytest.param(["--node-id", ""], {}, "node.id: '' is no name", id="no-name"),
        pytest.param(["--set", "client.bind='nowhere'"], {}, "client.bind", id="bad-address"),
        pytest.param(["--join", "nohost"], {}, "'nohost' is not host:port, e.g. a.example:7402", id="bad-seed"),
        pytest.param(
            ["--bootstrap", "--join", "127.0.0.1:1"], {}, "give --bootstrap to the first", id="founds-and-looks"
        ),
        pytest.param(
            ["--bootstrap", "--set", "cluster.join=['127.0.0.1:1']"], {}, "cluster.join", id="founds-with-seeds"
        ),
        pytest.param(["--bootstrap", "--witness"], {}, "start the witness with --join", id="founds-a-witness"),
    ],
)
def test_settings_that_are_none(flags: list[str], environment: dict[str, str], match: str, tmp_path: Path) -> None:
    """Goal: every slip in the configuration is one line with the key. Method: one slip each."""
    extra = [] if "--config" in flags else ["--data-dir", str(tmp_path / "data")]
    line = said(mqnode(*extra, *flags, environment=environment), ConfigError.exit_code)
    assert match in line
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param("[node\nid = 1", "not TOML", id="bad-toml"),
        pytest.param("\x00\x01", "not TOML", id="binary"),
        pytest.param("[log]\nsegmentbytes = 1", "log.segmentbytes: no such key", id="key"),
        pytest.param("[logs]\nx = 1", "logs: no such", id="section"),
        pytest.param("log = 3", "log:", id="no-table"),
        pytest.param('[node]\nid = "n9"\n[[cluster.members]]\nid = "n1"', "n9", id="no-member"),
        pytest.param('[[cluster.members]]\nid="a"\n[[cluster.members]]\nid="a"', "twice", id="member-twice"),
        pytest.param('[[cluster.members]]\nid="n1"\n[[cluster.logs]]\nmaster="z"', "z", id="master-no-member"),
        pytest.param(
            '[[cluster.members]]\nid="n1"\n[[cluster.logs]]\nmaster="n1"\nmin_in_sync=2',
            "min_in_sync",
            id="min-in-sync",
        ),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, match: str) -> None:
    """Goal: the file's slips are named too. Method: one each."""
    file = tmp_path / "node.toml"
    file.write_text(text)
    line = said(mqnode("--config", str(file), "--set", f"node.data_dir='{tmp_path}/data'"), ConfigError.exit_code)
    assert match in line
    assert not (tmp_path / "data").exists()
