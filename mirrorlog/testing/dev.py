"""`mqtool dev`: three nodes on this machine, with what to try, until Ctrl-C. For looking around, and nothing else."""

from __future__ import annotations

import fcntl
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Final

import typer

from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import DirectoryInUse, MirrorlogError, RequestTimeout
from mirrorlog.testing.cluster import Cluster
from mirrorlog.testing.node import START_SECONDS

_HOME: Final = Path("~/.local/share/mirrorlog-dev")
_TOLD: Final = "nodes.txt"


def dev(
    context: typer.Context,
    directory: Annotated[Path, typer.Option("--dir", help="Where their data lie, and stay.")] = _HOME,
    *,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=7, help="So many.")] = 3,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is there first.")] = False,
) -> None:
    """Start nodes on this machine, with all their doors, and say what to try. Ctrl-C ends them; their data stay.

    Whoever is on this machine may use them; nobody else reaches them. A node that `mqtool node forget` has taken out
    begins anew at the next start, what it had is set aside. Exit code 13 when they run already, with their
    addresses.

    Example: mqtool dev --fresh
    """
    home = directory.expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home):
        data = home / "cluster"
        if fresh:
            shutil.rmtree(data, ignore_errors=True)
        with closing(_serving(nodes, data)) as cluster:
            pages = [f"http://{node.http}/page/" for node in cluster.nodes.values()]
            doors = [f"amqp://{node.amqp}" for node in cluster.nodes.values()]
            text = told(cluster.servers, pages, doors, data)
            (home / _TOLD).write_text(text)
            typer.echo(text)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):
                signal.pause()
            typer.echo(f"\nending; the data stay in {data}")


def _serving(nodes: int, data: Path) -> Cluster:
    """With all nodes in sync. One that its cluster has forgotten (`mqtool node forget`) begins anew, as another member:
    what it had is set aside."""
    while True:
        cluster = Cluster(
            nodes, data_dir=data, grpc=True, http=True, amqp=True, logs=(), name="dev", first_port=CLIENT_PORT
        )
        try:
            cluster.start()
            _wait_in_sync(cluster)
        except BaseException as error:
            cluster.close()
            forgotten = [node for node in cluster.nodes.values() if node.forgotten]
            if not isinstance(error, MirrorlogError) or not forgotten:
                raise
            for node in forgotten:
                aside = next(path for path in _names(node.data_dir) if not path.exists())
                node.data_dir.rename(aside)
                typer.echo(f"node {node.id} was forgotten by its cluster, and begins anew; what it had is in {aside}")
        else:
            return cluster


def _names(directory: Path) -> Iterator[Path]:
    return (directory.with_name(f"{directory.name}.forgotten-{number}") for number in count(1))


def _wait_in_sync(cluster: Cluster) -> None:
    """Raises RequestTimeout; at once when a node turns out to be forgotten, for it would be waited for in vain."""
    for left in reversed(range(int(START_SECONDS))):
        try:
            cluster.wait_in_sync(timeout=1.0)
        except RequestTimeout:
            if not left or any(node.forgotten for node in cluster.nodes.values()):
                raise
        else:
            return


def told(servers: list[str], pages: list[str], doors: list[str], data: Path) -> str:
    """Where they are, and what to try. Pure."""
    return "\n".join(
        [
            f"{len(servers)} nodes serve, with their data in {data}",
            f"  page: {pages[0]}",
            f"  programs for RabbitMQ: {doors[0]}",
            "In another terminal:",
            f"  export MIRRORLOG_SERVERS={','.join(servers)}",
            "  mqtool declare hello",
            "  echo world | mqtool publish hello",
            "  mqtool receive hello --wait 1",
            "  mqtool queue list --watch",
            "  mqtool doctor",
            "Ctrl-C here ends them.",
        ]
    )


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Raises DirectoryInUse, with what the other one has told."""
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            known = (home / _TOLD).read_text().splitlines() if (home / _TOLD).exists() else []
            where = "; ".join(line.strip() for line in known if "page" in line or "SERVERS" in line)
            raise DirectoryInUse(f"they run already, from {home}: {where or 'they are starting'}") from None
        (home / _TOLD).unlink(missing_ok=True)
        yield
