"""RabbitMQ: three nodes, a quorum queue of three (fsync on a majority) and a classic queue mirrored to all (fsync).

The load is RabbitMQ's own PerfTest with publisher confirms and persistent messages. It reports by intervals, so its
interval is the measured time: the first one is the warm-up, the second one the figure. It never has more than its
window unconfirmed, and what the nodes hold at the end is compared with what it saw confirmed. AMQP does not answer an
acknowledgement, so nobody can time one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from bench.measure import Figure
from bench.peers import versions
from bench.peers.install import installed
from bench.peers.outcome import RECORD_BYTES, figures_of
from bench.peers.peer import PeerFailed, Seconds
from bench.peers.servers import HOST, Servers, Words, free_ports

CASE: Final = f"RabbitMQ {versions.RABBITMQ}"

_NODES: Final = ("r1", "r2", "r3")
_WINDOW: Final = 2000
_RATE: Final = 200
_INTERVAL: Final = re.compile(
    r"id: \S+, time (?P<time>[\d.]+) s, (?:sent: (?P<sent>\d+) msg/s, confirmed: (?P<confirmed>\d+) msg/s, "
    r"nacked: (?P<nacked>\d+) msg/s, min/median/75th/95th/99th confirm latency: "
    r"\d+/(?P<p50>\d+)/\d+/\d+/(?P<p99>\d+) µs"
    r"|received: (?P<received>\d+) msg/s)"
)
_BOTH: Final = re.compile(
    r"id: \S+, time (?P<time>[\d.]+) s, sent: (?P<sent>\d+) msg/s, confirmed: (?P<confirmed>\d+) msg/s, "
    r"nacked: (?P<nacked>\d+) msg/s, received: (?P<received>\d+) msg/s, min/median/75th/95th/99th consumer latency: "
    r"\d+/(?P<p50>\d+)/\d+/\d+/(?P<p99>\d+) µs, "
)
"""Of a run that publishes and consumes; `p50` and `p99` are from publishing to taking."""


@dataclass(frozen=True, slots=True)
class _Queue:
    name: str
    case: str
    options: tuple[str, ...] = ()


_QUEUES: Final = (
    _Queue("quorum", f"quorum queue, 3 copies (majority confirms), {RECORD_BYTES} B, fsync", ("--quorum-queue",)),
    _Queue("mirrored", f"classic mirrored queue, 3 copies, {RECORD_BYTES} B, fsync"),
)


def run(seconds: Seconds) -> list[Figure]:
    """One round: both queues, W1, W2, W6 and W7 each, and W3 of the quorum queue."""
    program = installed("rabbitmq")
    interval = max(1, math.ceil(seconds.measure))
    with Servers("rabbitmq") as servers:
        cluster = servers.started(lambda: _Cluster(servers, program))
        figures: list[Figure] = []
        for queue in _QUEUES:
            outcomes = cluster.publish(queue, interval)
            if queue.name == "quorum":
                outcomes.append(cluster.consume(queue))
            outcomes += cluster.work(queue, interval)
            figures += figures_of(map(json.dumps, outcomes), f"{CASE}, {queue.case}, PerfTest")
        return figures


class Nodes:
    """Nodes of one cluster and the processes that they need. `program`: where the packages are unpacked, / where they
    are installed; `management`: with its API, on a port of its own for each."""

    def __init__(
        self,
        servers: Servers,
        program: Path,
        names: Sequence[str] = _NODES,
        *,
        definitions: Mapping[str, object],
        management: bool = False,
    ) -> None:
        self.names = tuple(f"{name}@localhost" for name in names)
        self._servers = servers
        self._short = tuple(names)
        self._definitions = definitions
        erlang = program / "usr/lib/erlang/bin"
        (self.scripts,) = program.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
        count = len(names)
        self._epmd, *ports = free_ports(1 + 3 * count)
        self.ports, self.distribution, self.management = ports[:count], ports[count : 2 * count], ports[2 * count :]
        if not management:
            self.management = []
        self._erlang = erlang
        self.environment = {
            "HOME": str(servers.directory),
            "PATH": f"{erlang}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": ":".join(str(each) for each in program.glob("usr/lib/*-linux-gnu")),
            "ERL_AFLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(servers.directory / "plugins"),
        }

    def start(self) -> Self:
        """Until all serve, the later ones in a cluster with the first."""
        directory = self._servers.directory
        (cookie := directory / ".erlang.cookie").write_text("mirrorlog-bench")
        cookie.chmod(0o400)
        (directory / "definitions.json").write_text(json.dumps(self._definitions))
        (directory / "plugins").write_text("[rabbitmq_management].\n" if self.management else "[].\n")
        # Here and in the foreground: otherwise the first node starts one that outlives all of them.
        epmd: Words = [self._erlang / "epmd", "-port", str(self._epmd), "-address", HOST]
        self._servers.start("epmd", epmd, self.environment)
        self._servers.wait_listening(self._epmd)
        self.start_node(0)
        self._servers.wait_listening(self.ports[0])
        for number in range(1, len(self.names)):
            self.start_node(number)
        self._servers.wait_listening(*self.ports, *self.management)
        return self

    def start_node(self, number: int) -> None:
        """For the first time, or on what it left."""
        name, port = self._short[number], self.ports[number]
        directory = self._servers.directory / name
        directory.mkdir(exist_ok=True)
        definitions = self._servers.directory / "definitions.json"
        management = self.management[number] if self.management else None
        (directory / "rabbitmq.conf").write_text(configuration(port, definitions, self.names, management))
        own = {
            "RABBITMQ_NODENAME": self.names[number],
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(self.distribution[number]),
            "RABBITMQ_MNESIA_BASE": str(directory),
            "RABBITMQ_MNESIA_DIR": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        }
        self._servers.start(name, [self.scripts / "rabbitmq-server"], {**self.environment, **own})

    def kill_node(self, number: int) -> None:
        """As a power cut would."""
        self._servers.kill(self._short[number])
        # Whoever starts it again must not take what is left of the former one for it.
        self._servers.wait_gone(self.ports[number], self.distribution[number])

    def wait_node(self, number: int) -> None:
        """Until it serves. Raises PeerFailed."""
        self._servers.wait_listening(self.ports[number], *self.management[number : number + 1])


class _Cluster:
    """Three nodes under load."""

    def __init__(self, servers: Servers, program: Path) -> None:
        self._servers = servers
        self._program = program
        self._nodes = Nodes(servers, program, definitions=_definitions()).start()
        (servers.directory / "body").write_bytes(os.urandom(RECORD_BYTES))

    def publish(self, queue: _Queue, interval: int) -> list[dict[str, object]]:
        """Outcomes of W1 and W2; an interval of warm-up and a measured one each."""
        outcomes = []
        confirmed = 0
        for workload, window in (("W1", _WINDOW), ("W2", 1)):
            publishing = ["--producers", "1", "--consumers", "0", "--flag", "persistent", "--confirm", str(window)]
            # A second more, because the last interval is not always reported.
            lines = self._perf_test(
                queue, [*publishing, "--interval", str(interval), "--time", str(2 * interval + 1)], 3 * interval
            )
            confirmed += confirmed_at_least(lines)
            variant = f"window {window}" if workload == "W1" else ""
            outcomes.append({"workload": workload, "variant": variant, **second_interval(lines, workload)})
        held = self._held(queue)
        return [{**each, "sent": confirmed, "confirmed": confirmed, "stored": held} for each in outcomes]

    def consume(self, queue: _Queue) -> dict[str, object]:
        """Outcome of W3: the backlog to its end, acknowledged in groups."""
        consuming = ["--producers", "0", "--consumers", "1", "--qos", "1000", "--multi-ack-every", "250"]
        lines = self._perf_test(queue, [*consuming, "--interval", "1", "--exit-when", "empty"], 60)
        return {"workload": "W3", "variant": "prefetch 1000, ack of each 250", **between_intervals(lines)}

    def work(self, queue: _Queue, interval: int) -> list[dict[str, object]]:
        """Outcomes of W6 and W7, on a queue of their own."""
        own = replace(queue, name=f"{queue.name}-work")
        both = ["--producers", "1", "--consumers", "1", "--flag", "persistent"]
        timed = ["--interval", str(interval), "--time", str(2 * interval + 1)]
        fast = ["--confirm", str(_WINDOW), "--qos", "1000", "--multi-ack-every", "250"]
        rated = ["--confirm", "1", "--qos", "1", "--rate", str(_RATE)]
        taken = second_interval(self._perf_test(own, [*both, *fast, *timed], 3 * interval), "W6")
        delivered = second_interval(self._perf_test(own, [*both, *rated, *timed], 3 * interval), "W7")
        variant = f"window {_WINDOW}, prefetch 1000, ack of each 250"
        return [
            {"workload": "W6", "variant": variant, **taken},
            {"workload": "W7", "variant": f"delivered, {_RATE} msg/s", **delivered},
        ]

    def _perf_test(self, queue: _Queue, options: Sequence[str], seconds: float) -> list[str]:
        classes = f"{self._program / 'jars'}/*"
        address = f"amqp://guest:guest@{HOST}:{self._nodes.ports[0]}/%2f"
        shared = ["--uri", address, "--queue", queue.name, "--auto-delete", "false", *queue.options]
        body = ["--body", str(self._servers.directory / "body")]
        command: Words = ["java", "-Xmx512m", "-cp", classes, "com.rabbitmq.perf.PerfTest", *shared, *body, *options]
        return self._servers.run(f"PerfTest-{queue.name}", command, timeout=60 + seconds)

    def _held(self, queue: _Queue) -> int:
        """How many messages the queue has. Raises PeerFailed unless it has three copies."""
        columns = ["name", "messages", "online", "synchronised_slave_pids"]
        command: Words = [
            self._nodes.scripts / "rabbitmqctl",
            "--node",
            self._nodes.names[0],
            "--quiet",
            "list_queues",
            *columns,
        ]
        return held_on_three(self._servers.run("rabbitmqctl", command, self._nodes.environment), queue.name)


_NAMES: Final = tuple(f"{name}@localhost" for name in _NODES)


def configuration(port: int, definitions: Path, names: Sequence[str] = _NAMES, management: int | None = None) -> str:
    """Of one node; everything that bears on speed is RabbitMQ's default. `management`: the port of its API."""
    nodes = "".join(
        f"cluster_formation.classic_config.nodes.{number} = {name}\n" for number, name in enumerate(names, start=1)
    )
    api = f"management.tcp.ip = {HOST}\nmanagement.tcp.port = {management}\n" if management is not None else ""
    return (
        f"listeners.tcp.1 = {HOST}:{port}\n"
        "cluster_formation.peer_discovery_backend = classic_config\n"
        f"{nodes}{api}"
        f"load_definitions = {definitions}\n"
        "log.file = false\nlog.console = true\nlog.console.level = warning\n"
    )


