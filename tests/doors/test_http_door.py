"""The HTTP door of a real node tells what the node says, and that it says nothing, and never hangs."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from mirrorlog import __version__
from mirrorlog.client.sync import Client
from mirrorlog.errors import NoSuchQueue, OutcomeUnknown, PortTaken, UnsupportedVersion
from mirrorlog.testing import Cluster
from mirrorlog.testing.ports import free_ports
from mirrorlog.wire.frames import Level
from mirrorlog.wire.messages.queues import CommitPosition, Done, HoldGranted, Position, SetHold
from mirrorlog.wire.messages.status import LogCounts, NodeCounts
from tests.attacks.half_open_http import half_open
from tests.doors.http_door import HOST, HttpDoor, samples, value
from tests.process.clusters import declare, eventually, fast_cluster, log_of
from tests.process.raw import Raw, batch_of

NODE = "n1"
"""The master of a cluster that has just begun. Never asked for: a node that stands still or is gone masters nothing."""
MIRROR = "n2"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two copies with a queue of three records, of which a group has passed one and a landing holds two. A publish was
    refused, and one was not confirmed in time. On the node's disk lies a copy of a log that is none of its own."""
    with fast_cluster(2) as started:
        started.wait_in_sync()
        node = started.nodes[NODE]
        former = node.data_dir / "logs" / str(uuid4())
        former.mkdir()
        (former / "log.json").write_text('{"name": "formerly"}')
        queue = declare(started.nodes[NODE].client, "flights")
        with Raw(started.nodes[NODE].client) as raw:
            raw.produce(batch_of([b"a", b"b", b"c"], queue))
            position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=1)
            raw.request(CommitPosition(queue="flights", group="landing", position=position), Done)
            eventually(lambda: is_held(raw, "flights"), "a landing holds the queue")
            with pytest.raises(NoSuchQueue):
                raw.produce(batch_of([b"x"], queue.queue_id + 1_000))
            late = declare(started.nodes[NODE].client, "late")
            started.nodes[MIRROR].pause()
            with pytest.raises(OutcomeUnknown):
                raw.produce(batch_of([b"d"], late), deadline_ms=50)
            started.nodes[MIRROR].resume()
        with Client(node.client) as client, client.subscribe("late", "workers"):
            pass  # the group stays
        started.wait_confirmed()
        eventually(lambda: bool(node.status().former), "the former copy is found")
        yield started


def is_held(raw: Raw, queue: str) -> bool:
    """False while the cluster, new as it is, does not run at a version that has holds."""
    hold = SetHold(queue=queue, name="lake", holder="h", queue_offset=1, lease_ms=3_600_000, location="/lake/flights")
    try:
        raw.request(hold, HoldGranted)
    except UnsupportedVersion:
        return False
    return True


@pytest.fixture(scope="module")
def door(cluster: Cluster) -> Iterator[HttpDoor]:
    with HttpDoor(cluster.nodes[NODE].client) as serving:
        yield serving


def test_a_scrape_tells_what_the_node_says(cluster: Cluster, door: HttpDoor) -> None:
    """Goal: the numbers are the node's. Method: a quiet cluster; compare a scrape with the node's own status."""
    log = log_of(cluster.nodes[NODE])
    found = door.metrics()
    for name in ("begin", "end", "flushed", "confirmed"):
        assert value(found, f"mirrorlog_log_{name}_bytes", log="main") == getattr(log, name), name
    assert value(found, "mirrorlog_log_in_sync_copies", log="main") == 2
    assert value(found, "mirrorlog_log_state", log="main", state="serving") == 1
    assert value(found, "mirrorlog_mirror_lag_bytes", log="main", mirror=MIRROR) == 0
    assert value(found, "mirrorlog_queue_confirmed_offset", log="main", queue="flights") == 3
    assert value(found, "mirrorlog_group_lag_records", log="main", queue="flights", group="landing") == 2
    ((labels, size),) = samples(found, "mirrorlog_former_copy_bytes")
    assert (labels["log"], size) == ("formerly", len('{"name": "formerly"}'))
    assert value(found, "mirrorlog_hold_lag_records", log="main", queue="flights", landing="lake") == 2
    ((labels, _),) = samples(found, "mirrorlog_node_info")
    assert (labels["node"], labels["version"]) == (NODE, __version__)
    assert labels["start_id"] == cluster.nodes[NODE].status().start_id
    assert 0 < value(found, "mirrorlog_scrape_duration_seconds") < 2
    assert 0 < value(found, "mirrorlog_disk_free_bytes") < value(found, "mirrorlog_disk_size_bytes")


