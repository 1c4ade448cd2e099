"""What a request ends with of which an attempt was lost: a refusal of the next one is not believed of the whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import pytest

from mirrorlog.attempts import Attempts, leaves_doubt, outcome_of
from mirrorlog.client import Client
from mirrorlog.client.subscription.lease_receipts import LeaseReceipt
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    DiskFull,
    FlushSlaveTimeout,
    HoldTaken,
    InSyncReplicasNotEnough,
    InUse,
    LimitReached,
    MirrorlogError,
    NoSuchGroup,
    NoSuchHold,
    NoSuchQueue,
    NotLeader,
    NotMaster,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    QueueExists,
    ReceiptStale,
    RequestTimeout,
    UnsupportedVersion,
)
from mirrorlog.wire.messages.queues import Position
from tests.client.scripted_nodes import LOG_ID, QUEUE, Node, Nodes, scripted

Act = Callable[[Client], Awaitable[object]]

RECEIPT: Final = str(LeaseReceipt(QUEUE, "", 3, 1 << 32))
LONG_MS: Final = 20_000
"""For what ends before; SHORT_MS for what lasts as long as it may, and comes to its node well before."""
SHORT_MS: Final = 1_500


async def publish(client: Client) -> None:
    async with client.producer(QUEUE, delivery_timeout_ms=client.request_timeout_ms) as producer:
        await (await producer.send(b"v"))


async def transact(client: Client) -> None:
    async with client.transaction(timeout_ms=client.request_timeout_ms) as transaction:
        transaction.send(QUEUE, b"v")
        await transaction.commit()


AT_MASTER: Final[dict[str, Act]] = {
    "ack": lambda client: client.settle_receipt(QUEUE, RECEIPT),
    "nack": lambda client: client.settle_receipt(QUEUE, RECEIPT, how="return"),
    "extend": lambda client: client.extend_receipt(QUEUE, RECEIPT, 1_000),
    "lease": lambda client: client.lease(QUEUE),
    "commit position": lambda client: client.admin.commit_position(
        QUEUE, "g", Position(log_id=LOG_ID, epoch=1, queue_offset=0)
    ),
    "purge": lambda client: client.admin.purge(QUEUE),
    "redrive": lambda client: client.admin.redrive(QUEUE),
    "reset groups": lambda client: client.admin.reset_groups(QUEUE, to="earliest"),
    "delete group": lambda client: client.admin.delete_group(QUEUE, "g"),
    "set hold": lambda client: client.admin.set_hold(QUEUE, "l", holder="me", queue_offset=0, lease_ms=1_000),
    "end hold": lambda client: client.admin.end_hold(QUEUE, "l"),
    "declare": lambda client: client.admin.declare(QUEUE),
    "declare without a name": lambda client: client.admin.declare(""),
    "delete": lambda client: client.admin.delete_queue(QUEUE),
}
OF_CLUSTER: Final[dict[str, Act]] = {
    "drain": lambda client: client.admin.drain("n1"),
    "rebalance": lambda client: client.admin.rebalance(),
    "forget a node": lambda client: client.admin.forget_node("n1"),
    "promote": lambda client: client.admin.promote("l", accept_loss=True),
    "declare an exchange": lambda client: client.admin.topology.declare_exchange("e"),
    "delete an exchange": lambda client: client.admin.topology.delete_exchange("e"),
    "bind": lambda client: client.admin.topology.bind("e", QUEUE),
    "unbind": lambda client: client.admin.topology.unbind("e", QUEUE),
    "add a virtual host": lambda client: client.admin.topology.add_virtual_host("v"),
    "delete a virtual host": lambda client: client.admin.topology.delete_virtual_host("v"),
    "set a user": lambda client: client.admin.topology.set_user("u"),
    "delete a user": lambda client: client.admin.topology.delete_user("u"),
    "set permissions": lambda client: client.admin.topology.set_permissions("u", configure="", write="", read=""),
    "clear permissions": lambda client: client.admin.topology.clear_permissions("u"),
}
STREAMS: Final[dict[str, Act]] = {"publish": publish, "transact": transact}
ALL: Final = {**AT_MASTER, **OF_CLUSTER, **STREAMS}
WAYS: Final = ("ack", "redrive", "set hold", "declare", "delete", "bind", "forget a node", "drain", *STREAMS)
"""One for each way to ask."""
PASSING: Final = {
    **dict.fromkeys(ALL, InSyncReplicasNotEnough("one copy is up; nothing was stored")),
    **dict.fromkeys(OF_CLUSTER, NotLeader("nobody coordinates; ask again")),
}
FINAL: Final[dict[str, MirrorlogError]] = {
    **dict.fromkeys(ALL, LimitReached("there are enough")),
    **dict.fromkeys(STREAMS, BadRequest("that is none")),
}


def connected(nodes: Nodes, timeout_ms: int = LONG_MS) -> Client:
    return Client(*nodes.servers, request_timeout_ms=timeout_ms)


async def killed(client: Client, *nodes: Node) -> None:
    """And the client has noticed."""
    for node in nodes:
        node.kill()
    while client.connected:  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ALL)
async def test_a_refusal_behind_a_lost_attempt_is_not_what_became_of_the_request(name: str) -> None:
    """Goal: nobody is told that nothing was stored of something that may count. Method: a node takes the request in and
    cuts the connection; what is sent then is refused."""
    async with scripted(2) as nodes, connected(nodes) as client:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, FINAL[name]
        with pytest.raises(OutcomeUnknown):
            await ALL[name](client)
        assert nodes["n1"].cuts == 0


@pytest.mark.parametrize("name", WAYS)
async def test_a_refusal_that_does_not_pass_in_time_is_not_what_became_of_the_request(name: str) -> None:
    """Goal: the same when it is tried again and again. Method: as above, for a reason that may pass, and does not."""
    async with scripted(2) as nodes, connected(nodes, SHORT_MS) as client:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, PASSING[name]
        with pytest.raises(OutcomeUnknown):
            await ALL[name](client)
        assert nodes["n1"].cuts == 0


@pytest.mark.parametrize("name", ALL)
async def test_a_refusal_is_believed_when_nothing_was_sent_before(name: str) -> None:
    """Goal: what says that nothing was stored is passed on where it is true. Method: the node that is asked first is
    down, and refuses connections; the next one refuses the request."""
    async with scripted(2) as nodes, connected(nodes) as client:
        await killed(client, nodes["n1"])
        work = asyncio.ensure_future(_outcome(ALL[name](client)))
        await asyncio.sleep(0)
        nodes["n2"].refusal = FINAL[name]
        nodes.promote("n2", version=2)
        assert type(await work) is type(FINAL[name])


@pytest.mark.parametrize("name", {**AT_MASTER, **OF_CLUSTER})
async def test_a_lost_connection_says_that_nothing_was_sent(name: str) -> None:
    """Goal: ConnectionLost of a change means that no node has it. Method: all nodes are down."""
    async with scripted(2) as nodes, connected(nodes, SHORT_MS) as client:
        await killed(client, *nodes.by_id.values())
        assert type(await _outcome(ALL[name](client))) is ConnectionLost


@pytest.mark.long
@pytest.mark.parametrize("name", WAYS)
async def test_a_silent_node_leaves_the_outcome_unknown(name: str) -> None:
    """Goal: no answer is no refusal, whatever it is called. Method: a node that answers nothing but questions."""
    async with scripted(1) as nodes, connected(nodes, SHORT_MS) as client:
        nodes["n1"].mute = True
        assert isinstance(await _outcome(ALL[name](client)), OutcomeUnknown)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ack", ReceiptStale("somebody else has it")),
        ("set hold", HoldTaken("another landing has it")),
        ("declare", QueueExists("with other arguments")),
    ],
)
async def test_what_tells_how_things_stand_is_passed_on_behind_a_lost_attempt(
    name: str, answer: MirrorlogError
) -> None:
    """Goal: who can know what became of it does. Method: as above, and the answer speaks of how things stand now."""
    async with scripted(2) as nodes, connected(nodes) as client:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, answer
        assert type(await _outcome(ALL[name](client))) is type(answer)


async def test_what_may_have_been_given_back_may_be_somebody_elses_for_that_reason() -> None:
    """Goal: ReceiptStale behind a lost return is no refusal: it may be what came of it. Method: as above."""
    async with scripted(2) as nodes, connected(nodes) as client:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, ReceiptStale("somebody else has it")
        assert type(await _outcome(ALL["nack"](client))) is OutcomeUnknown


async def test_what_is_deleted_for_a_caller_whose_answer_was_lost_is_deleted() -> None:
    """Goal: the caller's own deletion is no error. Method: the connection is cut; then the queue is not there."""
    async with scripted(2) as nodes, connected(nodes) as client:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, NoSuchQueue("no queue 'q'")
        assert await client.admin.delete_queue(QUEUE) == 0
        for name, gone in (("delete group", NoSuchGroup("no group 'g'")), ("end hold", NoSuchHold("no landing 'l'"))):
            nodes["n1"].cuts, nodes["n1"].refusal = 1, gone
            assert await _outcome(ALL[name](client)) is None


