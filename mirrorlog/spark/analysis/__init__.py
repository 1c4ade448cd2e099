"""Analysis of landed logs: throughput, lag, redeliveries, latency; each a function, a table and a picture.

python -m mirrorlog.spark.analysis throughput --table lake/flights --out report
"""
