"""Programs for RabbitMQ while nodes die: what was confirmed is there, and consumers go on."""

from __future__ import annotations

import pytest

from tests.doors.amqp.clients import connected, until
from tests.process.clusters import eventually, fast_cluster

MESSAGES = 300


@pytest.mark.long
def test_what_was_confirmed_is_delivered_after_the_masters_death() -> None:
    """Goal: no confirmed message is lost, and a consumer is not told of a failover it has not asked about. Method: the
    master of three nodes is killed in the midst of publishes at another node's door; each is confirmed there; a
    consumer that was there before gets all of them, those that it may have had before flagged redelivered."""
    with fast_cluster(3, amqp=True, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        with connected(cluster, "n2") as producing, connected(cluster, "n3") as consuming:
            publisher, consumer = producing.channel(), consuming.channel()
            publisher.queue_declare("flights", durable=True)
            publisher.confirm_delivery()
            consumer.basic_qos(prefetch_count=20)
            found: dict[bytes, int] = {}
            doubtful: list[bytes] = []

            def take(_: object, method: object, __: object, body: bytes) -> None:
                if body in found and not method.redelivered:  # type: ignore[attr-defined]
                    doubtful.append(body)
                found[body] = found.get(body, 0) + 1
                consumer.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

            consumer.basic_consume("flights", take)
            for number in range(MESSAGES):
                if number == MESSAGES // 3:
                    cluster.nodes["n1"].kill()
                publisher.basic_publish("", "flights", b"%d" % number)
                consuming.process_data_events(0)
            until(consuming, lambda: len(found) == MESSAGES, f"all are delivered, not {len(found)}")
            assert not doubtful
            eventually(
                lambda: publisher.queue_declare("flights", passive=True).method.message_count == 0, "all are settled"
            )