def counts_of(cluster: Cluster, node: str) -> NodeCounts:
    counts = cluster.nodes[node].status().counts
    assert counts is not None
    return counts


def difference(now: LogCounts, before: LogCounts) -> dict[str, int]:
    """What has grown."""
    names = [name for name in now.__struct_fields__ if isinstance(getattr(now, name), int)]
    grown = {name: getattr(now, name) - getattr(before, name) for name in names}
    grown["confirms"] = sum(now.confirms.counts) - sum(before.confirms.counts)
    return {name: number for name, number in grown.items() if number and not name.startswith("flush")}


def test_a_publish_is_counted_once_and_by_how_it_ends(cluster: Cluster) -> None:
    """Goal: the counts are what they say. Method: one publish of each kind, and what has grown after each: a confirm is
    timed where one was waited for; a batch that is sent again, and one that is refused, are not published."""
    queue = declare(cluster.nodes[NODE].client, "counted")
    cluster.wait_confirmed()
    batch = batch_of([b"a", b"b"], queue, producer_id=77)
    bare = batch_of([b"c"], queue)
    with Raw(cluster.nodes[NODE].client) as raw:

        def grown(act: Callable[[], object]) -> dict[str, int]:
            before = counts_of(cluster, NODE).logs[0]
            act()
            return difference(counts_of(cluster, NODE).logs[0], before)

        stored = {"published_batches": 1, "published_records": 2, "published_bytes": len(batch)}
        assert grown(lambda: raw.produce(batch)) == {**stored, "confirms": 1}
        assert grown(lambda: raw.produce(batch)) == {}
        stored = {"published_batches": 1, "published_records": 1, "published_bytes": len(bare)}
        assert grown(lambda: raw.produce(bare, level=Level.NONE)) == stored
        assert grown(lambda: raw.produce(bare, level=Level.MASTER)) == {**stored, "confirms": 1}
        refused = counts_of(cluster, NODE).refused["NO_SUCH_QUEUE"]
        with pytest.raises(NoSuchQueue):
            raw.produce(batch_of([b"x"], queue.queue_id + 1_000))
        assert counts_of(cluster, NODE).refused["NO_SUCH_QUEUE"] == refused + 1
        read = grown(lambda: raw.fetch(queue.queue_id, 0))
        assert read.keys() == {"fetches", "fetched_bytes"}
        assert read["fetches"] == 1
        assert read["fetched_bytes"] > len(batch) + 2 * len(bare)


def test_the_time_of_a_confirm_is_that_of_its_copies(cluster: Cluster) -> None:
    """Goal: what is slow shows as slow. Method: a publish that waits 0.2 s and more for a mirror that stands still."""
    queue = declare(cluster.nodes[NODE].client, "slow")
    cluster.wait_confirmed()
    before = counts_of(cluster, NODE).logs[0].confirms
    with Raw(cluster.nodes[NODE].client) as raw:
        begun = time.monotonic()
        cluster.nodes[MIRROR].pause()
        number = raw.start_produce(batch_of([b"a"], queue))
        time.sleep(0.3)  # what is measured is time, from when the node has read the batch
        cluster.nodes[MIRROR].resume()
        raw.confirm(number)
        elapsed = time.monotonic() - begun
    now = counts_of(cluster, NODE).logs[0].confirms
    assert 0.2 <= now.sum_s - before.sum_s <= elapsed
    (bucket,) = [number for number, (new, old) in enumerate(zip(now.counts, before.counts, strict=True)) if new > old]
    assert now.bounds_s[bucket - 1] < now.sum_s - before.sum_s <= now.bounds_s[bucket]


