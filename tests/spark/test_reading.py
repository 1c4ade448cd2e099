"""A range of a queue is read whole, from nodes and from files alike, or it is an error that says what is missing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mirrorlog.client import Client, ConsumedBatch
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.consumer.replica_choice import ReplicaChoice
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import MirrorlogError, NoSuchQueue, NotCurrent, OffsetOutOfRange, PositionLost
from mirrorlog.spark import offline
from mirrorlog.spark.errors import HistoryChanged, RangeNotDense, RecordsMissing
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueuePlace, QueueRange, tasks
from mirrorlog.spark.positions import QueuePosition
from mirrorlog.spark.reading import nodes as spark_nodes
from mirrorlog.spark.reading.filters import TimeRange
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.nodes import NodeLookup, _merged, ask_nodes
from mirrorlog.spark.reading.rows import consumed_batches, record_batches
from mirrorlog.spark.reading.stream import QueueStreamReader
from mirrorlog.spark.source import planned
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo
from tests.broker.hosting import running_all, settings_for
from tests.client.test_offset_jumps import jump
from tests.ha.nodes import Node
from tests.spark.batches import LOG_ID, consumed
from tests.spark.offline_logs import StoryLog

FILES = SourceOptions(path="/archive", queues=("q",))
COUNT = 25


def wanted(first: int, following: int, *, log_id: str = LOG_ID) -> QueueRange:
    return QueueRange("c", "q", log_id, 7, first, following)


class Directories:
    """Files that show `shown`; an error in it is raised when it is reached, and what was shown is not shown again."""

    def __init__(self, shown: Sequence[ConsumedBatch | Exception]) -> None:
        self.shown = list(shown)

    def open(self, path: str) -> Directories:
        assert path == "/archive"
        return self

    def log_batches(self, asked: QueueRange, on_bad: object = None) -> Iterator[ConsumedBatch]:
        while self.shown:
            each = self.shown.pop(0)
            if isinstance(each, Exception):
                raise each
            yield each


def batch(first: int, following: int) -> ConsumedBatch:
    return consumed([Record(b"%d" % offset) for offset in range(first, following)], base=first)


def read(
    monkeypatch: pytest.MonkeyPatch, asked: QueueRange, shown: Sequence[ConsumedBatch | Exception], **options: Any
) -> list[int]:
    monkeypatch.setattr(offline, "LogDirectories", Directories(shown))
    found = record_batches(SourceOptions(path="/archive", queues=("q",), columns=("offset",), **options), asked)
    return [offset for rows in found for offset in rows.column("offset").to_pylist()]


# --- What is missing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "missing"),
    [
        pytest.param(PositionLost("x", go_on_at=15), PositionLost, "12 up to 15 are lost", id="lost within the range"),
        pytest.param(OffsetOutOfRange("x", begin=15), RecordsMissing, "12 up to 15 are freed", id="freed, by a node"),
        pytest.param(RecordsMissing("x", begin=15), RecordsMissing, "12 up to 15 are freed", id="freed, by files"),
    ],
)
def test_what_went_since_the_plan_is_an_error_or_left_out(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: MirrorlogError,
    kind: type[MirrorlogError],
    missing: str,
) -> None:
    """Goal: never a smaller table in silence. Method: a loss, and retention, reach into a range that is being read; by
    default the error names what is missing and where to go on, allowed it is logged and exactly that is left out."""
    shown = [batch(10, 12), error, batch(15, 20)]
    with pytest.raises(kind, match=rf"'q' from 10 up to 20: {missing}.*go on at 15.*failOnDataLoss"):
        read(monkeypatch, wanted(10, 20), shown)
    with caplog.at_level(logging.WARNING):
        found = read(monkeypatch, wanted(10, 20), shown, fail_on_data_loss=False)
    assert found == [10, 11, 15, 16, 17, 18, 19]
    assert "records_missing queue=q first=12 next=15" in caplog.text


def test_a_range_whose_rest_is_lost_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a gap is 2^32 wide and wider, the range is not. Method: it goes on far behind the range."""
    shown = [batch(10, 12), PositionLost("x", go_on_at=2**33)]
    assert read(monkeypatch, wanted(10, 20), shown, fail_on_data_loss=False) == [10, 11]
    assert read(monkeypatch, wanted(10, 20), [PositionLost("x", go_on_at=2**33)], fail_on_data_loss=False) == []


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    "shown",
    [
        pytest.param([batch(10, 12), batch(13, 20)], id="a hole"),
        pytest.param([batch(10, 15), batch(14, 20)], id="one twice"),
        pytest.param([batch(10, 15)], id="the end is missing"),
        pytest.param([], id="nothing"),
        pytest.param([batch(10, 12), PositionLost("x", go_on_at=15), batch(16, 20)], id="more than was lost"),
    ],
)
def test_what_no_log_says_is_missing_is_an_error_always(
    monkeypatch: pytest.MonkeyPatch, shown: list[Any], allowed: bool
) -> None:
    """Goal: to allow loss allows what was declared, and nothing else. Each kind of hole, both ways."""
    with pytest.raises((RangeNotDense, PositionLost)) as raised:
        read(monkeypatch, wanted(10, 20), shown, fail_on_data_loss=not allowed)
    assert not allowed or isinstance(raised.value, RangeNotDense)