def _definitions() -> dict[str, object]:
    """What a node begins with: the usual user, and the policy of the mirrored queue."""
    all_copies = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    policy = {"vhost": "/", "name": "all", "pattern": "^mirrored", "apply-to": "queues", "priority": 0}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [{**policy, "definition": all_copies}],
    }


# --- What the programs print ------------------------------------------------------------------------------------------


def second_interval(lines: Sequence[str], workload: str) -> dict[str, float]:
    """The part of an outcome that PerfTest's second interval gives. Raises PeerFailed without one."""
    intervals = _intervals(lines)
    if len(intervals) < 2:
        raise PeerFailed("PerfTest reported fewer than two intervals")
    if workload == "W6":
        if intervals[1]["nacked"]:
            raise PeerFailed(f"RabbitMQ refused {intervals[1]['nacked']:g} records a second")
        return {"count": intervals[1]["received"], "seconds": 1.0}
    if workload in ("W2", "W7"):
        return {"p50_us": intervals[1]["p50"], "p99_us": intervals[1]["p99"]}
    return {"count": intervals[1]["confirmed"], "seconds": 1.0}


def between_intervals(lines: Sequence[str]) -> dict[str, float]:
    """The part of an outcome of all intervals but the first (warming up) and the last (cut short)."""
    rates = [each["received"] for each in _intervals(lines)]
    inner = rates[1:-1] or rates
    if not inner:
        raise PeerFailed("PerfTest reported no interval")
    return {"count": sum(inner), "seconds": float(len(inner))}


