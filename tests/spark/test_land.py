"""Landing a queue in a Delta table: every record once, whenever the driver runs, dies or runs again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.client.sync import Client
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.spark.checks.scope import LogSource
from mirrorlog.spark.errors import LandingConflict, TableRefused
from mirrorlog.spark.land import LandResult, land, land_all
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.runner import Runner, StepMoment
from mirrorlog.spark.reconcile import reconcile
from mirrorlog.testing.asking import wait_for
from tests.spark import landing_child
from tests.spark.landing_child import WRITING
from tests.spark.queues import every_kind_of_record, publish

_CHILD_S = 240
# The JVM's own, not to be had without.
_NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"

JSON = {"mode": "json", "decoder": {"schema": "n BIGINT"}}


def landed_offsets(table: Path, column: str = "offset") -> list[int]:
    """Read by delta-rs: a second implementation is the witness."""
    return sorted(DeltaTable(table).to_pyarrow_table(columns=[column])[column].to_pylist())


def positions(table: Path) -> list[int]:
    """The queue offsets in the table's log, in order of commit."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    found = [action["txn"] for action in actions if "txn" in action]
    return [each["version"] for each in found if each["appId"].count(":") == 2]


def assert_is_the_log(
    spark: SparkSession,
    servers: Sequence[str],
    queue: str,
    table: Path,
    count: int,
    *,
    dead_letters: Path | None = None,
) -> None:
    """Every record of the queue, `count` from 0 on, once and with its contents, in the table or its dead letters."""
    found = reconcile(spark, LogSource(tuple(servers)), queue, table, dead_letters=dead_letters)
    assert found.equal, (queue, found.differences, found.notes)
    assert (found.first, found.next, found.log_first, found.log.rows) == (0, count, 0, count), queue


def unnamed(table: Path) -> set[str]:
    """Data files that no commit names, unfinished ones among them."""
    named = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    return {path.name for path in table.rglob("*.parquet*") if "_delta_log" not in path.parts} - named


def held(servers: Sequence[str], queue: str) -> int:
    """From where on the only hold of the queue keeps it."""
    with Client(*servers) as client:
        (hold,) = client.admin.holds(queue)
    return hold.queue_offset


def numbered(first: int, count: int) -> list[Record]:
    return [Record(b"%d" % number) for number in range(first, first + count)]


def half_good(first: int, count: int) -> list[Record]:
    """Every other value is no JSON."""
    return [Record(b'{"n": %d}' % n if n % 2 else b"bad %d" % n) for n in range(first, first + count)]


