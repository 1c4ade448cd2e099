"""What is pure in `bench.peers`: reading what drivers and programs print, and the settings that servers are given."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.measure import Figure
from bench.peers import PeerFailed, Skipped, install, kafka, nats, rabbitmq, rocketmq, versions, workloads
from bench.peers.load import Window
from bench.peers.outcome import figures_of
from bench.peers.servers import Servers

PERF_TEST = """\
id: t, starting producer #0, channel #0
id: t, time 4.001 s, sent: 8706 msg/s, confirmed: 8501 msg/s, nacked: 0 msg/s, min/median/75th/95th/99th confirm latency: 1164/19406/24678/36251/44804 µs
id: t, time 8.001 s, sent: 12802 msg/s, confirmed: 13001 msg/s, nacked: 0 msg/s, min/median/75th/95th/99th confirm latency: 1028/21799/31253/53661/66306 µs
test stopped (Reached time limit)
id: t, confirm latency min/median/75th/95th/99th 1397/29887/42832/61598/75819 µs""".splitlines()  # noqa: E501

PERF_TEST_WORK = """\
id: t, starting consumer #0, channel #0
id: t, time 3.001 s, sent: 8022 msg/s, confirmed: 7906 msg/s, nacked: 0 msg/s, received: 7906 msg/s, min/median/75th/95th/99th consumer latency: 3571/52543/167070/294870/335896 µs, confirm latency: 1219/25543/44496/87611/103189 µs
id: t, time 6.015 s, sent: 8113 msg/s, confirmed: 8029 msg/s, nacked: 0 msg/s, received: 7620 msg/s, min/median/75th/95th/99th consumer latency: 1185/71716/106382/218597/242926 µs, confirm latency: 760/46213/68810/106071/130566 µs
id: t, consumer latency min/median/75th/95th/99th 2755/62275/121067/259205/306392 µs""".splitlines()  # noqa: E501

W1 = {"workload": "W1", "variant": "v", "count": 8000, "seconds": 2.0, "sent": 9000, "confirmed": 9000, "stored": 9000}


def test_a_drivers_outcome_becomes_figures() -> None:
    """A rate gives records and megabytes a second, a latency its percentiles; other lines are passed over."""
    w2 = {"workload": "W2", "p50_us": 300.0, "p99_us": 900.0, "sent": 10, "confirmed": 10}
    assert figures_of(["connected", json.dumps(W1), json.dumps(w2)], "Peer 1") == [
        Figure("W1", "Peer 1, v", "rate", "msg/s", 4000.0),
        Figure("W1", "Peer 1, v", "throughput", "MB/s", 4.096),
        Figure("W2", "Peer 1", "p50", "µs", 300.0),
        Figure("W2", "Peer 1", "p99", "µs", 900.0),
    ]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"confirmed": 8999}, "9000 records sent, 8999 confirmed, 9000 stored"),
        ({"stored": 8999}, "9000 records sent, 9000 confirmed, 8999 stored"),
        ({"sent": 0, "confirmed": 0, "stored": 0}, "0 records sent"),
        ({"seconds": 0.0}, "cannot read"),
        ({"count": None}, "cannot read"),
    ],
)
def test_a_figure_with_missing_records_does_not_count(changed: dict[str, object], reason: str) -> None:
    """One field of a good outcome is changed: the round fails and says what is wrong."""
    with pytest.raises(PeerFailed, match=reason):
        figures_of([json.dumps({**W1, **changed})], "Peer 1")


@pytest.mark.parametrize("lines", [[], ["{nonsense"], ["[]"], ['{"workload": "W1"}']])
def test_a_driver_without_an_outcome_is_a_failure(lines: list[str]) -> None:
    """Nothing, or something that cannot be read, never passes for a measurement."""
    with pytest.raises(PeerFailed):
        figures_of(lines, "Peer 1")


def test_a_retry_may_store_a_record_twice() -> None:
    """More stored than sent is the client's retry, not a loss."""
    assert figures_of([json.dumps({**W1, "stored": 9001})], "Peer 1")


def test_perf_tests_second_interval_is_the_figure() -> None:
    """The first interval is the warm-up, the summary mixes both."""
    assert rabbitmq.second_interval(PERF_TEST, "W1") == {"count": 13001.0, "seconds": 1.0}
    assert rabbitmq.second_interval(PERF_TEST, "W2") == {"p50_us": 21799.0, "p99_us": 66306.0}
    with pytest.raises(PeerFailed, match="fewer than two"):
        rabbitmq.second_interval(PERF_TEST[:2], "W1")


