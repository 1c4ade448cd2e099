"""Kill, stop and pause random nodes under load, round after round, and compare everything at the end.

    python -m tests.process.torture --rounds 200 --seed 7 [--flush disk]

The seed decides what is done to whom and how far the load gets in between; when exactly a signal hits is the
machine's. So a seed repeats a plan, not an interleaving: a failure's directory is kept and named.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mirrorlog.errors import RequestTimeout
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages import QueueInfo
from tests.process.clusters import MIB, assert_copies_equal, declare, eventually, fast_cluster, log_lines, log_of
from tests.process.load import Load
from tests.process.raw import Raw

Report = Callable[[str], None]
_PROGRESS_SECONDS = 30.0


class Torture:
    """One cluster, two producers on a queue each, and a plan drawn from `seed`."""

    def __init__(self, cluster: Cluster, *, seed: int, report: Report = lambda line: None) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._report = report
        self._queues = [declare(cluster.servers[0], name) for name in ("first", "second")]
        self._loads = [
            Load(cluster.servers[0], self._queues[0], producer_id=101, batch_records=10, window=8),
            Load(cluster.servers[0], self._queues[1], producer_id=102, batch_records=200, window=3, value_bytes=500),
        ]
        self.done: list[str] = []

    def run(self, *, rounds: int | None = None, seconds: float | None = None) -> None:
        """Until `rounds` or `seconds` are over, then `check`. Raises AssertionError, or what went wrong."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._loads[0], self._loads[1]:
            while (rounds is None or len(self.done) < rounds) and (deadline is None or time.monotonic() < deadline):
                self._round()
            for load in self._loads:
                load.stop()
        self.check()

    def check(self) -> None:
        """Every node holds the same bytes and every record once and in order; no copy was ever lossy or corrupt."""
        self._cluster.wait_in_sync()
        assert_copies_equal(self._cluster)
        for node in self._cluster.nodes.values():
            assert not log_lines(node, "log_lossy")
            assert not log_lines(node, "log_unavailable")
            assert not log_lines(node, "connection_failed")
            assert "Traceback" not in node.log_file.read_text()
            with Raw(node.client, timeout=30) as raw:
                for load, queue in self._pairs():
                    load.check(raw.values(queue.queue_id))

    # --- a round ---

    def _round(self) -> None:
        victims = self._random.sample(list(self._cluster.nodes.values()), self._random.choice([1, 1, 1, 2, 3]))
        deed = self._random.choice([self._kill, self._kill, self._kill, self._stop, self._pause])
        far = self._random.randrange(1, 30)
        line = f"round {len(self.done) + 1}: {deed.__name__.strip('_')} {' '.join(node.id for node in victims)}"
        self._report(f"{line} after {far} confirms")
        self.done.append(line)
        self._wait_progress(far)
        deed(victims)
        self._check_readers()

    def _kill(self, victims: Sequence[Node]) -> None:
        for node in victims:
            node.kill()
        self._restart(victims)

    def _stop(self, victims: Sequence[Node]) -> None:
        for node in victims:
            assert node.stop() == 0, node.log_tail()
        self._restart(victims)

    def _pause(self, victims: Sequence[Node]) -> None:
        """Until the others have noticed or not, as it comes."""
        for node in victims:
            node.pause()
        self._wait_outcomes()
        for node in victims:
            node.resume()

    def _restart(self, victims: Sequence[Node]) -> None:
        for node in self._random.sample(list(victims), len(victims)):
            if self._random.random() < 0.5:
                self._wait_outcomes()
            node.start()

    # --- waiting and looking ---

    def _wait_progress(self, batches: int) -> None:
        targets = [load.confirmed + batches for load in self._loads]

        def reached() -> bool:
            for load in self._loads:
                if load.error is not None:
                    raise load.error
            return all(load.confirmed >= target for load, target in zip(self._loads, targets, strict=True))

        eventually(reached, f"confirms go on after {self.done[-2:]}", timeout=_PROGRESS_SECONDS)

    def _wait_outcomes(self) -> None:
        """Until the producers have felt it."""
        felt = [len(load.outcomes) + load.lost for load in self._loads]
        with contextlib.suppress(RequestTimeout):
            eventually(
                lambda: any(
                    len(load.outcomes) + load.lost > before for load, before in zip(self._loads, felt, strict=True)
                ),
                "the producers feel it",
                timeout=2,
            )

    def _check_readers(self) -> None:
        """What any node shows is a beginning of what was sent."""
        node = self._random.choice(list(self._cluster.nodes.values()))
        for load, queue in self._pairs():
            with Raw(node.client, timeout=30) as raw:
                facts, batches = raw.fetch(queue.queue_id, 0)
                if not batches:
                    continue
                tail = raw.values(queue.queue_id, max(0, facts.next - 500))
            first = max(0, facts.next - 500)
            wrong = [n for n, value in enumerate(tail, first) if value != load.value(n)]
            assert not wrong, f"{node.id} shows other records at {wrong[:5]} of {queue.name}"

    def _pairs(self) -> list[tuple[Load, QueueInfo]]:
        return list(zip(self._loads, self._queues, strict=True))


def torture_cluster(directory: Path, *, flush: str = "memory") -> Cluster:
    """Three nodes whose segments are small enough to roll often."""
    settings = {"limits.max_batch_bytes": MIB, "limits.max_record_bytes": MIB, "ha.syncFlushTimeout": 2_000}
    return fast_cluster(3, data_dir=directory, flush=flush, segment_bytes=2 * MIB, settings=settings)


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--flush", choices=["memory", "disk"], default="memory")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="mirrorlog-torture-"))
    print(f"seed {options.seed}, data in {directory}", flush=True)
    with torture_cluster(directory, flush=options.flush) as cluster:
        cluster.wait_in_sync()
        torture = Torture(cluster, seed=options.seed, report=lambda line: print(line, flush=True))
        torture.run(rounds=options.rounds)
        log = log_of(cluster.master)
        print(f"well after {len(torture.done)} rounds: epoch {log.epoch}, {log.end} bytes equal on three nodes")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