def confirmed_at_least(lines: Sequence[str]) -> int:
    """How many records were confirmed in the reported intervals. Raises PeerFailed when one was refused.

    PerfTest gives rounded rates; what rounding may have added is taken off.
    """
    total, before = 0.0, 0.0
    for each in _intervals(lines):
        if each["nacked"]:
            raise PeerFailed(f"RabbitMQ refused {each['nacked']:g} records a second")
        total += max(0.0, each["confirmed"] - 1) * (each["time"] - before - 0.002)
        before = each["time"]
    return int(total)


def _intervals(lines: Sequence[str]) -> list[dict[str, float]]:
    found = (_INTERVAL.match(line) or _BOTH.match(line) for line in lines)
    return [{name: float(value or 0) for name, value in each.groupdict().items()} for each in found if each]


def held_on_three(lines: Sequence[str], queue: str) -> int:
    """The messages of a queue by `rabbitmqctl list_queues name messages online synchronised_slave_pids`.

    `online` lists the members of a quorum queue, the last column the mirrors of a classic one besides its master.
    Raises PeerFailed unless it is there on three nodes.
    """
    for line in lines:
        name, _, rest = line.partition("\t")
        if name == queue:
            messages, online, mirrors = (*rest.split("\t"), "", "")[:3]
            copies = online.count("@") or 1 + mirrors.count("@")
            if copies != len(_NODES):
                raise PeerFailed(f"RabbitMQ's queue {queue} has {copies} copies")
            return int(messages)
    raise PeerFailed(f"RabbitMQ has no queue {queue}")
