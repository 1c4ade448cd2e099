"""A cluster of real node processes on loopback. By default it has one log, whose home is `n1`: its first master."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import shutil
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Self

from mirrorlog.errors import BadInput, ConfigError, ConnectionLost, LoginFailed, NodeStopping, PortTaken, RequestTimeout
from mirrorlog.testing.asking import wait_for
from mirrorlog.testing.certificates import MODES, Certificates
from mirrorlog.testing.guard import Guard
from mirrorlog.testing.node import START_SECONDS, Node
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.status import LogStatus, Status

COPIES_MAX: Final = 16
LOG_NAME: Final = "main"

_MIB: Final = 1024 * 1024
_START_ATTEMPTS: Final = 5
_PORTS: Final = ("client", "replication", "grpc", "http", "amqp")
_AMQP_PORT: Final = 5672
# For one look at a node of which another can be had: one that is paused must not hold up a wait.
_LOOK_SECONDS: Final = 1.0


_Condition = Callable[[LogStatus, Mapping[str, LogStatus]], bool]
"""Given a log on its master, and on every node that has it, by node id."""

# A test writes little: bringing more pages in would cost it more time than it saves.
_PREPARE_BYTES: Final = 8 * _MIB


class Cluster:
    """`copies` nodes named n1, n2, …, started by `with` (or `async with`, or `start`) and ended by its end.

    - `min_in_sync`: by default the majority, with one or two copies 1.
    - `flush`: "memory" or "disk".
    - `logs`: for more than one log, a table of `[[cluster.logs]]` for each: `[{}, {"name": "disk", "flush": "disk",
      "master": "n2"}]`. What is left out: the name "main", n1 as home, all other nodes as mirrors, `min_in_sync` and
      `flush` as above. None, `()`: each node is home to a log, as where nobody lists any: n1 to "main", others to one
      of their name; `min_in_sync` and `flush` are the cluster's own.
    - `data_dir`: where data, configuration and log of every node lie. By default a temporary directory that is removed
      at the end; one that is given stays, and a later cluster on it goes on with its data.
    - `settings`: of all nodes, `{"section.key": value}`, above everything else given here.
    - `grpc`, `http`, `amqp`: start these doors too.
    - `tls`: "server" or "mutual": client ports, gRPC and AMQP doors speak TLS, by certificates made with trustme. Then
      the property `tls` is what a `Client` is given, and `certificates` has the files.
    - `segment_bytes`: of a segment file.
    - `first_port`: for clients of the first node, if it is free, with its other ports behind it (AMQP's are 5672
      and up); the next node's ten behind. 0: any that are free.

    The nodes never outlive the process that started them, unless `close(keep_running=True)` lets them go.
    """

    def __init__(
        self,
        copies: int = 3,
        *,
        min_in_sync: int | None = None,
        flush: str = "memory",
        logs: Sequence[Mapping[str, Any]] = ({},),
        data_dir: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
        grpc: bool = False,
        http: bool = False,
        amqp: bool = False,
        tls: str | None = None,
        segment_bytes: int = 64 * _MIB,
        name: str = "testing",
        first_port: int = 0,
    ) -> None:
        if not 1 <= copies <= COPIES_MAX:
            raise BadInput(f"a test cluster has 1 to {COPIES_MAX} copies, not {copies}")
        if tls is not None and tls not in MODES:
            raise BadInput(f"tls is one of {', '.join(MODES)}, not {tls!r}")
        self.name = name
        self._first_port = first_port
        self.nodes: dict[str, Node] = {}
        self._node_ids = [f"n{number}" for number in range(1, copies + 1)]
        self._logs = [self._assignment({"min_in_sync": min_in_sync, "flush": flush, **log}) for log in logs]
        self._settings = {
            "log.segment_bytes": segment_bytes,
            "log.prepare_bytes": _PREPARE_BYTES,
            # A disk that is nearly full for everyday use has room for a test.
            "log.disk_low_percent": 0,
            "log.disk_full_percent": 0,
            "grpc.enabled": grpc,
            "http.enabled": http,
            **(settings or {}),
        }
        self._doors = tuple(name for name, wanted in (("grpc", grpc), ("http", http), ("amqp", amqp)) if wanted)
        self._tls = tls
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._temporary: Path | None = None
        self._guard = Guard()

    # --- Its life -------------------------------------------------------------------------------------------------

    def start(self, timeout: float = START_SECONDS) -> Self:
        """Start all nodes and wait until each serves. Raises as `Node.start`; nothing runs then."""
        atexit.register(self.close)
        try:
            for _ in range(_START_ATTEMPTS - 1):
                with contextlib.suppress(PortTaken):
                    return self._start_once(timeout)
            return self._start_once(timeout)
        except BaseException:
            self.close()
            raise

    def close(self, *, keep_running: bool = False) -> None:
        """End every node. Idempotent. `keep_running` leaves the nodes running and their directory in place.

        Nodes on a given `data_dir` are stopped cleanly, those on a temporary one are killed: nobody needs their data.
        """
        atexit.unregister(self.close)
        if keep_running:
            self._guard.release()
            self._data_dir, self._temporary = self.directory, None
            return
        try:
            if self._data_dir is not None:
                self._stop_all()
        finally:
            self._kill_all()
            self._guard.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # --- Its nodes ------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[str]:
        """The client addresses of all nodes, `host:port`, n1's first."""
        return [node.client for node in self.nodes.values()]

    @property
    def certificates(self) -> Certificates:
        """The files, of a cluster with TLS. Raises BadInput before the start."""
        return Certificates(self.directory / "tls")

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What clients need to connect: `Client(*cluster.servers, tls=cluster.tls)`; None without TLS."""
        return None if self._tls is None else self.certificates.context()

    @property
    def master(self) -> Node:
        """Who writes the first log, as the nodes that answer know it; n1 in a cluster that has just begun.

        Blocks as `statuses`. Raises RequestTimeout when nobody is promoted within a few seconds.
        """
        return self.nodes[self.wait_master()]

    @property
    def mirrors(self) -> list[Node]:
        """The other nodes, when `master` is asked for."""
        master = self.master
        return [node for node in self.nodes.values() if node is not master]

    def wait_master(self, log: str | None = None, timeout: float = 30.0) -> str:
        """Until a log, the first one by default, has a master whose process runs, and says so itself; its node id.

        Blocks. Raises RequestTimeout; at once when no node runs.
        """
        name = log or (self._logs[0]["name"] if self._logs else LOG_NAME)

        def met() -> str | None:
            if not any(node.running for node in self.nodes.values()):
                raise RequestTimeout(f"log {name} has no master: no node of the cluster runs")
            return _master_of(self.statuses(timeout=_LOOK_SECONDS), name)

        return wait_for(met, timeout=timeout, what=lambda: f"log {name} has a master")

    @property
    def directory(self) -> Path:
        """Where data, configuration and log of every node lie. Raises BadInput before the start."""
        directory = self._data_dir or self._temporary
        if directory is None:
            raise BadInput("the cluster is not started: its temporary directory does not exist")
        return directory

    def statuses(self, timeout: float = 5.0) -> dict[str, Status]:
        """By node id, of the running nodes that answer; each is given `timeout` seconds. None does to who is no user,
        once there are users."""
        found: dict[str, Status] = {}
        for node in self.nodes.values():
            with contextlib.suppress(ConnectionLost, NodeStopping, RequestTimeout, LoginFailed):
                if node.running:
                    found[node.id] = node.status(timeout=timeout)
        return found

    # --- Waiting --------------------------------------------------------------------------------------------------

    def wait_in_sync(self, timeout: float = 30.0) -> LogStatus:
        """Until every mirror of every log is connected, proven and in sync; the first log's status on its master.

        Blocks: from a coroutine, `await asyncio.to_thread(cluster.wait_in_sync)`. Raises RequestTimeout.
        """
        return self._wait(_in_sync, timeout, "every mirror is in sync")

    def wait_confirmed(self, timeout: float = 30.0) -> LogStatus:
        """Until all that is in the logs is confirmed and every running node knows it; the first log's status on its
        master.

        Blocks and raises as `wait_in_sync`. Meaningful once nobody publishes.
        """
        return self._wait(_confirmed, timeout, "all is confirmed on all nodes")

    def _wait(self, condition: _Condition, timeout: float, what: str) -> LogStatus:
        seen: dict[str, Status] = {}

        def met() -> LogStatus | None:
            seen.clear()
            seen.update(self.statuses())
            if seen.keys() != {node.id for node in self.nodes.values() if node.running}:
                return None
            masters = []
            for name, holders in self._holders(seen).items():
                copies = _copies(seen, name)
                master_id = _master_of(seen, name)
                if master_id is None or copies.keys() != seen.keys() & holders:
                    return None
                if not condition(copies[master_id], copies):
                    return None
                masters.append(copies[master_id])
            return masters[0] if masters else None

        return wait_for(met, timeout=timeout, what=lambda: f"{what}; the nodes say {_summary(seen)}")

    def _holders(self, statuses: Mapping[str, Status]) -> dict[str, set[str]]:
        """By log, the first one first, who has a copy of it: as was asked for, else as the cluster has it, once each
        node is home to one."""
        if self._logs:
            return {log["name"]: {log["master"], *log["mirrors"]} for log in self._logs}
        views = [status.cluster for status in statuses.values() if status.cluster is not None]
        newest = max(views, key=lambda view: view.version, default=None)
        logs = [log for log in newest.logs if not log.transient] if newest is not None else []
        if {log.replicas[0] for log in logs} < set(self._node_ids):
            return {}
        return {log.name: set(log.replicas) for log in sorted(logs, key=lambda log: (log.name != LOG_NAME, log.name))}

    # --- Starting and ending --------------------------------------------------------------------------------------

    def _start_once(self, timeout: float) -> Self:
        if self._data_dir is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="mirrorlog-"))
            self._guard.remove(self._temporary)
        self.directory.mkdir(parents=True, exist_ok=True)
        addresses = self._place_nodes()
        made = [node.data_dir for node in self.nodes.values() if not node.data_dir.exists()]
        try:
            for node in self.nodes.values():
                node.launch()
            for node in self.nodes.values():
                node.wait_serving(timeout)
        except BaseException:
            self._kill_all()
            for directory in made:  # they know each other by addresses that another attempt does not have
                shutil.rmtree(directory, ignore_errors=True)
            raise
        self._addresses_file.write_text(json.dumps(addresses))
        return self

    def _place_nodes(self) -> dict[str, dict[str, str]]:
        """Everybody's addresses, and everybody's configuration, since each names those of the others."""
        addresses = self._addresses()
        if self._tls is not None:
            self.certificates.make()
        tls = self.tls
        self.nodes = {
            node_id: Node(
                node_id,
                client=addresses[node_id]["client"],
                replication=addresses[node_id]["replication"],
                **{door: addresses[node_id][door] for door in self._doors},
                directory=self.directory,
                on_start=self._guard.watch,
                tls=tls,
            )
            for node_id in self._node_ids
        }
        for node in self.nodes.values():
            node.config_file.touch(0o600)  # a secret may stand in it
            node.config_file.write_text(dump_toml(self._configuration(node)))
        return addresses

    def _addresses(self) -> dict[str, dict[str, str]]:
        """By node id. Those of the cluster that was here before: its nodes look for each other where they were. A
        single one looks for nobody, and need not care who has its ports now."""
        if len(self._node_ids) > 1 and self._addresses_file.exists():
            known: dict[str, dict[str, str]] = json.loads(self._addresses_file.read_text())
            if known.keys() == set(self._node_ids):
                return _with_all_ports(known)
        rather = [
            _AMQP_PORT + at if name == "amqp" else self._first_port + 10 * at + door
            for at in range(len(self._node_ids))
            for door, name in enumerate(_PORTS)
        ]
        ports = iter(free_ports(len(rather), rather=rather if self._first_port else ()))
        return {node_id: {name: f"{HOST}:{next(ports)}" for name in _PORTS} for node_id in self._node_ids}

    @property
    def _addresses_file(self) -> Path:
        return self.directory / "addresses.json"

    def _configuration(self, node: Node) -> dict[str, dict[str, Any]]:
        members = [
            {
                "id": each.id,
                "client": each.client,
                "replication": each.replication,
                "grpc": each.grpc,
                "http": each.http,
            }
            for each in self.nodes.values()
        ]
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": self.name, "members": members, "logs": self._logs},
            "node": {"id": node.id, "data_dir": node.data_dir.absolute()},
            **({} if node.amqp is None else {"amqp": {"bind": node.amqp}}),
        }
        secured = {} if self._tls is None else self.certificates.settings(self._tls)
        for key, value in {**secured, **self._settings}.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        return tables

    def _assignment(self, log: Mapping[str, Any]) -> dict[str, Any]:
        """The log's table of `[[cluster.logs]]`, with everything in it."""
        master = log.get("master", self._node_ids[0])
        others = [node_id for node_id in self._node_ids if node_id != master]
        return {"name": LOG_NAME, "master": master, "mirrors": others, **log}

    def _stop_all(self) -> None:
        # The masters last: they hand nothing over then, and one that is left alone has nobody to wait for.
        known = self.statuses(timeout=_LOOK_SECONDS)
        masters = {_master_of(known, log["name"]) for log in self._logs}
        for node in sorted(self.nodes.values(), key=lambda node: node.id in masters):
            if node.running:
                with contextlib.suppress(RequestTimeout):
                    node.stop()

    def _kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()


