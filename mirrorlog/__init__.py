"""A replicated commit log with queues on top, and a landing into Delta Lake."""

__version__ = "0.1.0"
