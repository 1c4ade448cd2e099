"""What a cluster says of itself, put together, and what in it keeps queues from making progress: for all who tell."""
