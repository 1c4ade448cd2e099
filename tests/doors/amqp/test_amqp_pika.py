"""Programs for RabbitMQ with pika, unchanged, against real nodes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, ProbableAccessDeniedError, UnroutableError

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from tests.doors.amqp.clients import connected, consumed, until
from tests.process.clusters import fast_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1, amqp=True) as found:
        yield found


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Any]:
    with connected(cluster) as found:
        yield found


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def queue(channel: Any) -> str:
    name = f"q-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True)
    return name


def refused(channel: Any, call: Any) -> tuple[int, str]:
    """What the channel is closed with."""
    with pytest.raises(ChannelClosedByBroker) as failure:
        call()
    return failure.value.reply_code, failure.value.reply_text


def test_a_message_keeps_its_properties_and_their_types(connection: Any, channel: Any, queue: str) -> None:
    """Goal: what came in goes out. Method: every property, and a table of every type that pika writes."""
    headers = {"a": 1, "text": "x", "table": {"b": [True, None, 15]}, "long": 2**40}
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", headers=headers, delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", message_id="m", timestamp=1_700_000_000, type="t", user_id="guest",
        app_id="app",
    )  # fmt: skip
    channel.basic_publish("", queue, b"hello", sent)
    method, found, body = channel.basic_get(queue)
    assert (method.exchange, method.routing_key, method.redelivered, body) == ("", queue, False, b"hello")
    assert found == sent
    channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(queue) == (None, None, None)


def test_consumers_acknowledge_one_many_and_none(connection: Any, channel: Any, queue: str) -> None:
    """Goal: ack, multiple, nack, reject, what is not acknowledged comes again. Method: ten, settled in each way."""
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    found = consumed(connection, channel, queue, 10)
    tags = [method.delivery_tag for method, _, _ in found]
    assert [body for _, _, body in found] == [b"%d" % number for number in range(10)]
    channel.basic_ack(tags[2], multiple=True)
    channel.basic_reject(tags[3], requeue=False)
    channel.basic_ack(tags[5])
    channel.close()
    again = consumed(connection, channel := connection.channel(), queue, 5, auto_ack=True)
    assert [(body, method.redelivered) for method, _, body in again] == [(b"%d" % n, True) for n in (4, 6, 7, 8, 9)]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_prefetch_bounds_what_is_unacknowledged(connection: Any, channel: Any, queue: str) -> None:
    """Goal: qos. Method: five messages, a prefetch of two; an ack brings one more."""
    channel.basic_qos(prefetch_count=2)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    found = consumed(connection, channel, queue, 2)
    connection.process_data_events(0.3)
    assert len(found) == 2
    channel.basic_ack(found[0][0].delivery_tag)
    until(connection, lambda: len(found) == 3, "one more comes")


def test_exchanges_route_and_what_leads_nowhere_comes_back(connection: Any, channel: Any, queue: str) -> None:
    """Goal: topic, headers, exchange to exchange, mandatory, confirms. Method: bindings made and taken away."""
    names = [f"{kind}-{uuid.uuid4()}" for kind in ("topic", "headers", "fanout")]
    topic, headers, fanout = names
    for name in names:
        channel.exchange_declare(name, name.split("-")[0], auto_delete=False)
    channel.queue_bind(queue, topic, "a.#")
    channel.queue_bind(queue, headers, arguments={"x-match": "all", "n": 5})
    channel.exchange_bind(topic, fanout)
    channel.confirm_delivery()
    channel.basic_publish(topic, "a.b.c", b"1", mandatory=True)
    channel.basic_publish(headers, "", b"2", pika.BasicProperties(headers={"n": 5}), mandatory=True)
    channel.basic_publish(fanout, "a", b"3", mandatory=True)
    with pytest.raises(UnroutableError) as failure:
        channel.basic_publish(headers, "", b"4", pika.BasicProperties(headers={"n": 6}), mandatory=True)
    assert (failure.value.messages[0].method.reply_code, failure.value.messages[0].body) == (312, b"4")
    channel.basic_publish(topic, "b", b"dropped")
    channel.queue_unbind(queue, topic, "a.#")
    with pytest.raises(UnroutableError):
        channel.basic_publish(topic, "a.b.c", b"5", mandatory=True)
    found = [channel.basic_get(queue, auto_ack=True) for _ in range(4)]
    assert [body for _, _, body in found] == [b"1", b"2", b"3", None]
    assert found[0][0].exchange == topic


def test_another_connections_binding_counts_at_once(cluster: Cluster, channel: Any, queue: str) -> None:
    """Goal: who binds and publishes elsewhere is not told that it leads nowhere. Method: two connections."""
    exchange = f"x-{uuid.uuid4()}"
    with connected(cluster) as other:
        publisher = other.channel()
        publisher.confirm_delivery()
        publisher.exchange_declare(exchange, "direct")
        with pytest.raises(UnroutableError):
            publisher.basic_publish(exchange, "k", b"0", mandatory=True)
        channel.queue_bind(queue, exchange, "k")
        publisher.basic_publish(exchange, "k", b"1", mandatory=True)
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"


def test_errors_have_rabbitmqs_codes_and_texts(cluster: Cluster, connection: Any, queue: str) -> None:
    """Goal: what clients' code looks for. Method: each mistake on a channel of its own."""
    channels = [connection.channel() for _ in range(6)]
    gone = f"no queue 'none-{queue}' in vhost '/'"
    assert refused(channels[0], lambda: channels[0].queue_declare(f"none-{queue}", passive=True)) == (
        404, f"NOT_FOUND - {gone}",
    )  # fmt: skip
    assert refused(channels[1], lambda: channels[1].queue_declare(queue, durable=False)) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': received 'false' but "
        "current is 'true'",
    )
    code, text = refused(channels[2], lambda: channels[2].exchange_declare("amq.topic", "direct", durable=True))
    assert (code, "inequivalent arg 'type' for exchange 'amq.topic'" in text) == (406, True)
    channels[3].basic_ack(99)
    code, text = refused(channels[3], lambda: channels[3].queue_declare(queue, durable=True))
    assert (code, text) == (406, "PRECONDITION_FAILED - unknown delivery tag 99")
    assert refused(channels[4], lambda: channels[4].queue_declare("amq.mine"))[0] == 403
    mine = channels[5].queue_declare("", exclusive=True).method.queue
    with connected(cluster) as other:
        theirs = other.channel()
        code, text = refused(theirs, lambda: theirs.queue_declare(mine, passive=True))
        assert (code, "cannot obtain exclusive access to locked queue" in text) == (405, True)


