"""NATS JetStream: three servers, streams of R3 on files, a confirm from a majority of them; no fsync per record.

A JetStream confirm waits for two of three, where the other systems here wait for all: there is no setting for more.
"""

from __future__ import annotations

import sys
from typing import Final

from bench.measure import Figure
from bench.peers import versions
from bench.peers.install import client_version, installed
from bench.peers.outcome import RECORD_BYTES, figures_of
from bench.peers.peer import Seconds
from bench.peers.servers import HOST, Servers, Words, free_ports

CASE: Final = f"NATS JetStream {versions.NATS_SERVER}, 3 copies (majority confirms), {RECORD_BYTES} B, page cache"


def run(seconds: Seconds) -> list[Figure]:
    """One round, by the Go client and by nats-py."""
    program = installed("nats")
    clients: dict[str, Words] = {
        f"Go client {versions.NATS_GO}": [program / "nats-load"],
        f"nats-py {client_version('nats-py')}": [sys.executable, "-m", "bench.peers.nats_load"],
    }
    figures: list[Figure] = []
    with Servers("nats") as servers:
        addresses = servers.started(lambda: _start(servers, str(program / "nats-server")))
        for client, driver in clients.items():
            lines = servers.run(client.split()[0], [*driver, "--servers", addresses, *seconds.arguments()])
            figures += figures_of(lines, f"{CASE}, {client}")
    return figures


def _start(servers: Servers, program: str) -> str:
    """Start three servers; `name=url` of each, with commas."""
    ports, routes = free_ports(3), free_ports(3)
    for number, (port, route) in enumerate(zip(ports, routes, strict=True), start=1):
        file = servers.directory / f"n{number}.conf"
        file.write_text(configuration(f"n{number}", port, route, routes, str(servers.directory / f"n{number}")))
        servers.start(f"n{number}", [program, "--config", file])
    servers.wait_listening(*ports)
    return ",".join(f"n{number}=nats://{HOST}:{port}" for number, port in enumerate(ports, start=1))


def configuration(name: str, port: int, route: int, routes: list[int], directory: str) -> str:
    """Of one server: its name, clients' port, port for the others, and all of those."""
    others = ", ".join(f'"nats://{HOST}:{each}"' for each in routes)
    return (
        f"server_name: {name}\n"
        f"listen: {HOST}:{port}\n"
        f'jetstream {{ store_dir: "{directory}", max_file: 50G }}\n'
        f"cluster {{ name: bench, listen: {HOST}:{route}, routes: [{others}] }}\n"
    )
