"""Where attacks are made: three real nodes with doors, plain or with users, TLS and a secret; and what one did to them.

An attack runs in a process of its own beside a `bystander`. Before and after it the nodes are asked for their elections
and epochs, and the kernel for their memory: the same processes must be there, with the same coordinator and masters.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from tests.attacks.bystander import Seen, bystander
from tests.attacks.target import Target

KINDS: Final = ("plain", "secured")
_QUEUES: Final = 1_000
_ADMINISTRATOR: Final = ("root", "the administrator's password")
_NOBODY: Final = ("nobody", "a password that opens nothing")
_READER: Final = ("reader", "a password that opens nothing")
_SECRET: Final = "what only the nodes of this cluster know"
# An attack ends by itself; this is for one that does not.
_MARGIN_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Of all nodes. `memory_bytes`: anonymous, of the node and its doors, by node id."""

    processes: dict[str, int]
    elections: int
    epochs: dict[str, int]
    memory_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attack did. `grew_bytes`: by how much the largest growth of a node's memory was, at its end."""

    attack: str
    kind: str
    seed: int
    inputs: int
    elections: int
    promotions: int
    ended: list[str]
    grew_bytes: int
    bystander: Seen

    @property
    def harmless(self) -> bool:
        """Nobody ended, nobody was deposed, and nobody else's publish failed."""
        return not (self.elections or self.promotions or self.ended or self.bystander.failed)


class Stage:
    """A cluster that is up, with some queues."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.cluster = cluster
        self.kind = kind
        nodes = cluster.nodes.values()
        self._target = Target(
            client=tuple(node.client for node in nodes),
            replication=tuple(node.replication for node in nodes),
            grpc=tuple(node.grpc or "" for node in nodes),
            http=tuple(node.http or "" for node in nodes),
            ca=str(cluster.certificates.ca) if cluster.tls is not None else None,
            queues=tuple(f"q{number}" for number in range(_QUEUES)),
        )
        secured = kind == "secured"
        self._good = self._login(_ADMINISTRATOR) if secured else self._target
        self.target = self._login(_NOBODY) if secured else self._target
        """As an attacker knows it."""
        with self._client(self._target) as client:
            if secured:
                client.admin.topology.set_user(
                    _ADMINISTRATOR[0], password_hash=hashed(_ADMINISTRATOR[1]), tags=["administrator"]
                )
        with self._client(self._good) as client:
            if secured:
                client.admin.topology.set_permissions(_ADMINISTRATOR[0], configure=".*", write=".*", read=".*")
                client.admin.topology.set_user(_NOBODY[0], password_hash=hashed(_NOBODY[1]))
                client.admin.topology.set_user(_READER[0], password_hash=hashed(_READER[1]))
                client.admin.topology.set_permissions(_READER[0], configure="", write="", read=".*")
            for queue in self._target.queues:
                client.admin.declare(queue)

    def attacked(self, attack: str, *, seconds: float, seed: int) -> Outcome:
        """Let one have its time. Raises AssertionError when the attack itself fails."""
        before = self.facts()
        with bystander(self._good) as beside:
            inputs = _run(attack, self.target, seconds, seed)
            seen = beside.finish()
        after = self.facts()
        return Outcome(
            attack=attack,
            kind=self.kind,
            seed=seed,
            inputs=inputs,
            elections=after.elections - before.elections,
            promotions=sum(after.epochs.values()) - sum(before.epochs.values()),
            ended=[node for node, pid in before.processes.items() if after.processes.get(node) != pid],
            grew_bytes=max(after.memory_bytes[node] - before.memory_bytes[node] for node in before.memory_bytes),
            bystander=seen,
        )

    def facts(self) -> Facts:
        with self._client(self._good) as client:
            known = [client.admin.status(node) for node in self.cluster.nodes]
        views = [status.cluster for status in known if status.cluster is not None]
        running = {node.id: node.pid for node in self.cluster.nodes.values() if node.running}
        return Facts(
            processes=running,
            elections=max(view.term for view in views),
            epochs={log.name: log.epoch for view in views for log in view.logs},
            memory_bytes={node: sum(map(_anonymous_bytes, _family(pid))) for node, pid in running.items()},
        )

    def _login(self, who: tuple[str, str]) -> Target:
        return replace(self._target, user=who[0], password=who[1], reader=_READER)

    def _client(self, target: Target) -> Client:
        login = {"user": target.user, "password": target.password} if target.user else {}
        return Client(*target.client, tls=target.context(), **login)


@contextmanager
def stage(kind: str, directory: Path | None = None) -> Iterator[Stage]:
    """Three nodes: `plain`, as they are without settings, or `secured`: users, TLS on client ports and the gRPC door,
    a secret. `directory`: where their data and logs are left."""
    secured = kind == "secured"
    cluster = Cluster(
        3,
        data_dir=directory,
        grpc=True,
        http=True,
        tls="server" if secured else None,
        settings={"cluster.secret": _SECRET} if secured else None,
    )
    with cluster:
        cluster.wait_in_sync()
        yield Stage(cluster, kind)


def tracebacks(directory: Path) -> int:
    """How many the nodes of a cluster wrote into their logs."""
    return sum(log.read_text(errors="replace").count("Traceback (most recent") for log in directory.glob("*.log"))


def attacks() -> list[str]:
    """The names of all: the modules beside this one that have a function `attack`."""
    folder = Path(__file__).parent
    names = [module.name for module in pkgutil.iter_modules([str(folder)])]
    return [name for name in sorted(names) if hasattr(importlib.import_module(f"tests.attacks.{name}"), "attack")]


def _run(attack: str, target: Target, seconds: float, seed: int) -> int:
    """How many inputs it sent."""
    # A stranger has a machine of its own: where it has not, nodes and bystander come first.
    nice = ["nice", "-n", "10"]
    command = [*nice, sys.executable, "-m", "tests.attacks.stage", attack, target.text, str(seconds), str(seed)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + _MARGIN_S, check=False)
    assert ended.returncode == 0, f"the attack {attack} itself ended with {ended.returncode} (seed {seed})"
    return int(ended.stdout)


def _family(pid: int) -> list[int]:
    """The process and those that it started."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _anonymous_bytes(pid: int) -> int:
    """Of a process's own memory; the pages of its files are the kernel's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _main(attack: str, target: str, seconds: str, seed: str) -> None:
    module = importlib.import_module(f"tests.attacks.{attack}")
    print(module.attack(Target.parse(target), float(seconds), random.Random(int(seed))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
