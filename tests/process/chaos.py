"""One fault after the other on three real nodes with default settings, under steady publishing: how long until the
next confirm, and is everything confirmed there once? And with a work queue: how long until everybody who takes from it
goes on, and was any promise of delivery broken?

    python -m tests.process.chaos --rounds 24 [--seed 7] [--only kill-master,stop-master] [--traffic publish|queue|both]
        [--json] [--out FILE]

The seed decides the order of the faults and whom they hit. The long form is made of pieces of some rounds on a cluster
of its own, each with the next seed and added to the totals: it can be stopped at any time and goes on where it was.
Cuts need network namespaces (`tests/process/namespaces.py`), a full disk the right to mount; without, those are skipped
with the reason. Exit code 1, with the kept directory named, when anything is lost, twice, out of order or does not come
back. What publishes is `traffic`, what takes from the work queue is `work`, what it is held to is `given`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from bench.namespaces import CLIENT, Network, NotPermitted, SeparatedCluster
from mirrorlog.errors import MirrorlogError, NotCurrent, Refused
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import MIB, assert_copies_equal, declare, eventually, log_of
from tests.process.given import ENDS, WRONG
from tests.process.raw import Raw, batch_of
from tests.process.traffic import Traffic, number_of
from tests.process.work import DEAD, MOVED, QUEUE, Work, declare_work
from tests.totals import add_run, runs_of

Report = Callable[[str], None]
TOTALS: Final = Path(".build/chaos/totals.json")
CUTS: Final = ("cut-master", "cut-master-client", "cut-mirror", "one-way-cut", "partial-cut", "ring-cut", "cut-all")
KINDS: Final = (
    "kill-master", "kill-coordinator", "kill-mirror", "kill-two", "kill-two-at-once", "stop-master", "stop-mirror",
    "rolling-restart", "two-at-once", *CUTS,
)  # fmt: skip
FULL_DISK: Final = "full-disk"
FULL_DISK_AND_KILL: Final = "full-disk-kill"
DISKS: Final = (FULL_DISK, FULL_DISK_AND_KILL)
TRAFFICS: Final = ("publish", "queue", "both")
_FIRST_SEED: Final = 20261122
# Nothing may hang: the longest wait within a round.
_PATIENCE_S: Final = 40.0
_STEADY_CONFIRMS: Final = 500
_DISK_BYTES: Final = 128 * MIB
# As many as its takers can settle one by one beside the nodes.
_WORK_RATE: Final = 250
# How long two faults last together, behind the last confirm: with and without others giving up the two.
_TOGETHER_S: Final = (1.0, 6.0)
# How long a cut lasts whose heal is measured: below and above node_timeout_ms and what the system backs off to.
_CUT_S: Final = (2.0, 15.0)


class Roles(NamedTuple):
    """Who is what before a fault."""

    master: Node
    coordinator: Node
    mirrors: list[Node]
    epoch: int
    term: int

    def of(self, node: Node) -> str:
        """What `node` is, for a row of the table."""
        found = ["master"] if node is self.master else []
        return "+".join(found + (["coordinator"] if node is self.coordinator else [])) or "mirror"


class Chaos:
    """One cluster under traffic. `rounds`: a row for each fault that was done: what, and what it cost. `traffic`: whose
    confirms are waited for; `work`: the work queue, with kinds `queue` and `both`."""

    def __init__(
        self, cluster: Cluster, *, seed: int, network: Network | None = None, report: Report = lambda line: None,
        rate: int = 2_000, value_bytes: int = 100, kind: str = "publish",
    ) -> None:  # fmt: skip
        """`rate`, of plain publishing, and `value_bytes` are as of Traffic; `kind`: of `TRAFFICS`."""
        self._cluster = cluster
        self._network = network
        self._random = random.Random(seed)
        self._report = report
        self._probe = declare(cluster.servers[0], "probe")
        self._queues: dict[str, int] = {}
        self._traffics: list[Traffic] = []
        self.work: Work | None = None
        if kind != "queue":
            self._queues["chaos"] = declare(cluster.servers[0], "chaos").queue_id
            self._traffics.append(Traffic(cluster.servers, "chaos", rate=rate, value_bytes=value_bytes))
        if kind != "publish":
            self._queues |= declare_work(cluster.servers[0])
            self._traffics.append(Traffic(cluster.servers, QUEUE, rate=_WORK_RATE, value_bytes=value_bytes))
            self.work = Work(cluster.servers, self._traffics[-1], seed=seed)
        self.traffic = self._traffics[0]
        self._steady_confirms = min(_STEADY_CONFIRMS, _WORK_RATE if kind == "queue" else _STEADY_CONFIRMS)
        self.rounds: list[dict[str, Any]] = []
        self._deeds: dict[str, Callable[[Roles], dict[str, Any]]] = {
            "kill-master": lambda roles: self._kill(roles, roles.master),
            "kill-coordinator": lambda roles: self._kill(roles, roles.coordinator),
            "kill-mirror": lambda roles: self._kill(roles, self._other(roles)),
            "kill-two": self._kill_two,
            "kill-two-at-once": self._kill_two_at_once,
            "stop-master": self._stop_master,
            "stop-mirror": self._stop_mirror,
            "rolling-restart": self._rolling_restart,
            "two-at-once": self._two_at_once,
            "cut-master": self._cut_master,
            "cut-master-client": lambda roles: self._cut_master(roles, with_client=True),
            "cut-mirror": self._cut_mirror,
            "one-way-cut": self._one_way_cut,
            "partial-cut": self._partial_cut,
            "ring-cut": self._ring_cut,
            "cut-all": self._cut_all,
        }

    def run(self, kinds: Sequence[str]) -> dict[str, int]:
        """One round of each of `kinds`, in that order, then `check`. Raises AssertionError, or what went wrong."""
        self._cluster.wait_in_sync()
        with self.running():
            for kind in kinds:
                self.round(kind)
        return self.check()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The traffic, until all that was published has ended, and all that was to be done about it is done."""
        with contextlib.ExitStack() as stack:
            for traffic in self._traffics:
                stack.enter_context(traffic)
            if self.work is not None:
                stack.enter_context(self.work)
            yield
            for traffic in self._traffics:
                traffic.stop()
            if self.work is not None:
                self.work.finish()

    def check(self) -> dict[str, int]:
        """What was published, confirmed and given out, and how much of it is wrong on any node: each of `MUST_BE_ZERO`
        must be 0. Raises AssertionError when the copies differ."""
        self._cluster.wait_in_sync()
        assert_copies_equal(self._cluster)
        sums = Counter(dict.fromkeys(MUST_BE_ZERO, 0))
        for node in self._cluster.nodes.values():
            assert "Traceback" not in node.log_file.read_text(), f"see {node.log_file}"
            sums.update(self._check_node(node))
        for traffic in self._traffics:
            told = {"records": len(traffic.sent_at), "confirmed": len(traffic.confirms)}
            sums.update({**told, "refused": len(traffic.refused), "unknown": len(traffic.unknown)})
        if self.work is not None:
            sums.update(self.work.counts())
            for story in self.work.stale():
                self._report(f"stale: {story}")
        return dict(sums)

    def _check_node(self, node: Node) -> Counter[str]:
        """What is wrong with what it shows."""
        sums: Counter[str] = Counter()
        with Raw(node.client, timeout=_PATIENCE_S) as raw:
            for traffic in self._traffics:
                sums.update(traffic.check([number_of(value) for value in raw.values(self._queues[traffic.queue])]))
            if self.work is not None:
                moved, dead = (raw.values(self._queues[queue]) for queue in (MOVED, DEAD))
                sums.update(self.work.check(moved=moved, dead=dead))
        return sums

    def round(self, kind: str) -> dict[str, Any]:
        """One fault, and all well again; its row. Raises as `run`."""
        roles = self._steady()
        first, refused, unknown = len(self.traffic.confirms), len(self.traffic.refused), len(self.traffic.unknown)
        deed = self._deeds[kind](roles)
        healed = time.monotonic()
        self._cluster.wait_in_sync(_PATIENCE_S)
        row = {
            "kind": kind,
            "elections": self._roles().term - roles.term,
            "standstill_ms": _ms(self.traffic.longest_gap(first)),
            "in_sync_ms": _ms(time.monotonic() - healed),
            **self._delivery(healed),
            "refused": len(self.traffic.refused) - refused,
            "unknown": len(self.traffic.unknown) - unknown,
            **deed,
        }
        return self._done(row)

    def _done(self, row: dict[str, Any]) -> dict[str, Any]:
        self.rounds.append(row)
        self._report(" ".join(f"{name}={value}" for name, value in row.items()))
        return row

    def _delivery(self, healed: float) -> dict[str, int]:
        """How long it took until each taker had settled something that was published after `healed`."""
        if self.work is None:
            return {}
        self.work.wait_progress(healed, timeout=_PATIENCE_S)
        return {"delivery_ms": _ms(time.monotonic() - healed)}

    # --- the faults: each leaves everything as it should be, and tells what it cost ---

    def _kill(self, roles: Roles, victim: Node) -> dict[str, Any]:
        """The epoch of a master that is dead must end; else what is sent once it is dead is waited for."""
        first, began = len(self.traffic.confirms), time.monotonic()
        victim.kill()
        sent_after = began if victim is roles.master else time.monotonic()
        cost = self._until_confirm(began, sent_after, first, roles.epoch if victim is roles.master else 0)
        victim.start()
        return {"kind": f"kill {roles.of(victim)}", **cost}

    def _kill_two(self, roles: Roles) -> dict[str, Any]:
        """Nothing is confirmed then, and the one that is left says so; the time counts from when both are back."""
        second = roles.coordinator if roles.coordinator is not roles.master else self._random.choice(roles.mirrors)
        victims = [roles.master, second]
        (left,) = (node for node in self._cluster.nodes.values() if node not in victims)
        for node in victims:
            node.kill()
        self._wait_refusal(left, roles.epoch, time.monotonic())
        first, began = len(self.traffic.confirms), time.monotonic()
        for node in victims:
            node.launch()
        for node in victims:
            node.wait_serving()
        return {"kind": "kill two, from their return", **self._until_confirm(began, began, first, roles.epoch)}

    def _kill_two_at_once(self, roles: Roles) -> dict[str, Any]:
        """The master and another one, whose processes are started again at once: the time counts from their deaths."""
        second = self._random.choice(roles.mirrors)
        first, began = len(self.traffic.confirms), time.monotonic()
        for node in (roles.master, second):
            node.kill()
        dead = time.monotonic()
        for node in (roles.master, second):
            node.launch()
        kind = f"kill {roles.of(roles.master)} and {roles.of(second)}, which return at once"
        cost = self._until_confirm(began, dead, first, roles.epoch)
        for node in (roles.master, second):
            node.wait_serving()
        return {"kind": kind, **cost}

    def _stop_master(self, roles: Roles) -> dict[str, Any]:
        first, began = len(self.traffic.confirms), time.monotonic()
        roles.master.pause()
        try:
            cost = self._until_confirm(began, began, first, roles.epoch)
        finally:
            roles.master.resume()
        cost |= self._wait_refusal(roles.master, roles.epoch, time.monotonic())
        return {"kind": f"SIGSTOP {roles.of(roles.master)}", **cost}

    def _stop_mirror(self, roles: Roles) -> dict[str, Any]:
        victim = self._random.choice(roles.mirrors)
        first, began = len(self.traffic.confirms), time.monotonic()
        victim.pause()
        try:
            cost = self._until_confirm(began, time.monotonic(), first)
        finally:
            victim.resume()
        return {"kind": f"SIGSTOP {roles.of(victim)}", **cost}

    def _rolling_restart(self, roles: Roles) -> dict[str, Any]:
        """Every node stops cleanly and starts, one after the other. What is followed from afterwards is not below what
        was confirmed before: nothing is copied again."""
        first, began = len(self.traffic.confirms), time.monotonic()
        stood_still = 0.0
        for node in self._random.sample(list(self._cluster.nodes.values()), len(self._cluster.nodes)):
            confirmed, mark = log_of(self._cluster.master).confirmed, len(self.traffic.confirms)
            code = node.stop()
            assert code == 0, f"node {node.id} stopped with exit code {code}"
            node.start()
            master = self._cluster.wait_in_sync(_PATIENCE_S)
            again = [mirror for mirror in master.mirrors if mirror.node_id == node.id]
            below = [mirror for mirror in again if mirror.requested < confirmed]
            assert not below, f"{node.id} follows from {below[0].requested}, {confirmed} was confirmed at its stop"
            stood_still += self.traffic.longest_gap(mark)
        cost = self._until_confirm(began, time.monotonic(), first)
        return {"kind": "rolling restart, in all", "confirm_ms": _ms(stood_still), "noticed_ms": cost["confirm_ms"]}

    def _two_at_once(self, roles: Roles) -> dict[str, Any]:
        """Two nodes, each with another fault: nothing is confirmed then, for as long as it is drawn. The time counts
        from when both are well."""
        victims = self._random.sample(list(self._cluster.nodes.values()), 2)
        deeds = self._random.sample(["kill", "stop", *(["cut"] if self._network is not None else [])], 2)
        together_s = self._random.uniform(*_TOGETHER_S)
        with contextlib.ExitStack() as healing:
            for victim, deed in zip(victims, deeds, strict=True):
                healing.enter_context(self._hurt(victim, deed))
            self.traffic.wait(
                lambda: time.monotonic() - self.traffic.confirms[-1].at > together_s, "confirms stand still"
            )
        first, began = len(self.traffic.confirms), time.monotonic()
        told = " and ".join(f"{deed} {roles.of(victim)}" for victim, deed in zip(victims, deeds, strict=True))
        return {"kind": f"{told}, from both being well", **self._until_confirm(began, began, first)}

    @contextlib.contextmanager
    def _hurt(self, victim: Node, deed: str) -> Iterator[None]:
        """It is well again afterwards."""
        if deed == "kill":
            victim.kill()
            yield
            victim.start()
        elif deed == "stop":
            victim.pause()
            try:
                yield
            finally:
                victim.resume()
        else:
            with self._cutting() as network:
                for node in self._cluster.nodes.values():
                    if node is not victim:
                        network.cut_both(victim.id, node.id)
                yield

    def _cut_master(self, roles: Roles, *, with_client: bool = False) -> dict[str, Any]:
        """From the mirrors, and from the client too if it shall."""
        with self._cutting() as network:
            for name in [*(mirror.id for mirror in roles.mirrors), *([CLIENT] if with_client else [])]:
                network.cut_both(roles.master.id, name)
            first, began = len(self.traffic.confirms), time.monotonic()
            cost = {} if with_client else {
                "reads_refused_ms": self._check_reads(roles.master, began),
                **self._wait_refusal(roles.master, roles.epoch, began),
            }  # fmt: skip
            cost |= self._until_confirm(began, began, first, roles.epoch)
        return {"kind": f"cut {roles.of(roles.master)}{' from the client too' if with_client else ''}", **cost}

    def _cut_mirror(self, roles: Roles) -> dict[str, Any]:
        victim = self._random.choice(roles.mirrors)
        with self._cutting() as network:
            for node in self._cluster.nodes.values():
                if node is not victim:
                    network.cut_both(victim.id, node.id)
            first, began = len(self.traffic.confirms), time.monotonic()
            cost = {"reads_refused_ms": self._check_reads(victim, began), **self._until_confirm(began, began, first)}
        return {"kind": f"cut {roles.of(victim)}", **cost}

    def _one_way_cut(self, roles: Roles) -> dict[str, Any]:
        """Nobody hears the master, or it hears nobody; the client does."""
        outward = self._random.random() < 0.5
        with self._cutting() as network:
            for mirror in roles.mirrors:
                network.cut(*((roles.master.id, mirror.id) if outward else (mirror.id, roles.master.id)))
            first, began = len(self.traffic.confirms), time.monotonic()
            cost = self._until_confirm(began, began, first)
        return {"kind": f"one-way cut {'from' if outward else 'to'} {roles.of(roles.master)}", **cost}

    def _partial_cut(self, roles: Roles) -> dict[str, Any]:
        """Master and one mirror do not see each other; both see the third node."""
        mirror = self._random.choice(roles.mirrors)
        with self._cutting() as network:
            network.cut_both(roles.master.id, mirror.id)
            first, began = len(self.traffic.confirms), time.monotonic()
            cost = self._until_confirm(began, began, first)
        return {"kind": f"partial cut {roles.of(roles.master)}, {roles.of(mirror)}", **cost}

    def _ring_cut(self, roles: Roles) -> dict[str, Any]:
        """Each node's word reaches one of the others, and the third's reaches it. The time counts from the heal."""
        names = self._random.sample(list(self._cluster.nodes), len(self._cluster.nodes))
        ways = list(zip(names, [*names[1:], names[0]], strict=True))
        return {"kind": "ring of one-way cuts, from the heal", **self._healed(ways)}

    def _cut_all(self, roles: Roles) -> dict[str, Any]:
        """No node hears another one. The time counts from the heal."""
        return {"kind": "all cut from each other, from the heal", **self._healed(permutations(self._cluster.nodes, 2))}

    def _healed(self, ways: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """What the next confirm costs after these ways were cut, for as long as it is drawn."""
        cut_s, cut_at = self._random.uniform(*_CUT_S), time.monotonic()
        with self._cutting() as network:
            for sender, receiver in ways:
                network.cut(sender, receiver)
            self.traffic.wait(lambda: time.monotonic() - cut_at > cut_s, "the cut has lasted")
        first, began = len(self.traffic.confirms), time.monotonic()
        return {"cut_ms": _ms(cut_s), **self._until_confirm(began, began, first)}

    def fill_disk(self, others: Path, *, kill: bool) -> None:
        """A round of its own: the disk with `others` on it, which is the master's, is filled, and emptied later."""
        traffic, before = self.traffic, self._cluster.master
        epoch = log_of(before).epoch
        victims = [node for node in self._cluster.nodes.values() if node is not before][: 1 if kill else 0]
        for node in victims:
            node.kill()
        fill_up(others)
        traffic.wait(
            lambda: time.monotonic() - traffic.confirms[-1].at > 1 or traffic.confirms[-1].epoch > epoch,
            "confirms stop, or another is master",
        )
        ending = "refused" if log_of(before).role == "master" else "another takes over"
        first, began = len(traffic.confirms), time.monotonic()
        others.unlink()
        for node in victims:
            node.start()
        found = traffic.wait_confirm(0.0, since=first, timeout=_PATIENCE_S)
        row = {
            "kind": f"full disk of the master{', kill mirror' if kill else ''}, {ending}, from the space",
            "confirm_ms": _ms(found.at - began), "refused": len(traffic.refused), "unknown": len(traffic.unknown),
            "elections": 0, "standstill_ms": _ms(traffic.longest_gap(first)), "in_sync_ms": 0, **self._delivery(began),
        }  # fmt: skip
        self._done(row)

    # --- what they are made of ---

    @contextlib.contextmanager
    def _cutting(self) -> Iterator[Network]:
        """The network, which is whole again afterwards."""
        assert self._network is not None, "cuts need a network"
        try:
            yield self._network
        finally:
            self._network.heal()

    def _until_confirm(self, began: float, sent_after: float, first: int, epoch_above: int = 0) -> dict[str, Any]:
        found = self.traffic.wait_confirm(sent_after, epoch_above=epoch_above, since=first, timeout=_PATIENCE_S)
        return {"confirm_ms": _ms(found.at - began)}

    def _steady(self) -> Roles:
        """Everybody in sync, and confirms have been coming since."""
        self._cluster.wait_in_sync(_PATIENCE_S)
        target = len(self.traffic.confirms) + self._steady_confirms
        self.traffic.wait(lambda: len(self.traffic.confirms) >= target, "confirms are steady")
        return self._roles()

    def _roles(self) -> Roles:
        master = self._cluster.master

        def met() -> Roles | None:
            known = master.status().cluster
            if known is None or known.coordinator not in self._cluster.nodes:
                return None
            mirrors = [node for node in self._cluster.nodes.values() if node is not master]
            coordinator = self._cluster.nodes[known.coordinator]
            return Roles(master, coordinator, mirrors, known.logs[0].epoch, known.term)

        return eventually(met, "a coordinator is known")

    def _other(self, roles: Roles) -> Node:
        """A mirror, and not the coordinator."""
        return self._random.choice([node for node in roles.mirrors if node is not roles.coordinator])

    def _wait_refusal(self, node: Node, epoch: int, began: float) -> dict[str, Any]:
        """Until `node` refuses a publish: that nothing was stored is all that it may say, never a confirm in `epoch`,
        or an outcome that is unknown for ever. When, after `began`, and why."""

        def refused() -> str | None:
            try:
                with Raw(node.client, timeout=_PATIENCE_S / 4) as raw:
                    confirm = raw.produce(batch_of([b"probe"], self._probe), deadline_ms=1_000)
            except Refused as error:
                return error.code
            except MirrorlogError:
                return None
            assert confirm.epoch > epoch, f"{node.id} has confirmed in epoch {epoch}, which is over"
            return None

        code = eventually(refused, f"{node.id} refuses a publish", timeout=_PATIENCE_S)
        return {"refused_ms": _ms(time.monotonic() - began), "refused_with": code}

    def _check_reads(self, node: Node, began: float) -> int:
        """One that is cut off refuses reads, but who asks for what is old gets it. So many ms after `began`."""

        def refused() -> bool:
            with Raw(node.client) as raw:
                try:
                    raw.fetch(self._queues[self.traffic.queue], 0)
                except NotCurrent:
                    return True
            return False

        # `eventually` takes NotCurrent for a node that is not ready yet, so it is caught above.
        eventually(refused, f"{node.id} refuses reads", timeout=_PATIENCE_S)
        ended = time.monotonic()
        with Raw(node.client, stale_reads=True) as raw:
            assert raw.fetch(self._queues[self.traffic.queue], 0)[1], "reads of what is known are answered"
        return _ms(ended - began)


# --- A full disk ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(mount: Path) -> Iterator[None]:
    """A file system in memory at `mount`. Raises NotPermitted."""
    mount.mkdir(parents=True)
    _mount("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(mount))
    try:
        yield
    finally:
        with contextlib.suppress(NotPermitted):
            _mount("umount", "-l", str(mount))


def fill_up(path: Path) -> None:
    """Take all that is free."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(64 * 1024))


def _mount(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")


def full_disk(
    directory: Path, *, seed: int, report: Report, kind: str = "publish", kill: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The master's disk has no byte left, until space is made after some seconds; with `kill` a mirror dies, too. What
    is confirmed meanwhile by whom, and how publishes end, is in the row; confirms go on afterwards by themselves.
    Raises NotPermitted."""
    with small_disk(directory / "n1"):
        settings = {"log.prepare_bytes": 4 * MIB, "limits.max_batch_bytes": MIB, "limits.max_record_bytes": MIB}
        with Cluster(3, data_dir=directory, segment_bytes=4 * MIB, settings=settings) as cluster:
            chaos = Chaos(cluster, seed=seed, report=report, value_bytes=1_000, kind=kind)
            cluster.wait_in_sync()
            with chaos.running():
                chaos.fill_disk(directory / "n1" / "others", kill=kill)
            return chaos.rounds, chaos.check()


# --- The long form ----------------------------------------------------------------------------------------------------


def plan(rounds: int, seed: int, kinds: Sequence[str]) -> list[str]:
    """So many of `kinds`, each as often as the others but one, in an order drawn from `seed`."""
    drawn = random.Random(seed)
    return [kind for _ in range(-(-rounds // len(kinds))) for kind in drawn.sample(kinds, len(kinds))][:rounds]


def run_piece(
    kinds: Sequence[str], seed: int, report: Report, keep: list[Path], traffic: str = "publish"
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows of its rounds, and what was counted. Raises what went wrong: the directory, the last one in `keep`,
    stays then."""
    directory = Path(tempfile.mkdtemp(prefix=f"mirrorlog-chaos-{seed}-"))
    keep.append(directory)
    report(f"seed {seed}: {', '.join(kinds)}; data in {directory}")
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    if usual := [kind for kind in kinds if kind not in DISKS]:
        with contextlib.ExitStack() as stack:
            network = _network(stack, usual, report)
            runs = [kind for kind in usual if network is not None or kind not in CUTS]
            data = directory / "usual"
            cluster = Cluster(data_dir=data) if network is None else SeparatedCluster(network, data_dir=data)
            stack.enter_context(cluster)
            chaos = Chaos(cluster, seed=seed, network=network, report=report, kind=traffic)
            counts.update(chaos.run(runs))
            rows += chaos.rounds
    for number, kind in enumerate(kind for kind in kinds if kind in DISKS):
        try:
            found, counted = full_disk(
                directory / f"disk-{number}", seed=seed, report=report, kind=traffic, kill=kind == FULL_DISK_AND_KILL
            )
        except NotPermitted as error:
            report(f"skipped {kind}: {error}")
        else:
            rows += found
            counts.update(counted)
    wrong = {name: counts[name] for name in MUST_BE_ZERO if counts[name]}
    assert not wrong, f"of {counts['confirmed']} confirmed: {wrong}"
    shutil.rmtree(directory)
    return rows, counts


MUST_BE_ZERO: Final = (
    "missing", "duplicates", "out_of_order", "misplaced", "refused_but_stored", "seen_and_gone", "unseen",
    "wrong_reads", *ENDS, *WRONG,
)  # fmt: skip
"""What `Traffic.check` and `Work.check` count, over all nodes, and what was seen of deliveries."""


def _network(stack: contextlib.ExitStack, kinds: Sequence[str], report: Report) -> Network | None:
    """None when there can be none; the cuts are skipped then."""
    try:
        return stack.enter_context(Network(["n1", "n2", "n3"]))
    except NotPermitted as error:
        skipped = [kind for kind in kinds if kind in CUTS]
        if skipped:
            report(f"skipped {', '.join(skipped)}: {error}")
        return None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each kind of fault."""
    lines = [
        "| fault | rounds | next confirm, min | p50 | p90 | max | longest standstill | elections | refused | unknown |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in sorted({row["kind"] for row in rows}):
        these = [row for row in rows if row["kind"] == kind]
        times = sorted(row["confirm_ms"] for row in these)
        p50, p90 = _quantile(times, 50), _quantile(times, 90)
        sums = [sum(row[name] for row in these) for name in ("elections", "refused", "unknown")]
        longest = max(row["standstill_ms"] for row in these)
        cells = [kind, len(these), *(f"{each:,} ms" for each in (times[0], p50, p90, times[-1], longest)), *sums]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def refusals(rows: Sequence[dict[str, Any]]) -> str:
    """How soon one that is cut off, or was asleep for too long, refuses publishes and reads; how soon deliveries go
    on."""
    lines = []
    for name, what in (("refused_ms", "publishes"), ("reads_refused_ms", "reads")):
        for verb, how in (("cut", "cut off"), ("SIGSTOP", "gone on")):
            times = sorted(row[name] for row in rows if name in row and row["kind"].startswith(verb))
            if times:
                lines.append(
                    f"{what} refused {times[0]:,} to {times[-1]:,} ms after it was {how} ({len(times)} rounds)"
                )
    times = sorted(row["delivery_ms"] for row in rows if "delivery_ms" in row)
    if times:
        lines.append(f"everybody was given something new {times[0]:,} to {times[-1]:,} ms after all was well "
                     f"({len(times)} rounds)")  # fmt: skip
    return "\n".join(lines)


def _quantile(times: Sequence[int], percent: int) -> int:
    return times[0] if len(times) == 1 else round(quantiles(times, n=100, method="inclusive")[percent - 1])


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def next_seed(totals: Path) -> int:
    """The one after the last that was run to its end."""
    return max((run["seed"] for run in runs_of(totals)), default=_FIRST_SEED - 1) + 1


def main() -> int:
    """The long form; the exit code."""
    options = _parser().parse_args()
    every = [*KINDS, *DISKS]
    kinds = options.only.split(",") if options.only else every
    if unknown := set(kinds) - set(every):
        print(f"error: no such fault: {', '.join(sorted(unknown))}; there are {', '.join(every)}", file=sys.stderr)
        return 2
    seed = next_seed(options.totals) if options.seed is None else options.seed
    rows: list[dict[str, Any]] = []
    sums: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    code, load = 0, os.getloadavg()[0]
    rounds, keep = options.rounds, list[Path]()
    while rounds > 0 and code == 0:
        part = plan(min(rounds, len(every)), seed, kinds)
        started = time.monotonic()
        try:
            found, counts = run_piece(part, seed, lambda line: print(line, file=sys.stderr, flush=True), keep,
                                      options.traffic)  # fmt: skip
        except (AssertionError, MirrorlogError) as error:
            print(f"error: seed {seed}: {error}\nkept: {keep[-1]}", file=sys.stderr)
            code = 1
            break
        rows += found
        counted.update(counts)
        sums = add_run(options.totals, counts=counts, seconds=time.monotonic() - started, seed=seed, rows=found,
                       traffic=options.traffic)  # fmt: skip
        rounds, seed = rounds - len(part), seed + 1
    result = {
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}",
        "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1), "counts": dict(counted),
        "rows": rows,
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if rows:
        told = f"{table(rows)}\n\n{refusals(rows)}\n\n{dict(counted)}\nin all: {dict(sums)}"
        print(json.dumps(result) if options.json else told)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.process.chaos",
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Example: python -m tests.process.chaos --rounds 6 --seed 7 --only kill-master,cut-master",
    )
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--seed", type=int, help="of the first piece; by default the one after the last in the totals")
    parser.add_argument("--only", help=f"some of {', '.join([*KINDS, *DISKS])}")
    parser.add_argument(
        "--traffic", choices=TRAFFICS, default="both", help="plain publishing, a work queue, or both (the default)"
    )
    parser.add_argument("--json", action="store_true", help="the raw figures instead of the table")
    parser.add_argument("--out", type=Path, help="write the raw figures to this file too")
    parser.add_argument("--totals", type=Path, default=TOTALS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
