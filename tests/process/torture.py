"""Kill, stop and pause random nodes under load, round after round, and compare everything at the end.

    python -m tests.process.torture --rounds 200 [--seed 7] [--flush memory|disk]

The seed decides what is done to whom and how far the load gets in between; when exactly a signal hits is the
machine's. So a seed repeats a plan, not an interleaving: a failure's directory is kept and named.

The long form is made of pieces of some rounds on a cluster of its own, each with the next seed, flush mode and segment
size, each checked at its end and added to the totals: it can be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mirrorlog.errors import RequestTimeout
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import MIB, assert_copies_equal, declare, eventually, fast_cluster, log_lines, log_of
from tests.process.load import Load
from tests.process.raw import Raw
from tests.totals import add_run, runs_of

Report = Callable[[str], None]
PIECE_ROUNDS: Final = 25
TOTALS: Final = Path(".build/torture/totals.json")
_FIRST_SEED: Final = 20260701
_KIB: Final = 1024
_PROGRESS_SECONDS = 30.0


class Torture:
    """One cluster, two producers on a queue each, and a plan drawn from `seed`. `counts`: what was done and checked."""

    def __init__(self, cluster: Cluster, *, seed: int, report: Report = lambda line: None) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._report = report
        self._queues = [declare(cluster.servers[0], name) for name in ("first", "second")]
        self._loads = [
            Load(
                cluster.servers, self._queues[0], producer_id=101, batch_records=10, window=8,
                answer_s=2.0, pace_s=0.02,
            ),
            Load(
                cluster.servers, self._queues[1], producer_id=102, batch_records=200, window=3, value_bytes=500,
                answer_s=2.0, pace_s=0.05,
            ),
        ]  # fmt: skip
        self.done: list[str] = []
        self.counts: Counter[str] = Counter()

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
        """Every node holds the same bytes and every record once and in order; no copy was ever lossy or corrupt, none
        is marked, and no loss was said."""
        self._cluster.wait_in_sync()
        self.counts["epochs"] += log_of(self._cluster.master).epoch
        self.counts["bytes_compared"] += assert_copies_equal(self._cluster) * len(self._cluster.nodes)
        for node in self._cluster.nodes.values():
            assert not log_lines(node, "log_lossy")
            assert not log_lines(node, "log_unavailable")
            assert not log_lines(node, "connection_failed")
            assert "Traceback" not in node.log_file.read_text()
            known = node.status().cluster
            assert known is not None
            assert [(log.marked, log.losses) for log in known.logs] == [([], [])]
            with Raw(node.client, timeout=30) as raw:
                for load, queue in self._pairs():
                    load.check(raw.values(queue.queue_id))
                    self.counts["checks"] += 1
        for load in self._loads:
            self.counts["confirmed_batches"] += load.confirmed
            self.counts["confirmed_records"] += load.records

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
        self.counts["rounds"] += 1

    def _kill(self, victims: Sequence[Node]) -> None:
        for node in victims:
            node.kill()
        self.counts["kills"] += len(victims)
        self._restart(victims)

    def _stop(self, victims: Sequence[Node]) -> None:
        for node in victims:
            assert node.stop() == 0, node.log_tail()
        self.counts["stops"] += len(victims)
        self._restart(victims)

    def _pause(self, victims: Sequence[Node]) -> None:
        """Until the others have noticed or not, as it comes."""
        for node in victims:
            node.pause()
        self.counts["pauses"] += len(victims)
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
        """What any node shows, also one that is cut off, is a beginning of what was sent."""
        node = self._random.choice(list(self._cluster.nodes.values()))
        for load, queue in self._pairs():
            with Raw(node.client, timeout=30, stale_reads=True) as raw:
                facts, batches = raw.fetch(queue.queue_id, 0)
                if not batches:
                    continue
                tail = raw.values(queue.queue_id, max(0, facts.next - 500))
            first = max(0, facts.next - 500)
            wrong = [n for n, value in enumerate(tail, first) if value != load.value(n)]
            assert not wrong, f"{node.id} shows other records at {wrong[:5]} of {queue.name}"
            self.counts["checks"] += 1

    def _pairs(self) -> list[tuple[Load, QueueInfo]]:
        return list(zip(self._loads, self._queues, strict=True))


def torture_cluster(
    directory: Path, *, flush: str = "memory", segment_bytes: int = 2 * MIB, kept_mapped_bytes: int | None = None
) -> Cluster:
    """Three nodes, two of which are enough, and whose segments are small enough to roll often. One that stands still is
    soon replaced. `kept_mapped_bytes`: with 0 what is behind the active
    segment leaves the memory, so tables, the index of the past and reads from disk have their part."""
    batch_bytes_max = min(MIB, segment_bytes)
    settings = {
        "limits.max_batch_bytes": batch_bytes_max,
        "limits.max_record_bytes": batch_bytes_max,
        "ha.syncFlushTimeout": 2_000,
        "cluster.node_timeout_ms": 600,
        "cluster.mirror_lag_time_ms": 1_000,
    }
    if kept_mapped_bytes is not None:
        settings["log.kept_mapped_bytes"] = kept_mapped_bytes
    return fast_cluster(
        3, min_in_sync=2, data_dir=directory, flush=flush, segment_bytes=segment_bytes, settings=settings
    )


class Piece(NamedTuple):
    """What one cluster is put through."""

    seed: int
    rounds: int
    flush: str
    segment_bytes: int
    kept_mapped_bytes: int | None


def pieces(rounds: int, seed: int, flush: str | None) -> list[Piece]:
    """`rounds` in pieces with rising seeds. The seed also chooses flush mode, if `flush` leaves it open, size, and
    whether the past leaves the memory."""
    found: list[Piece] = []
    while rounds > 0:
        mode = flush or ("memory", "disk")[seed % 2]
        segment_bytes = (2 * MIB, 512 * _KIB, 256 * _KIB)[seed // 2 % 3]
        kept_mapped_bytes = (0, None)[seed // 6 % 2]
        found.append(Piece(seed, min(rounds, PIECE_ROUNDS), mode, segment_bytes, kept_mapped_bytes))
        rounds -= PIECE_ROUNDS
        seed += 1
    return found


def next_seed(totals: Path) -> int:
    """The one after the last that was run to its end."""
    return max((run["seed"] for run in runs_of(totals)), default=_FIRST_SEED - 1) + 1


def run_piece(piece: Piece, report: Report) -> Counter[str]:
    """What was done and checked. Raises what went wrong; the directory stays then, and its name was reported."""
    directory = Path(tempfile.mkdtemp(prefix=f"mirrorlog-torture-{piece.seed}-"))
    report(f"{piece}, data in {directory}")
    with torture_cluster(
        directory,
        flush=piece.flush,
        segment_bytes=piece.segment_bytes,
        kept_mapped_bytes=piece.kept_mapped_bytes,
    ) as cluster:
        cluster.wait_in_sync()
        torture = Torture(cluster, seed=piece.seed, report=report)
        torture.run(rounds=piece.rounds)
        log = log_of(cluster.master)
        report(f"well after {len(torture.done)} rounds: epoch {log.epoch}, {log.end} bytes equal on three nodes")
    shutil.rmtree(directory)
    return torture.counts


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(
        "python -m tests.process.torture",
        description=(__doc__ or "").splitlines()[0],
        epilog="Example: python -m tests.process.torture --rounds 25 --seed 7 --flush disk",
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, help="of the first piece; by default the one after the last in the totals")
    parser.add_argument("--flush", choices=["memory", "disk"], help="by default in turn")
    parser.add_argument("--totals", type=Path, default=TOTALS)
    options = parser.parse_args()
    seed = next_seed(options.totals) if options.seed is None else options.seed
    for piece in pieces(options.rounds, seed, options.flush):
        started = time.monotonic()
        counts = run_piece(piece, lambda line: print(line, flush=True))
        seconds = time.monotonic() - started
        sums = add_run(options.totals, counts=counts, seconds=seconds, **piece._asdict())
        print(f"in all: {dict(sums)}", flush=True)


if __name__ == "__main__":
    main()
