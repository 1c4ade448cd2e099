"""What a transaction takes from its subscriptions' hands, and gives back when it does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.client.client import Client
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.publisher.routes import FRESH_S
from mirrorlog.client.subscription.delivered import Delivered
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.subscription.unacked import Granted, Unacked
from mirrorlog.client.transaction.commit import AT_WORK_MAX, Transactor
from mirrorlog.client.transaction.contents import SettledPart, release, settle
from mirrorlog.client.transaction.transaction import Transaction
from mirrorlog.commitlog.format.header import BatchHeader, read_header
from mirrorlog.errors import (
    AccessRefused,
    BadRequest,
    ConnectionLost,
    InSyncReplicasNotEnough,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotGranted,
    NotMaster,
    OutcomeUnknown,
    OutOfSequence,
    RequestTimeout,
    StaleProducerEpoch,
    StaleRouting,
)
from mirrorlog.wire.frames import How
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.topology import GetRouting, Routing
from mirrorlog.wire.routing import Binding, Exchange
from mirrorlog.wire.transaction_frames import BatchReceipt, Transacted, read_transact


class Holder:
    """The part of a subscription that a transaction needs."""

    queue: str
    closed: bool
    session: Any
    client: Any

    def __init__(self) -> None:
        self.unacked = Unacked()
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def given(holder: Holder, first: int, following: int) -> Granted:
    granted = Granted(first, following, session=holder.unacked.session, epoch=1)
    holder.unacked.grant(granted)
    holder.unacked.giving(granted)
    granted.given = following
    return granted


def taken(holder: Holder, granted: Granted, *ranges: tuple[int, int]) -> SettledPart:
    parts = [(granted, first, following) for first, following in ranges]
    return SettledPart(cast(Subscription, holder), granted.session, granted.epoch, parts=parts)


def test_what_is_acknowledged_in_a_commit_is_settled_by_nobody_else_meanwhile() -> None:
    """Goal: a record is settled once. Take two records, settle one of them from elsewhere, give both back."""
    holder = Holder()
    granted = given(holder, 0, 4)
    each = taken(holder, granted, (1, 2), (3, 4))
    settle([each])
    with pytest.raises(NotGranted):
        holder.unacked.settle(granted, 1, 2)
    release([each], settled=False)
    assert [part for _, part in holder.unacked.unsettled()] == [(0, 4)]
    assert holder.woken == 0


def test_one_record_that_is_settled_already_changes_nothing() -> None:
    """Goal: all or nothing in the hand, too. Two subscriptions, of which the second has settled its record."""
    one, two = Holder(), Holder()
    first, second = given(one, 0, 2), given(two, 5, 7)
    two.unacked.settle(second, 5, 6)
    with pytest.raises(NotGranted):
        settle([taken(one, first, (0, 1)), taken(two, second, (6, 7), (5, 6))])
    assert [part for _, part in one.unacked.unsettled()] == [(0, 2)]
    assert [part for _, part in two.unacked.unsettled()] == [(6, 7)]


def test_the_same_record_twice_is_refused() -> None:
    """Goal: a mistake is told. Acknowledge one record twice in one transaction."""
    holder = Holder()
    granted = given(holder, 0, 2)
    with pytest.raises(NotGranted):
        settle([taken(holder, granted, (0, 1), (0, 1))])
    assert [part for _, part in holder.unacked.unsettled()] == [(0, 2)]


@pytest.mark.parametrize("settled", [True, False])
def test_records_that_come_again_meanwhile_are_kept_back(settled: bool) -> None:
    """Goal: what a commit acknowledges is not given out again before it is known what became of it. Lose the session,
    grant the same records anew, end the commit both ways."""
    holder = Holder()
    each = taken(holder, given(holder, 0, 3), (1, 2))
    settle([each])
    holder.unacked.lose()
    holder.unacked.grant(Granted(0, 3, session=holder.unacked.session, epoch=1))
    waiting = [(granted.given, granted.next) for granted in holder.unacked.waiting if granted.given < granted.next]
    assert waiting == [(0, 1), (2, 3)]
    release([each], settled=settled)
    waiting = [(granted.given, granted.next) for granted in holder.unacked.waiting if granted.given < granted.next]
    assert waiting == ([(0, 1), (2, 3)] if settled else [(0, 1), (1, 2), (2, 3)])
    assert holder.woken == (not settled)


def test_what_was_kept_back_for_a_moment_is_given_out_again_at_once() -> None:
    """Goal: no record waits for the next event. Method: records have come again after a lost session; a transaction
    that acknowledges them fails at another subscription's."""
    one, two = Holder(), Holder()
    first, second = given(one, 0, 2), given(two, 5, 7)
    one.unacked.lose()
    one.unacked.grant(Granted(0, 2, session=one.unacked.session, epoch=1))
    two.unacked.settle(second, 5, 6)
    with pytest.raises(NotGranted):
        settle([taken(one, first, (0, 2)), taken(two, second, (5, 6))])
    assert (one.woken, two.woken) == (1, 0)


