"""Kafka: three combined KRaft nodes, replication factor 3, all three in sync for a confirm, no fsync per record."""

from __future__ import annotations

import base64
import re
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.measure import Figure
from bench.peers import versions
from bench.peers.install import client_version, installed
from bench.peers.outcome import RECORD_BYTES, figures_of
from bench.peers.peer import PeerFailed, Seconds
from bench.peers.servers import HOST, Servers, Words, free_ports

CASE: Final = f"Kafka {versions.KAFKA}, 3 copies, {RECORD_BYTES} B, page cache"

_BROKER_JVM: Final = (
    *("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""As Kafka's own start script has it; only warnings, because nobody reads the rest."""

_JAVA_RECORDS_PER_SECOND: Final = 60_000
"""What the Java producer is given for each second that it shall take."""


def run(seconds: Seconds) -> list[Figure]:
    """One round: W1, W2 and W3 by confluent-kafka, W1 by Kafka's own Java producer."""
    jars = installed("kafka") / "jars"
    with Servers("kafka") as servers:
        addresses = servers.started(lambda: _start(servers, jars))
        arguments = ["--servers", addresses, *seconds.on_jvm().arguments()]
        driver = [sys.executable, "-m", "bench.peers.kafka_load", *arguments]
        lines = servers.run("confluent-kafka", driver)
        figures = figures_of(lines, f"{CASE}, confluent-kafka {client_version('confluent-kafka')}")
        return figures + _publish_from_java(servers, jars, addresses, seconds)


def _start(servers: Servers, jars: Path) -> str:
    """Format and start three nodes; their addresses with commas."""
    ports, controllers = free_ports(3), free_ports(3)
    files = [servers.directory / f"k{number}.properties" for number in range(1, 4)]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    for number, file in enumerate(files, start=1):
        file.write_text(configuration(number, ports, controllers, servers.directory / f"k{number}"))
        tool: Words = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", file]
        servers.run(f"format{number}", ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *tool])
    for number, file in enumerate(files, start=1):
        servers.start(f"k{number}", ["java", *_BROKER_JVM, "-cp", f"{jars}/*", "kafka.Kafka", file])
    servers.wait_listening(*ports)
    return ",".join(f"{HOST}:{port}" for port in ports)


def configuration(number: int, ports: list[int], controllers: list[int], directory: Path) -> str:
    """The properties of node `number` (from 1); everything that bears on speed is Kafka's default."""
    voters = ",".join(f"{voter}@{HOST}:{port}" for voter, port in enumerate(controllers, start=1))
    client, controller = f"{HOST}:{ports[number - 1]}", f"{HOST}:{controllers[number - 1]}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(directory),
        "offsets.topic.replication.factor": "3",
        "replica.fetch.max.bytes": "8388608",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _publish_from_java(servers: Servers, jars: Path, addresses: str, seconds: Seconds) -> list[Figure]:
    warm, measured = (int(_JAVA_RECORDS_PER_SECOND * each) for each in (seconds.warm, seconds.measure))
    settings = [
        f"bootstrap.servers={addresses}",
        "acks=all",
        "linger.ms=20",
        "batch.size=1000000",
        "compression.type=none",
    ]
    command = ["org.apache.kafka.tools.ProducerPerformance", "--topic", "python", "--record-size", str(RECORD_BYTES)]
    command += ["--num-records", str(warm + measured), "--warmup-records", str(warm), "--throughput", "-1"]
    lines = servers.run(
        "java-producer", ["java", "-Xmx1g", "-cp", f"{jars}/*", *command, "--producer-props", *settings]
    )
    rate = java_rate(lines, measured)
    case = f"{CASE}, Java producer, linger 20 ms, batches of 1000 kB"
    return [
        Figure("W1", case, "rate", "msg/s", rate),
        Figure("W1", case, "throughput", "MB/s", rate * RECORD_BYTES / 1e6),
    ]


def java_rate(lines: Iterable[str], records: int) -> float:
    """Records per second, from ProducerPerformance's summary of what it sent after its warm-up.

    Raises PeerFailed unless that were `records`; it counts those that were confirmed.
    """
    summary = re.compile(r"(\d+) steady state records sent, ([\d.]+) records/sec")
    summaries = [found for line in lines if (found := summary.match(line))]
    if not summaries or int(summaries[-1][1]) != records:
        raise PeerFailed(f"Kafka's producer did not confirm {records} records: {summaries[-1][0] if summaries else ''}")
    return float(summaries[-1][2])
