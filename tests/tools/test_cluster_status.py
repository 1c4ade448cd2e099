"""Who speaks for a log, what the filters leave, and what a node does that does not answer."""

import asyncio
from typing import cast

import msgspec
import pytest

from mirrorlog.client import Client
from mirrorlog.diagnosis.cluster_status import (
    AllStatuses,
    UnreachedLog,
    authorities,
    gather,
    left_behind,
    log_names,
    of_logs,
    select,
    syncs_of,
)
from mirrorlog.diagnosis.facts import facts_of
from mirrorlog.diagnosis.places import sync_text
from mirrorlog.errors import (
    AccessRefused,
    BadInput,
    ConnectionLost,
    LoginFailed,
    LogUnavailable,
    MirrorlogError,
    NoSuchLog,
    NoSuchQueue,
)
from mirrorlog.tools.common.output import page
from mirrorlog.tools.offsets import offsets_view
from mirrorlog.wire.messages.groups import GroupsFound
from mirrorlog.wire.messages.queues import (
    FormerSpan,
    Metadata,
    MovesFound,
    NodeInfo,
    QueueInfo,
    QueueOutage,
    QueueSync,
    SpanInfo,
)
from mirrorlog.wire.messages.status import FormerStatus, LeftQueueStatus, Status
from mirrorlog.wire.names import qualified
from tests.tools.statuses import (
    LOG_ID,
    MASTER_DOWN,
    N3_DOWN,
    OUTAGE,
    PLACED,
    cluster_status,
    log_status,
    node_status,
    placed,
    view,
)

OTHER = log_status(log_id="other", name="second", role="master", mirrors=[], queues=[], groups=[])


def names(status: AllStatuses) -> dict[str, list[str]]:
    return {node.node_id: [log.name for log in node.logs] for node in status.nodes}


def test_the_master_speaks_for_its_log() -> None:
    """Goal: lags and queues come from who knows. Method: a mirror's copy stands beside its master's."""
    assert [(copy.node_id, copy.log.role) for copy in authorities(OUTAGE)] == [("n1", "master")]


def test_without_the_master_the_furthest_copy_speaks() -> None:
    """Goal: the newest knowledge wins. Method: two mirrors of one epoch, the second with more confirmed."""
    assert [copy.node_id for copy in authorities(MASTER_DOWN)] == ["n3"]


def test_a_corrupt_master_does_not_speak() -> None:
    """Goal: zeros of a refused copy are never shown as the log's. Method: a corrupt master beside a mirror."""
    corrupt = node_status("n1", log_status(state="corrupt", epoch=0, end=0, confirmed=0))
    status = cluster_status(corrupt, MASTER_DOWN.nodes[0])
    assert [copy.node_id for copy in authorities(status)] == ["n2"]


def test_a_node_is_shown_as_holder_and_as_mirror() -> None:
    """Goal: --node n2 shows its own copy and what its master says of it. Method: filter a cluster of two."""
    found = select(OUTAGE, node="n2")
    assert names(found) == {"n1": ["main"], "n2": ["main"]}
    assert [mirror.node_id for mirror in found.nodes[0].logs[0].mirrors] == ["n2"]
    assert found.unreachable == []


def test_a_silent_node_can_be_asked_for() -> None:
    """Goal: --node of a dead node says that it is dead. Method: filter by it."""
    found = select(OUTAGE, node="n3")
    assert found.unreachable == [N3_DOWN]
    assert names(found) == {"n1": ["main"]}


@pytest.mark.parametrize("log", ["main", LOG_ID])
def test_a_log_is_known_by_name_and_id(log: str) -> None:
    """Goal: both are accepted. Method: two logs on a node, one is left."""
    assert names(select(cluster_status(node_status("n1", log_status(), OTHER)), log=log)) == {"n1": ["main"]}


def test_a_queue_leaves_its_log_and_its_groups() -> None:
    """Goal: --queue shows nothing of others. Method: a log of two queues, another log of none."""
    found = select(cluster_status(node_status("n1", log_status(), OTHER)), queue="flights")
    assert names(found) == {"n1": ["main"]}
    assert [queue.name for queue in found.nodes[0].logs[0].queues] == ["flights"]
    assert [group.queue for group in found.nodes[0].logs[0].groups] == ["flights"]


