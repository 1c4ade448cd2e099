"""The same rows in one Kafka node, and Spark's own source for them.

One node without copies: what is measured is reading, and a mirror more would only take the processor from it.
"""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.peers.install import installed
from bench.peers.servers import HOST, Servers, Words, free_ports
from bench.spark.data import Rows
from bench.workload import WorkloadFailed

if TYPE_CHECKING:
    from confluent_kafka import Producer

CONNECTOR: Final = "spark-kafka"
"""Its jars, as `bench.peers.install` names them."""

_JVM: Final = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_FLUSH_SECONDS: Final = 120.0


def connector_jars() -> list[Path]:
    """What a session needs on its class path. Raises Skipped when the jars could not be had."""
    return sorted((installed(CONNECTOR) / "jars").glob("*.jar"))


def start(servers: Servers) -> str:
    """One node, broker and controller; its address. Raises Skipped, PeerFailed."""
    jars = installed("kafka") / "jars"
    client, controller = free_ports(2)
    file = servers.directory / "node.properties"
    file.write_text(_configuration(client, controller, servers.directory / "data"))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool: Words = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", file]
    servers.run("format", ["java", "-Xmx256m", "-cp", f"{jars}/*", *tool])
    servers.start("node", ["java", *_JVM, "-cp", f"{jars}/*", "kafka.Kafka", file])
    servers.wait_listening(client)
    return f"{HOST}:{client}"


def publish(rows: Rows, address: str) -> None:
    """All rows into a topic of one partition, confirmed. Raises WorkloadFailed."""
    from confluent_kafka import Producer  # an extra: what runs without Kafka must not need it

    failed: list[str] = []
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 262_144}
    )
    for first in rows.starts():
        for value in rows.values(first).to_pylist():
            _produce(producer, rows.queue, value, failed)
    if producer.flush(_FLUSH_SECONDS) or failed:
        raise WorkloadFailed(f"Kafka did not confirm all rows: {failed[:1]}")


def _produce(producer: Producer, topic: str, value: bytes, failed: list[str]) -> None:
    while True:
        try:
            producer.produce(topic, value, on_delivery=lambda error, _: failed.append(str(error)) if error else None)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.05)


def _configuration(client: int, controller: int, data: Path) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        "num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