def _with_all_ports(known: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Addresses that an older version of this wrote down lack the doors that it did not have: free ones for these."""
    missing = [(node_id, name) for node_id, addresses in known.items() for name in _PORTS if name not in addresses]
    found = {node_id: dict(addresses) for node_id, addresses in known.items()}
    for (node_id, name), port in zip(missing, free_ports(len(missing)), strict=True):
        found[node_id][name] = f"{HOST}:{port}"
    return found


def _copies(statuses: Mapping[str, Status], name: str) -> dict[str, LogStatus]:
    """A log as each node has it, by node id."""
    return {node_id: log for node_id, status in statuses.items() for log in status.logs if log.name == name}


def _master_of(statuses: Mapping[str, Status], name: str) -> str | None:
    """Who writes a log: the one of the newest epoch that anybody knows, if it says so itself."""
    placed = [log for status in statuses.values() if status.cluster for log in status.cluster.logs if log.name == name]
    newest = max(placed, key=lambda log: (log.epoch, log.version), default=None)
    if newest is None or newest.master not in statuses:
        return None
    own = _copies(statuses, name).get(newest.master)
    return newest.master if own is not None and (own.role, own.epoch) == ("master", newest.epoch) else None


def _in_sync(master: LogStatus, copies: Mapping[str, LogStatus]) -> bool:
    return master.state == "serving" and all(
        mirror.connected and mirror.proven and mirror.in_sync for mirror in master.mirrors
    )


def _confirmed(master: LogStatus, copies: Mapping[str, LogStatus]) -> bool:
    return all(copy.confirmed == copy.end == master.end for copy in copies.values())


def _summary(statuses: Mapping[str, Status]) -> str:
    """A line per node for the message of a wait that failed."""
    lines = [
        f"{node_id}: {log.role} {log.state} {log.reason} log={log.name} epoch={log.epoch} end={log.end} "
        f"confirmed={log.confirmed} "
        + " ".join(
            f"{mirror.node_id}(connected={mirror.connected} proven={mirror.proven} in_sync={mirror.in_sync} "
            f"acked={mirror.acked})"
            for mirror in log.mirrors
        )
        for node_id, status in statuses.items()
        for log in status.logs
    ]
    return "\n".join(["", *lines]) if lines else "nothing"


def dump_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """`{"section": {"key": value}}` as TOML text, which the standard library only reads; keys whose value is None are
    left out. Raises ConfigError.

    Only what configuration files need: tables of tables, strings, numbers, booleans, paths and lists of these. A list
    of tables is written inline, which TOML reads as the same thing as `[[…]]`.
    """
    return "\n".join(_toml_table(name, table) for name, table in tables.items())


def _toml_table(name: str, table: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_toml_value(value, f'{name}.{key}')}\n" for key, value in table.items() if value is not None]
    return f"[{name}]\n{''.join(lines)}"


def _toml_value(value: Any, key: str) -> str:
    if isinstance(value, PathLike):
        return _toml_value(fspath(value), key)
    if isinstance(value, bool | int | float | str):
        # JSON's strings, numbers and booleans are TOML's, but for the one control character that JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = (f"{name} = {_toml_value(each, f'{key}.{name}')}" for name, each in value.items() if each is not None)
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return f"[{', '.join(_toml_value(each, key) for each in value)}]"
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be written into a configuration file")
