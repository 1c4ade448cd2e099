"""Dead letters of this node's queues: read, addressed, sent, and what the log keeps of that."""
