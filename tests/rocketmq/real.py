"""A real broker of RocketMQ with its name server, and its own client as producer. They are fetched by
`python -m bench.peers.install rocketmq rocketmq-4`; without it what needs them is skipped."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from bench.peers.install import installed
from bench.peers.peer import Skipped
from bench.peers.rocketmq import configuration, java, start_name_server
from bench.peers.servers import HOST, Servers, free_ports

SENDER: Final = Path(__file__).parent / "java" / "Sender.java"
_LOGBACK: Final = "<configuration><root level='OFF'/></configuration>"
_BROKER: Final = "broker"


class RealBroker:
    """A SYNC_MASTER that waits for one slave, with mapped files of 1 MiB. Its data stay while it is killed."""

    def __init__(self, servers: Servers, program: Path, classes: Path) -> None:
        self._servers, self._program, self._classes = servers, program, classes
        (self._name_port,) = free_ports(1)
        self._ports = _neighbours()
        conf = servers.directory / "conf"
        conf.mkdir()
        for part in ("broker", "namesrv"):  # 4.9 does not start without
            (conf / f"logback_{part}.xml").write_text(_LOGBACK)
        start_name_server(servers, program, self._name_port)
        self.start()

    @property
    def address(self) -> str:
        """Of its port for slaves."""
        return f"{HOST}:{self._ports[1]}"

    def start(self) -> None:
        directory = self._servers.directory
        told = configuration(0, "SYNC_MASTER", self._ports, f"{HOST}:{self._name_port}", directory / "store")
        file = directory / "broker.properties"
        file.write_text(told + "mappedFileSizeCommitLog=1048576\n")
        command = java(self._servers, self._program, "org.apache.rocketmq.broker.BrokerStartup", "512m")
        self._servers.start(_BROKER, [*command, "-c", file], {"ROCKETMQ_HOME": str(directory)})
        self._servers.wait_listening(*self._ports)

    def kill(self) -> None:
        self._servers.kill(_BROKER)
        self._servers.wait_gone(*self._ports)

    def send(self, first: int, count: int, topics: int, pending: int = 100) -> dict[str, int]:
        """Numbered messages by RocketMQ's client; how many ended in which way, and `median_us`."""
        command = java(self._servers, self._program, "Sender", "256m")
        at = command.index("-cp") + 1
        command[at] = f"{self._classes}:{command[at]}"
        numbers = map(str, (first, count, topics, pending))
        lines = self._servers.run("sender", [*command, f"{HOST}:{self._name_port}", *numbers], timeout=300)
        told: dict[str, int] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
        return told

    @property
    def log_bytes(self) -> bytes:
        """Its commit log, with what is not written yet of its last file."""
        files = sorted((self._servers.directory / "store" / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)


def _neighbours() -> list[int]:
    """Two free ports: a broker of 4.9 takes the next one for its slaves, whatever it is told."""
    while True:
        (port,) = free_ports(1)
        with contextlib.suppress(OSError), socket.socket() as other:
            other.bind((HOST, port + 1))
            return [port, port + 1]


@contextmanager
def real_broker(peer: str, directory: Path) -> Iterator[RealBroker]:
    """`peer`: rocketmq, or rocketmq-4."""
    try:
        program = installed(peer)
    except Skipped as reason:
        pytest.skip(str(reason))
    if shutil.which("javac") is None:
        pytest.skip("javac is needed: apt-get install openjdk-17-jdk-headless")
    classes = directory / "classes"
    subprocess.run(["javac", "-cp", f"{program}/jars/*", "-d", classes, SENDER], check=True, capture_output=True)
    with Servers(peer) as servers:
        yield servers.started(lambda: RealBroker(servers, program, classes))