def test_what_one_node_sends_the_other_receives(cluster: Cluster) -> None:
    """Goal: bytes are counted at both ends. Method: compare master and mirror, and both with the log itself, which was
    never cut; look at who was promoted, and at links and connections."""
    end = cluster.wait_confirmed().end
    master, mirror = counts_of(cluster, NODE), counts_of(cluster, MIRROR)
    assert master.logs[0].sent_bytes == {MIRROR: end}
    assert mirror.logs[0].received_bytes == end
    assert (master.logs[0].received_bytes, mirror.logs[0].sent_bytes) == (0, {})
    assert (master.logs[0].promotions, mirror.logs[0].promotions) == (1, 0)
    assert 0 < mirror.logs[0].flushed_bytes <= end
    for each in (master, mirror):
        assert each.links_opened >= each.links_open == 1
        assert each.accepted["replication"] >= each.open["replication"] > 0
    with Raw(cluster.nodes[NODE].client):
        after = counts_of(cluster, NODE)
        assert after.accepted["client"] == master.accepted["client"] + 2  # and the one that asks
        assert after.open["client"] >= 2


def test_a_mirror_tells_of_its_copy_and_nothing_of_other_copies(cluster: Cluster) -> None:
    """Goal: sums over nodes are right. Method: scrape the mirror's door."""
    with HttpDoor(cluster.nodes[MIRROR].client) as door:
        found = door.metrics()
        assert value(found, "mirrorlog_log_role", log="main", role="mirror") == 1
        assert value(found, "mirrorlog_log_end_bytes", log="main") == log_of(cluster.nodes[NODE]).end
        assert samples(found, "mirrorlog_log_in_sync_copies") == []
        assert samples(found, "mirrorlog_mirror_lag_bytes") == []


def test_health_names_the_node(cluster: Cluster, door: HttpDoor) -> None:
    """Goal: who asks knows whom he reached. Method: the body of /health."""
    page = door.get("/health")
    assert page.status == 200
    assert json.loads(page.text) == {"node": NODE, "start_id": cluster.nodes[NODE].status().start_id}
    assert (door.get("/ready").status, door.get("/ready").text) == (200, page.text)


