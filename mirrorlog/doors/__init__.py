"""Services for other languages: processes that are clients of a node's native door."""
