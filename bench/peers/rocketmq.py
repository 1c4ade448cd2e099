"""RocketMQ: a master and a slave, SYNC_MASTER with inSyncReplicas=2, no fsync per record: two copies, not three.

Without inSyncReplicas a SYNC_MASTER of RocketMQ 5 answers before the slave has the record. Its port for slaves listens
on all interfaces: RocketMQ has no setting for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.measure import Figure
from bench.peers import versions
from bench.peers.install import installed
from bench.peers.outcome import RECORD_BYTES, figures_of
from bench.peers.peer import Seconds
from bench.peers.servers import HOST, Servers, free_ports

CASE: Final = f"RocketMQ {versions.ROCKETMQ}, 2 copies, {RECORD_BYTES} B, page cache"

_OPENED: Final = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.util", "sun.nio.ch")),
)
"""What its memory maps need of Java 17."""


def run(seconds: Seconds) -> list[Figure]:
    """One round of W1 (batches and single records), W2 and W3 by the Java client."""
    program, seconds = installed("rocketmq"), seconds.on_jvm()
    with Servers("rocketmq") as servers:
        name_server = servers.started(lambda: _start(servers, program))
        driver = [*java(servers, program, "Load", "1g"), "--servers", name_server, *seconds.arguments()]
        return figures_of(servers.run("load", driver), f"{CASE}, Java client")


def _start(servers: Servers, program: Path) -> str:
    """Start a name server, the master and its slave; the name server's address."""
    name_port, *broker_ports = free_ports(5)
    environment = {"ROCKETMQ_HOME": str(servers.directory)}
    start_name_server(servers, program, name_port)
    for broker_id, role in enumerate(("SYNC_MASTER", "SLAVE")):
        file = servers.directory / f"{role}.properties"
        ports = broker_ports[2 * broker_id : 2 * broker_id + 2]
        file.write_text(configuration(broker_id, role, ports, f"{HOST}:{name_port}", servers.directory / role))
        broker = java(servers, program, "org.apache.rocketmq.broker.BrokerStartup", "1g")
        servers.start(role, [*broker, "-c", file], environment)
    servers.wait_listening(*broker_ports[::2])
    return f"{HOST}:{name_port}"


def java(servers: Servers, program: Path, main: str, heap: str) -> list[str | Path]:
    """The command line of one of its programs. Its logs go to the home directory, wherever that is."""
    home = f"-Duser.home={servers.directory}"
    return ["java", f"-Xms{heap}", f"-Xmx{heap}", *_OPENED, home, "-cp", f"{program}/classes:{program}/jars/*", main]


def start_name_server(servers: Servers, program: Path, port: int) -> None:
    """Its configuration and logs go into the directory."""
    file = servers.directory / "namesrv.properties"
    file.write_text(f"listenPort={port}\nbindAddress={HOST}\n")
    command = java(servers, program, "org.apache.rocketmq.namesrv.NamesrvStartup", "256m")
    servers.start("namesrv", [*command, "-c", file], {"ROCKETMQ_HOME": str(servers.directory)})
    servers.wait_listening(port)


def configuration(broker_id: int, role: str, ports: list[int], name_server: str, directory: Path) -> str:
    """The properties of a broker. `ports`: for clients and for the slave.

    What bears on speed is RocketMQ's default, except that a send may wait 3 s (0.2 s) for its turn: under full load the
    default refuses records.
    """
    settings = {
        "brokerClusterName": "bench",
        "brokerName": "bench",
        "brokerId": str(broker_id),
        "brokerRole": role,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "bindAddress": HOST,
        "listenPort": str(ports[0]),
        "haListenPort": str(ports[1]),
        "namesrvAddr": name_server,
        "storePathRootDir": str(directory),
        "storePathCommitLog": str(directory / "commitlog"),
        "flushDiskType": "ASYNC_FLUSH",
        "totalReplicas": "2",
        "inSyncReplicas": "2",
        "waitTimeMillsInSendQueue": "3000",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