async def test_what_is_not_there_to_be_deleted_is_told_unless_that_is_well() -> None:
    async with scripted(1) as nodes, connected(nodes) as client:
        for gone, delete in (
            (NoSuchQueue("no queue 'q'"), partial(client.admin.delete_queue, QUEUE)),
            (NoSuchGroup("no group 'g'"), partial(client.admin.delete_group, QUEUE, "g")),
            (NoSuchHold("no landing 'l'"), partial(client.admin.end_hold, QUEUE, "l")),
        ):
            nodes["n1"].refusal = gone
            assert type(await _outcome(delete())) is type(gone)
            assert await _outcome(delete(missing_ok=True)) is None


async def test_records_are_not_redriven_twice_for_one_call() -> None:
    """Goal: who asks for ten sends ten. Method: the master takes it in and is lost; another one is master then, and
    would take it."""
    async with scripted(2) as nodes, connected(nodes) as client:
        nodes["n1"].cuts = 1
        nodes.promote("n2", version=2, heard_by="n2")
        nodes["n2"].refusal = Overloaded("asked again")
        outcome = await _outcome(client.admin.redrive(QUEUE))
        assert isinstance(outcome, OutcomeUnknown)
        assert nodes["n1"].cuts == 0
        assert "asked again" not in outcome.message