def test_a_publish_that_fails_without_confirms_closes_its_channel(connection: Any, channel: Any) -> None:
    """Goal: no message is lost without a word. Method: to an exchange that is not there."""
    channel.basic_publish("nowhere", "k", b"x")
    code, text = refused(channel, lambda: channel.queue_declare(""))
    assert (code, text) == (404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'")


def test_a_queue_that_goes_cancels_its_consumers(connection: Any, channel: Any, queue: str) -> None:
    """Goal: consumer cancel notify. Method: another channel deletes it."""
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    until(connection, lambda: cancelled, "the cancel comes")


def test_exclusive_queues_go_with_their_connection(cluster: Cluster, channel: Any) -> None:
    """Goal: the lifetime of a server-named exclusive queue. Method: its connection ends; its name is free."""
    with connected(cluster) as other:
        name = other.channel().queue_declare("", exclusive=True).method.queue
        assert name.startswith("amq.gen-")
    assert refused(channel, lambda: channel.queue_declare(name, passive=True))[0] == 404


def test_large_messages_pass_in_many_frames(channel: Any, queue: str) -> None:
    """Goal: a body of more than one frame. Method: a MiB and a bit."""
    body = bytes(range(256)) * 4100
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_a_native_program_and_one_of_amqp_read_each_other(cluster: Cluster, channel: Any, queue: str) -> None:
    """Goal: one queue, two protocols. Method: a record each way, with properties and headers."""
    with Client(cluster.nodes["n1"].client) as client:
        with client.producer(queue) as producer:
            producer.send(b"native", key=b"k", headers={"h": b"1"}, content_type="text/x", correlation_id="7")
        method, found, body = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, body, found.content_type, found.correlation_id) == ("k", b"native", "text/x", "7")
        assert found.headers == {"h": "1"}
        channel.basic_publish("", queue, b"amqp", pika.BasicProperties(content_type="text/y", reply_to="r"))
        channel.queue_declare(queue, passive=True)
        with client.subscribe(queue) as subscription:
            (delivery,) = subscription.receive(1, timeout_ms=10_000)
            assert (delivery.value, delivery.key) == (b"amqp", queue.encode())
            assert (delivery.properties.content_type, delivery.properties.reply_to) == ("text/y", "r")
            delivery.ack()