class Asked:
    """A client that finds queues in a cluster of the software before; whoever is sent anything fails."""

    closed = False

    async def find(self, queue: str) -> FoundQueue:
        info = QueueInfo(name=queue, queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=0)
        return FoundQueue(info, version=1, told_by="n1", address="n1:1")

    async def vouched(self, found: FoundQueue) -> FoundQueue:
        return found


async def test_a_cluster_that_knows_no_transactions_is_sent_none() -> None:
    """Goal: older software closes the connection that all others share at a frame that it does not know. Commit where
    the nodes say nothing of batches with attributes, which came with the same version: refused at once."""
    assert versions.ATTRIBUTES == versions.TRANSACTIONS
    transaction = Transaction(Transactor(cast(Client, Asked())), level=255, durability=0, timeout_ms=60_000)
    transaction.send("q", b"v")
    with pytest.raises(BadRequest, match="takes no transactions before all its nodes are updated"):
        async with asyncio.timeout(5):
            await transaction.commit()


class Node:
    """A connection to the one master: each answer in turn, an error or None for what a node would say."""

    address = "n1:1"

    def __init__(self, *answers: MirrorlogError | None) -> None:
        self.answers = list(answers)
        self.asked: list[list[BatchHeader]] = []
        self.sent: list[bytes] = []
        self.welcome = SimpleNamespace(limits=SimpleNamespace(max_batch_bytes=1 << 20))
        self.arrived = asyncio.Event()
        self.silent = asyncio.Event()

    async def transact(self, payload: bytes, *, timeout_ms: int) -> tuple[Transacted, list[BatchReceipt]]:
        _, _, content = read_transact(memoryview(payload))
        self.sent.append(bytes(content))
        self.arrived.set()
        self.asked.append([])
        while len(content):
            self.asked[-1].append(header := read_header(content))
            content = content[header.length :]
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        if self.answers:  # None, and more behind it: this one says nothing
            self.silent.set()
            await asyncio.Event().wait()
        receipts = [BatchReceipt(96 * at, at) for at in range(len(self.asked[-1]))]
        return Transacted(0, 1, 1, 0, 0, len(receipts), 0), receipts

    @property
    def numbers(self) -> list[list[tuple[int, int]]]:
        """(producer epoch, sequence) of each batch, by attempt."""
        return [[(each.producer_epoch, each.sequence) for each in attempt] for attempt in self.asked]


