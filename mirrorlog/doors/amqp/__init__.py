"""AMQP 0-9-1, as RabbitMQ 3.13 speaks it: a door for its clients."""
