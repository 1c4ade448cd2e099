"""Spark's side: the data source over a log, the landing in Delta Lake, and the jars both need."""