def test_a_wrong_virtual_host_is_refused(cluster: Cluster) -> None:
    """Goal: 530, as RabbitMQ has it."""
    refusal = pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - vhost none not found")
    with refusal, connected(cluster, virtual_host="none"):
        pass


def test_what_a_full_queue_refuses_is_a_nack(channel: Any) -> None:
    """Goal: x-overflow=reject-publish. Method: one place, two messages."""
    name = f"q-{uuid.uuid4()}"
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"1")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"2")


def test_a_transaction_counts_at_its_commit(connection: Any, channel: Any, queue: str) -> None:
    """Goal: tx. Method: two messages, of which one's ack is in it; rolled back, then committed."""
    channel.basic_publish("", queue, b"0")
    (method, _, _), *_ = consumed(connection, channel, queue, 1)
    channel.tx_select()
    for end, left in ((channel.tx_rollback, 0), (channel.tx_commit, 2)):
        channel.basic_ack(method.delivery_tag)
        for number in range(2):
            channel.basic_publish("", queue, b"%d" % number)
        end()
        other = connection.channel()
        assert other.queue_declare(queue, passive=True).method.message_count == 0
        other.close()
        assert left == 0 or method.delivery_tag == 1
    until(connection, lambda: channel.get_waiting_message_count() == 0, "nothing waits")
    channel.close()
    again = connection.channel()
    assert again.queue_declare(queue, passive=True).method.message_count == 2


def test_a_delayed_exchange_holds_messages_back(connection: Any, channel: Any, queue: str) -> None:
    """Goal: x-delayed-message, for countdowns held by the broker. Method: a second, then none, in another order."""
    exchange = f"late-{uuid.uuid4()}"
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    channel.queue_bind(queue, exchange, "k")
    channel.basic_publish(exchange, "k", b"late", pika.BasicProperties(headers={"x-delay": 1_000}))
    channel.basic_publish(exchange, "k", b"now")
    found = consumed(connection, channel, queue, 1, auto_ack=True)
    assert [body for _, _, body in found] == [b"now"]
    until(connection, lambda: len(found) == 2, "the late one comes")


def test_dead_letters_tell_how_they_died_as_a_table(connection: Any, channel: Any, queue: str) -> None:
    """Goal: x-death, as Java's and Spring's code reads it. Method: rejected, and expired by its own time."""
    name, exchange = f"dying-{uuid.uuid4()}", f"dlx-{uuid.uuid4()}"
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 60_000})
    channel.basic_publish("", name, b"1", pika.BasicProperties(headers={"n": 5}))
    method, _, _ = channel.basic_get(name)
    channel.basic_reject(method.delivery_tag, requeue=False)
    found = consumed(connection, channel, queue, 1)
    (death,) = found[0][1].headers["x-death"]
    assert (death["queue"], death["reason"], death["count"], death["exchange"]) == (name, "rejected", 1, "")
    assert death["routing-keys"] == [name]
    assert (found[0][1].headers["n"], found[0][1].headers["x-first-death-queue"]) == (5, name)
    channel.basic_publish("", name, b"2", pika.BasicProperties(expiration="1"))
    until(connection, lambda: len(found) == 2, "the expired one comes")
    (death,) = found[1][1].headers["x-death"]
    assert (death["reason"], death["original-expiration"], found[1][1].expiration) == ("expired", "1", None)


