"""Nodes on a network of their own, so that any way between two of them can be cut: one network namespace per node,
joined by a bridge, which has an address itself: for clients in the namespace that the test runs in.

A way is cut by a wrong neighbour entry at its sender: frames go to a hardware address that nobody has. So what is sent
vanishes in silence, in that direction alone, as on a broken path; a blackhole route, or an interface that is down,
would tell the sender at once. Needs the right to make namespaces (root) and the commands `ip` and,
to limit what a node sends, `tc`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.cluster import dump_toml

CLIENT: Final = "client"
"""The name of the namespace that the test itself is in."""

_NOBODY: Final = "02:00:00:00:00:fe"
_COMMAND_SECONDS: Final = 10.0
_CLIENT_PORT: Final = 7401
_BURST_BYTES: Final = 128 * 1024
"""More than the largest packet between namespaces, 64 KiB: nothing larger would ever be sent."""
_QUEUE_MS: Final = 50
"""What waits longer to be sent is dropped."""
# 10.192.0.0/11 in networks of 256 addresses, one for a process.
_NETWORKS: Final = 32 * 256
# Interfaces have names of at most 15 characters, so the process id is all that fits besides.
_BRIDGE: Final = re.compile(r"^\d+: (mlc(\d+)b)\b", re.MULTILINE)
_NAMESPACE: Final = re.compile(r"^(mlc(\d+)-\S+)", re.MULTILINE)


class NotPermitted(Exception):
    """There can be no namespaces here; the reason."""


class Network:
    """A namespace for each of `names`, from `with` on. Raises NotPermitted. `addresses`: by name, the client's too."""

    def __init__(self, names: Sequence[str]) -> None:
        self._prefix = f"mlc{os.getpid()}"
        number = os.getpid() % _NETWORKS
        network = f"10.{192 + number // 256}.{number % 256}"
        self.addresses = {name: f"{network}.{last}" for last, name in enumerate([CLIENT, *names], 1)}

    def __enter__(self) -> Self:
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it. The nodes in it are to be ended before. Idempotent."""
        for name in self._names():
            _attempt("ip", "netns", "del", self._namespace(name))
        _attempt("ip", "link", "del", self._bridge)

    def command_prefix(self, name: str) -> list[str]:
        """What starts a command as `name`."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing that `sender` sends arrives at `receiver` any more; the other way is as it was."""
        _run(*self._ip(sender), "neigh", "replace", self.addresses[receiver], "lladdr", _NOBODY, "nud", "permanent",
             "dev", self._device(sender))  # fmt: skip

    def cut_both(self, one: str, other: str) -> None:
        """Neither hears the other any more."""
        self.cut(one, other)
        self.cut(other, one)

    def limit(self, name: str, bits_per_s: int) -> None:
        """What `name` sends takes its time from here on, as through a network card of that speed.
        Raises NotPermitted."""
        _permitted(*self._tc(name), "replace", "dev", self._device(name), "root", "tbf", "rate", f"{bits_per_s}bit",
             "burst", f"{_BURST_BYTES}", "latency", f"{_QUEUE_MS}ms")  # fmt: skip

    def heal(self) -> None:
        """All ways are open again."""
        for sender in self.addresses:
            _run(*self._ip(sender), "neigh", "flush", "nud", "permanent", "dev", self._device(sender))

    # --- making it ---

    def _make(self) -> None:
        _permitted("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.addresses[CLIENT]}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for number, name in enumerate(self._names()):
            namespace = self._namespace(name)
            port = f"{self._prefix}p{number}"
            _permitted("ip", "netns", "add", namespace)
            _permitted("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "set", port, "master", self._bridge, "up")
            _run(*self._ip(name), "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run(*self._ip(name), "link", "set", device, "up")

    def _names(self) -> list[str]:
        return [name for name in self.addresses if name != CLIENT]

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _ip(self, name: str) -> list[str]:
        return ["ip"] if name == CLIENT else ["ip", "-n", self._namespace(name)]

    def _tc(self, name: str) -> list[str]:
        return ["tc", *([] if name == CLIENT else ["-n", self._namespace(name)]), "qdisc"]

    def _device(self, name: str) -> str:
        return self._bridge if name == CLIENT else "eth0"

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}b"


class SeparatedCluster(Cluster):
    """As `Cluster`, each node in its namespace of `network`, which must have one by each node's name."""

    def __init__(self, network: Network, copies: int = 3, *, settings: dict[str, Any] | None = None, **options: Any):
        super().__init__(copies, settings={"node.insecure": True, **(settings or {})}, **options)
        self._network = network

    def join(self, node_id: str) -> Node:
        """Start a node that the configuration of the others does not name. It is one of `nodes` from here on."""
        own = self._addresses_of(node_id)
        node = Node(
            node_id,
            client=own["client"],
            replication=own["replication"],
            directory=self.directory,
            on_start=self._guard.watch,
            command_prefix=self._network.command_prefix(node_id),
        )
        seeds = ",".join(each.replication for each in self.nodes.values())
        tables = self._configuration(node)
        del tables["cluster"]["members"], tables["cluster"]["logs"]
        for section in ("client", "replication"):
            tables.setdefault(section, {})["bind"] = own[section]
        node.config_file.touch(0o600)
        node.config_file.write_text(dump_toml(tables))
        self.nodes[node_id] = node
        node.start("--join", seeds)
        return node

    def _addresses(self) -> dict[str, dict[str, str]]:
        return {node_id: self._addresses_of(node_id) for node_id in self._node_ids}

    def _addresses_of(self, node_id: str) -> dict[str, str]:
        """The same ports for all: each has an address of its own."""
        address = self._network.addresses[node_id]
        return {
            kind: f"{address}:{_CLIENT_PORT + number}" for number, kind in enumerate(("client", "replication", "grpc"))
        }

    def _place_nodes(self) -> dict[str, dict[str, str]]:
        addresses = super()._place_nodes()
        for node in self.nodes.values():
            node.command_prefix = tuple(self._network.command_prefix(node.id))
        return addresses


def why_not() -> str:
    """Why there can be no namespaces here; empty when there can."""
    try:
        with Network(["probe"]):
            return ""
    except NotPermitted as error:
        return str(error)


def remove_leftovers() -> None:
    """What tests that were killed have left; what belongs to a process that lives stays."""
    for kind, pattern in (("netns", _NAMESPACE), ("link", _BRIDGE)):
        with contextlib.suppress(NotPermitted):
            for name, pid in pattern.findall(_permitted("ip", kind, "list")):
                if not Path(f"/proc/{pid}").exists():
                    _attempt("ip", kind, "del", name)


def _run(*command: str) -> str:
    """Its output. Raises AssertionError with what it says when it fails."""
    try:
        return _permitted(*command)
    except NotPermitted as error:
        raise AssertionError(str(error)) from None


def _permitted(*command: str) -> str:
    """As `_run`. Raises NotPermitted."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPermitted(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _attempt(*command: str) -> None:
    with contextlib.suppress(NotPermitted):
        _permitted(*command)
