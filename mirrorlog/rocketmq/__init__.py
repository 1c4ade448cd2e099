"""Following RocketMQ: what stands in its commit log, and how that gets into queues."""