@pytest.mark.parametrize("error", [OffsetOutOfRange("no begin"), PositionLost("back", go_on_at=12)])
def test_an_answer_that_does_not_say_where_to_go_on_ends_the_read(
    monkeypatch: pytest.MonkeyPatch, error: MirrorlogError
) -> None:
    """Goal: no endless loop. Method: errors that name no place, or none further on."""
    with pytest.raises(type(error)) as raised:
        read(monkeypatch, wanted(10, 20), [batch(10, 12), error], fail_on_data_loss=False)
    assert raised.value is error


def test_another_queue_of_the_name_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a queue that was deleted and made again meanwhile. Method: another log id than was planned."""
    with pytest.raises(RangeNotDense, match=r"planned for queue id 7 of log other.*run the job again"):
        read(monkeypatch, wanted(10, 20, log_id="other"), [batch(10, 20)])


def test_rows_out_of_time_do_not_count_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whole before it is filtered. Method: a range of times that nothing is in."""
    monkeypatch.setattr(offline, "LogDirectories", Directories([batch(10, 20)]))
    assert list(record_batches(FILES, wanted(10, 20), TimeRange(first_us=2**62))) == []


# --- Files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def story(tmp_path: Path) -> StoryLog:
    """A log with a gap in its queues: five records on either side."""
    log = StoryLog(tmp_path / "logs" / "log")
    log.data(1)
    log.jump()
    log.data(1)
    log.close()
    return log


def test_files_are_planned_and_read_as_nodes_are(story: StoryLog, tmp_path: Path) -> None:
    """Goal: one contract. Method: a batch over a log directory with a gap, which is an error that says where to go on,
    two starts that the error and the positions allow, and all of it without the gap."""
    go_on_at = 5 + 2**32
    options = SourceOptions(path=str(tmp_path), queues=("q1",), columns=("offset",))

    def rows(options: SourceOptions) -> list[int]:
        with open_lookup(options) as lookup:
            pieces = planned(options, lookup)
        return [at for each in pieces for found in record_batches(options, each) for at in found["offset"].to_pylist()]

    def with_(**changes: Any) -> SourceOptions:
        return SourceOptions(path=str(tmp_path), queues=("q1",), columns=("offset",), **changes)

    with pytest.raises(PositionLost, match=rf"5 up to {go_on_at} are lost.*go on at {go_on_at}"):
        rows(options)
    assert rows(with_(ending={"q1": 5})) == [0, 1, 2, 3, 4]
    assert rows(with_(starting={"q1": go_on_at})) == list(range(go_on_at, go_on_at + 5))
    assert rows(with_(fail_on_data_loss=False)) == [*range(5), *range(go_on_at, go_on_at + 5)]
    epoch = 1
    assert rows(with_(starting={"q1": QueuePosition(3, epoch)}, ending={"q1": 5})) == [3, 4]
    with pytest.raises(HistoryChanged, match="record 2 was of epoch 9"):
        rows(with_(starting={"q1": QueuePosition(3, 9)}, ending={"q1": 5}))