def test_perf_test_of_a_work_queue_is_read_by_what_was_taken() -> None:
    """W6 is what the consumer had, W7 the way to it; a refusal fails."""
    assert rabbitmq.second_interval(PERF_TEST_WORK, "W6") == {"count": 7620.0, "seconds": 1.0}
    assert rabbitmq.second_interval(PERF_TEST_WORK, "W7") == {"p50_us": 71716.0, "p99_us": 242926.0}
    with pytest.raises(PeerFailed, match="refused 3 "):
        rabbitmq.second_interval([line.replace("nacked: 0", "nacked: 3") for line in PERF_TEST_WORK], "W6")


def test_perf_tests_confirms_are_counted_from_below() -> None:
    """Two intervals of 4 s at 8,501 and 13,001 a second, less than one a second and 2 ms each off; a refusal fails."""
    exact = 4.001 * 8501 + 4.0 * 13001
    assert 0.998 * exact < rabbitmq.confirmed_at_least(PERF_TEST) <= exact
    with pytest.raises(PeerFailed, match="refused 3 "):
        rabbitmq.confirmed_at_least([line.replace("nacked: 0", "nacked: 3") for line in PERF_TEST])


def test_perf_tests_consumer_is_measured_between_its_ends() -> None:
    """The first second warms up and the last one is cut short."""
    rates = [f"id: t, time {second}.0 s, received: {rate} msg/s, more" for second, rate in enumerate([5, 20, 30, 7], 1)]
    assert rabbitmq.between_intervals(rates) == {"count": 50.0, "seconds": 2.0}
    with pytest.raises(PeerFailed, match="no interval"):
        rabbitmq.between_intervals([])


def test_a_rabbitmq_queue_must_have_three_copies() -> None:
    """Members of a quorum queue, or a master and two mirrors, as rabbitmqctl lists them."""
    quorum = "quorum\t78643\t[r1@localhost, r2@localhost, r3@localhost]\t"
    mirrored = "mirrored\t21286\t\t[<r3@localhost.1.830.0>, <r2@localhost.1.650.0>]"
    assert rabbitmq.held_on_three(["name\tmessages", quorum, mirrored], "quorum") == 78643
    assert rabbitmq.held_on_three(["name\tmessages", quorum, mirrored], "mirrored") == 21286
    with pytest.raises(PeerFailed, match="has 2 copies"):
        rabbitmq.held_on_three(["mirrored\t5\t\t[<r3@localhost.1.830.0>]"], "mirrored")
    with pytest.raises(PeerFailed, match="no queue"):
        rabbitmq.held_on_three([], "mirrored")


def test_kafkas_producer_is_read_after_its_warm_up() -> None:
    """The steady state's line, and only if all its records were confirmed."""
    lines = [
        "220000 records sent, 16755.521706 records/sec (16.36 MB/sec), 1782.69 ms avg latency",
        "160000 steady state records sent, 13879.250520 records/sec (13.55 MB/sec), 2145.44 ms avg latency",
    ]
    assert kafka.java_rate(lines, 160_000) == 13879.250520
    for broken, records in ((lines, 160_001), (lines[:1], 160_000), ([], 1)):
        with pytest.raises(PeerFailed):
            kafka.java_rate(broken, records)


def test_servers_listen_on_loopback_only() -> None:
    """Every address in the configurations is 127.0.0.1, each on the ports that it was given."""
    directory = Path("/data")
    texts = [
        kafka.configuration(2, [1001, 1002, 1003], [2001, 2002, 2003], directory),
        nats.configuration("n1", 1001, 2001, [2001, 2002], "/data"),
        rabbitmq.configuration(1001, directory / "definitions.json"),
        rocketmq.configuration(0, "SYNC_MASTER", [1001, 2001], "127.0.0.1:3001", directory),
    ]
    for text in texts:
        assert "127.0.0.1" in text
        assert "0.0.0.0" not in text
    assert "listeners=PLAINTEXT://127.0.0.1:1002,CONTROLLER://127.0.0.1:2002" in texts[0]
    assert "inSyncReplicas=2" in texts[3]


def test_a_pom_names_every_artifact_and_leaves_out_what_it_shall() -> None:
    """Read back as XML: Maven's three coordinates, and the exclusion in each dependency."""
    project = ElementTree.fromstring(install.pom(["g:a:1", "g:b:2"], ["g:x"]))
    found = [[child.text for child in each][:3] for each in project.iter("dependency")]
    assert found == [["g", "a", "1"], ["g", "b", "2"]]
    assert [[child.text for child in each] for each in project.iter("exclusion")] == [["g", "x"]] * 2


