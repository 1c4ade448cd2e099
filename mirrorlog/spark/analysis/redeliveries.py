"""Redeliveries: records that say of themselves that they were delivered before, and records that came twice.

The log has no redelivery data of its own yet: it does not count deliveries to consumers, so nothing here is about
them. What can be seen is what producers wrote into headers when they sent a message on, and an identity that is there
twice. Header names are compared without regard to case:

    x-death                                        present: dead-lettered before, as RabbitMQ writes it
    redelivered, x-redelivered                     true, 1 or yes
    x-delivery-count, x-retry-count, x-retries     a number from 1: earlier deliveries
    attempts, x-attempts, x-attempt, x-delivery-attempt    a number from 2: this one counts
    idempotency-key, x-idempotency-key, message-id, x-message-id, x-deduplication-id    an identity

Two records of a queue with the same identity are one and its duplicate. A key is none, for many records may have it;
who knows better asks for keys as identities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from mirrorlog.spark.analysis.rows import EVERY, stretch

DEATHS: Final = ("x-death",)
FLAGS: Final = ("redelivered", "x-redelivered")
EARLIER: Final = ("x-delivery-count", "x-retry-count", "x-retries")
ATTEMPTS: Final = ("attempts", "x-attempts", "x-attempt", "x-delivery-attempt")
IDENTITIES: Final = ("idempotency-key", "x-idempotency-key", "message-id", "x-message-id", "x-deduplication-id")
_TRUE: Final = ("true", "1", "yes")


def redeliveries(rows: DataFrame, every: str = EVERY, *, by_key: bool = False) -> DataFrame:
    """A row per queue and stretch of append time: time, queue, records, redelivered, duplicates (of a record with a
    smaller queue offset), and their shares of all, 0 to 1. `by_key`: a record without an identity has its key for one.
    In order of time."""
    identity = f.coalesce(_first_value(IDENTITIES), f.col("key") if by_key else f.lit(None))
    marked = rows.select(
        "queue",
        "offset",
        stretch("append_time", every),
        _redelivered().alias("redelivered"),
        identity.alias("identity"),
    )
    before = f.row_number().over(Window.partitionBy("queue", "identity").orderBy("offset"))
    identified = marked.where(f.col("identity").isNotNull()).withColumn("duplicate", before > 1)
    plain = marked.where(f.col("identity").isNull()).withColumn("duplicate", f.lit(False))
    found = identified.unionByName(plain).groupBy("time", "queue")
    counts = found.agg(
        f.count("*").alias("records"),
        f.count_if("redelivered").alias("redelivered"),
        f.count_if("duplicate").alias("duplicates"),
    )
    shares = [(f.col(name) / f.col("records")).alias(f"{name}_share") for name in ("redelivered", "duplicates")]
    return counts.select("*", *shares).orderBy("time", "queue")


def _redelivered() -> Column:
    said = [
        _any(DEATHS, lambda value: f.lit(True)),
        _any(FLAGS, lambda value: f.lower(f.trim(value)).isin(*_TRUE)),
        _any(EARLIER, lambda value: _number(value) >= 1),
        _any(ATTEMPTS, lambda value: _number(value) >= 2),
    ]
    return f.coalesce(said[0] | said[1] | said[2] | said[3], f.lit(False))


def _any(names: Sequence[str], holds: Callable[[Column], Column]) -> Column:
    """Whether any header of these names has a value, as text, for which it holds. No header is False."""

    def one(header: Column) -> Column:
        value = header["value"].cast("string")
        return f.lower(header["key"]).isin(*names) & f.coalesce(holds(value), f.lit(False))

    return f.coalesce(f.exists("headers", one), f.lit(False))


def _first_value(names: Sequence[str]) -> Column:
    """The value of the first header of these names that has one; null without."""
    named = f.filter("headers", lambda header: f.lower(header["key"]).isin(*names) & header["value"].isNotNull())
    return f.try_element_at(named, f.lit(1))["value"]


def _number(value: Column) -> Column:
    """Null for what is none."""
    return f.trim(value).try_cast("double")