def test_the_root_says_what_is_here(door: HttpDoor) -> None:
    """Goal: a person with a browser finds the way. Method: / is one line of text that names the other paths."""
    page = door.get("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert page.text.count("\n") == 1
    assert all(path in page.text for path in ("/metrics", "/health", "/ready"))


@pytest.mark.parametrize(
    "path", ["/metrics/", "/metric", "//", "/%0a%22}", "/" + "x" * 5_000, "/health/../metrics", "/?"]
)
def test_what_is_not_here_is_a_line_of_json(door: HttpDoor, path: str) -> None:
    """Goal: one form of error, of bounded size, on one line. Method: paths near and far; a query changes none."""
    page = door.get(path)
    if path == "/?":
        assert page.status == 200
    else:
        assert page.status == 404
        assert "/ says what is here" in page.error
        assert len(page.text) < 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PURGE"])
def test_nothing_can_be_written(door: HttpDoor, method: str) -> None:
    """Goal: the door only tells. Method: other methods on a path that is there."""
    page = door.get("/metrics", method=method)
    assert page.status == 405
    assert "GET" in page.headers["allow"]
    assert "GET" in page.error


@pytest.mark.long
def test_a_node_that_stands_still_is_503_within_the_deadline_and_back_when_it_goes_on() -> None:
    """Goal: nothing hangs on a hung node. Method: SIGSTOP it; twenty ask at once; then SIGCONT."""
    with fast_cluster(1) as one, HttpDoor(one.nodes[NODE].client) as door:
        assert door.get("/health").status == 200
        one.nodes[NODE].pause()
        eventually(lambda: door.get("/health").status == 503, "health tells")
        begun = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            pages = [*pool.map(door.get, ["/health", "/metrics"] * 10)]
        # One deadline of 2 s for all, and the second for which its outcome is shared; the rest is room for the machine.
        assert time.monotonic() - begun < 8
        assert {page.status for page in pages} == {503}
        assert {page.error for page in pages} == {"the node did not answer within 2000 ms"}
        assert door.get("/").status == 200
        one.nodes[NODE].resume()
        eventually(lambda: door.get("/health").status == 200, "health tells")
        eventually(lambda: door.get("/metrics").status == 200, "metrics tell")
        # All who asked at once shared a question: a few were put, not one for each.
        assert 1 <= value(door.metrics(), "mirrorlog_scrape_failures_total") <= 8


def test_a_door_outlives_its_node_and_finds_its_next_start() -> None:
    """Goal: 503 with the reason while the node is gone, and no old number after. Method: SIGKILL it, start it again."""
    with fast_cluster(1) as one, HttpDoor(one.nodes[NODE].client) as door:
        assert door.get("/health").status == 200
        before = one.nodes[NODE].status().start_id
        one.nodes[NODE].kill()
        eventually(lambda: door.get("/health").status == 503, "health tells")
        page = door.get("/metrics")
        assert page.status == 503
        assert one.nodes[NODE].client in page.error
        one.nodes[NODE].start()
        eventually(lambda: door.get("/health").status == 200, "health tells")
        eventually(lambda: door.get("/metrics").status == 200, "metrics tell")
        ((labels, _),) = samples(door.metrics(), "mirrorlog_node_info")
        assert labels["start_id"] == one.nodes[NODE].status().start_id != before


def test_a_door_serves_before_its_node_is_there() -> None:
    """Goal: the order of starting does not matter. Method: a door to a port where nobody listens; SIGTERM ends it."""
    with HttpDoor(f"{HOST}:{free_ports(1)[0]}") as door:
        page = door.get("/health")
        assert page.status == 503
        assert "no connection to" in page.error
        door.process.terminate()
        assert door.end()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_door_that_is_stopped_answers_who_waits_and_ends(number: signal.Signals) -> None:
    """Goal: a stop waits for nobody longer than a question takes. Method: stop it with a scrape of a hung node open."""
    with fast_cluster(1) as one, HttpDoor(one.nodes[NODE].client) as door, ThreadPoolExecutor(1) as pool:
        assert door.get("/health").status == 200
        one.nodes[NODE].pause()
        eventually(lambda: door.get("/health").status == 503, "health tells")
        waiting = pool.submit(door.get, "/metrics")
        door.process.send_signal(number)
        with contextlib.suppress(OSError, http.client.HTTPException):  # it may come too late to be taken
            assert waiting.result(30).status == 503
        assert door.process.wait(30) == 0
        one.nodes[NODE].resume()


def test_a_door_ends_with_the_process_that_started_it(cluster: Cluster) -> None:
    """Goal: no door is left behind. Method: let go of the pipe, as a parent that was killed does."""
    with HttpDoor(cluster.nodes[NODE].client) as another:
        assert another.process.stdin is not None
        another.process.stdin.close()
        assert another.process.wait(timeout=30) == 0


def test_a_port_that_is_taken_is_named(door: HttpDoor, cluster: Cluster) -> None:
    """Goal: two doors never share a port without a word. Method: a second one on the first one's port."""
    second = HttpDoor(cluster.nodes[NODE].client, bind=door.address)
    try:
        code, errors = second.end()
    finally:
        second.close()
    assert code == PortTaken.exit_code
    assert door.address in errors.splitlines()[-1]


def test_half_open_connections_keep_no_probe_out(door: HttpDoor) -> None:
    """Goal: `/health` answers whatever strangers do. Method: more half-open connections than there are places, then a
    probe, three times."""
    with half_open(door.address, 140):
        for _ in range(3):
            assert door.get("/health").status == 200


# --- The page that lists them ---

WITHOUT_VALUE = {
    "mirrorlog_certificate_expiry_timestamp_seconds",
    "mirrorlog_log_pinned_bytes",
    "mirrorlog_log_pinning_bytes",
}
"""What a node has no value for whose ports speak plainly, and in whose logs nothing is dead."""


def told_by_page() -> dict[str, tuple[str, str]]:
    """Labels and meaning of each metric in the table of the reference."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    return {name.strip("`"): (labels, meaning) for name, labels, _, meaning in (row for row in rows if len(row) == 4)}


def test_the_table_of_metrics_is_what_a_scrape_gives(door: HttpDoor) -> None:
    """Goal: the page can be relied on. Method: compare names, labels and meanings with a real scrape."""
    page = {name: told for name, told in told_by_page().items() if name.startswith("mirrorlog_")}
    told = {}
    for name, family in door.metrics().items():
        if not family.samples:
            assert name in WITHOUT_VALUE, name
            told[name] = (page[name][0], family.documentation)
            continue
        labels = ", ".join(dict.fromkeys(label for sample in family.samples for label in sample.labels))
        told[name] = (labels, family.documentation)
    assert page == told