@pytest.mark.parametrize(
    ("error", "doubt"),
    [
        (ConnectionLost("gone"), True),
        (RequestTimeout("late"), True),
        (FlushSlaveTimeout("late"), True),
        (MirrorlogError("internal error: KeyError"), True),
        (ProtocolError("no answer to that"), True),
        (UnsupportedVersion("not yet"), False),
        (NotMaster("another"), False),
        (DiskFull("full"), False),
        (BadRequest("no"), False),
        (InUse("used"), False),
        (NoSuchQueue("none"), False),
    ],
)
def test_an_attempt_is_in_doubt_unless_its_answer_says_what_became_of_it(error: MirrorlogError, doubt: bool) -> None:
    assert leaves_doubt(error) is doubt


def test_one_attempt_in_doubt_is_enough_whoever_answers_first() -> None:
    """Goal: of two that are under way at once the lost one counts, in either order; one that is cancelled too, for what
    was sent goes on."""
    for first, second in (
        (ConnectionLost("gone"), NotMaster("another")),
        (NotMaster("another"), asyncio.CancelledError()),
    ):
        attempts = Attempts()
        for error in (first, second):
            with pytest.raises(type(error)), attempts.one():
                raise error
        assert attempts.in_doubt
        with pytest.raises(OutcomeUnknown, match="may have been done or not; last: full"), attempts.request():
            raise DiskFull("full")


def test_a_clear_refusal_stays_what_it_is() -> None:
    """Also one of an unknown outcome that says more than that."""
    full, late = DiskFull("full"), FlushSlaveTimeout("late")
    assert outcome_of(full, in_doubt=False) is full
    assert outcome_of(late, in_doubt=True) is late


async def _outcome(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except MirrorlogError as error:
        return error
    return None