def die_landing(*cases: Mapping[str, object]) -> None:
    """Land in a process of its own which is killed at the moments of all `cases`; none must get further."""
    command = [sys.executable, landing_child.__file__, json.dumps(cases)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr


class Died(BaseException):
    """In place of a kill, where a process of its own would prove no more."""


def dying_at(moment: StepMoment) -> Callable[[StepMoment], None]:
    def reached(now: StepMoment) -> None:
        if now == moment:
            raise Died

    return reached


def test_a_landing_adds_each_record_once_with_the_sources_columns(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the table is the queue. Land records of every kind; run again for nothing; publish more; land again.

    The table is read by delta-rs too, and compared with the data source.
    """
    table = tmp_path / "table"
    publish(servers, queue, every_kind_of_record(500), batch_records=60)
    assert land(spark, servers, queue, table) == LandResult(first=0, next=500, rows=500, table_version=0)
    assert land(spark, servers, queue, table) == LandResult(first=500, next=500, rows=0, table_version=0)
    assert DeltaTable(table).version() == 0
    publish(servers, queue, every_kind_of_record(200), batch_records=60)
    assert land(spark, servers, queue, table) == LandResult(first=500, next=700, rows=200, table_version=1)
    assert landed_offsets(table) == list(range(700))
    assert positions(table) == [500, 700]
    columns = "key,value,topic,partition,offset,timestamp,timestampType,headers,appendTime"
    source = spark.read.format("mirrorlog").options(servers=servers[0], subscribe=queue, columns=columns)
    landed = spark.read.format("delta").load(str(table))
    expected = source.load()
    assert landed.columns == expected.columns
    assert landed.orderBy("offset").collect() == expected.orderBy("offset").collect()


BEFORE = [StepMoment.PLANNED, WRITING, StepMoment.WRITTEN, StepMoment.COMMITTING]
AFTER = [StepMoment.COMMITTED]


@dataclass(frozen=True, slots=True)
class Killed:
    """What a dead driver has left: a queue and a table for each place at which it died."""

    root: Path
    prefix: str
    servers: Sequence[str]

    def queue(self, place: str) -> str:
        return f"{self.prefix}-{place.replace(' ', '-')}"

    def table(self, place: str) -> Path:
        return self.root / self.queue(place)

    @property
    def dead(self) -> Path:
        return self.root / "dead"

    def keys(self, place: str, **more: object) -> dict[str, object]:
        """Of the landing that died there, registered but for the one with dead letters."""
        where = {"queue": self.queue(place), "table": str(self.table(place)), "servers": list(self.servers)}
        own = {"dead_letters": str(self.dead), **JSON} if place == StepMoment.DEAD_LETTERS else {"hold": True}
        return {**where, "read_from": "master", **own, **more}


@pytest.fixture(scope="module")
def killed(spark: SparkSession, servers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One driver, dead by SIGKILL at all places at once: land 300 and publish 1,000 for each; it dies in landing
    those. In the landing with dead letters it is 40, half of them bad, and a table that is not there yet."""
    left = Killed(tmp_path_factory.mktemp("killed"), f"q-{uuid.uuid4().hex}", servers)
    records = every_kind_of_record(1300)
    for place in (*BEFORE, *AFTER):
        publish(servers, left.queue(place), records[:300])
        land(spark, servers, left.queue(place), left.table(place))
        publish(servers, left.queue(place), records[300:])
    publish(servers, left.queue(StepMoment.DEAD_LETTERS), half_good(0, 40))
    die_landing(*(left.keys(place, moment=place) for place in (*BEFORE, *AFTER, StepMoment.DEAD_LETTERS)))
    return left


@pytest.mark.long
@pytest.mark.parametrize("place", [*BEFORE, *AFTER])
def test_a_driver_that_is_killed_at_any_place_leaves_a_table_that_the_next_one_completes(
    spark: SparkSession, killed: Killed, place: str
) -> None:
    """Goal: exactly once. Where a registered landing was killed, land again, and compare every record with the log.
    Before the commit all 1,000 are still to be landed, behind it none; the hold stays where the table was before the
    dead step, until the next one has renewed it."""
    name, table = killed.queue(place), killed.table(place)
    assert positions(table) == ([300, 1300] if place in AFTER else [300])
    assert bool(unnamed(table)) == (place in {WRITING, StepMoment.WRITTEN, StepMoment.COMMITTING})
    assert held(killed.servers, name) == 300
    made = landing(killed.keys(place))
    result = land_all(Runner(spark), made, Holds(made))
    assert (result.first, result.rows) == ((1300, 0) if place in AFTER else (300, 1000))
    assert positions(table) == [300, 1300]
    assert held(killed.servers, name) == 1300
    assert_is_the_log(spark, killed.servers, name, table, 1300)


@pytest.mark.long
def test_a_driver_that_dies_between_two_commits_leaves_each_record_in_one_table(
    spark: SparkSession, killed: Killed
) -> None:
    """Goal: landed or a dead letter, never both. The driver was killed behind the commit of the dead letters; change
    the schema so that other records are bad, and land again: the dead letters of the dead driver are gone."""
    servers, queue = killed.servers, killed.queue(StepMoment.DEAD_LETTERS)
    table, dead = killed.table(StepMoment.DEAD_LETTERS), killed.dead
    assert landed_offsets(dead) == list(range(0, 40, 2))
    assert positions(table) == landed_offsets(table, "_offset") == []
    schema = {"schema": "n BIGINT, other BIGINT NOT NULL"}
    other = {"mode": "json", "decoder": schema, "evolution": "add", "dead_letters": str(dead)}
    result = land(spark, servers, queue, table, **other)
    assert (result.rows, result.dead_letters) == (0, 40)
    assert landed_offsets(dead) == list(range(40))
    publish(servers, queue, half_good(40, 10))
    with pytest.raises(Died):
        land(spark, servers, queue, table, on_moment=dying_at(StepMoment.DEAD_LETTERS), **other)
    assert len(landed_offsets(dead)) == 50
    for _ in range(2):
        land(spark, servers, queue, table, **other)
        assert landed_offsets(dead) == list(range(50))
    assert_is_the_log(spark, servers, queue, table, 50, dead_letters=dead)


@pytest.mark.parametrize("moment", [StepMoment.WRITTEN, StepMoment.COMMITTED])
def test_a_step_that_ends_anywhere_is_done_whole_or_not_at_all(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path, moment: StepMoment
) -> None:
    """Goal: the same within one driver, whose session lives on: a service goes on after a failed step."""
    publish(servers, queue, numbered(0, 50))
    with pytest.raises(Died):
        land(spark, servers, queue, tmp_path, on_moment=dying_at(moment))
    rest = land(spark, servers, queue, tmp_path)
    assert rest.rows == (0 if moment == StepMoment.COMMITTED else 50)
    assert landed_offsets(tmp_path) == list(range(50))


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("moment", "more"), [(StepMoment.PLANNED, 7), (StepMoment.WRITTEN, 0), (StepMoment.COMMITTING, 7)]
)
def test_a_landing_that_another_one_overtakes_adds_nothing(  # noqa: PLR0917  (fixtures)
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path, moment: StepMoment, more: int
) -> None:
    """Goal: two landings in the same stretch of a queue never both win, whichever of them read the longer one.

    At a moment of one landing let another one land the whole queue; the first one must end with nothing added.
    """
    table = tmp_path / "table"
    publish(servers, queue, numbered(0, 10))
    land(spark, servers, queue, table)
    publish(servers, queue, numbered(10, 10))

    def overtake(now: StepMoment) -> None:
        if now == moment:
            publish(servers, queue, numbered(20, more))
            assert land(spark, servers, queue, table).rows == 10 + more

    with pytest.raises(LandingConflict, match="nothing was added"):
        land(spark, servers, queue, table, on_moment=overtake)
    assert landed_offsets(table) == list(range(20 + more))
    assert positions(table) == [10, 20 + more]


@pytest.mark.long
def test_of_two_drivers_at_once_one_lands_and_the_other_is_told(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the same of two processes with a JVM each, which know nothing of each other. One of them has written its
    files and stands still; this one lands; the other goes on and must end with a conflict."""
    table, meeting = tmp_path / "table", tmp_path / "meeting"
    meeting.mkdir()
    publish(servers, queue, numbered(0, 1000))
    case = {"moment": StepMoment.WRITTEN, "queue": queue, "table": str(table), "servers": servers}
    arguments = [json.dumps([case]), str(meeting)]
    with subprocess.Popen([sys.executable, landing_child.__file__, *arguments]) as other:
        try:
            there = meeting / "there"
            wait_for(lambda: there.exists() or None, timeout=_CHILD_S, what=lambda: "the other one has written")
            publish(servers, queue, numbered(1000, 10))
            assert land(spark, servers, queue, table).rows == 1010
        finally:
            (meeting / "go").touch()
        assert other.wait(_CHILD_S) == LandingConflict.exit_code
    assert positions(table) == [1010]
    assert_is_the_log(spark, servers, queue, table, 1010)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("moment", "settings"), [(StepMoment.COMMITTING, {}), (StepMoment.PLANNED, {"cluster_by": ["offset"]})]
)
def test_two_landings_that_make_the_table_at_once_make_one(  # noqa: PLR0917  (fixtures)
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path, moment: StepMoment, settings: dict[str, object]
) -> None:
    """Goal: the first commit is a compare-and-set too, of a clustered table as well, which is made before it. Overtake
    a landing whose table is not there yet."""
    table = tmp_path / "table"
    publish(servers, queue, numbered(0, 10))

    def overtake(now: StepMoment) -> None:
        if now == moment:
            land(spark, servers, queue, table, **settings)

    with pytest.raises(LandingConflict):
        land(spark, servers, queue, table, on_moment=overtake, **settings)
    assert landed_offsets(table) == list(range(10))


def test_an_empty_queue_makes_no_table(spark: SparkSession, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: nothing to do, no commit. Land a queue without records."""
    publish(servers, queue, [])
    result = land(spark, servers, queue, tmp_path / "table")
    assert (result.first, result.next, result.rows) == (0, 0, 0)
    assert not (tmp_path / "table").exists()


@pytest.mark.long
def test_two_queues_share_a_table_by_their_own_offsets(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the transaction id is the queue's. Land two queues into one table, then both again."""
    other = f"{queue}-other"
    publish(servers, queue, numbered(0, 50))
    publish(servers, other, numbered(0, 20))
    for name, count in ((queue, 50), (other, 20), (queue, 0), (other, 0)):
        assert land(spark, servers, name, tmp_path).rows == count
    assert landed_offsets(tmp_path) == sorted([*range(50), *range(20)])


@pytest.mark.long
def test_a_large_rest_is_several_commits(spark: SparkSession, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: a commit is bounded. Land 100 records by at most 30."""
    publish(servers, queue, numbered(0, 100))
    result = land(spark, servers, queue, tmp_path, max_records=30)
    assert (result.first, result.next, result.rows, result.table_version) == (0, 100, 100, 3)
    assert positions(tmp_path) == [30, 60, 90, 100]
    assert landed_offsets(tmp_path) == list(range(100))


@pytest.mark.long
def test_what_stops_a_landing_is_said_and_nothing_is_added(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: named errors. An unknown queue; a table with other columns; one that forgets positions."""
    with pytest.raises(NoSuchQueue):
        land(spark, servers, "nobody's", tmp_path / "table")
    publish(servers, queue, numbered(0, 5))
    spark.range(1).write.format("delta").save(str(tmp_path / "other"))
    with pytest.raises(MirrorlogError) as refused:
        land(spark, servers, queue, tmp_path / "other")
    assert "\n" not in refused.value.message
    assert DeltaTable(tmp_path / "other").version() == 0
    land(spark, servers, queue, tmp_path / "table")
    forget = "SET TBLPROPERTIES (delta.setTransactionRetentionDuration = 'interval 1 days')"
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'table'}` {forget}")
    with pytest.raises(TableRefused, match="setTransactionRetentionDuration"):
        land(spark, servers, queue, tmp_path / "table")


@pytest.mark.long
def test_the_command_lands_and_says_so_in_one_line(jvm: None, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: `mqtool land` works by itself, and tells how it goes on stderr. Run it as a program; then without a
    node."""
    publish(servers, queue, numbered(0, 40))

    def run(server: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mirrorlog.tools.main", "--servers", server, "land", queue]
        whole = [*command, "--to", f"delta://{tmp_path}/table"]
        return subprocess.run(whole, capture_output=True, text=True, timeout=_CHILD_S, check=False)

    landed = run(servers[0])
    assert landed.returncode == 0, landed.stderr
    (line,) = landed.stdout.splitlines()
    assert "40" in line
    assert landed_offsets(tmp_path / "table") == list(range(40))
    told = [line for line in landed.stderr.splitlines() if line.strip() and line != _NOISE]
    stages = [f"{queue}: {stage}" for stage in ("writing files", "committing", "committed")]
    assert told[:-1] == ["starting Spark", f"{queue}: 40 records to land, 0 up to 40", *stages]
    assert told[-1].startswith(f"{queue}: 40 records in ")
    refused = run("127.0.0.1:1")
    assert (refused.returncode, refused.stdout) == (9, "")
    (line,) = refused.stderr.splitlines()
    assert "127.0.0.1:1" in line