def test_carbon_copies_reach_their_queues_once(channel: Any, queue: str) -> None:
    """Goal: CC and BCC. Method: both name another queue; what BCC says is nobody else's to know."""
    other = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": [other], "BCC": [other], "a": 1}))
    for name in (queue, other):
        _, found, body = channel.basic_get(name, auto_ack=True)
        assert (body, found.headers) == (b"x", {"CC": [other], "a": 1})
    assert channel.basic_get(other)[0] is None


def test_recovered_messages_come_again(connection: Any, channel: Any, queue: str) -> None:
    """Goal: basic.recover. Method: three, unacknowledged."""
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    found = consumed(connection, channel, queue, 3)
    channel.basic_recover(requeue=True)
    until(connection, lambda: len(found) == 6, "they come again")
    assert [(method.redelivered, body) for method, _, body in found[3:]] == [(True, b"%d" % n) for n in range(3)]


def test_a_channels_prefetch_is_of_all_its_consumers(connection: Any, channel: Any, queue: str) -> None:
    """Goal: qos of a channel. Method: two consumers share four; what was said of a consumer is changed while it is."""
    channel.basic_qos(prefetch_count=4, global_qos=True)
    for number in range(12):
        channel.basic_publish("", queue, b"%d" % number)
    found = consumed(connection, channel, queue, 4)
    channel.basic_consume(queue, lambda _, *delivery: found.append(delivery))
    connection.process_data_events(0.3)
    assert len(found) <= 6  # the second one's share, beside what the first one had
    channel.basic_qos(prefetch_count=24, global_qos=True)
    until(connection, lambda: len(found) == 12, "all come")


def test_urgent_messages_come_first_and_late_ones_not_at_all(connection: Any, channel: Any) -> None:
    """Goal: priority and expiration. Method: a queue with priorities; the lowest, the highest, an expired one."""
    name = f"q-{uuid.uuid4()}"
    channel.queue_declare(name, arguments={"x-max-priority": 5, "x-queue-type": "classic"})
    for priority in (0, 5, 3):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    channel.basic_publish("", name, b"late", pika.BasicProperties(expiration="0"))
    found = [channel.basic_get(name, auto_ack=True)[2] for _ in range(4)]
    assert found == [b"5", b"3", b"0", None]
    channel.queue_declare(name, arguments={"x-max-priority": 5})


def test_answers_come_without_a_queue_of_ones_own(cluster: Cluster, connection: Any, channel: Any, queue: str) -> None:
    """Goal: direct reply-to. Method: a request, and its answer from another connection; without a consumer: 406."""
    answers: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *delivery: answers.append(delivery[3]), auto_ack=True)
    asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    channel.basic_publish("", queue, b"ask", asked)
    with connected(cluster) as other:
        server = other.channel()
        (_, found, body), *_ = consumed(other, server, queue, 1, auto_ack=True)
        assert (body, found.correlation_id) == (b"ask", "1")
        assert found.reply_to.startswith("amq.rabbitmq.reply-to.")
        server.basic_publish("", found.reply_to, b"answer")
        until(connection, lambda: answers == [b"answer"], "the answer comes")
        server.basic_publish("", queue, b"ask", asked)
        assert refused(server, lambda: server.queue_declare(queue, passive=True))[0] == 406