def test_the_go_driver_is_built_against_the_pinned_client() -> None:
    """go.mod must name its version itself; it is the one of `versions`."""
    assert f"github.com/nats-io/nats.go v{versions.NATS_GO}\n" in (install.SOURCES / "nats_go" / "go.mod").read_text()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Reading lists\nE: Unable to locate package x\nE: more", "E: Unable to locate package x"),
        ("[INFO] a\n[ERROR] cannot resolve\n[ERROR] -> help", "[ERROR] cannot resolve"),
        ("Load.java:3: error: cannot find symbol\n1 error", "Load.java:3: error: cannot find symbol"),
        ("first\nlast\n", "last"),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_step_says_why_in_one_line(output: str, line: str) -> None:
    """The first error of what a program printed, else its last line."""
    assert install.telling_line(output) == line


def test_a_peer_that_could_not_be_installed_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the attempt: what to do. After a failed one: why. After a good one: its directory. No half one is left."""

    def refused(directory: Path) -> None:
        raise Skipped("go is needed")

    recipes = {"nats": install.Recipe("1", refused)}
    monkeypatch.setattr(install, "DIRECTORY", tmp_path)
    monkeypatch.setattr(install, "RECIPES", recipes)
    with pytest.raises(Skipped, match=r"run `python -m bench\.peers\.install nats`"):
        install.installed("nats")
    assert install.main(["nats"]) == 1
    with pytest.raises(Skipped, match="go is needed"):
        install.installed("nats")
    assert [file.name for file in tmp_path.iterdir()] == ["nats.reason"]
    recipes["nats"] = install.Recipe("1", lambda directory: (directory / "program").touch())
    assert install.install("nats")
    assert not install.install("nats")
    assert (install.installed("nats") / "program").is_file()
    assert install.main(["nats"]) == 0
    recipes["nats"] = install.Recipe("2", recipes["nats"].make)
    with pytest.raises(Skipped, match="not installed"):
        install.installed("nats")


def test_a_missing_client_is_named() -> None:
    """A Python package that is not there is a reason to skip, not a crash."""
    with pytest.raises(Skipped, match="no-such-client is needed"):
        install.client_version("no-such-client")


def test_every_peer_says_what_it_is() -> None:
    """One workload each, in the runner's terms, whether it is installed or not."""
    found = workloads(quick=True)
    assert {(each.group, each.workload) for each in found} == {("peer", "peer")}
    assert len({each.case for each in found}) == len(found) == len(install.RECIPES) - 2
    # No peers: what Spark needs to read one, and a broker that is followed.
    assert {"spark-kafka", "rocketmq-4"} <= install.RECIPES.keys()


def test_a_window_counts_between_warm_up_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: 100 records a second for 2 s of warm-up and 4 s measured."""
    now = 1000.0
    monkeypatch.setattr("bench.peers.load.time.perf_counter", lambda: now)
    window = Window(2.0, 4.0, started=now)
    confirmed = 0
    while window.open(confirmed):
        now += 0.5
        confirmed += 50
    assert window.result(confirmed) == {"count": 400, "seconds": 4.0}


def test_no_process_and_no_data_outlive_a_round() -> None:
    """A server that has a child of its own, and a round that ends by an error: both processes and the directory go."""
    with pytest.raises(PeerFailed, match="enough"), Servers("test") as servers:  # noqa: PT012
        directory = servers.directory
        pids = directory / "pids"
        servers.start("parent", ["sh", "-c", f"sleep 60 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"])
        eventually(pids.is_file)
        parent, child = map(int, pids.read_text().split())
        assert running(parent)
        assert running(child)
        raise PeerFailed("enough")
    assert not directory.exists()
    assert not running(parent)
    eventually(lambda: not running(child))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for it, ten seconds at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(pid: int) -> bool:
    """There is such a process and it has not ended; one that only waits to be collected has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_servers_that_lost_a_port_start_again_with_others() -> None:
    """The first attempt leaves a process and a file, and fails: the second one finds neither."""
    found: list[list[str]] = []
    with Servers("test") as servers:

        def start() -> int:
            found.append(sorted(path.name for path in servers.directory.iterdir()))
            if len(found) == 1:
                servers.start("server", ["sh", "-c", "echo address in use; exit 1"])
                servers.wait_listening(1)
            return 7

        assert servers.started(start) == 7
    assert found == [[], []]


def test_a_failing_program_is_reported_by_its_telling_line() -> None:
    """Also one that takes too long, and a server that ends before its port opens."""
    fail = [sys.executable, "-c", "import sys; print('a'); sys.exit('no such topic')"]
    with Servers("test") as servers:
        with pytest.raises(PeerFailed, match="test: load ended with 1: no such topic"):
            servers.run("load", fail)
        with pytest.raises(PeerFailed, match="did not end within"):
            servers.run("load", ["sleep", "60"], timeout=0.1)
        assert servers.run("load", ["echo", "one\ntwo"]) == ["one", "two"]
        servers.start("server", ["sh", "-c", "echo cannot bind; exit 1"])
        with pytest.raises(PeerFailed, match="server: cannot bind"):
            servers.wait_listening(1)
