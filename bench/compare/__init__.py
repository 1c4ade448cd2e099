"""The same stories on RabbitMQ's mirrored queues and on mirrorlog, side by side: `python -m bench.compare`."""
