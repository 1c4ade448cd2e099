"""Load for Kafka with confluent-kafka: W1, W2 and W3 on one topic of one partition, every copy in sync for a confirm.

    python -m bench.peers.kafka_load --servers 127.0.0.1:9092,... --seconds 4

W1 comes with the batches that many settings guides name and with the largest that a broker takes by default: it answers
one request of a connection after the other, and with all copies to wait for, larger requests are what is left.

W1 asks only for reports of failures: a Python callback for each of millions of successes would measure the callback.
What is confirmed is then what was sent and is no longer in the client's queue.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is imported there, not exported

from bench.peers.load import Options, Window, one_by_one, options, random_bodies, report

_TOPIC: Final = "python"
_BURST: Final = 64
_CONSUME: Final = 1000
_ANSWER_SECONDS: Final = 30.0
_CREATE_SECONDS: Final = 60.0


def main() -> None:
    given = options()
    _create_topic(given.servers)
    _publish(given, given.warm, linger_ms=5, batch_bytes=262_144)
    _publish(given, given.warm_again, linger_ms=20, batch_bytes=1_000_000)
    _publish_one_by_one(given)
    for each_record in (False, True):
        _consume(given, each_record=each_record)


def _create_topic(servers: str) -> None:
    """Tries until three brokers are registered: until then there is no place for three copies."""
    admin = AdminClient({"bootstrap.servers": servers})
    deadline = time.monotonic() + _CREATE_SECONDS
    while len(admin.list_topics(timeout=_CREATE_SECONDS).brokers) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"three brokers did not register within {_CREATE_SECONDS:g} s")
        time.sleep(0.1)
    topic = NewTopic(_TOPIC, num_partitions=1, replication_factor=3, config={"min.insync.replicas": "3"})
    admin.create_topics([topic])[_TOPIC].result(timeout=_CREATE_SECONDS)
    while True:
        try:
            _stored(servers)
            return
        except KafkaException:  # the brokers hear of the new topic one after the other
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _producer(servers: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": servers, "acks": "all", "compression.type": "none", **settings})


def _publish(given: Options, warm: float, *, linger_ms: int, batch_bytes: int) -> None:
    failures: list[KafkaError] = []

    def failed(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    settings = {"linger.ms": linger_ms, "batch.size": batch_bytes}
    producer = _producer(given.servers, **settings, **{"delivery.report.only.error": True, "on_delivery": failed})
    bodies, sent = random_bodies(), 0
    before = _stored(given.servers)
    window = Window(warm, given.measure)
    while window.open(sent - len(producer)):
        for _ in range(_BURST):
            body = bodies[sent % len(bodies)]
            while True:
                try:
                    producer.produce(_TOPIC, body, partition=0)
                    break
                except BufferError:  # the client's queue is full: as it says, wait and try again
                    producer.poll(0.005)
            sent += 1
        producer.poll(0)
    result = window.result(sent - len(producer))
    left = producer.flush(_ANSWER_SECONDS)
    stored = _stored(given.servers) - before
    if failures:
        raise RuntimeError(f"{len(failures)} of {sent} not confirmed, the first: {failures[0]}")
    variant = f"linger {linger_ms} ms, batches of {batch_bytes // 1000} kB"
    report("W1", variant, {**result, "sent": sent, "confirmed": sent - left, "stored": stored})


def _publish_one_by_one(given: Options) -> None:
    producer = _producer(given.servers, **{"linger.ms": 0})
    bodies, before = random_bodies(), _stored(given.servers)
    answers: list[KafkaError | None] = []

    def send(number: int) -> None:
        answers.clear()
        producer.produce(_TOPIC, bodies[number % len(bodies)], partition=0, on_delivery=lambda e, _: answers.append(e))
        while not answers:
            producer.poll(_ANSWER_SECONDS)
        if answers[0] is not None:
            raise RuntimeError(f"record {number} not confirmed: {answers[0]}")

    result = one_by_one(given, send)
    report("W2", "linger 0", {**result, "stored": _stored(given.servers) - before})


def _consume(given: Options, *, each_record: bool) -> None:
    """The whole partition, again and again. `each_record`: take every record's value out, as a loop over them would."""
    backlog = _stored(given.servers)
    count, seconds = 0, 0.0
    while seconds < given.measure:
        consumer = _consumer(given.servers)
        consumer.assign([TopicPartition(_TOPIC, 0, 0)])
        begin, first = 0.0, 0
        read = 0
        while read < backlog:
            # Never more than are left: it waits for as many as it is asked for.
            messages = consumer.consume(num_messages=min(_CONSUME, backlog - read), timeout=_ANSWER_SECONDS)
            if not messages:
                raise TimeoutError(f"{read} of {backlog} records read, then none for {_ANSWER_SECONDS:g} s")
            if each_record:
                _touch(messages)
            read += len(messages)
            if not begin:
                begin, first = time.perf_counter(), read
        seconds += time.perf_counter() - begin
        count += read - first
        consumer.close()
    report(
        "W3",
        f"consume({_CONSUME})" + (", value() of each" if each_record else ""),
        {"count": count, "seconds": seconds},
    )


def _touch(messages: list[Message]) -> None:
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(str(message.error()))
        message.value()


def _consumer(servers: str) -> Consumer:
    return Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})


def _stored(servers: str) -> int:
    consumer = _consumer(servers)
    low, high = consumer.get_watermark_offsets(TopicPartition(_TOPIC, 0), timeout=_ANSWER_SECONDS)
    consumer.close()
    return int(high - low)


if __name__ == "__main__":
    main()
