"""Redis: a primary and two replicas, records in a stream, confirmed when both replicas have them (WAIT 2).

The append-only file is on, as anybody would have it who keeps records, with its default of an fsync each second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from bench.measure import Figure
from bench.peers import versions
from bench.peers.install import client_version, installed
from bench.peers.outcome import RECORD_BYTES, figures_of
from bench.peers.peer import Seconds
from bench.peers.servers import HOST, Servers, Words, free_ports

CASE: Final = f"Redis {versions.REDIS} stream, 3 copies, {RECORD_BYTES} B, page cache (AOF, fsync each second)"


def run(seconds: Seconds) -> list[Figure]:
    """One round of W1, W2 and W3 by redis-py."""
    program = installed("redis")
    with Servers("redis") as servers:
        address = servers.started(lambda: _start(servers, program))
        driver = [sys.executable, "-m", "bench.peers.redis_load", "--servers", address, *seconds.arguments()]
        lines = servers.run("redis-py", driver)
        return figures_of(lines, f"{CASE}, redis-py {client_version('redis')}")


def _start(servers: Servers, program: Path) -> str:
    """Start three servers; the address of the primary."""
    primary, *replicas = ports = free_ports(3)
    libraries = {"LD_LIBRARY_PATH": ":".join(str(each) for each in program.glob("usr/lib/*-linux-gnu"))}
    for port in ports:
        directory = servers.directory / str(port)
        directory.mkdir()
        where: Words = ["--bind", HOST, "--port", str(port), "--dir", directory]
        disk = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        # Without the delay the replicas come online at once and not after five seconds; it bears on nothing else.
        follow = ["--replicaof", HOST, str(primary)] if port in replicas else ["--repl-diskless-sync-delay", "0"]
        servers.start(f"redis-{port}", [program / "usr/bin/redis-server", *where, *disk, *follow], libraries)
    servers.wait_listening(*ports)
    return f"{HOST}:{primary}"