@pytest.mark.parametrize(
    ("filters", "error", "text"),
    [
        ({"node": "n9"}, BadInput, "the cluster has n1, n2, n3"),
        ({"log": "x"}, NoSuchLog, "they have main"),
        ({"queue": "x"}, NoSuchQueue, "no queue 'x'"),
    ],
)
def test_a_name_that_nobody_knows_is_an_error(filters: dict[str, str], error: type[Exception], text: str) -> None:
    """Goal: a slip of the pen is no empty table. Method: each filter with a wrong name."""
    with pytest.raises(error, match=text):
        select(OUTAGE, **filters)


def test_a_filter_holds_for_what_the_cluster_has_decided_too() -> None:
    """Goal: one log's tables speak of that log. Method: a filter by log, and none."""
    filtered = select(PLACED, log="main").nodes[0].cluster
    assert filtered is not None
    assert [log.name for log in filtered.logs] == ["main"]
    assert select(PLACED) == PLACED


DOWN = [
    QueueOutage(name=name, log_id="x", node="n3", since_us=7, reason=f"{name} is on n3")
    for name in ("a", qualified("shop", "b"))
]


def test_a_queue_whose_nodes_are_all_down_is_no_unknown_one() -> None:
    """Goal: the node to start is named. Method: ask for a queue that no status has and an outage names."""
    with pytest.raises(LogUnavailable, match="a is on n3") as raised:
        select(msgspec.structs.replace(OUTAGE, outages=DOWN), queue="a")
    assert (raised.value.details["node"], raised.value.details["since"]) == ("n3", 7)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, 2),
        ({"node": "n3"}, 2),
        ({"node": "n1"}, 0),
        ({"log": "main"}, 0),
        ({"queue": "flights"}, 0),
        ({"vhost": "/"}, 1),
    ],
)
def test_filters_hold_for_queues_whose_nodes_are_down(filters: dict[str, str], left: int) -> None:
    """Goal: nothing of others is shown. Method: each filter."""
    assert len(select(msgspec.structs.replace(OUTAGE, outages=DOWN), **filters).outages) == left


class _Nodes:
    """A client whose nodes answer as told."""

    def __init__(self, *answers: Status | MirrorlogError) -> None:
        nodes = [
            NodeInfo(node_id=f"n{number}", client=f"h:{number}", replication="") for number, _ in enumerate(answers)
        ]
        self._answers = {node.node_id: answer for node, answer in zip(nodes, answers, strict=True)}
        self._metadata = Metadata(cluster_id="c", cluster_name="c", node_id="n0", nodes=nodes, queues=[], outages=DOWN)
        self.admin = self

    async def metadata(self) -> Metadata:
        return self._metadata

    async def status(self, node_id: str) -> Status:
        answer = self._answers[node_id]
        if isinstance(answer, MirrorlogError):
            raise answer
        return answer


async def test_a_refusal_is_told_as_one_unless_somebody_lets_him_in() -> None:
    """Goal: no node is called dead that only refuses, and one with old users blinds nobody. Method: nodes that refuse,
    that are away, that answer."""
    refused, away = AccessRefused("needs one of the tags"), ConnectionLost("away")
    for answers in ((refused, refused), (away, refused)):
        with pytest.raises(AccessRefused, match="tags"):
            await gather(cast(Client, _Nodes(*answers)))
    with pytest.raises(LoginFailed):
        await gather(cast(Client, _Nodes(LoginFailed("log in first"))))
    found = await gather(cast(Client, _Nodes(refused, away, node_status("n2", log_status()))))
    assert [each.error for each in found.unreachable] == ["ACCESS_REFUSED", "CONNECTION_LOST"]
    assert [each.node_id for each in found.nodes] == ["n2"]
    assert found.outages == DOWN
    assert len((await gather(cast(Client, _Nodes(away)))).unreachable) == 1


