"""Nodes with a configuration of their own each, that come to a cluster at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mirrorlog.errors import ConnectionLost, RequestTimeout
from mirrorlog.testing import Node
from mirrorlog.testing.asking import wait_for
from mirrorlog.testing.cluster import dump_toml
from mirrorlog.testing.guard import Guard
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.status import ClusterStatus, Status
from tests.process.clusters import FAST, SEGMENT_BYTES

WAIT_S = 30.0


class Growing:
    """Nodes named n1, n2, …, made by `node`; those that still run at the end are killed."""

    def __init__(self, directory: Path) -> None:
        self.nodes: list[Node] = []
        self._directory = directory
        self._guard = Guard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        self._guard.close()

    def node(self, node_id: str = "", *, directory: str = "") -> Node:
        """Not started. `directory`: below which its own lies."""
        client, replication = free_ports(2)
        made = Node(
            node_id or f"n{len(self.nodes) + 1}",
            client=f"{HOST}:{client}",
            replication=f"{HOST}:{replication}",
            grpc=None,
            directory=self._directory / directory,
            on_start=self._guard.watch,
        )
        (self._directory / directory).mkdir(exist_ok=True)
        self.nodes.append(made)
        self.configure(made)
        return made

    def configure(self, node: Node, **more: Any) -> None:
        """`more`: settings, `section__key=value`."""
        tables: dict[str, dict[str, Any]] = {
            "node": {"id": node.id, "data_dir": node.data_dir},
            "client": {"bind": node.client},
            "replication": {"bind": node.replication},
            "grpc": {"enabled": False},
            "http": {"enabled": False},
            "log": {
                "segment_bytes": SEGMENT_BYTES, "prepare_bytes": SEGMENT_BYTES,
                "disk_low_percent": 0, "disk_full_percent": 0,
            },
        }  # fmt: skip
        for key, value in {**FAST, **{name.replace("__", "."): value for name, value in more.items()}}.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        node.config_file.touch(0o600)
        node.config_file.write_text(dump_toml(tables))

    def statuses(self) -> dict[str, Status]:
        """Of the nodes that run and answer, by the name of the process's node and its place."""
        found: dict[str, Status] = {}
        for node in self.nodes:
            with contextlib.suppress(ConnectionLost, RequestTimeout):
                if node.running:
                    found[f"{node.id} {node.client}"] = node.status()
        return found

    def wait_whole(self, nodes: Sequence[str], copies: int, timeout: float = WAIT_S) -> ClusterStatus:
        """Until every process that runs knows the same cluster of these nodes, each log of it mastered and in sync on
        `copies` nodes, which all count as up. What one of them says."""

        def met() -> ClusterStatus | None:
            seen = self.statuses()
            views = [status.cluster for status in seen.values() if status.cluster is not None]
            running = sum(node.running for node in self.nodes)
            if len(views) != running or len({status.cluster_id for status in seen.values()}) != 1:
                return None
            return views[0] if all(_whole(view, nodes, copies) for view in views) else None

        return wait_for(met, timeout=timeout, what=lambda: f"a cluster of {nodes}; {self.said()}")

    def said(self) -> str:
        """The last lines of everybody's log."""
        return "\n".join(f"--- {node.id} {node.client}\n{node.log_tail(25)}" for node in self.nodes)


def _whole(view: ClusterStatus, nodes: Sequence[str], copies: int) -> bool:
    data = [node.node_id for node in view.nodes if not node.witness]
    return (
        sorted(node.node_id for node in view.nodes) == sorted(nodes)
        and all(node.life == "up" for node in view.nodes)
        and {log.replicas[0] for log in view.logs} == set(data)
        and all(log.master and len(log.in_sync) == copies and not log.marked for log in view.logs)
    )


def join(*nodes: Node) -> tuple[str, str]:
    """The flag that names these as seeds."""
    return "--join", ",".join(node.replication for node in nodes)
