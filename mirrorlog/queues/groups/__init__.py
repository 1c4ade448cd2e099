"""The groups of a log's queues: what each has acknowledged, and as what."""