class Told:
    """A client and its admin: `sync` of each queue, or the error; `log_names` of the status."""

    def __init__(self, sync: QueueSync | MirrorlogError) -> None:
        self._sync = sync
        self.admin = self

    async def queue_sync(self, _name: str) -> QueueSync:
        if isinstance(self._sync, MirrorlogError):
            raise self._sync
        return self._sync

    async def status(self) -> Status:
        logs = [placed("home", log_id="x"), placed("old", log_id="y")]
        return msgspec.structs.replace(node_status("n1"), cluster=view(*logs))


class Hanging(Told):
    """It lets each question about queues of n1 time out."""

    def __init__(self, queues: list[QueueInfo]) -> None:
        super().__init__(LogUnavailable("no master"))
        self._queues = {each.name: each for each in queues}
        self.asked = 0

    async def metadata(self, _queues: list[str] | None) -> Metadata:
        nodes = [NodeInfo(node_id="n1", client="n1:1", replication="n1:2")]
        return Metadata("c", "c", "n1", nodes, list(self._queues.values()))

    async def groups(self, queue: str) -> GroupsFound:
        await self._ask(queue)
        return GroupsFound(queue=queue, next=90, groups=[])

    async def queue_sync(self, name: str) -> QueueSync:
        await self._ask(name)
        return await super().queue_sync(name)

    async def status(self, _node: str = "") -> Status:
        return await super().status()

    async def moves(self, *, node_timeout_ms: int) -> MovesFound:
        return MovesFound([])

    async def _ask(self, queue: str) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self._queues[queue].master == "n1":
            raise TimeoutError


CAME_BACK = QueueInfo(
    name="q",
    queue_id=1,
    log_id="x",
    epoch=1,
    master="",
    mirrors=["n2"],
    begin=0,
    next=90,
    spans=[SpanInfo(log_id="x", first=0), SpanInfo(log_id="y", first=40), SpanInfo(log_id="x", first=50)],
)


async def test_what_former_logs_keep_is_told_as_far_as_it_is_known_without_the_master() -> None:
    """Goal: records do not vanish from the list with the queue's master. Method: it refuses to tell, and metadata has
    three spans, of which one is in another log; the reason is metadata's where that has one."""
    error = LogUnavailable("no master")
    for queue, reason in (
        (CAME_BACK, "no master"),
        (msgspec.structs.replace(CAME_BACK, reason="n1 is down"), "n1 is down"),
    ):
        client = cast("Client", Told(error))
        (sync,) = (await syncs_of(client, [queue])).values()
        span = FormerSpan(log="old", log_id="y", first=40, next=50, records=-1, unknown=reason)
        assert sync == QueueSync(queue="q", wished=False, log="home", spans=[span])
        assert sync_text(sync) == f"q: how many records are left in old is unknown: {reason}"


async def test_a_master_that_hangs_is_not_asked_for_all_of_its_queues() -> None:
    """Goal: a page that asks for every queue is there while a master hangs. Method: 200 queues that have moved, asked
    for as masters tell of groups and of syncs; one that does not answer in time, and one that does."""
    hung = [msgspec.structs.replace(CAME_BACK, name=f"q{number}", master="n1") for number in range(200)]
    fine = msgspec.structs.replace(CAME_BACK, name="fine", master="n2")
    client = Hanging([*hung, fine])
    facts = await facts_of(cast("Client", client), within_s=60.0)
    assert len(facts.unasked) == len(hung)
    assert list(facts.groups) == ["fine"]
    assert len(facts.syncs) == len(hung) + 1
    assert client.asked < 2 * len(hung)
    late = await facts_of(cast("Client", Hanging([fine])), within_s=0.0)
    assert list(late.unasked) == ["fine"]


async def test_what_is_in_the_log_that_a_queue_has_come_back_to_is_not_elsewhere() -> None:
    """Goal: nobody is sent to copy a log into itself. Method: the master tells of both former spans; and a queue all of
    whose spans are in its own log is not asked for."""
    spans = [
        FormerSpan(log="home", log_id="x", first=0, next=40, records=40, size=4096),
        FormerSpan(log="old", log_id="y", first=40, next=50, records=10, size=1024),
    ]
    client = cast("Client", Told(QueueSync(queue="q", wished=False, log="home", spans=spans)))
    assert (await syncs_of(client, [CAME_BACK]))["q"].spans == spans[1:]
    alone = msgspec.structs.replace(CAME_BACK, spans=[SpanInfo(log_id="x", first=0), SpanInfo(log_id="x", first=40)])
    assert await syncs_of(client, [alone]) == {}