def test_what_files_answer_to_a_plan(story: StoryLog, tmp_path: Path) -> None:
    """Goal: a header, a gap and nothing are told apart; a queue that is not there is left out. Each place."""
    with open_lookup(SourceOptions(path=str(tmp_path), queues=("q1",))) as lookup:
        assert [facts.name for facts in lookup.facts(None)] == ["q1", "q2", "q3"]
        assert [facts.name for facts in lookup.facts(["q2", "nobody's"])] == ["q2"]
        (facts,) = lookup.facts(["q1"])
        there, gap = lookup.headers_at([QueuePlace(facts, 4), QueuePlace(facts, 5)])
        assert isinstance(there, BatchHeader)
        assert there.base_queue_offset == 0
        assert isinstance(gap, PositionLost)
        assert gap.details["go_on_at"] == 5 + 2**32
        times = lookup.times({"q1": 0})
        assert times == {"q1": 0}


# --- Nodes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """A master and two mirrors, with a queue of records in batches of 5."""
    async with running_all(settings_for(tmp_path, 3)) as running:
        async with Client(running[0].settings.client_bind) as client:
            await client.admin.declare("q")
            await publish(client, COUNT)
        yield running


async def publish(client: Client, count: int) -> None:
    async with client.producer("q") as producer:
        for start in range(0, count, 5):
            for number in range(start, min(count, start + 5)):
                producer.send_nowait(b"%d" % number)
            await producer.flush()


def over(nodes: list[Node], **options: Any) -> SourceOptions:
    servers = tuple(node.settings.client_bind for node in nodes)
    return SourceOptions(servers=servers, queues=("q",), columns=("offset", "value"), **options)


def plan_and_read(options: SourceOptions) -> list[int]:
    with open_lookup(options) as lookup:
        pieces = planned(options, lookup)
    return [at for each in pieces for found in record_batches(options, each) for at in found["offset"].to_pylist()]


@pytest.mark.parametrize("read_from", ["master", "mirror", "nearest", "n2"])
async def test_nodes_give_every_record_once(nodes: list[Node], read_from: str) -> None:
    """Goal: wherever it is read from, all of it. Method: tasks that begin and end within batches."""
    options = over(nodes, read_from=read_from, partition_records_max=7)
    assert await asyncio.to_thread(plan_and_read, options) == list(range(COUNT))


async def test_a_gap_on_nodes_is_an_error_or_left_out(nodes: list[Node]) -> None:
    """Goal: a declared loss is named by the plan with where to go on, never a task for so many numbers, and one that
    comes after the plan is met by the task. Method: a leap before the plan, and one between plan and read."""
    go_on_at = await jump(nodes[0])
    async with Client(nodes[0].settings.client_bind) as client:
        await publish(client, 10)
    with pytest.raises(PositionLost, match=rf"{COUNT} up to {go_on_at} are lost.*go on at {go_on_at}"):
        await asyncio.to_thread(plan_and_read, over(nodes))
    left = [*range(COUNT), *range(go_on_at, go_on_at + 10)]
    allowed = over(nodes, fail_on_data_loss=False)
    assert await asyncio.to_thread(plan_and_read, allowed) == left
    assert await asyncio.to_thread(plan_and_read, over(nodes, starting={"q": go_on_at})) == left[COUNT:]
    # As if a task had been planned over the gap.
    (facts,) = await asyncio.to_thread(ask_nodes, over(nodes).servers, ["q"])
    whole = QueueRange(facts.cluster_id, "q", facts.log_id, facts.queue_id, 20, go_on_at + 3)
    read_all = await asyncio.to_thread(lambda: list(consumed_batches(allowed, whole)))
    assert [at for each in read_all for at in range(each.first, each.next)] == left[20 : COUNT + 3]
    with pytest.raises(PositionLost, match="since it was planned"):
        await asyncio.to_thread(lambda: list(consumed_batches(over(nodes), whole)))


