"""Somebody in the middle of live connections, who flips, drops, doubles and moves bytes: between clients and nodes, or
between the nodes.

    python -m tests.attacks.middle [--seconds 10] [--seed 7] [--where client|nodes] [--tls]

Three real nodes behind proxies; a producer goes on all the while and notes what was confirmed to it. Then the proxies
pass everything as it is, and the queue is read: no node ended, none grew beyond a bound, every record is one that was
sent, in its order and once; over TLS, and where only nodes were met, every confirmed one is there. Over a plain
connection a client may be told what no node said, so there that is not asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirrorlog.client import Client
from mirrorlog.config import split_address
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.ports import HOST, free_ports
from tests.attacks.stage import tracebacks

_CHUNK: Final = 16 * 1024
_SHARE: Final = 0.02
"""Of chunks that are changed; more, and nothing ever gets through."""
_GROWTH_BYTES_MAX: Final = 256 * 1024 * 1024
_SETTLE_S: Final = 60.0


class Middle:
    """Proxies in a thread of their own. `active`: whether they change anything."""

    def __init__(self, seed: int) -> None:
        self.active = threading.Event()
        self.changed = 0
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def proxy(self, listening: str, to: str) -> None:
        """From one address to another."""
        host, port = split_address(listening)
        start = asyncio.start_server(lambda *ends: self._carry(*ends, to), host, port)
        asyncio.run_coroutine_threadsafe(start, self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(*split_address(to))
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                writer.write(self._changed(chunk))
                await writer.drain()
        writer.close()

    def _changed(self, chunk: bytes) -> bytes:
        draw = self._random
        if not self.active.is_set() or draw.random() >= _SHARE:
            return chunk
        self.changed += 1
        content = bytearray(chunk)
        at, until = sorted((draw.randrange(len(content)), draw.randrange(len(content) + 1)))
        kind = draw.randrange(4)
        if kind == 0:
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[at:until]
        elif kind == 2:
            content[at:at] = content[at:until]
        else:
            content = content[until:] + content[at:until] + content[:at]
        return bytes(content)


class Behind(Cluster):
    """Three nodes of which one port each is reached through the middle alone."""

    def __init__(self, middle: Middle, where: str, **options: Any) -> None:
        super().__init__(3, min_in_sync=2, **options)
        self._middle = middle
        self._section = "client" if where == "client" else "replication"

    def _configuration(self, node: Node) -> dict[str, dict[str, Any]]:
        tables = super()._configuration(node)
        own = f"{HOST}:{next(iter(free_ports(1)))}"
        self._middle.proxy(getattr(node, self._section), own)
        tables.setdefault(self._section, {})["bind"] = own
        return tables


@dataclass(slots=True)
class Outcome:
    """`wrong`: what should not be, for people."""

    sent: int
    confirmed: int
    stored: int
    changed: int
    elections: int
    grew_bytes: int
    wrong: list[str]


def run(where: str, *, seconds: float, seed: int, tls: bool, directory: Path | None = None) -> Outcome:
    """One cluster, attacked for so long. `tls`: of what the middle meets. `directory`: where data and logs are left."""
    middle = Middle(seed)
    options: dict[str, Any] = {"data_dir": directory, "tls": "server" if tls else None}
    if tls and where == "nodes":
        options["settings"] = {"tls.replication": "mutual"}
    try:
        with Behind(middle, where, **options) as cluster:
            cluster.wait_in_sync()
            before = {node.id: _memory(node) for node in cluster.nodes.values()}
            terms = _term(cluster)
            sent, confirmed = asyncio.run(_publish(cluster, middle, seconds))
            stored, why = asyncio.run(_read(cluster, len(confirmed)))
            wrong = [f"it cannot be read: {why}"] if why else []
            wrong += [f"{node.id} ended" for node in cluster.nodes.values() if not node.running]
            grew = max(_memory(node) - before[node.id] for node in cluster.nodes.values() if node.running)
            elections = _term(cluster) - terms
            wrong += [f"a node grew by {grew} bytes"] if grew > _GROWTH_BYTES_MAX else []
            wrong += [f"{count} tracebacks in the logs"] if (count := tracebacks(cluster.directory)) else []
    finally:
        middle.close()
    if not set(stored) <= set(range(sent)):
        wrong.append("records that nobody sent")
    if stored != sorted(set(stored)):
        wrong.append("records twice, or out of their order")
    if (tls or where == "nodes") and (lost := set(confirmed) - set(stored)):
        wrong.append(f"{len(lost)} confirmed records are not there, the first is {min(lost)}")
    if not confirmed:
        wrong.append("nothing was confirmed")
    return Outcome(sent, len(confirmed), len(stored), middle.changed, elections, grew, wrong)


async def _publish(cluster: Cluster, middle: Middle, seconds: float) -> tuple[int, list[int]]:
    """How many records were handed over, and the numbers of those that were confirmed."""
    async with _client(cluster) as client:
        await client.admin.declare("q")
    middle.active.set()
    sent, confirmed, until = 0, list[int](), time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(MirrorlogError):
            async with _client(cluster) as client, client.producer("q", delivery_timeout_ms=4_000) as producer:
                while time.monotonic() < until:
                    numbers = range(sent, sent + 20)
                    sent += len(numbers)
                    sends = [producer.send(b"%d" % number + bytes(500)) for number in numbers]
                    ends = await asyncio.gather(*sends, return_exceptions=True)
                    confirmed += [at for at, end in zip(numbers, ends, strict=True) if not isinstance(end, Exception)]
    middle.active.clear()
    return sent, confirmed


async def _read(cluster: Cluster, at_least: int) -> tuple[list[int], str]:
    """The numbers of all records, once the cluster has calmed down and shows as many as were confirmed; what the last
    attempt ended with."""
    give_up_at = time.monotonic() + _SETTLE_S
    found: list[int] = []
    while True:
        why = ""
        try:
            async with _client(cluster) as client:
                async with client.consumer("q", start="earliest", until="confirmed") as consumer:
                    found = [int((record.value or b"").rstrip(b"\0")) async for record in consumer]
                if len(found) >= at_least:
                    return found, ""
        except MirrorlogError as error:
            why = f"{error.code}: {error}"
        if time.monotonic() >= give_up_at:
            return found, why
        await asyncio.sleep(0.5)


def _client(cluster: Cluster) -> Client:
    return Client(*cluster.servers, tls=cluster.tls, request_timeout_ms=10_000)


def _term(cluster: Cluster) -> int:
    return max(status.cluster.term for status in cluster.statuses().values() if status.cluster is not None)


def _memory(node: Node) -> int:
    """Anonymous bytes of the node's process."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.middle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--where", choices=("client", "nodes"), default="client")
    parser.add_argument("--tls", action="store_true", help="the ports that it meets speak TLS")
    asked = parser.parse_args(arguments)
    print(f"seed={asked.seed}", flush=True)
    outcome = run(asked.where, seconds=asked.seconds, seed=asked.seed, tls=asked.tls)
    print(outcome, flush=True)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