class OneNode(Asked):
    """A client whose queues are all in one log of one node, which says that their next producer epoch is 5."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def find(self, queue: str) -> FoundQueue:
        found = await super().find(queue)
        number = 1 + sorted({queue, "a", "b"}).index(queue)
        return replace(found, info=replace(found.info, queue_id=number, attributes=True, producer_epoch=5))

    async def reach_master(self, found: FoundQueue) -> Node:
        return self.node

    async def has_moved(self, found: FoundQueue) -> bool:
        return False


async def committed(transactor: Transactor, *queues: str, timeout_ms: int = 5_000) -> list[Receipt]:
    transaction = Transaction(transactor, level=255, durability=0, timeout_ms=timeout_ms)
    for queue in queues:
        transaction.send(queue, b"v")
    return await transaction.commit()


def transactor_of(node: Node) -> Transactor:
    return Transactor(cast(Client, OneNode(node)))


async def test_commits_are_numbered_one_behind_another() -> None:
    """Goal: a node knows what it has. Two commits, the second with two records of one queue: each batch follows."""
    node = Node()
    transactor = transactor_of(node)
    assert len(await committed(transactor, "a", "b")) == 2
    assert len(await committed(transactor, "a", "a", "b")) == 3
    assert len(await committed(transactor, "a")) == 1
    assert node.numbers == [[(5, 0), (5, 0)], [(5, 1), (5, 1)], [(5, 3)]]
    assert len({each.producer_id for attempt in node.asked for each in attempt}) == 1


async def test_a_producer_that_the_node_does_not_know_begins_a_new_epoch() -> None:
    """Goal: a commit is not refused for its numbers. The node has forgotten the producer, then knows a later epoch of
    it: the same records are sent under the next epoch, from 0, and later commits follow these."""
    node = Node(None)
    transactor = transactor_of(node)
    await committed(transactor, "a")
    node.answers = [OutOfSequence("unknown"), StaleProducerEpoch("ended", producer_epoch=8)]
    await committed(transactor, "a", "b")
    await committed(transactor, "b", "a")
    assert node.numbers == [
        [(5, 0)],
        [(5, 1), (5, 0)],
        [(6, 0), (6, 0)],
        [(9, 0), (9, 0)],
        [(9, 1), (9, 1)],
    ]


async def test_what_is_unknown_is_sent_again_as_it_was_until_that_is_known() -> None:
    """Goal: no retry lands twice. A lost connection, a master without its copies, and then the answer: three times the
    same bytes, and the next commit goes on behind them."""
    node = Node(ConnectionLost("gone"), InSyncReplicasNotEnough("too few"))
    transactor = transactor_of(node)
    await committed(transactor, "a", "b")
    assert len(set(node.sent)) == 1
    await committed(transactor, "a")
    assert node.numbers[-1] == [(5, 1)]


@pytest.mark.parametrize(
    "refusal", [OutOfSequence("unknown"), StaleProducerEpoch("ended", producer_epoch=5), AccessRefused("not yours")]
)
async def test_a_refusal_behind_an_attempt_that_may_have_landed_is_an_unknown_outcome(refusal: MirrorlogError) -> None:
    """Goal: nobody is told that nothing counts of what may count. The first attempt gets no answer, the second one a
    refusal: it is not numbered anew, and the next commit has another producer epoch, so that the first attempt is
    refused if it is still under way."""
    node = Node(ConnectionLost("gone"), refusal)
    transactor = transactor_of(node)
    with pytest.raises(OutcomeUnknown, match="stored as a whole, or not at all"):
        await committed(transactor, "a")
    await committed(transactor, "a", "b")
    assert node.numbers == [[(5, 0)], [(5, 0)], [(6, 0), (5, 0)]]


async def test_a_refusal_of_the_first_attempt_uses_no_numbers() -> None:
    """Goal: sequences have no gap. Refuse a commit, and commit again."""
    node = Node(AccessRefused("not yours"))
    transactor = transactor_of(node)
    with pytest.raises(AccessRefused):
        await committed(transactor, "a")
    await committed(transactor, "a")
    assert node.numbers == [[(5, 0)], [(5, 0)]]


async def test_a_commit_that_is_cancelled_leaves_its_numbers_behind() -> None:
    """Goal: what is cancelled may land or not, and nothing that follows is taken for it. Cancel a commit that waits for
    its answer; the next one of these queues has another producer epoch, one of another queue goes on."""
    node = Node(None, None)
    transactor = transactor_of(node)
    task = asyncio.ensure_future(committed(transactor, "a"))
    await node.silent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    node.answers = []
    await committed(transactor, "a", "b")
    assert node.numbers == [[(5, 0)], [(6, 0), (5, 0)]]


async def test_two_commits_at_once_have_a_producer_each() -> None:
    """Goal: neither waits for the other's numbers. Commit while another one waits; then one has the free one again."""
    node = Node(None, None)
    transactor = transactor_of(node)
    waiting = asyncio.ensure_future(committed(transactor, "a"))
    await node.silent.wait()
    node.answers = []
    await committed(transactor, "a")
    await committed(transactor, "a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ids = [each.producer_id for attempt in node.asked for each in attempt]
    assert (ids[0] != ids[1], ids[1] == ids[2], node.numbers) == (True, True, [[(5, 0)], [(5, 0)], [(5, 1)]])


class RoutingNode(Node):
    """Which also tells the routing: exchange `e` leads to `bound`, at `version`."""

    def __init__(self, *answers: MirrorlogError | None, bound: Sequence[str] = ()) -> None:
        super().__init__(*answers)
        self.bound, self.version, self.questions = list(bound), 1, 0

    async def request(self, asked: GetRouting, expect: type[Routing], *, timeout_ms: int) -> Routing:
        self.questions += 1
        if asked.only_version:
            return Routing(version=self.version)
        bindings = [Binding("e", queue) for queue in self.bound]
        return Routing(version=self.version, exchanges={"e": Exchange("fanout")}, bindings=bindings)

    def bind(self, *queues: str) -> None:
        self.bound, self.version = list(queues), self.version + 1


class RoutedNode(OneNode):
    """A client of such a node, that finds `there`, and has queue `far` in another log."""

    def __init__(self, node: RoutingNode, *, there: Sequence[str] = ("a", "b", "far")) -> None:
        super().__init__(node)
        self.there = list(there)

    def addresses(self) -> list[str]:
        return [self.node.address]

    async def reach(self, address: str) -> Node:
        return self.node

    async def find(self, queue: str) -> FoundQueue:
        if queue not in self.there:
            raise NoSuchQueue(f"no queue {queue!r}", queue=queue)
        found = await super().find(queue)
        log_id = "m" if queue == "far" else "l"
        return replace(found, info=replace(found.info, log_id=log_id))


async def published(transactor: Transactor, *, timeout_ms: int = 5_000) -> list[str]:
    """Where a message ended up."""
    transaction = Transaction(transactor, level=255, durability=0, timeout_ms=timeout_ms)
    message = transaction.publish("e", "k", b"v")
    await transaction.commit()
    return sorted(message.result().receipts)


async def test_what_a_node_calls_stale_is_routed_anew() -> None:
    """Goal: no message goes by bindings that are gone. The node's have changed, and it refuses by name; the same
    numbers are used, for nothing was stored."""
    node = RoutingNode(bound=["a"])
    transactor = Transactor(cast(Client, RoutedNode(node)))
    assert await published(transactor) == ["a"]
    node.bind("a", "b")
    node.answers = [StaleRouting("changed", version=2)]
    assert await published(transactor) == ["a", "b"]
    assert node.numbers == [[(5, 0)], [(5, 1)], [(5, 1), (5, 0)]]


async def test_what_may_be_stored_is_never_routed_anew() -> None:
    """Goal: no message lands by two states of the bindings. The first attempt gets no answer, bindings change: the same
    bytes are sent again; called stale then, it is an unknown outcome."""
    for answer, expected in ((None, ["a"]), (StaleRouting("changed", version=2), None)):
        node = RoutingNode(ConnectionLost("gone"), answer, bound=["a"])
        if answer is None:
            node.answers.pop()
        transactor = Transactor(cast(Client, RoutedNode(node)))
        committing = asyncio.ensure_future(published(transactor))
        await node.arrived.wait()
        node.bind("b")
        await transactor.routes("/").refresh(node.version)
        if expected is None:
            with pytest.raises(OutcomeUnknown, match="stored as a whole, or not at all; last: changed"):
                await committing
        else:
            assert await committing == expected
        assert len(set(node.sent)) == 1


@pytest.mark.parametrize("before", [["a", "far"], ["far", "a"], []])
async def test_nothing_is_refused_by_bindings_of_before(before: list[str]) -> None:
    """Goal: who binds or unbinds, is answered, and commits, is not told what was so before. A commit knows bindings
    that lead to two logs, or nowhere; by now they lead to one."""
    node = RoutingNode(bound=["b"])
    transactor = Transactor(cast(Client, RoutedNode(node)))
    assert await published(transactor) == ["b"]
    node.bind(*before)
    await transactor.routes("/").refresh(node.version)
    node.bind("a")
    assert await published(transactor) == ["a"]


async def test_bindings_that_are_known_lately_are_not_asked_for_again() -> None:
    """Goal: a commit costs one round trip. Two in a row; when what is known is too old, the third asks."""
    node = RoutingNode(bound=["a"])
    transactor = Transactor(cast(Client, RoutedNode(node)))
    for _ in range(2):
        await published(transactor)
    assert node.questions == 1
    transactor.routes("/").vouched_at -= 2 * FRESH_S
    await published(transactor)
    assert node.questions == 2


async def test_a_queue_that_is_bound_and_not_found_is_looked_for_until_it_is() -> None:
    """Goal: a message passes over no queue whose node is down, and waits for none whose binding is gone. The queue is
    not found by anybody: the commit ends in time, naming it; or its binding goes meanwhile: it counts."""
    node = RoutingNode(bound=["a", "b"])
    client = RoutedNode(node, there=["a"])
    transactor = Transactor(cast(Client, client))
    with pytest.raises(LogUnavailable, match=r"queue 'b' \(to which exchange 'e' leads\) is there"):
        await published(transactor, timeout_ms=100)
    committing = asyncio.ensure_future(published(transactor))
    await asyncio.sleep(0)
    node.bind("a")
    assert await committing == ["a"]
    assert node.numbers == [[(5, 0)]]


async def test_a_queue_that_is_deleted_under_a_commit_takes_its_binding_along() -> None:
    """Goal: as a publisher: a deleted queue is no refusal of what its binding led there. The node says that a queue is
    gone, and the binding is; then one that the transaction itself names is gone, which refuses it."""
    node = RoutingNode(NoSuchQueue("number 2 is gone"), bound=["a", "b"])
    client = RoutedNode(node)
    transactor = Transactor(cast(Client, client))
    committing = asyncio.ensure_future(published(transactor))
    await node.arrived.wait()
    client.there.remove("b")
    node.bind("a")
    assert await committing == ["a"]
    transaction = Transaction(transactor, level=255, durability=0, timeout_ms=5_000)
    transaction.publish("e", "k", b"v")
    transaction.send("b", b"v")
    with pytest.raises(NoSuchQueue, match="no queue 'b'"):
        await transaction.commit()
    assert [len(attempt) for attempt in node.asked] == [2, 1]


def in_session(holder: Holder, node: Node, queue: str) -> Delivered:
    """What a subscription gave out that has a session on the node's connection."""
    given_out = given(holder, 0, 1)
    holder.queue, holder.closed = queue, False
    holder.session = SimpleNamespace(connection=node, number=3)
    return cast(Delivered, SimpleNamespace(grant=(holder, given_out, 0, 1)))


@pytest.mark.parametrize(("how", "times"), [("ack", 2), ("reject", 2), ("return", 1), ("return beside a record", 2)])
async def test_a_return_is_said_once_unless_its_commit_is_numbered(
    monkeypatch: pytest.MonkeyPatch, how: str, times: int
) -> None:
    """Goal: a return counts once. The first attempt gets no answer: what settles for good is said again, and so is what
    a node knows by its numbers; a return alone is an unknown outcome."""
    monkeypatch.setattr("mirrorlog.client.transaction.transaction.Subscription", Holder)
    node = Node(RequestTimeout("no answer"))
    client = OneNode(node)
    transaction = Transaction(Transactor(cast(Client, client)), level=255, durability=0, timeout_ms=5_000)
    holder = Holder()
    holder.client = client
    delivered = in_session(holder, node, "a")
    if how == "ack":
        transaction.ack(delivered)
    else:
        transaction.nack(delivered, requeue=how != "reject")
    if how.endswith("record"):
        transaction.send("b", b"v")
    if times == 1:
        with pytest.raises(OutcomeUnknown, match="not said twice"):
            await transaction.commit()
    else:
        await transaction.commit()
    assert len(node.asked) == times


async def test_what_is_given_back_may_be_given_out_again_at_once() -> None:
    """Goal: a return keeps nothing back, an end does. The records come again while the commit is under way."""
    for how, expected in ((How.RETURN, [(0, 3)]), (How.DEAD, [(0, 1), (2, 3)])):
        holder = Holder()
        granted = given(holder, 0, 3)
        each = SettledPart(cast(Subscription, holder), granted.session, granted.epoch, how, parts=[(granted, 1, 2)])
        settle([each])
        holder.unacked.grant(Granted(0, 3, session=holder.unacked.session, epoch=1))
        waiting = [(each.given, each.next) for each in holder.unacked.waiting if each.given < each.next]
        assert waiting == expected


class Interrupted(OneNode):
    """A client whose node is down for as many looks as it is told, and then is back."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.looks_down = 0

    async def find(self, queue: str) -> FoundQueue:
        if self.looks_down:
            self.looks_down -= 1
            raise LogUnavailable("queue is on node n1 alone, which is down; start n1", node="n1", since=0, queue=queue)
        return await super().find(queue)


async def test_who_has_committed_there_waits_for_its_node_whatever_became_of_the_last_commit() -> None:
    """Goal: a restart costs nobody his commits. Method: a new client is told at once that the node is down; one that
    has committed waits, twice, though errors of the first time have made it forget where the queue was."""
    client = Interrupted(Node())
    transactor = Transactor(cast(Client, client))
    client.looks_down = 2
    with pytest.raises(LogUnavailable):
        await committed(transactor, "a")
    assert client.looks_down == 1
    client.looks_down = 0
    await committed(transactor, "a")
    for _ in range(2):
        client.looks_down = 2
        client.node.answers = [BadRequest("not now")]
        with pytest.raises(BadRequest, match="not now"):
            await committed(transactor, "a")
        assert len(await committed(transactor, "a")) == 1
    assert client.looks_down == 0


async def test_who_settles_in_a_commit_waits_for_the_node_of_his_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who has records of a queue in hand is at work with it, also before his first commit. Method: a commit that
    acknowledges and sends, while the node is down for two looks."""
    monkeypatch.setattr("mirrorlog.client.transaction.transaction.Subscription", Holder)
    client = Interrupted(Node())
    transaction = Transaction(Transactor(cast(Client, client)), level=255, durability=0, timeout_ms=5_000)
    holder = Holder()
    holder.client = client
    transaction.ack(in_session(holder, client.node, "a"))
    transaction.send("a", b"v")
    client.looks_down = 2
    assert len(await transaction.commit()) == 1


async def test_names_of_queues_that_were_committed_to_are_kept_for_some() -> None:
    """A client that lives long keeps the latest."""
    transactor = transactor_of(Node())
    for number in range(AT_WORK_MAX + 1):
        transactor.committed([f"q{number}"])
    assert not transactor.at_work(["q0"])
    assert transactor.at_work(["q0", "q1"])


@pytest.mark.parametrize("another", ["", "declared anew"])
async def test_a_queue_that_was_declared_anew_under_a_commit_is_another_one_though_its_id_is_given_again(
    another: str,
) -> None:
    """Goal: no records land in a queue that they were not sent to. Method: between two attempts the queue's incarnation
    changes, and not its id; where it stays the second attempt lands."""
    node = Node(NotMaster("moved"))
    client = OneNode(node)
    find, incarnations = client.find, ["first"]

    async def found(queue: str) -> FoundQueue:
        each = await find(queue)
        return replace(each, info=replace(each.info, incarnation=incarnations[-1]))

    client.find = found  # type: ignore[method-assign]
    committing = asyncio.ensure_future(committed(Transactor(cast(Client, client)), "a"))
    await node.arrived.wait()
    incarnations.append(another or "first")
    if another:
        with pytest.raises(NoSuchQueue, match="declared anew"):
            await committing
    else:
        await committing
    assert len(node.sent) == (1 if another else 2)


async def test_a_wrong_delay_is_told_at_once() -> None:
    """Goal: mistakes are told. Delays that no frame can say."""
    for delay_ms in (-1, 2**32):
        with pytest.raises(BadRequest, match="delay_ms"):
            Client().transaction().nack(cast(Delivered, None), delay_ms=delay_ms)


@pytest.mark.parametrize("wrong", [{"confirm": "most"}, {"durability": "tape"}, {"timeout_ms": 0}])
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    """Goal: mistakes are told at once. Each option with a value that it does not take."""
    with pytest.raises(BadRequest, match=next(iter(wrong)).removesuffix("_ms")):
        Client().transaction(**wrong)


async def test_a_transaction_is_used_once() -> None:
    """Goal: no record is lost in one that has ended. Send, acknowledge and commit behind a rollback."""
    tx = Client().transaction()
    tx.send("q", b"v")
    await tx.rollback()
    with pytest.raises(BadRequest, match="was rolled back"):
        tx.send("q", b"v")
    with pytest.raises(BadRequest, match="was rolled back"):
        await tx.commit()
    with pytest.raises(BadRequest, match="was rolled back"):
        await tx.rollback()
