"""Spark's side, measured: reading a queue, landing it in Delta, and what Spark, delta-rs and Kafka's source do with the
same rows in the same run."""