def test_of_a_queue_only_its_logs_and_their_nodes_are_left() -> None:
    """Goal: who asks for one queue hears of no other log. Method: three nodes of which n3 has another log alone, and is
    away; a former copy of each log; the log that both nodes have, and one that nobody has."""
    other = placed("second", log_id="other", replicas=["n2", "n3"], master="", waits_for=["n3"])
    cluster = view(placed(replicas=["n1", "n2"]), other)
    formers = [FormerStatus(log_id=log_id, name="", size_bytes=1, since_us=0) for log_id in (LOG_ID, "other")]
    nodes = [
        msgspec.structs.replace(node_status("n1", log_status(mirrors=[]), OTHER), cluster=cluster, former=formers),
        msgspec.structs.replace(node_status("n4", OTHER), cluster=cluster),
    ]
    unreached = [UnreachedLog(log_id="other", name="second", nodes=["n3"], reason="down")]
    status = msgspec.structs.replace(cluster_status(*nodes, unreachable=(N3_DOWN,)), unreached=unreached)
    found = of_logs(status, "flights", {LOG_ID})
    assert names(found) == {"n1": ["main"]}
    assert [queue.name for copy in authorities(found) for queue in copy.log.queues] == ["flights"]
    assert (found.unreachable, found.unreached) == ([], [])
    assert [former.log_id for former in found.nodes[0].former] == [LOG_ID]
    assert found.nodes[0].cluster is not None
    assert [log.name for log in found.nodes[0].cluster.logs] == ["main"]
    there = of_logs(status, "flights", {LOG_ID, "other"})
    assert (there.unreachable, there.unreached) == ([N3_DOWN], unreached)


def test_records_in_former_logs_are_those_of_the_queue_that_is_asked_for() -> None:
    """Goal: --queue holds for what queues have left behind, and the log that they went to has its name. Method: two
    queues have left a log, which has none of them any more."""
    left = [LeftQueueStatus(queue=name, queue_id=1, begin=0, next=5, moved_to=LOG_ID) for name in ("flights", "other")]
    former = msgspec.structs.replace(OTHER, left=left)
    whole = cluster_status(node_status("n1", log_status(mirrors=[]), former))
    found = select(whole, queue="flights")
    assert names(found) == {"n1": ["main", "second"]}
    assert [each.queue for copy in authorities(found) for each in copy.log.left] == ["flights"]
    of_log = select(whole, log="second")
    rows = page(offsets_view(of_log, log_names(whole))).split("RECORDS in former logs")[1].splitlines()[2:4]
    assert [row.split() for row in rows] == [[name, "second", "0", "5", "main"] for name in ("flights", "other")]


def test_what_former_logs_keep_of_a_queue_that_nobody_answers_for_is_told_by_them() -> None:
    """Goal: the only node of a queue goes down, and what others have of it is still listed. Method: two logs with
    records of it, one where it has none any more, and its own log on a mirror."""
    outage = QueueOutage(name="q", log_id="own", node="n3", reason="n3 is down")
    logs = [
        log_status(
            log_id=f"l{first}",
            name=f"log{first}",
            left=[
                LeftQueueStatus(queue=name, queue_id=1, begin=first, next=max(first, 9), moved_to="own")
                for name in "pq"
            ],
        )
        for first in (5, 0, 9)
    ]
    found = left_behind(cluster_status(node_status("n1", *logs)), outage)
    assert (found.queue, found.log) == ("q", "own")
    assert [(span.log, span.first, span.next, span.records) for span in found.spans] == [
        ("log0", 0, 9, -1),
        ("log5", 5, 9, -1),
    ]
    assert {span.unknown for span in found.spans} == {"n3 is down"}
