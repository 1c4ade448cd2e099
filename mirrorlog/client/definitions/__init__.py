"""Definitions: all that a cluster has declared, as one document of RabbitMQ's form; planned, read and written."""
