"""What exactly is measured beside mirrorlog. The only place that names a version; a test compares `nats_go/go.mod`.

Kafka 4.4.0 and RocketMQ 5.5.1 are not complete on Maven Central. RabbitMQ 3.10 is the last line in Debian 12 and still
has classic mirrored queues.
"""

from __future__ import annotations

from typing import Final

KAFKA: Final = "4.3.1"
NATS_SERVER: Final = "2.15.2"
NATS_GO: Final = "1.55.0"
RABBITMQ: Final = "3.10.8"
RABBITMQ_PERF_TEST: Final = "2.22.1"
REDIS: Final = "7.0.15"
ROCKETMQ: Final = "5.5.0"
ROCKETMQ_4: Final = "4.9.7"
"""It is followed, and not measured. Newer ones of that line are not complete on Maven Central."""

SPARK: Final = "4.2.0"
"""Of Spark's source for Kafka, which must be that of pyspark; with the libraries that it was built with."""
SPARK_KAFKA_CLIENTS: Final = "3.9.2"
SPARK_COMMONS_POOL: Final = "2.13.1"

JAVA_MAJOR_MIN: Final = 17
"""Kafka's servers need it."""