async def test_what_nodes_answer_to_a_plan(nodes: list[Node]) -> None:
    """Goal: headers at many places at once, times, and queues that are not there. Each from a lookup of its own."""
    options = over(nodes)

    def ask() -> None:
        with open_lookup(options) as lookup:
            assert lookup.facts(["nobody's"]) == []
            assert [facts.name for facts in lookup.facts(None)] == ["q"]
            (facts,) = lookup.facts(["q", "nobody's"])
            assert (facts.begin, facts.next, facts.current) == (0, COUNT, True)
            assert facts.epoch > 0
            headers = lookup.headers_at([QueuePlace(facts, at) for at in (0, 7, COUNT - 1)])
            bases = [header.base_queue_offset for header in headers if isinstance(header, BatchHeader)]
            assert bases == [0, 5, 20]
            assert lookup.times({"q": 0}) == {"q": 0}
            assert lookup.times({"q": 2**60}) == {"q": COUNT}

    await asyncio.to_thread(ask)


async def test_tasks_that_read_from_mirrors_are_spread_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: several mirrors share the work. Method: whom each turn would ask, in order; and the turn that a task of
    the plan gives."""
    info = said("n1").queues[0]
    assert info.mirrors == ["n2", "n3"]
    client = Client("127.0.0.1:1")
    # On no host of ours: the nearest copy is any mirror.
    nodes = [NodeInfo(node_id=node, client="192.0.2.1:1", replication="") for node in ("n1", "n2", "n3")]
    client.learn(Metadata(cluster_id="c", cluster_name="c", node_id="n1", nodes=nodes, queues=[info]))

    async def order(turn: int, read_from: str) -> list[str]:
        choice = ReplicaChoice(client, "q", Copies(client, "q"), read_from=read_from, turn=turn)
        return await choice.in_order(info)

    for read_from in ("mirror", "nearest"):
        assert [await order(turn, read_from) for turn in range(3)] == [
            ["n2", "n3", "n1"],
            ["n3", "n2", "n1"],
            ["n2", "n3", "n1"],
        ]
    assert await order(1, "master") == ["n1"]
    turns: list[object] = []

    def seen(self: Client, queue: str, **options: object) -> None:
        turns.append(options["turn"])
        raise NotCurrent("seen")

    monkeypatch.setattr(Client, "connect", _connected)
    monkeypatch.setattr(Client, "consumer", seen)
    pieces = tasks(SourceOptions(min_partitions=3), [wanted(0, 30)])
    for piece in pieces:
        with pytest.raises(NotCurrent, match="seen"):
            await asyncio.to_thread(lambda piece=piece: list(consumed_batches(over([]), piece)))
    assert turns == [0, 1, 2]


async def _connected(client: Client) -> Client:
    return client


def stream_twice(options: SourceOptions, meanwhile: Callable[[], None]) -> list[list[int]]:
    """Two triggers as Spark drives them, the second one of another reader, as after a restart."""
    reader = QueueStreamReader(options)
    stands = reader.initialOffset()
    triggers = []
    for _ in range(2):
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(stands, ReadAllAvailable())
        pieces = [reader.read(partition) for partition in reader.partitions(stands, end)]
        triggers.append([at for rows in pieces for found in rows for at in found["offset"].to_pylist()])
        stands, reader = json.loads(json.dumps(end)), QueueStreamReader(options)
        meanwhile()
    return triggers


@pytest.mark.parametrize("read_from", ["master", "mirror"])
async def test_a_stream_over_nodes_goes_on_where_it_stood(nodes: list[Node], read_from: str) -> None:
    """Goal: positions hold against a real log. Method: two triggers, records between them, another reader."""
    loop = asyncio.get_running_loop()

    async def more() -> None:
        async with Client(nodes[0].settings.client_bind) as client:
            await publish(client, 7)

    def meanwhile() -> None:
        asyncio.run_coroutine_threadsafe(more(), loop).result()

    options = over(nodes, starting="earliest", read_from=read_from)
    assert await asyncio.to_thread(stream_twice, options, meanwhile) == [
        list(range(COUNT)),
        list(range(COUNT, COUNT + 7)),
    ]


def test_a_stream_over_files_ends_at_a_declared_loss(story: StoryLog, tmp_path: Path) -> None:
    """Goal: the same contract over files. Method: a gap ends it behind what is left; allowed, it is passed over."""
    options = SourceOptions(path=str(tmp_path), queues=("q1",), columns=("offset",), starting="earliest")
    with pytest.raises(PositionLost, match="5 up to"):
        stream_twice(options, lambda: None)
    go_on_at = 5 + 2**32
    allowed = replace(options, fail_on_data_loss=False)
    assert stream_twice(allowed, lambda: None) == [[*range(5), *range(go_on_at, go_on_at + 5)], []]


# --- What nodes say of a queue --------------------------------------------------------------------------------------


def said(node: str, *, next_: int = 10, epoch: int = 2, version: int = 0, **info: Any) -> Metadata:
    given = {"incarnation": "i", "master": "n1", "current": True, "log_id": LOG_ID, **info}
    queue = QueueInfo(name="q", queue_id=7, epoch=epoch, mirrors=["n2", "n3"], begin=0, next=next_, **given)
    return Metadata(cluster_id="c", cluster_name="c", node_id=node, nodes=[], queues=[queue], version=version)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([said("n2", next_=9), said("n1")], (10, True, None, 2), id="the master knows first"),
        pytest.param([said("n2", next_=12), said("n1")], (12, True, None, 2), id="a mirror's confirm is one"),
        pytest.param([said("n1", current=False), said("n2")], (10, False, None, 2), id="a new master"),
        pytest.param([said("n2"), said("n3")], (10, False, "n1", 2), id="the master does not answer"),
        pytest.param([said("n2", epoch=3, master="n1")], (10, False, "n1", 3), id="the new master has not heard of it"),
        pytest.param([said("n2", master="")], (10, False, "", 2), id="no master"),
        pytest.param([said("n3", next_=99, incarnation="old", epoch=1), said("n1")], (10, True, None, 2), id="older"),
        pytest.param(
            [said("n3", epoch=9, log_id=LOG_ID[::-1]), said("n1", version=4)], (10, True, None, 2), id="in a former log"
        ),
    ],
)
def test_what_the_nodes_say_is_put_together(answers: list[Metadata], expected: tuple[Any, ...]) -> None:
    """Goal: the newest word counts, and a confirm of this queue that anybody knows of. Each kind of disagreement."""
    facts = _merged("q", answers)
    assert (facts.next, facts.current, facts.silent_master, facts.epoch) == expected


def not_current(answer: Metadata) -> Metadata:
    return structs.replace(answer, queues=[structs.replace(info, current=False) for info in answer.queues])


def between_two_logs(answer: Metadata) -> Metadata:
    return structs.replace(answer, queues=[], missing=["q"], placed=["q"])


@pytest.mark.parametrize(
    ("passing", "refusal"),
    [(not_current, "'q' has a new master"), (between_two_logs, "no queue 'q'")],
    ids=["a new master", "between two logs"],
)
async def test_what_passes_is_waited_for(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, passing: Callable[[Metadata], Metadata], refusal: str
) -> None:
    """Goal: a plan just after a failover, or while a queue goes from one log to another, does not end too early, and
    does not hang. Method: nodes that know at the third time of asking; then some that never do, with the wait cut
    short."""
    asked = 0
    ask = NodeLookup._ask
    known_at = 3

    async def not_yet(self: NodeLookup, queues: list[str] | None) -> list[Metadata]:
        nonlocal asked
        asked += 1
        found = await ask(self, queues)
        return found if asked >= known_at else [passing(answer) for answer in found]

    monkeypatch.setattr(NodeLookup, "_ask", not_yet)
    assert await asyncio.to_thread(plan_and_read, over(nodes)) == list(range(COUNT))
    assert asked == known_at
    known_at = 2**60
    monkeypatch.setattr(spark_nodes, "_CURRENT_S", 0.0)
    with pytest.raises((NotCurrent, NoSuchQueue), match=refusal):
        await asyncio.to_thread(plan_and_read, over(nodes))
